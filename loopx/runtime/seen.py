"""What the judge knows of a goal and what it saw of one turn, as values, before the result is typed."""

from __future__ import annotations

import msgspec

from loopx.contracts.baseline import Baseline
from loopx.contracts.compare import Comparison
from loopx.contracts.findings import GuardVerdict
from loopx.contracts.model import ChecksState, Contract, ContractEvaluation, merged
from loopx.contracts.signature import recurring
from loopx.control_plane.goal import Goal
from loopx.control_plane.quota.facts import ContractState
from loopx.control_plane.turn_driver.journal import GateDraft, ReplanDelta
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
    """The tree of the goal's start, with what people changed since."""
    last_checkpoint: str | None = None
    """The tip of the goal's branch as LoopX left it."""
    last_signatures: tuple[str, ...]
    failure_streak: int
    host_failure_streak: int
    limit_streak: int = 0
    """Turns before this one, in a row, that ended at a limit of the same engine."""
    last_end_kind: str | None = None
    """How the same engine ended in the turn before this one."""
    claims: tuple[Claim, ...]
    """What the agent said through its tools."""
    noted: bool = False
    """The agent added todos or evidence in this turn."""
    answered: frozenset[str] = frozenset()
    """Questions that people have answered: to ask one again in the same words is no new question."""
    delta: ReplanDelta | None = None
    preview: GateDraft | None = None
    """The question about the delta, where a person confirms each new plan."""
    existing_successors: tuple[str, ...] = ()


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about one turn, before it is typed."""

    known: JudgedGoal
    word: HostWord
    claims: tuple[Claim, ...]
    tree_before: str
    tree_after: str
    tree_left: str
    """The tree after the checks, which may have written into it themselves."""
    evaluation: ContractEvaluation | None
    """The visible checks in place, and the held-out ones wherever a completion was confirmed."""
    todo_evaluation: ContractEvaluation | None
    in_snapshot: ContractEvaluation | None
    confirmed: bool
    """A completion was confirmed: nothing stands against it."""
    state: ChecksState
    """The contract as far as it is known, the second run and the confirmation included."""
    guard: GuardVerdict
    comparison: Comparison

    @property
    def changed(self) -> bool:
        return self.tree_after != self.tree_before

    @property
    def green(self) -> bool:
        return self.evaluation is not None and self.evaluation.all_green

    @property
    def judged(self) -> ContractEvaluation | None:
        """What later progress is measured against: where the snapshot contradicts the work tree, it is right."""
        if self.evaluation is None or self.in_snapshot is None or self.in_snapshot.all_green:
            return self.evaluation
        return merged(self.known.contract, self.evaluation, self.in_snapshot)

    @property
    def signatures(self) -> tuple[str, ...]:
        return signatures(self.evaluation) if self.evaluation is not None else ()

    @property
    def repeats(self) -> bool:
        return bool(recurring(self.known.last_signatures, self.signatures))


def contract_state(seen: Seen) -> ContractState:
    """What is known of the contract on this tree. Red in the snapshot is red; what was not decided is not known."""
    if seen.evaluation is None or seen.guard.refused or seen.guard.undecided:
        return ContractState.UNKNOWN
    return {ChecksState.GREEN: ContractState.GREEN, ChecksState.RED: ContractState.RED}.get(
        seen.state, ContractState.UNKNOWN
    )
