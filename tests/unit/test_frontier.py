from __future__ import annotations

import msgspec
import pytest

from loopx.control_plane.goal import GoalState
from loopx.control_plane.ids import GoalId
from loopx.control_plane.quota.facts import ContractState
from loopx.control_plane.work_items.frontier import FrontierCounts, FrontierGap, prove

EMPTY = FrontierCounts(
    goal_id=GoalId("g"),
    revision=4,
    state=GoalState.ACTIVE,
    open_todos=0,
    open_gates=0,
    open_monitors=0,
    open_capabilities=0,
    missing_successors=0,
    replan_due=False,
    open_turns=0,
    contract=ContractState.GREEN,
    contract_tree="abc",
)


def test_an_empty_frontier_with_a_green_contract_is_terminal() -> None:
    proof = prove(EMPTY)
    assert proof.terminal
    assert (proof.revision, proof.contract_tree) == (4, "abc")


@pytest.mark.parametrize(
    ("field", "value", "gap"),
    [
        ("open_todos", 1, FrontierGap.OPEN_TODO),
        ("open_gates", 2, FrontierGap.OPEN_GATE),
        ("open_monitors", 1, FrontierGap.OPEN_MONITOR),
        ("open_capabilities", 1, FrontierGap.OPEN_CAPABILITY),
        ("missing_successors", 1, FrontierGap.MISSING_SUCCESSOR),
        ("replan_due", True, FrontierGap.REPLAN_DUE),
        ("open_turns", 1, FrontierGap.OPEN_TURN),
        ("contract", ContractState.RED, FrontierGap.CONTRACT_RED),
        ("contract", ContractState.UNKNOWN, FrontierGap.CONTRACT_UNKNOWN),
        ("state", GoalState.CANCELLED, FrontierGap.GOAL_CANCELLED),
    ],
)
def test_each_thing_left_is_named(field: str, value: object, gap: FrontierGap) -> None:
    proof = prove(msgspec.structs.replace(EMPTY, **{field: value}))
    assert proof.missing == (gap,)
    assert not proof.terminal


def test_all_that_is_missing_is_named_at_once() -> None:
    proof = prove(msgspec.structs.replace(EMPTY, open_todos=3, open_gates=1, contract=ContractState.RED))
    assert proof.missing == (FrontierGap.OPEN_TODO, FrontierGap.OPEN_GATE, FrontierGap.CONTRACT_RED)


def test_a_completed_goal_stays_proved() -> None:
    assert prove(msgspec.structs.replace(EMPTY, state=GoalState.COMPLETED, open_gates=1)).terminal
