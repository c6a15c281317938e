"""The public quota API: plain dictionaries in, plain dictionaries out (surface, "Python API").

A border only. It checks what it is given, naming the field of anything it refuses with `UsageError`, and asks the
control plane for every answer; it reads no store and changes none of its arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from loopx.control_plane.errors import NotFoundError, UsageError
from loopx.control_plane.quota import budgets, plan, states
from loopx.control_plane.quota.decision import decide, encode_packet
from loopx.control_plane.quota.facts import GoalFacts
from loopx.control_plane.quota.policy import QuotaPolicy
from loopx.control_plane.quota.states import QuotaState, WaitingOn

__all__ = ["build_quota_plan", "quota_status", "quota_with_handoff_outcome_floor"]

PLAN_SCHEMA = "loopx_quota_plan_v0"
MODES = ("should-run", "plan")

_DERIVED_KEYS = frozenset({"state", "reason", "spent_slots"})
_HALTED = frozenset({"stopped", "paused", "completed", "cancelled"})
_FOCUS_WAIT = "focus_wait"
_OUTCOMES = frozenset({"surface_only", "outcome_gap", "outcome_progress", "primary_goal_outcome"})


def quota_status(
    goal: Mapping[str, object],
    waiting_on: str | None = WaitingOn.AGENT,
    *,
    severity: str | None = None,
    focus_wait: bool = False,
) -> dict[str, object]:
    """The quota state of one goal, with its numbers and its reason (contracts, section 7).

    `goal["quota"]` may hold `compute`, `window_hours`, `slot_minutes`, `allowed_slots`, `spent_slots` and
    `outcome_floor`; `goal["state"]` or `goal["status"]` may say that it is stopped or paused; `focus_wait` may stand
    among `goal["lifecycle"]`. An explicit `waiting_on=None` means that nothing is selected. Raises `UsageError`.
    """
    numbers = _plan_numbers(goal)
    inputs = states.QuotaInputs(
        compute=numbers.compute,
        allowed_slots=numbers.allowed_slots,
        spent_slots=numbers.spent_slots,
        waiting_on=_optional_text("waiting_on", waiting_on),
        severity=_optional_text("severity", severity),
        focus_wait=_flag("focus_wait", focus_wait) or _has_focus_marker(goal),
        stopped=_halted(goal),
    )
    return _quota_dict(numbers, states.derive(inputs))


def quota_with_handoff_outcome_floor(
    quota: Mapping[str, object],
    turns: Iterable[str | Mapping[str, object] | None] = (),
    *,
    threshold: int = 3,
) -> dict[str, object]:
    """The quota; eligible becomes `focus_wait` when the last `threshold` delivered turns were not accountable.

    `turns`, oldest first, are delivery outcomes, or mappings with `delivery_outcome` and `verified_blocker`; None is a
    turn that delivered nothing. No other state is ever overridden. Raises `UsageError`.
    """
    floor = budgets.read_count("threshold", threshold, least=1)
    verdict = states.QuotaVerdict(state=_state_of(quota), reason=str(quota.get("reason", "")))
    streak = states.floor_streak(_floor_turn(turn) for turn in turns)
    held = states.with_handoff_floor(verdict, streak=streak, threshold=floor)
    return {**quota, "state": str(held.state), "reason": held.reason}


def build_quota_plan(
    status: GoalFacts | Mapping[str, object] | Sequence[GoalFacts | Mapping[str, object]],
    *,
    goal_id: str | None = None,
    mode: str = "plan",
) -> dict[str, object]:
    """The plan over one goal, several, or a status payload with `goals`; each with its quota, state and reason.

    A goal is a mapping (as for `quota_status`, with `waiting_on`, `severity` and delivered `turns` if known) or the
    facts of a snapshot, which get the whole should-run decision. `mode="should-run"` is about exactly one goal, whose
    fields then stand at the top level. Raises `UsageError`, and `NotFoundError` for a goal that is not among them.
    """
    if mode not in MODES:
        raise _refuse("mode", mode, f"use one of {', '.join(MODES)}")
    entries = [_entry(goal) for goal in _goals_of(status)]
    if goal_id is not None:
        entries = [entry for entry in entries if entry["goal_id"] == goal_id]
        if not entries:
            raise NotFoundError("goal_not_found", f"no goal {goal_id!r} in this status", hint="see: loopx goal list")
    head: dict[str, object] = {"schema_version": PLAN_SCHEMA, "ok": True, "mode": mode}
    if mode == "plan":
        return {**head, "goals": entries}
    if len(entries) != 1:
        raise _refuse("goal_id", goal_id, f"name one goal: this status holds {len(entries)}")
    return {**head, **entries[0]}


def _entry(goal: object) -> dict[str, object]:
    if isinstance(goal, GoalFacts):
        decided: dict[str, object] = msgspec.json.decode(encode_packet(decide(goal)))
        decided.pop("schema_version")
        return decided
    found = _mapping("goal", goal)
    quota = _quota_plan_goal_quota(found)
    return {
        "goal_id": _goal_id(found),
        "should_run": quota["state"] == QuotaState.ELIGIBLE,
        "state": quota["state"],
        "reason": quota["reason"],
        "quota": quota,
    }


def _quota_plan_goal_quota(goal: Mapping[str, object]) -> dict[str, object]:
    """One goal's quota for the plan: the status, then the hand-off outcome floor over its delivered turns."""
    policy, _ = _read_quota(goal)
    quota = quota_status(
        goal,
        _optional_text("waiting_on", goal.get("waiting_on", WaitingOn.AGENT)),
        severity=_optional_text("severity", goal.get("severity")),
    )
    turns = goal.get("turns", ())
    if isinstance(turns, str) or not isinstance(turns, Sequence):
        raise _refuse("turns", turns, "give a list of delivery outcomes, oldest first")
    return quota_with_handoff_outcome_floor(quota, turns, threshold=policy.outcome_floor)


