"""What the judge knows of a goal and what it saw of one turn, as values, before the result is typed."""

from __future__ import annotations

import msgspec

from loopx.contracts.baseline import Baseline
from loopx.contracts.compare import Comparison
from loopx.contracts.findings import GuardVerdict
from loopx.contracts.model import Contract, ContractEvaluation
from loopx.contracts.signature import recurring
from loopx.control_plane.goal import Goal
from loopx.control_plane.quota.facts import ContractState
from loopx.control_plane.turn_driver.journal import ReplanDelta
from loopx.control_plane.work_items.todo import Todo
from loopx.runtime.claims import Claim
from loopx.runtime.evaluation import signatures
from loopx.runtime.host_port import HostWord


class JudgedGoal(msgspec.Struct, frozen=True, kw_only=True):
    """What the judge knows of the goal before it looks at the tree."""

    goal: Goal
    contract: Contract
    todo: Todo | None
    goal_itself: bool
    """The todo stands for the goal itself, so that only the goal's own checks can complete it."""
    others_open: bool
    """Other todos of this goal have not ended."""
    baseline: Baseline
    reference: ContractEvaluation
    """The last accepted evaluation: what progress is measured against."""
    base_tree: str
    accepted: frozenset[str]
    """Protected paths that people changed between turns."""
    last_signatures: tuple[str, ...]
    failure_streak: int
    host_failure_streak: int
    limit_streak: int = 0
    """Turns before this one, in a row, that ended at a limit of the same engine."""
    last_end_kind: str | None = None
    """How the same engine ended in the turn before this one."""
    claims: tuple[Claim, ...]
    """What the agent said through its tools."""
    delta: ReplanDelta | None = None
    existing_successors: tuple[str, ...] = ()


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about one turn, before it is typed."""

    known: JudgedGoal
    word: HostWord
    claims: tuple[Claim, ...]
    tree_before: str
    tree_after: str
    evaluation: ContractEvaluation | None
    todo_evaluation: ContractEvaluation | None
    in_snapshot: ContractEvaluation | None
    confirmed: bool
    guard: GuardVerdict
    comparison: Comparison

    @property
    def changed(self) -> bool:
        return self.tree_after != self.tree_before

    @property
    def green(self) -> bool:
        return self.evaluation is not None and self.evaluation.all_green

    @property
    def signatures(self) -> tuple[str, ...]:
        return signatures(self.evaluation) if self.evaluation is not None else ()

    @property
    def repeats(self) -> bool:
        return bool(recurring(self.known.last_signatures, self.signatures))


def contract_state(seen: Seen) -> ContractState:
    """What is known of the contract on this tree. Red in the snapshot is red."""
    if seen.evaluation is None:
        return ContractState.UNKNOWN
    if not seen.green or (seen.in_snapshot is not None and not seen.in_snapshot.all_green):
        return ContractState.RED
    return ContractState.GREEN if not seen.guard.refused else ContractState.UNKNOWN
