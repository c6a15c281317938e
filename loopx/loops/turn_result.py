"""From a loop's outcome to the turn's result: one table, one pure function (contracts, section 10).

It reads what LoopX itself measured, and a claim of the worker only where a row says so. It evaluates nothing, asks
nobody and writes nothing; `ResultRule` names the row that decided, so that every result has an exact reason.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

import msgspec

from loopx.control_plane.ids import TodoId
from loopx.control_plane.turn_driver.transaction import HostRetry, LoopXTurnResultKind, TurnRecovery
from loopx.control_plane.work_items.delivery_outcome import (
    DeliveryEvidence,
    DeliveryOutcome,
    DeliveryTurnKind,
    derive_outcome,
    lower,
    normalise_turn_kind,
)
from loopx.control_plane.work_items.gate import GateKind
from loopx.control_plane.work_items.todo import Continuation, ContinuationKind
from loopx.loops.failure import ChecksVerdict, LoopFailure

REPLAN_AFTER: Final = 3
"""Failed turns in a row after which the recovery is a replan, unless the goal says otherwise."""


class WorkerRole(enum.StrEnum):
    """What the worker was asked to do."""

    WORK = "work"
    REPAIR = "repair"
    REPLAN = "replan"


class ResultRule(enum.StrEnum):
    """The row of the table that decided."""

    REPLAN_DELTA = "replan_delta"
    REPAIR_GREEN = "repair_green"
    GOAL_COMPLETE = "goal_complete"
    TODO_COMPLETE = "todo_complete"
    NO_CHANGE_ACCEPTED = "no_change_accepted"
    GUARD_REFUSED = "guard_refused"
    GREEN_TURNED_RED = "green_turned_red"
    FALSE_COMPLETION = "false_completion"
    MEASURED_PROGRESS = "measured_progress"
    SURFACE_CHANGE = "surface_change"
    BLOCKER = "blocker"
    EXECUTION_FAILED = "execution_failed"
    NOTHING_DELIVERED = "nothing_delivered"
    HOST_FAILED = "host_failed"
    NEEDS_PERSON = "needs_person"
    BUDGET_WAIT = "budget_wait"
    BUDGET_CAP = "budget_cap"
    CANCELLED = "cancelled"
    QUESTION = "question"
    NO_OP = "no_op"
    UNPROVED_CHANGE = "unproved_change"


class OutcomeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one ended turn. Everything but the claims was measured by LoopX.

    `guard_refused` means that the protected files or the scope were violated and the change was not accepted; the
    verdicts of such a tree prove nothing. `worker_active`: the worker used a tool, or its engine cannot say.
    """

    role: WorkerRole = WorkerRole.WORK
    failure: LoopFailure | None
    checks: ChecksVerdict
    """The goal's checks on the tree as it is now."""
    snapshot_green: bool = False
    """The clean-snapshot confirmation is green, or was confirmed in place where that is disclosed."""
    open_todos: bool = False
    """Todos remain open besides the turn's own."""
    todo_accepted: bool = False
    """The todo's own checks are green; or it has none, and its evidence was accepted."""
    successors: tuple[TodoId, ...] = ()
    """Existing todos that the completed todo declares as its successors."""
    delta_accepted: bool = False
    repair_green: bool = False
    no_change_accepted: bool = False
    guard_refused: bool = False
    green_turned_red: bool = False
    measured_progress: bool = False
    """Fewer red checks, or fewer failing tests inside one; none newly failing, none fewer collected."""
    got_worse: bool = False
    """Something fails that did not, or fewer tests are collected."""
    tree_changed: bool = False
    worker_active: bool = True
    primary_green: bool = False
    """The primary check turned green in this turn."""
    completion_claimed: bool = False
    blocker_verified: bool = False
    person_asked: bool = False
    failed_in_a_row: int = 0
    """Turns before this one, in a row, that delivered nothing."""
    replan_after: int = REPLAN_AFTER
    retry: HostRetry | None = None
    """The engine's retry facts, for a host failure."""
    window_reopens_at_ms: int | None = None
    """When an exhausted budget's window frees something; None when the cap is absolute."""
    claimed_outcome: DeliveryOutcome | None = None
    claimed_turn_kind: str | None = None
    """The worker's own words, unchecked."""


class TurnVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The turn's result kind and all that follows from the row that chose it.

    `gate`: the kind of gate to open; beside another result, a question or a verified blocker is still asked.
    `restore_files`: the offending files go back to the goal's base, the agent's copies are kept as evidence.
    """

    kind: LoopXTurnResultKind
    rule: ResultRule
    outcome: DeliveryOutcome
    turn_kind: DeliveryTurnKind
    continuation: Continuation | None = None
    recovery: TurnRecovery | None = None
    gate: GateKind | None = None
    wake_at_ms: int | None = None
    retry: HostRetry | None = None
    restore_files: bool = False


class _Row(msgspec.Struct, frozen=True):
    """One row: when it matches, the result kind, and what sort of turn that was."""

    rule: ResultRule
    matches: Callable[[OutcomeFacts], bool]
    kind: LoopXTurnResultKind
    turn_kind: DeliveryTurnKind


_MACHINERY: Final = frozenset({LoopFailure.ENGINE_UNAVAILABLE, LoopFailure.INFRASTRUCTURE})
_PERSON: Final = frozenset({LoopFailure.NEEDS_AUTH, LoopFailure.CONFIGURATION})
_NOT_THE_WORK: Final = _MACHINERY | _PERSON | {LoopFailure.CANCELLED}
"""Ends in which the worker did not come to its own end: a mere change of files is not a delivery then."""


def _stands(facts: OutcomeFacts) -> bool:
    """Whether a green verdict may be used at all: the tree was not refused, and somebody did something."""
    return not facts.guard_refused and not _idle(facts)


def _idle(facts: OutcomeFacts) -> bool:
    return not facts.worker_active and not facts.tree_changed


def _cancelled(facts: OutcomeFacts) -> bool:
    """A person stopped it before the evaluation ended: nothing is judged any more, and the loop stops."""
    return facts.failure is LoopFailure.CANCELLED


def _judged(facts: OutcomeFacts) -> bool:
    return facts.checks in {ChecksVerdict.GREEN, ChecksVerdict.RED} and not _cancelled(facts)


def _goal_complete(facts: OutcomeFacts) -> bool:
    green = facts.failure is None and facts.checks is ChecksVerdict.GREEN and facts.snapshot_green
    return _stands(facts) and green and not facts.open_todos


def _todo_complete(facts: OutcomeFacts) -> bool:
    return _stands(facts) and facts.todo_accepted and not _cancelled(facts)


def _no_change(facts: OutcomeFacts) -> bool:
    unspoilt = not facts.tree_changed and not facts.guard_refused
    return facts.no_change_accepted and unspoilt and not _cancelled(facts)


def _measured_progress(facts: OutcomeFacts) -> bool:
    # A starved check says nothing, but the others may have turned.
    measured = facts.measured_progress and not facts.got_worse and not _idle(facts)
    return measured and (_judged(facts) or facts.checks is ChecksVerdict.RED_STARVED) and not _cancelled(facts)


def _false_completion(facts: OutcomeFacts) -> bool:
    """Claimed, and red: in place, or (being green in place with nothing else open) in the clean snapshot."""
    snapshot_red = facts.checks is ChecksVerdict.GREEN and not facts.open_todos and not facts.snapshot_green
    return _judged(facts) and facts.completion_claimed and (facts.checks is ChecksVerdict.RED or snapshot_red)


def _surface_change(facts: OutcomeFacts) -> bool:
    unclaimed = not facts.completion_claimed and not facts.got_worse
    return _judged(facts) and facts.tree_changed and unclaimed and facts.failure not in _NOT_THE_WORK


def _nothing_delivered(facts: OutcomeFacts) -> bool:
    return facts.failure is LoopFailure.VERIFICATION and not facts.tree_changed and not facts.person_asked


_Kind = LoopXTurnResultKind
_Turn = DeliveryTurnKind

TABLE: Final = (
    _Row(
        ResultRule.REPLAN_DELTA,
        lambda f: f.role is WorkerRole.REPLAN and f.delta_accepted and not f.guard_refused and not _cancelled(f),
        _Kind.REPLAN_REQUIRED,
        _Turn.CONTRACT_ONLY_PREPARATION,
    ),
    _Row(
        ResultRule.REPAIR_GREEN,
        lambda f: f.role is WorkerRole.REPAIR and f.repair_green and _stands(f) and not _cancelled(f),
        _Kind.REPAIR_REQUIRED,
        _Turn.PRODUCT_PATH_EXECUTION,
    ),
    _Row(ResultRule.GOAL_COMPLETE, _goal_complete, _Kind.VALIDATED_COMPLETION, _Turn.PRODUCT_PATH_EXECUTION),
    _Row(ResultRule.TODO_COMPLETE, _todo_complete, _Kind.VALIDATED_COMPLETION, _Turn.PRODUCT_PATH_EXECUTION),
    _Row(ResultRule.NO_CHANGE_ACCEPTED, _no_change, _Kind.VALIDATED_COMPLETION, _Turn.COMPACT_EVIDENCE),
    _Row(
        ResultRule.GUARD_REFUSED,
        lambda f: f.guard_refused and not _cancelled(f),
        _Kind.VALIDATION_FAILED,
        _Turn.OUTCOME_GAP,
    ),
    _Row(
        ResultRule.GREEN_TURNED_RED,
        lambda f: _judged(f) and f.green_turned_red,
        _Kind.VALIDATION_FAILED,
        _Turn.OUTCOME_GAP,
    ),
    _Row(
        ResultRule.FALSE_COMPLETION,
        _false_completion,
        _Kind.VALIDATION_FAILED,
        _Turn.OUTCOME_GAP,
    ),
    _Row(ResultRule.MEASURED_PROGRESS, _measured_progress, _Kind.VALIDATED_PROGRESS, _Turn.PRODUCT_PATH_EXECUTION),
    _Row(ResultRule.SURFACE_CHANGE, _surface_change, _Kind.VALIDATED_PROGRESS, _Turn.PRODUCT_PATH_EXECUTION),
    _Row(
        ResultRule.BLOCKER,
        lambda f: f.blocker_verified and not _cancelled(f),
        _Kind.USER_ACTION_REQUIRED,
        _Turn.BLOCKER_WRITEBACK,
    ),
    _Row(
        ResultRule.EXECUTION_FAILED,
        lambda f: f.failure is LoopFailure.EXECUTION,
        _Kind.VALIDATION_FAILED,
        _Turn.OUTCOME_GAP,
    ),
    _Row(ResultRule.NOTHING_DELIVERED, _nothing_delivered, _Kind.VALIDATION_FAILED, _Turn.OUTCOME_GAP),
    _Row(ResultRule.HOST_FAILED, lambda f: f.failure in _MACHINERY, _Kind.HOST_FAILURE, _Turn.OUTCOME_GAP),
    _Row(ResultRule.NEEDS_PERSON, lambda f: f.failure in _PERSON, _Kind.USER_ACTION_REQUIRED, _Turn.BLOCKER_WRITEBACK),
    _Row(
        ResultRule.BUDGET_WAIT,
        lambda f: f.failure is LoopFailure.BUDGET_EXHAUSTED and f.window_reopens_at_ms is not None,
        _Kind.WAIT,
        _Turn.OUTCOME_GAP,
    ),
    _Row(
        ResultRule.BUDGET_CAP,
        lambda f: f.failure is LoopFailure.BUDGET_EXHAUSTED,
        _Kind.USER_ACTION_REQUIRED,
        _Turn.BLOCKER_WRITEBACK,
    ),
    _Row(
        ResultRule.CANCELLED,
        _cancelled,
        _Kind.ITERATION_FAILED,
        _Turn.OUTCOME_GAP,
    ),
    _Row(ResultRule.QUESTION, lambda f: f.person_asked, _Kind.USER_ACTION_REQUIRED, _Turn.BLOCKER_WRITEBACK),
    _Row(ResultRule.NO_OP, _idle, _Kind.VALIDATION_FAILED, _Turn.OUTCOME_GAP),
    _Row(ResultRule.UNPROVED_CHANGE, lambda _: True, _Kind.VALIDATION_FAILED, _Turn.OUTCOME_GAP),
)
"""The rows in order; the last matches everything, because what is not proved is not accepted."""

_RULE_GATE: Final = {
    ResultRule.BLOCKER: GateKind.BLOCKER,
    ResultRule.BUDGET_CAP: GateKind.BUDGET,
    ResultRule.QUESTION: GateKind.QUESTION,
}
_SILENT_RULES: Final = frozenset({ResultRule.GOAL_COMPLETE, ResultRule.CANCELLED})
"""Results beside which no question is asked: nothing is left to ask about, or a person just stopped it."""

_COUNTED_RULES: Final = frozenset({ResultRule.EXECUTION_FAILED, ResultRule.NOTHING_DELIVERED, ResultRule.NO_OP})
"""Failures whose repetition asks for a replan instead of one more repair."""


def turn_result(facts: OutcomeFacts) -> TurnVerdict:
    """The verdict on one ended turn; total, first match wins (contracts, section 10)."""
    row = next(row for row in TABLE if row.matches(facts))
    rule = row.rule
    return TurnVerdict(
        kind=row.kind,
        rule=rule,
        outcome=lower(facts.claimed_outcome, _derived_outcome(rule, facts)),
        turn_kind=normalise_turn_kind(facts.claimed_turn_kind, row.turn_kind),
        continuation=_continuation(row, facts),
        recovery=_recovery(row, facts),
        gate=_gate(rule, facts),
        wake_at_ms=facts.window_reopens_at_ms if rule is ResultRule.BUDGET_WAIT else None,
        retry=facts.retry if rule is ResultRule.HOST_FAILED else None,
        restore_files=rule is ResultRule.GUARD_REFUSED,
    )


def _derived_outcome(rule: ResultRule, facts: OutcomeFacts) -> DeliveryOutcome:
    if rule is ResultRule.REPLAN_DELTA:
        return DeliveryOutcome.SURFACE_ONLY
    measured = derive_outcome(
        DeliveryEvidence(
            primary_green=rule is ResultRule.GOAL_COMPLETE or facts.primary_green,
            checks_turned_green=rule in _ACHIEVING_RULES,
            files_touched=facts.tree_changed,
        )
    )
    return measured if rule in _DELIVERING_RULES else DeliveryOutcome.OUTCOME_GAP


_ACHIEVING_RULES: Final = frozenset(
    {
        ResultRule.REPAIR_GREEN,
        ResultRule.TODO_COMPLETE,
        ResultRule.NO_CHANGE_ACCEPTED,
        ResultRule.MEASURED_PROGRESS,
    }
)
_DELIVERING_RULES: Final = _ACHIEVING_RULES | {ResultRule.GOAL_COMPLETE, ResultRule.SURFACE_CHANGE}
"""Only what is accepted can be worth anything."""


def _continuation(row: _Row, facts: OutcomeFacts) -> Continuation | None:
    if row.kind is not LoopXTurnResultKind.VALIDATED_COMPLETION:
        return None
    if row.rule is ResultRule.GOAL_COMPLETE:
        return Continuation(kind=ContinuationKind.NO_FOLLOWUP)
    if facts.successors:
        return Continuation(kind=ContinuationKind.SUCCESSOR, successors=facts.successors)
    return Continuation(kind=ContinuationKind.ACTIVE_GOAL)


def _recovery(row: _Row, facts: OutcomeFacts) -> TurnRecovery | None:
    if row.kind is not LoopXTurnResultKind.VALIDATION_FAILED:
        return None
    again = row.rule in _COUNTED_RULES and facts.failed_in_a_row + 1 >= max(1, facts.replan_after)
    return TurnRecovery.REPLAN_REQUIRED if again else TurnRecovery.REPAIR_REQUIRED


def _gate(rule: ResultRule, facts: OutcomeFacts) -> GateKind | None:
    if rule is ResultRule.NEEDS_PERSON:
        return GateKind.SIGN_IN if facts.failure is LoopFailure.NEEDS_AUTH else GateKind.CONFIGURATION
    if rule in _RULE_GATE:
        return _RULE_GATE[rule]
    if rule in _SILENT_RULES:
        return None
    if facts.blocker_verified:
        return GateKind.BLOCKER
    return GateKind.QUESTION if facts.person_asked else None