def _goals_of(status: object) -> Sequence[object]:
    if isinstance(status, GoalFacts):
        return [status]
    if isinstance(status, Mapping):
        goals = status.get("goals")
        return [status] if goals is None else _goals_of(goals)
    if isinstance(status, Sequence) and not isinstance(status, str | bytes):
        return status
    raise _refuse("goals", status, "give a goal, a list of goals, or a status with `goals`")


def _plan_numbers(goal: Mapping[str, object]) -> plan.QuotaNumbers:
    policy, spent = _read_quota(goal)
    return plan.quota_numbers(policy, spent_slots=spent)


def _read_quota(goal: Mapping[str, object]) -> tuple[QuotaPolicy, int]:
    written = _mapping("quota", _mapping("goal", goal).get("quota", {}))
    policy_part = {key: value for key, value in written.items() if key not in _DERIVED_KEYS}
    # The seed's rule is compute <= 0: a negative one pauses here, though no policy with it can be set.
    compute = policy_part.get("compute", 1.0)
    number = budgets.read_number("compute", compute, least=-1000, most=1000)
    policy = budgets.read_quota_policy({**policy_part, "compute": max(0, number)})
    spent = budgets.read_count("spent_slots", written.get("spent_slots", 0), least=0)
    return msgspec.structs.replace(policy, compute=number), spent


def _quota_dict(numbers: plan.QuotaNumbers, verdict: states.QuotaVerdict) -> dict[str, object]:
    return {
        "compute": numbers.compute,
        "window_hours": numbers.window_hours,
        "slot_minutes": numbers.slot_minutes,
        "allowed_slots": numbers.allowed_slots,
        "spent_slots": numbers.spent_slots,
        "state": str(verdict.state),
        "reason": verdict.reason,
    }


def _state_of(quota: Mapping[str, object]) -> QuotaState:
    state = _mapping("quota", quota).get("state")
    if not isinstance(state, str) or state not in tuple(QuotaState):
        raise _refuse("state", state, "pass the dictionary that quota_status returned")
    return QuotaState(state)


def _floor_turn(turn: object) -> states.FloorTurn:
    if isinstance(turn, Mapping):
        blocker = _flag("verified_blocker", turn.get("verified_blocker", False))
        return states.FloorTurn(outcome=_outcome(turn.get("delivery_outcome")), verified_blocker=blocker)
    return states.FloorTurn(outcome=_outcome(turn))


def _outcome(word: object) -> str | None:
    if word is None:
        return None
    if not isinstance(word, str) or word not in _OUTCOMES:
        raise _refuse("delivery_outcome", word, f"use one of {', '.join(sorted(_OUTCOMES))}")
    return word


def _halted(goal: Mapping[str, object]) -> bool:
    words = [_optional_text(name, goal.get(name)) for name in ("state", "status")]
    return any(word in _HALTED for word in words)


def _has_focus_marker(goal: Mapping[str, object]) -> bool:
    return any(_marks_focus_wait(name, goal.get(name)) for name in ("lifecycle", "lifecycle_markers"))


def _marks_focus_wait(name: str, markers: object) -> bool:
    if markers is None:
        return False
    if isinstance(markers, str):
        return markers == _FOCUS_WAIT
    if isinstance(markers, Mapping):
        return _flag(_FOCUS_WAIT, markers.get(_FOCUS_WAIT, False))
    if isinstance(markers, Sequence | set | frozenset):
        return _FOCUS_WAIT in markers
    raise _refuse(name, markers, "give a list of marker names")


def _goal_id(goal: Mapping[str, object]) -> str:
    found = goal.get("goal_id", goal.get("id"))
    if not isinstance(found, str) or not found:
        raise _refuse("goal_id", found, "every goal of a plan needs its id")
    return found


def _mapping(field: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise _refuse(field, value, "give a mapping")
    return value


def _optional_text(field: str, value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise _refuse(field, value, "give a word, or None")
    return value


def _flag(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _refuse(field, value, "give true or false")
    return value


def _refuse(field: str, value: object, hint: str) -> UsageError:
    return UsageError("quota_input_invalid", f"{field}: {value!r} is not usable", hint=hint, data={"field": field})
