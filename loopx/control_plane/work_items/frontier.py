"""The terminal frontier: the proof that nothing of a goal is left, over counts that the store answers (contracts, 6).

A goal ends only on this proof, never on somebody's word. The room counts nothing itself and closes nothing.
"""

from __future__ import annotations

import enum

import msgspec

from loopx.control_plane.goal import CLOSED_GOAL_STATES, GoalState
from loopx.control_plane.ids import GoalId
from loopx.control_plane.quota.facts import ContractState


class FrontierCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What is open of one goal in one snapshot. Counts may be capped at 1: only zero proves anything."""

    goal_id: GoalId
    revision: int
    state: GoalState
    open_todos: int
    """Todos that have not ended, monitors left out."""
    open_gates: int
    open_monitors: int
    open_capabilities: int
    """Capability intents that are requested, granted or running."""
    missing_successors: int
    """Successors that a completed todo names and that do not exist: a replan obligation."""
    replan_due: bool
    """The breaker or the hand-off floor asks for a replan."""
    open_turns: int
    """Open turns of other agents; the turn that is closing is not counted."""
    contract: ContractState
    contract_tree: str | None = None
    """The tree on which the contract was evaluated."""


class FrontierGap(enum.StrEnum):
    """What still stands between the goal and its end."""

    OPEN_TODO = "open_todo"
    OPEN_GATE = "open_gate"
    OPEN_MONITOR = "open_monitor"
    OPEN_CAPABILITY = "open_capability"
    MISSING_SUCCESSOR = "missing_successor"
    REPLAN_DUE = "replan_due"
    OPEN_TURN = "open_turn"
    CONTRACT_RED = "contract_red"
    CONTRACT_UNKNOWN = "contract_unknown"
    GOAL_CANCELLED = "goal_cancelled"


class FrontierProof(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the frontier is terminal at `revision`, on which tree that was judged, and what is missing if not."""

    goal_id: GoalId
    revision: int
    contract_tree: str | None
    missing: tuple[FrontierGap, ...]

    @property
    def terminal(self) -> bool:
        return not self.missing


def prove(counts: FrontierCounts) -> FrontierProof:
    """The proof, or all that it lacks. A goal that is completed already stays proved, whatever came later."""
    if counts.state is GoalState.COMPLETED:
        missing: tuple[FrontierGap, ...] = ()
    elif counts.state in CLOSED_GOAL_STATES:
        missing = (FrontierGap.GOAL_CANCELLED,)
    else:
        missing = tuple(gap for gap, present in _gaps(counts) if present)
    return FrontierProof(
        goal_id=counts.goal_id, revision=counts.revision, contract_tree=counts.contract_tree, missing=missing
    )


def _gaps(counts: FrontierCounts) -> tuple[tuple[FrontierGap, bool], ...]:
    return (
        (FrontierGap.OPEN_TODO, counts.open_todos > 0),
        (FrontierGap.OPEN_GATE, counts.open_gates > 0),
        (FrontierGap.OPEN_MONITOR, counts.open_monitors > 0),
        (FrontierGap.OPEN_CAPABILITY, counts.open_capabilities > 0),
        (FrontierGap.MISSING_SUCCESSOR, counts.missing_successors > 0),
        (FrontierGap.REPLAN_DUE, counts.replan_due),
        (FrontierGap.OPEN_TURN, counts.open_turns > 0),
        (FrontierGap.CONTRACT_RED, counts.contract is ContractState.RED),
        (FrontierGap.CONTRACT_UNKNOWN, counts.contract is ContractState.UNKNOWN),
    )
