"""From loop outcome to turn result: every row, and what no row may do (contracts, sections 9 and 10)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopx.control_plane.ids import TodoId
from loopx.control_plane.turn_driver.transaction import (
    MATERIAL_RESULT_KINDS,
    HostRetry,
    LoopXTurnResultKind,
    TurnRecovery,
)
from loopx.control_plane.work_items.delivery_outcome import (
    ACCOUNTABLE,
    DeliveryEvidence,
    DeliveryOutcome,
    DeliveryTurnKind,
    claimed_outcome,
    derive_outcome,
    lower,
    normalise_turn_kind,
)
from loopx.control_plane.work_items.gate import GateKind
from loopx.control_plane.work_items.todo import ContinuationKind
from loopx.loops.failure import ChecksVerdict, LoopFailure
from loopx.loops.turn_result import OutcomeFacts, ResultRule, TurnVerdict, WorkerRole, turn_result

Kind = LoopXTurnResultKind
Rule = ResultRule
RED = {"failure": LoopFailure.VERIFICATION, "checks": ChecksVerdict.RED}
GREEN: dict[str, Any] = {"failure": None, "checks": ChecksVerdict.GREEN, "snapshot_green": True}
NONE_RAN = {"checks": ChecksVerdict.NOT_EVALUABLE}


def verdict(**facts: Any) -> TurnVerdict:
    return turn_result(OutcomeFacts(**facts))


ROWS: list[tuple[Rule, Kind, dict[str, Any]]] = [
    (Rule.REPLAN_DELTA, Kind.REPLAN_REQUIRED, {**RED, "role": WorkerRole.REPLAN, "delta_accepted": True}),
    (Rule.REPAIR_GREEN, Kind.REPAIR_REQUIRED, {**RED, "role": WorkerRole.REPAIR, "repair_green": True}),
    (Rule.GOAL_COMPLETE, Kind.VALIDATED_COMPLETION, {**GREEN, "tree_changed": True}),
    (Rule.TODO_COMPLETE, Kind.VALIDATED_COMPLETION, {**RED, "todo_accepted": True, "tree_changed": True}),
    (Rule.TODO_COMPLETE, Kind.VALIDATED_COMPLETION, {**GREEN, "open_todos": True, "todo_accepted": True}),
    (Rule.NO_CHANGE_ACCEPTED, Kind.VALIDATED_COMPLETION, {**RED, "no_change_accepted": True}),
    (Rule.GUARD_REFUSED, Kind.VALIDATION_FAILED, {**GREEN, "guard_refused": True, "tree_changed": True}),
    (Rule.GREEN_TURNED_RED, Kind.VALIDATION_FAILED, {**RED, "green_turned_red": True, "tree_changed": True}),
    (Rule.FALSE_COMPLETION, Kind.VALIDATION_FAILED, {**RED, "completion_claimed": True, "tree_changed": True}),
    (
        Rule.FALSE_COMPLETION,
        Kind.VALIDATION_FAILED,
        {**GREEN, "snapshot_green": False, "completion_claimed": True, "measured_progress": True},
    ),
    (Rule.MEASURED_PROGRESS, Kind.VALIDATED_PROGRESS, {**RED, "measured_progress": True, "tree_changed": True}),
    (Rule.SURFACE_CHANGE, Kind.VALIDATED_PROGRESS, {**RED, "tree_changed": True}),
    (Rule.SURFACE_CHANGE, Kind.VALIDATED_PROGRESS, {**RED, "failure": LoopFailure.EXECUTION, "tree_changed": True}),
    (Rule.BLOCKER, Kind.USER_ACTION_REQUIRED, {**RED, "blocker_verified": True}),
    (Rule.EXECUTION_FAILED, Kind.VALIDATION_FAILED, {**RED, "failure": LoopFailure.EXECUTION}),
    (Rule.NOTHING_DELIVERED, Kind.VALIDATION_FAILED, RED),
    (Rule.HOST_FAILED, Kind.HOST_FAILURE, {**NONE_RAN, "failure": LoopFailure.ENGINE_UNAVAILABLE}),
    (Rule.HOST_FAILED, Kind.HOST_FAILURE, {**RED, "failure": LoopFailure.INFRASTRUCTURE, "tree_changed": True}),
    (Rule.NEEDS_PERSON, Kind.USER_ACTION_REQUIRED, {**RED, "failure": LoopFailure.NEEDS_AUTH}),
    (Rule.NEEDS_PERSON, Kind.USER_ACTION_REQUIRED, {**NONE_RAN, "failure": LoopFailure.CONFIGURATION}),
    (
        Rule.MEASURED_PROGRESS,
        Kind.VALIDATED_PROGRESS,
        {
            "failure": LoopFailure.BUDGET_EXHAUSTED,
            "checks": ChecksVerdict.RED_STARVED,
            "measured_progress": True,
            "tree_changed": True,
        },
    ),
    (
        Rule.BUDGET_WAIT,
        Kind.WAIT,
        {
            "failure": LoopFailure.BUDGET_EXHAUSTED,
            "checks": ChecksVerdict.RED_STARVED,
            "window_reopens_at_ms": 9,
            "tree_changed": True,
        },
    ),
    (Rule.BUDGET_CAP, Kind.USER_ACTION_REQUIRED, {**RED, "failure": LoopFailure.BUDGET_EXHAUSTED}),
    (
        Rule.CANCELLED,
        Kind.ITERATION_FAILED,
        {**RED, "failure": LoopFailure.CANCELLED, "tree_changed": True, "measured_progress": True},
    ),
    (Rule.QUESTION, Kind.USER_ACTION_REQUIRED, {**RED, "person_asked": True}),
    (Rule.NO_OP, Kind.VALIDATION_FAILED, {**GREEN, "open_todos": True, "worker_active": False}),
    (Rule.UNPROVED_CHANGE, Kind.VALIDATION_FAILED, {**RED, "tree_changed": True, "got_worse": True}),
]


@pytest.mark.parametrize(("rule", "kind", "facts"), ROWS)
def test_each_row(rule: Rule, kind: Kind, facts: dict[str, Any]) -> None:
    made = verdict(**facts)
    assert (made.rule, made.kind) == (rule, kind)


def test_no_row_is_untested() -> None:
    assert {rule for rule, _, _ in ROWS} == set(Rule)


def test_a_completion_states_its_continuation() -> None:
    done = verdict(**GREEN).continuation
    assert done is not None
    assert done.kind is ContinuationKind.NO_FOLLOWUP
    ids = (TodoId("next"),)
    named = verdict(**RED, todo_accepted=True, successors=ids).continuation
    assert named is not None
    assert (named.kind, named.successors) == (ContinuationKind.SUCCESSOR, ids)
    open_goal = verdict(**RED, todo_accepted=True).continuation
    assert open_goal is not None
    assert open_goal.kind is ContinuationKind.ACTIVE_GOAL


def test_a_refused_guard_voids_every_green_verdict_and_restores_the_files() -> None:
    for facts in (
        {**GREEN, "todo_accepted": True},
        {**GREEN, "role": WorkerRole.REPAIR, "repair_green": True},
        {**GREEN, "role": WorkerRole.REPLAN, "delta_accepted": True},
        {**RED, "no_change_accepted": True, "measured_progress": True},
    ):
        made = verdict(**facts, guard_refused=True, tree_changed=True)
        assert (made.rule, made.restore_files) == (Rule.GUARD_REFUSED, True)
        assert made.recovery is TurnRecovery.REPAIR_REQUIRED


@pytest.mark.parametrize(
    ("before", "recovery"), [(0, "repair_required"), (1, "repair_required"), (2, "replan_required")]
)
def test_the_third_empty_turn_in_a_row_asks_for_a_replan(before: int, recovery: str) -> None:
    assert verdict(**RED, failed_in_a_row=before).recovery == recovery
    assert verdict(**{**RED, "failure": LoopFailure.EXECUTION}, failed_in_a_row=before).recovery == recovery


def test_a_sign_in_is_asked_for_as_one_and_a_setup_as_another() -> None:
    assert verdict(failure=LoopFailure.NEEDS_AUTH, checks=ChecksVerdict.RED).gate is GateKind.SIGN_IN
    assert verdict(failure=LoopFailure.CONFIGURATION, checks=ChecksVerdict.RED).gate is GateKind.CONFIGURATION


def test_a_question_beside_progress_is_still_asked_but_not_after_a_cancel() -> None:
    assert verdict(**RED, tree_changed=True, person_asked=True).gate is GateKind.QUESTION
    assert verdict(**RED, tree_changed=True, blocker_verified=True).gate is GateKind.BLOCKER
    assert verdict(**GREEN, person_asked=True).gate is None
    cancelled = {"failure": LoopFailure.CANCELLED, "checks": ChecksVerdict.RED}
    assert verdict(**cancelled, person_asked=True, blocker_verified=True).gate is None


def test_a_host_failure_keeps_its_retry_facts() -> None:
    retry = HostRetry(retryable=True, attempts_left=2, not_before_ms=5)
    made = verdict(failure=LoopFailure.INFRASTRUCTURE, checks=ChecksVerdict.RED, retry=retry)
    assert (made.kind, made.retry) == (Kind.HOST_FAILURE, retry)


def test_an_idle_worker_on_a_green_goal_is_no_success() -> None:
    assert verdict(**GREEN, worker_active=False).kind is Kind.VALIDATION_FAILED
    assert verdict(**GREEN, worker_active=False, todo_accepted=True).kind is Kind.VALIDATION_FAILED


any_facts = st.builds(
    OutcomeFacts,
    role=st.sampled_from(WorkerRole),
    failure=st.none() | st.sampled_from(LoopFailure),
    checks=st.sampled_from(ChecksVerdict),
    snapshot_green=st.booleans(),
    open_todos=st.booleans(),
    todo_accepted=st.booleans(),
    successors=st.sampled_from([(), (TodoId("next"),)]),
    delta_accepted=st.booleans(),
    repair_green=st.booleans(),
    no_change_accepted=st.booleans(),
    guard_refused=st.booleans(),
    green_turned_red=st.booleans(),
    measured_progress=st.booleans(),
    got_worse=st.booleans(),
    tree_changed=st.booleans(),
    worker_active=st.booleans(),
    primary_green=st.booleans(),
    completion_claimed=st.booleans(),
    blocker_verified=st.booleans(),
    person_asked=st.booleans(),
    failed_in_a_row=st.integers(0, 4),
    retry=st.none() | st.just(HostRetry(retryable=True, attempts_left=1)),
    window_reopens_at_ms=st.none() | st.just(7),
    claimed_outcome=st.none() | st.sampled_from(DeliveryOutcome),
    claimed_turn_kind=st.none() | st.sampled_from(["made_up", "compact_evidence"]),
)


@settings(max_examples=500)
@given(any_facts)
def test_the_table_is_total_and_keeps_its_promises(facts: OutcomeFacts) -> None:
    made = turn_result(facts)
    material = made.kind in MATERIAL_RESULT_KINDS
    assert (made.continuation is not None) == (made.kind is Kind.VALIDATED_COMPLETION)
    assert (made.recovery is not None) == (made.kind is Kind.VALIDATION_FAILED)
    if made.kind is Kind.USER_ACTION_REQUIRED:
        assert made.gate is not None, "a person is asked something"
    if made.kind is Kind.WAIT:
        assert made.wake_at_ms is not None
    if material:
        assert not facts.guard_refused
        assert facts.failure is not LoopFailure.CANCELLED
        idle = not facts.worker_active and not facts.tree_changed
        assert not idle or made.rule in {Rule.NO_CHANGE_ACCEPTED, Rule.REPLAN_DELTA}, "nothing ran: no success"
    else:
        assert made.outcome not in ACCOUNTABLE, "what is not accepted is worth nothing"
    if facts.claimed_outcome is DeliveryOutcome.OUTCOME_GAP:
        assert made.outcome is DeliveryOutcome.OUTCOME_GAP
    if facts.claimed_turn_kind == "made_up":
        assert made.turn_kind is DeliveryTurnKind.UNKNOWN


@given(st.none() | st.sampled_from(DeliveryOutcome), st.sampled_from(DeliveryOutcome))
def test_a_claim_lowers_and_never_raises(claimed: DeliveryOutcome | None, derived: DeliveryOutcome) -> None:
    made = lower(claimed, derived)
    assert made in {claimed, derived}
    assert not (made in ACCOUNTABLE and derived not in ACCOUNTABLE)
    if claimed is not None and claimed not in ACCOUNTABLE:
        assert made not in ACCOUNTABLE
    assert made.accountable == (made in ACCOUNTABLE)


def test_the_outcome_is_derived_from_evidence() -> None:
    assert derive_outcome(DeliveryEvidence()) is DeliveryOutcome.OUTCOME_GAP
    assert derive_outcome(DeliveryEvidence(files_touched=True)) is DeliveryOutcome.SURFACE_ONLY
    turned = DeliveryEvidence(files_touched=True, checks_turned_green=True)
    assert derive_outcome(turned) is DeliveryOutcome.OUTCOME_PROGRESS
    assert derive_outcome(DeliveryEvidence(primary_green=True)) is DeliveryOutcome.PRIMARY_GOAL_OUTCOME


@given(st.text() | st.integers() | st.lists(st.text()))
def test_an_illegal_turn_kind_is_unknown_and_an_illegal_outcome_claims_nothing(word: object) -> None:
    if word not in list(DeliveryTurnKind):
        assert normalise_turn_kind(word, DeliveryTurnKind.COMPACT_EVIDENCE) is DeliveryTurnKind.UNKNOWN
    if word not in list(DeliveryOutcome):
        assert claimed_outcome(word) is None


def test_a_legal_turn_kind_stands_and_an_absent_one_is_derived() -> None:
    derived = DeliveryTurnKind.PRODUCT_PATH_EXECUTION
    assert normalise_turn_kind("compact_evidence", derived) is DeliveryTurnKind.COMPACT_EVIDENCE
    assert normalise_turn_kind(None, derived) is derived
    assert claimed_outcome("surface_only") is DeliveryOutcome.SURFACE_ONLY
