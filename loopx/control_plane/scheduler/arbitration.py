"""Who or what wakes a goal next (quota, "The scheduler"): one table, first match wins.

It reads what the should-run decision said and answers with one computed instant, so that nobody has to poll. It never
decides whether a turn may run, and a wake is not a run: the decision is made again on fresh facts.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Callable

import msgspec

from loopx.control_plane.goal import CLOSED_GOAL_STATES
from loopx.control_plane.quota.decision import QuotaDecision
from loopx.control_plane.quota.facts import Breaker, GoalFacts, WaitKind
from loopx.control_plane.quota.rules import Rule

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
SLOW_RECHECK_MS = HOUR_MS
JITTER_MS = 2 * MINUTE_MS


class WakeKind(enum.StrEnum):
    """Why the goal wakes when it does."""

    STOP = "stop"
    """The goal has ended: nothing wakes it."""
    NONE = "none"
    """Paused: nothing but a command wakes it."""
    ON_ANSWER = "on_answer"
    LIMIT_RESET = "limit_reset"
    SLOT_FREES = "slot_frees"
    OUTSIDE = "outside"
    MONITOR = "monitor"
    BACKOFF = "backoff"
    TODO_WAKE = "todo_wake"
    NOW = "now"
    OCCURRENCE = "occurrence"


class WakeDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The next wake. `at_ms` None: no instant brings it on. `recheck`: `at_ms` is only a slow look, not the cause."""

    kind: WakeKind
    at_ms: int | None = None
    recheck: bool = False


class WakeInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What the table reads. `jitter_ms` spreads those who wait for one reset; it is passed in, never drawn here."""

    now_ms: int
    rule: Rule
    closed: bool = False
    closeout: bool = False
    person: bool = False
    wake_after_ms: int | None = None
    limit: bool = False
    idle_streak: int = 0
    """Turns in a row without any accountable change."""
    last_turn_ms: int | None = None
    next_monitor_ms: int | None = None
    next_occurrence_ms: int | None = None
    jitter_ms: int = 0


class WakeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row: a condition, and the wake it gives."""

    when: Callable[[WakeInputs], bool]
    wake: Callable[[WakeInputs], WakeDecision]


def arbitrate(inputs: WakeInputs) -> WakeDecision:
    """The next wake. Total: a goal that is not stopped, paused or asking is always given an instant."""
    return next(row for row in TABLE if row.when(inputs)).wake(inputs)


def wake_inputs(
    facts: GoalFacts,
    decision: QuotaDecision,
    *,
    idle_streak: int = 0,
    last_turn_ms: int | None = None,
    next_monitor_ms: int | None = None,
    jitter_ms: int = 0,
) -> WakeInputs:
    """What the table reads of a decision and its facts."""
    return WakeInputs(
        now_ms=facts.now_ms,
        rule=decision.rule,
        closed=facts.state in CLOSED_GOAL_STATES,
        closeout=decision.rule is Rule.NOTHING_LEFT,
        person=decision.user_action_required,
        wake_after_ms=decision.wake_after_ms,
        limit=facts.wait is not None and facts.wait.kind is WaitKind.LIMIT,
        # An open breaker has its own answer (a replan, then a person): waiting before it would only delay that.
        idle_streak=idle_streak if facts.breaker is Breaker.CLOSED else 0,
        last_turn_ms=last_turn_ms,
        next_monitor_ms=next_monitor_ms,
        next_occurrence_ms=facts.next_occurrence_ms,
        jitter_ms=jitter_ms,
    )


def backoff_ms(streak: int) -> int:
    """How long to wait after `streak` turns without progress: a minute, doubling up to an hour; 0 without a streak."""
    if streak <= 0:
        return 0
    return HOUR_MS if streak > 6 else MINUTE_MS << (streak - 1)


def jitter_for(key: str, *, most_ms: int = JITTER_MS) -> int:
    """A spread that is the same for the same key, from 0 to `most_ms`, so that a fleet does not wake as one."""
    return zlib.crc32(key.encode()) % (most_ms + 1)


