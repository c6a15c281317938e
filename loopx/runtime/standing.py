"""What a goal's contract says of the tree as it is now, outside any turn: checks, guard and confirmation together.

A turn's judge knows more (claims, progress); whoever closes a goal or a todo without a turn must see no less about the
tree. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from loopx.contracts.baseline import Baseline
from loopx.contracts.findings import GuardVerdict
from loopx.contracts.model import Check, ChecksState, Contract, ContractEvaluation
from loopx.control_plane.quota.facts import ContractState
from loopx.runtime.confirming import Confirmation, confirm, environment_of, held_out_red
from loopx.runtime.evaluation import Evaluator
from loopx.runtime.goal_work import GoalWork
from loopx.runtime.guarding import Guard, renamed_todo_checks, with_todo_results
from loopx.runtime.progress import Observer
from loopx.store import goals
from loopx.store.codec import load
from loopx.store.store import Store


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """`shown` are the goal's visible checks, `own` a todo's; `confirmation` only where all that is shown is green."""

    tree_hash: str
    shown: ContractEvaluation
    own: ContractEvaluation | None = None
    guard: GuardVerdict = GuardVerdict()
    confirmation: Confirmation | None = None

    @property
    def contract(self) -> ContractState:
        """What is known of the goal's contract."""
        if self.guard.refused or self.guard.undecided:
            return ContractState.UNKNOWN
        if self.shown.state is ChecksState.RED:
            return ContractState.RED
        if self.confirmation is None or not self.shown.all_green:
            return ContractState.UNKNOWN
        state = self.confirmation.state
        if state is ChecksState.GREEN and not held_out_red(self.guard.restored):
            return ContractState.GREEN
        return ContractState.UNKNOWN if state in _NO_VERDICT else ContractState.RED

    @property
    def refused(self) -> tuple[str, ...]:
        """The paths, or else the codes, for which the guard refuses."""
        return tuple(sorted({finding.path or str(finding.code) for finding in self.guard.offending}))


_NO_VERDICT = frozenset({ChecksState.RED_STARVED, ChecksState.NOT_EVALUABLE})


def look(
    store: Store,
    work: GoalWork,
    baseline: Baseline,
    env: dict[str, str],
    observer: Observer,
    *,
    todo_checks: tuple[Check, ...] = (),
    cancelled: Callable[[], bool] = lambda: False,
    left_ms: Callable[[], int | None] = lambda: None,
) -> Standing:
    """Look at the tree as it is. Raises UsageError for a tree that can't be read."""
    with store.read() as tx:
        row = goals.row_of(tx, work.goal_id)
    accepted = load(row["accepted"], dict[str, str | None]) if row["accepted"] else {}
    base_tree = work.tree.with_accepted(str(row["base_tree"]), accepted)
    tree_hash = work.tree.capture()
    evaluator = Evaluator(store, work.tree, work.contract, env, observer, work.goal_id, "", left_ms, cancelled)
    guard = Guard(work.tree, work.contract, evaluator, env, renamed_todo_checks(todo_checks))
    programs = guard.programs()
    shown = evaluator.in_place(tree_hash, "", baseline, held_out=False)
    own = None
    if todo_checks:
        own = evaluator.in_place(tree_hash, "", None, Contract(checks=todo_checks, confirm_in_snapshot=False))
    seen = Standing(tree_hash=tree_hash, shown=shown, own=own)
    judged = guard.judge(
        base_tree,
        tree_hash,
        work.tree.capture(),
        baseline,
        with_todo_results(shown, own),
        work.goal.definition.boundary.write_scope,
        frozenset(),
        programs_now=programs,
        completing=shown.all_green,
        progressed=shown.all_green,
    )
    seen = msgspec.structs.replace(seen, guard=judged.verdict)
    if not shown.all_green or judged.verdict.refused or judged.verdict.undecided:
        return seen
    found = confirm(work.contract, baseline, evaluator, tree_hash, environment_of(programs), without=judged.links_out)
    return msgspec.structs.replace(seen, confirmation=found)
