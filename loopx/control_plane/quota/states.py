"""The seven quota states, their precedence and the words of their reasons (contracts, section 7).

This room turns what a goal waits on and what it spent into one state. It never looks at todos, gates or budgets:
`decision.py` does, and says the same state for the same facts.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec


class QuotaState(enum.StrEnum):
    """Whether a goal's quota lets an automatic turn start; in order of precedence."""

    PAUSED = "paused"
    BLOCKED_HEALTH = "blocked_health"
    OPERATOR_GATE = "operator_gate"
    WAITING = "waiting"
    FOCUS_WAIT = "focus_wait"
    THROTTLED = "throttled"
    ELIGIBLE = "eligible"


class WaitingOn(enum.StrEnum):
    """Who or what moves next. The wire value for the agent is `codex`; `agent` is read as an alias."""

    AGENT = "codex"
    USER_OR_CONTROLLER = "user_or_controller"
    CONTROLLER = "controller"
    EXTERNAL_EVIDENCE = "external_evidence"
    MONITOR = "monitor_signal"


AGENT_ALIAS = "agent"
HIGH_SEVERITY = "high"
PERSON_WAITS = frozenset({WaitingOn.USER_OR_CONTROLLER, WaitingOn.CONTROLLER})


class QuotaInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What the derivation reads. `waiting_on` None: nothing is selected; an unknown word waits."""

    compute: float
    allowed_slots: int
    spent_slots: int
    waiting_on: str | None = WaitingOn.AGENT
    severity: str | None = None
    focus_wait: bool = False
    stopped: bool = False


class QuotaVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One state and the words of its reason."""

    state: QuotaState
    reason: str


def derive(inputs: QuotaInputs) -> QuotaVerdict:
    """The state by the fixed precedence, first match wins. Total: every input has an answer."""
    state = quota_state(inputs)
    return QuotaVerdict(state=state, reason=reason_for(state, inputs))


def quota_state(inputs: QuotaInputs) -> QuotaState:
    """The state alone; see `derive`."""
    if inputs.stopped or inputs.compute <= 0:
        return QuotaState.PAUSED
    if inputs.severity == HIGH_SEVERITY:
        return QuotaState.BLOCKED_HEALTH
    if inputs.waiting_on in PERSON_WAITS:
        return QuotaState.OPERATOR_GATE
    if inputs.waiting_on not in (WaitingOn.AGENT, AGENT_ALIAS):
        return QuotaState.WAITING
    if inputs.focus_wait:
        return QuotaState.FOCUS_WAIT
    if inputs.spent_slots >= inputs.allowed_slots:
        return QuotaState.THROTTLED
    return QuotaState.ELIGIBLE


def reason_for(state: QuotaState, inputs: QuotaInputs) -> str:
    """The documented words of a state's reason."""
    compute = number_words(inputs.compute)
    if state is QuotaState.PAUSED and inputs.compute > 0:
        return "goal is stopped; all automatic turns paused"
    if state is QuotaState.PAUSED:
        return f"{compute} compute quota; all automatic turns paused"
    if state is QuotaState.THROTTLED:
        return f"{compute} compute quota spent {inputs.spent_slots}/{inputs.allowed_slots} slots in this window"
    if state is QuotaState.ELIGIBLE:
        return f"{compute} compute quota; eligible for the next automatic agent turn"
    if state is QuotaState.WAITING and inputs.waiting_on == WaitingOn.EXTERNAL_EVIDENCE:
        return "external evidence is pending"
    return _FIXED_REASONS[state]


_FIXED_REASONS = {
    QuotaState.BLOCKED_HEALTH: "health or contract blocker prevents spending compute",
    QuotaState.OPERATOR_GATE: "operator gate blocks gated delivery; safe non-gated steering may continue",
    QuotaState.WAITING: "no active Codex-ready work",
    QuotaState.FOCUS_WAIT: "delivery is paused until there is new evidence or a new direction",
}


def number_words(value: float) -> str:
    """A number as people write it: 1.0 is `1`, 0.25 is `0.25`; never in powers of ten."""
    text = f"{value:.6f}".rstrip("0").rstrip(".")
    return "0" if text in ("", "-0") else text


class FloorTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One delivered turn as the hand-off floor sees it. `outcome` None: the turn delivered nothing that counts."""

    outcome: str | None
    verified_blocker: bool = False


UNACCOUNTABLE_OUTCOMES = frozenset({"surface_only", "outcome_gap"})


def floor_streak(turns: Iterable[FloorTurn]) -> int:
    """Delivered turns in a row, newest last, that ended `surface_only` or `outcome_gap`.

    An accountable outcome or a verified blocker report resets it; a turn that delivered nothing neither adds nor
    resets.
    """
    streak = 0
    for turn in turns:
        if turn.verified_blocker:
            streak = 0
        elif turn.outcome in UNACCOUNTABLE_OUTCOMES:
            streak += 1
        elif turn.outcome is not None:
            streak = 0
    return streak


def with_handoff_floor(verdict: QuotaVerdict, *, streak: int, threshold: int) -> QuotaVerdict:
    """Turn `eligible` into `focus_wait` once `streak` reaches `threshold`; leave every other state as it is."""
    if verdict.state is not QuotaState.ELIGIBLE or streak < threshold:
        return verdict
    return QuotaVerdict(state=QuotaState.FOCUS_WAIT, reason=floor_reason(streak, threshold))


def floor_reason(streak: int, threshold: int) -> str:
    """The floor's reason, with the streak and the threshold in it."""
    return f"hand-off outcome floor not met: {streak} turns in a row without an accountable outcome (floor {threshold})"