def _waits(inputs: WakeInputs) -> bool:
    return inputs.rule is Rule.WAIT_PENDING


def _at(kind: WakeKind, inputs: WakeInputs, *, plus_ms: int = 0) -> WakeDecision:
    """The decision's own instant; without one, a slow look."""
    if inputs.wake_after_ms is None:
        return WakeDecision(kind=kind, at_ms=inputs.now_ms + SLOW_RECHECK_MS, recheck=True)
    return WakeDecision(kind=kind, at_ms=inputs.wake_after_ms + plus_ms)


def _monitor_wake(inputs: WakeInputs) -> WakeDecision:
    return WakeDecision(kind=WakeKind.MONITOR, at_ms=_earliest(inputs.wake_after_ms, inputs.next_monitor_ms))


def _backoff_wake(inputs: WakeInputs) -> WakeDecision:
    return WakeDecision(kind=WakeKind.BACKOFF, at_ms=_backoff_until(inputs))


def _backoff_until(inputs: WakeInputs) -> int:
    since = inputs.now_ms if inputs.last_turn_ms is None else inputs.last_turn_ms
    return since + backoff_ms(inputs.idle_streak)


def _eligible_wake(inputs: WakeInputs) -> WakeDecision:
    due = inputs.next_occurrence_ms
    if due is None or due <= inputs.now_ms:
        return WakeDecision(kind=WakeKind.NOW, at_ms=inputs.now_ms)
    return _unless_monitor(inputs, WakeDecision(kind=WakeKind.OCCURRENCE, at_ms=due))


def _todo_wake(inputs: WakeInputs) -> WakeDecision:
    return _unless_monitor(inputs, _at(WakeKind.TODO_WAKE, inputs))


def _unless_monitor(inputs: WakeInputs, wake: WakeDecision) -> WakeDecision:
    if inputs.next_monitor_ms is not None and (wake.at_ms is None or inputs.next_monitor_ms < wake.at_ms):
        return WakeDecision(kind=WakeKind.MONITOR, at_ms=inputs.next_monitor_ms)
    return wake


def _earliest(*instants: int | None) -> int | None:
    return min((at for at in instants if at is not None), default=None)


TABLE: tuple[WakeRow, ...] = (
    WakeRow(when=lambda i: i.closed, wake=lambda i: WakeDecision(kind=WakeKind.STOP)),
    WakeRow(when=lambda i: i.rule is Rule.GOAL_PAUSED, wake=lambda i: WakeDecision(kind=WakeKind.NONE)),
    WakeRow(
        when=lambda i: i.person,
        wake=lambda i: WakeDecision(kind=WakeKind.ON_ANSWER, at_ms=i.now_ms + SLOW_RECHECK_MS, recheck=True),
    ),
    WakeRow(
        when=lambda i: _waits(i) and i.limit,
        wake=lambda i: _at(WakeKind.LIMIT_RESET, i, plus_ms=i.jitter_ms),
    ),
    WakeRow(when=lambda i: i.rule is Rule.WINDOW_USED_UP, wake=lambda i: _at(WakeKind.SLOT_FREES, i)),
    WakeRow(when=_waits, wake=lambda i: _at(WakeKind.OUTSIDE, i)),
    WakeRow(when=lambda i: i.rule is Rule.MONITOR_DUE, wake=_monitor_wake),
    WakeRow(when=lambda i: i.rule is Rule.BLOCKED_WITH_WAKE, wake=_todo_wake),
    # What closes a goal waits for nothing.
    WakeRow(when=lambda i: i.closeout, wake=lambda i: WakeDecision(kind=WakeKind.NOW, at_ms=i.now_ms)),
    WakeRow(when=lambda i: i.idle_streak > 0 and _backoff_until(i) > i.now_ms, wake=_backoff_wake),
    WakeRow(when=lambda i: True, wake=_eligible_wake),
)
