"""The disposition table: total, ordered, with its real costs (contracts, section 6)."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopx.control_plane.ids import AgentId, GoalId, TodoId, TurnKey
from loopx.control_plane.quota.facts import TodoRef
from loopx.control_plane.quota.turn_envelope import TurnEnvelope, UserChannel, sign
from loopx.control_plane.turn_driver.driver import HostBinding, LoopXTurnRoute, RouteReason, route_turn
from loopx.control_plane.turn_driver.loop_controller import (
    DispositionInputs,
    DispositionReason,
    LoopDecision,
    LoopDisposition,
    LoopRefusal,
    RefusalCode,
    TurnBudget,
    ValidatedTurnReceipt,
    decide_loop_disposition,
)
from loopx.control_plane.turn_driver.transaction import (
    FAILURE_PHASE,
    PHASES,
    STEPS,
    HostRetry,
    LoopXTurnResultKind,
    ReceiptRoute,
    TurnReceipt,
    TurnRecovery,
)
from loopx.control_plane.work_items.todo import Continuation, ContinuationKind
from tests.unit.test_driver import AGENT, GOAL, INTENT, TODO, envelope

Kind = LoopXTurnResultKind
KEY = TurnKey("t-1")
OTHER, NEXT = TodoId("other"), TodoId("next")
LEFT, USED_UP = TurnBudget(limit=3, used=2), TurnBudget(limit=3, used=3)
ACTIVE_GOAL = Continuation(kind=ContinuationKind.ACTIVE_GOAL)
NO_FOLLOWUP = Continuation(kind=ContinuationKind.NO_FOLLOWUP)
SUCCESSOR = Continuation(kind=ContinuationKind.SUCCESSOR, successors=(NEXT,))


def receipt(
    kind: Kind,
    *,
    continuation: Continuation | None = None,
    recovery: TurnRecovery | None = None,
    retry: HostRetry | None = None,
    goal: GoalId = GOAL,
    agent: AgentId = AGENT,
) -> ValidatedTurnReceipt:
    failed = FAILURE_PHASE.get(kind)
    stop = kind in {Kind.WAIT, Kind.USER_ACTION_REQUIRED, Kind.ITERATION_FAILED}
    done = STEPS.index(failed) if failed is not None else 2 if stop else 7
    if continuation is None and kind is Kind.VALIDATED_COMPLETION:
        continuation = ACTIVE_GOAL
    return ValidatedTurnReceipt.from_execution(
        TurnReceipt(
            turn_key=KEY,
            goal_id=goal,
            agent_id=agent,
            todo_id=TODO,
            route=ReceiptRoute(kind=LoopXTurnRoute.READY_FOR_HOST),
            result_kind=kind,
            completed_phases=PHASES[:done],
            failed_phase=failed,
            continuation=continuation,
            recovery=recovery,
            retry=retry,
        )
    )


RUN = envelope()


def decide(
    last: ValidatedTurnReceipt | None = None,
    *,
    fresh: TurnEnvelope = RUN,
    predecessor: TurnKey | None = KEY,
    budget: TurnBudget | None = LEFT,
    terminal: bool = False,
    binding: HostBinding | None = None,
) -> LoopDecision | LoopRefusal:
    return decide_loop_disposition(
        DispositionInputs(
            envelope=fresh,
            receipt=last,
            predecessor_turn_key=predecessor,
            budget=budget,
            frontier_terminal=terminal,
            binding=binding,
        )
    )


def word(decided: LoopDecision | LoopRefusal) -> str:
    return f"reject:{decided.code}" if isinstance(decided, LoopRefusal) else str(decided.disposition)


@pytest.mark.parametrize(
    ("disposition", "costs"),
    [
        (LoopDisposition.RUN_NOW, (True, True, True)),
        (LoopDisposition.REPAIR, (True, True, True)),
        (LoopDisposition.REPLAN, (True, True, True)),
        (LoopDisposition.CAPABILITY_ACTION_REQUIRED, (False, False, True)),
        (LoopDisposition.WAIT, (False, False, False)),
        (LoopDisposition.USER_ACTION_REQUIRED, (False, False, False)),
        (LoopDisposition.STOP, (False, False, False)),
        (LoopDisposition.TERMINAL, (False, False, False)),
    ],
)
def test_the_declared_costs(disposition: LoopDisposition, costs: tuple[bool, bool, bool]) -> None:
    assert (disposition.spends_quota, disposition.launches_host, disposition.writes_state) == costs
    assert len(LoopDisposition) == 8


def test_a_contract_error_is_refused_with_the_drivers_reason() -> None:
    edited = msgspec.structs.replace(RUN, reason="edited")
    assert decide(fresh=edited) == LoopRefusal(
        code=RefusalCode.CONTRACT_ERROR, route_reason=RouteReason.SIGNATURE_UNMATCHED
    )
    bound = decide(binding=HostBinding(goal_id=GoalId("other")))
    assert bound == LoopRefusal(code=RefusalCode.CONTRACT_ERROR, route_reason=RouteReason.HOST_BOUND_TO_OTHER_GOAL)


@pytest.mark.parametrize("predecessor", [None, TurnKey("t-0")])
def test_a_receipt_of_another_turn_is_stale(predecessor: TurnKey | None) -> None:
    assert word(decide(receipt(Kind.VALIDATED_PROGRESS), predecessor=predecessor)) == "reject:stale_receipt"


def test_a_receipt_of_another_goal_is_stale_but_a_todo_may_change_hands() -> None:
    assert word(decide(receipt(Kind.VALIDATED_PROGRESS, goal=GoalId("x")))) == "reject:stale_receipt"
    assert word(decide(receipt(Kind.VALIDATED_PROGRESS, agent=AgentId("b")))) == "run_now"


CAPABILITY = envelope(action="governed_capability_intent", intent=INTENT)
REPAIR = envelope(action="self_repair")
REPLAN = envelope(action="autonomous_replan")
WAIT = envelope(should_run=False, quiet=True)
BLOCKED = envelope(should_run=False)
ASK = envelope(should_run=False, user=True)


@pytest.mark.parametrize(
    ("fresh", "expected"),
    [
        (RUN, "run_now"),
        (REPAIR, "repair"),
        (REPLAN, "replan"),
        (CAPABILITY, "capability_action_required"),
        (WAIT, "wait"),
        (BLOCKED, "wait"),
        (ASK, "user_action_required"),
    ],
)
def test_without_a_receipt_the_route_decides(fresh: TurnEnvelope, expected: str) -> None:
    assert word(decide(fresh=fresh)) == expected
    frontier_done = "capability_action_required" if fresh is CAPABILITY else "terminal"
    assert word(decide(fresh=fresh, terminal=True)) == frontier_done


def test_a_replan_needs_no_todo_and_a_run_does() -> None:
    assert word(decide(fresh=envelope(action="autonomous_replan", todo=None))) == "replan"
    assert word(decide(fresh=envelope(todo=None))) == "reject:missing_todo"
    assert word(decide(fresh=envelope(action="self_repair", todo=None))) == "reject:missing_todo"
    assert word(decide(fresh=envelope(should_run=False, quiet=True, todo=None))) == "wait"


@pytest.mark.parametrize(
    ("continuation", "selected", "terminal", "expected"),
    [
        (NO_FOLLOWUP, None, True, "terminal"),
        (NO_FOLLOWUP, OTHER, True, "terminal"),
        (NO_FOLLOWUP, OTHER, False, "run_now"),
        (NO_FOLLOWUP, None, False, "reject:no_followup_without_terminal_frontier"),
        (NO_FOLLOWUP, TODO, False, "reject:no_followup_without_terminal_frontier"),
        (SUCCESSOR, NEXT, False, "run_now"),
        (SUCCESSOR, OTHER, False, "reject:undeclared_successor"),
        (SUCCESSOR, TODO, False, "reject:undeclared_successor"),
        (SUCCESSOR, None, False, "reject:missing_todo"),
        (ACTIVE_GOAL, OTHER, False, "run_now"),
        (ACTIVE_GOAL, TODO, False, "reject:completed_todo_reselected"),
        (ACTIVE_GOAL, None, False, "reject:missing_todo"),
    ],
)
def test_after_a_completion(continuation: Continuation, selected: TodoId | None, terminal: bool, expected: str) -> None:
    last = receipt(Kind.VALIDATED_COMPLETION, continuation=continuation)
    assert word(decide(last, fresh=envelope(todo=selected), terminal=terminal)) == expected


@pytest.mark.parametrize(
    ("budget", "expected"), [(None, "reject:missing_budget"), (USED_UP, "replan"), (LEFT, "run_now")]
)
def test_after_progress_the_turn_budget_decides(budget: TurnBudget | None, expected: str) -> None:
    assert word(decide(receipt(Kind.VALIDATED_PROGRESS), budget=budget)) == expected


def test_progress_with_another_todo_selected_is_stale() -> None:
    assert word(decide(receipt(Kind.VALIDATED_PROGRESS), fresh=envelope(todo=OTHER))) == "reject:stale_receipt"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Kind.REPLAN_REQUIRED, "replan"),
        (Kind.REPAIR_REQUIRED, "repair"),
        (Kind.USER_ACTION_REQUIRED, "user_action_required"),
        (Kind.WAIT, "wait"),
        (Kind.ITERATION_FAILED, "stop"),
        (Kind.VALIDATION_FAILED, "repair"),
        (Kind.WRITEBACK_FAILED, "repair"),
        (Kind.QUOTA_SPEND_FAILED, "repair"),
        (Kind.TERMINAL_CLOSEOUT_FAILED, "repair"),
        (Kind.HOST_FAILURE, "repair"),
    ],
)
def test_after_any_other_kind(kind: Kind, expected: str) -> None:
    assert word(decide(receipt(kind))) == expected
    assert word(decide(receipt(kind), fresh=ASK)) == "user_action_required"


def test_a_failed_validation_may_ask_for_a_replan() -> None:
    assert word(decide(receipt(Kind.VALIDATION_FAILED, recovery=TurnRecovery.REPLAN_REQUIRED))) == "replan"
    assert word(decide(receipt(Kind.VALIDATION_FAILED, recovery=TurnRecovery.REPAIR_REQUIRED))) == "repair"
    assert word(decide(receipt(Kind.WRITEBACK_FAILED, recovery=TurnRecovery.REPLAN_REQUIRED))) == "repair"


@pytest.mark.parametrize(
    ("retry", "fresh", "expected"),
    [
        (HostRetry(retryable=True, attempts_left=1), RUN, "wait"),
        (HostRetry(retryable=True, attempts_left=0), RUN, "repair"),
        (HostRetry(retryable=False, attempts_left=1), RUN, "repair"),
        (None, RUN, "repair"),
        (HostRetry(retryable=True, attempts_left=1), REPLAN, "replan"),
        (HostRetry(retryable=True, attempts_left=1), REPAIR, "repair"),
    ],
)
def test_after_a_host_failure(retry: HostRetry | None, fresh: TurnEnvelope, expected: str) -> None:
    decided = decide(receipt(Kind.HOST_FAILURE, retry=retry), fresh=fresh)
    assert word(decided) == expected
    assert isinstance(decided, LoopDecision)
    assert decided.same_turn == (expected == "wait"), "the backoff ends in the same turn"
    if expected == "wait":
        assert decided.reason is DispositionReason.HOST_RETRY


def test_a_user_action_projected_beside_a_run_stops_the_run() -> None:
    gated = sign(msgspec.structs.replace(RUN, user=UserChannel(action_required=True)))
    assert route_turn(gated).route is LoopXTurnRoute.READY_FOR_HOST
    assert word(decide(fresh=gated)) == "user_action_required"
    assert word(decide(receipt(Kind.VALIDATED_PROGRESS), fresh=gated, budget=None)) == "user_action_required"


ENVELOPES = [RUN, REPAIR, REPLAN, CAPABILITY, WAIT, BLOCKED, ASK, msgspec.structs.replace(RUN, reason="edited")]
RETRIES = [None, HostRetry(retryable=True, attempts_left=1), HostRetry(retryable=True), HostRetry(retryable=False)]

last_receipts = st.none() | st.builds(
    receipt,
    st.sampled_from(Kind),
    continuation=st.sampled_from([ACTIVE_GOAL, NO_FOLLOWUP, SUCCESSOR]),
    recovery=st.none() | st.sampled_from(TurnRecovery),
    retry=st.sampled_from(RETRIES),
)


@given(
    last=last_receipts,
    base=st.sampled_from(ENVELOPES),
    selected=st.sampled_from([None, TODO, NEXT, OTHER]),
    gated=st.booleans(),
    predecessor=st.sampled_from([None, KEY, TurnKey("t-0")]),
    budget=st.sampled_from([None, LEFT, USED_UP]),
    terminal=st.booleans(),
)
def test_the_table_is_total_and_keeps_its_promises(
    last: ValidatedTurnReceipt | None,
    base: TurnEnvelope,
    selected: TodoId | None,
    gated: bool,
    predecessor: TurnKey | None,
    budget: TurnBudget | None,
    terminal: bool,
) -> None:
    broken = base is ENVELOPES[-1]
    todo = None if selected is None else TodoRef(todo_id=selected, title="")
    action = msgspec.structs.replace(base.action, selected_todo=todo)
    fresh = msgspec.structs.replace(base, action=action, user=UserChannel(action_required=gated or base is ASK))
    if not broken:
        fresh = sign(fresh)
    decided = decide(last, fresh=fresh, predecessor=predecessor, budget=budget, terminal=terminal)
    if broken:
        assert word(decided) == "reject:contract_error"
        return
    if last is not None and predecessor != last.turn_key:
        assert word(decided) == "reject:stale_receipt"
        return
    if isinstance(decided, LoopRefusal):
        return
    if fresh.user.action_required:
        assert not decided.disposition.launches_host, "a person's turn starts no engine"
    if decided.disposition is LoopDisposition.TERMINAL:
        assert terminal, "terminal only from a proved frontier"
    if decided.disposition is LoopDisposition.STOP:
        assert last is not None and last.result_kind is Kind.ITERATION_FAILED
    if decided.disposition is LoopDisposition.RUN_NOW:
        assert selected is not None, "a run has a todo"


def test_every_disposition_and_every_refusal_is_reachable() -> None:
    words = set()
    lasts = [None, *(receipt(kind) for kind in Kind)]
    lasts += [receipt(Kind.VALIDATED_COMPLETION, continuation=c) for c in (NO_FOLLOWUP, SUCCESSOR)]
    for last, fresh, budget, terminal in itertools.product(
        lasts, [*ENVELOPES, envelope(todo=None)], [None, LEFT], [False, True]
    ):
        words.add(word(decide(last, fresh=fresh, budget=budget, terminal=terminal)))
    words.add(word(decide(receipt(Kind.WAIT), predecessor=None)))
    assert words == {*map(str, LoopDisposition), *(f"reject:{code}" for code in RefusalCode)}
