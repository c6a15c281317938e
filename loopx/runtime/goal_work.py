"""One goal made ready to work on: its definition, contract and work tree, and the baseline that judges it."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from loopx.contracts.baseline import Baseline
from loopx.contracts.model import Contract, ContractEvaluation
from loopx.control_plane.errors import CancelledError, ConflictError, UsageError
from loopx.control_plane.goal import Goal, TreeMode
from loopx.control_plane.ids import GoalId
from loopx.control_plane.quota.facts import ContractState
from loopx.control_plane.turn_driver.journal import EvidenceDraft, EvidenceKind, Producer
from loopx.runtime.evaluation import Evaluator, summarise, without_output
from loopx.runtime.progress import BaselineTaken, Observer
from loopx.runtime.project import Project
from loopx.runtime.tree_port import WorkTree
from loopx.store import events, evidence, goals
from loopx.store.codec import dump, load
from loopx.store.store import Store
from loopx.workspace import check_run


class GoalWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn needs to know of its goal."""

    goal: Goal
    contract: Contract
    tree: WorkTree

    @property
    def goal_id(self) -> GoalId:
        return self.goal.goal_id


def contract_of(goal: Goal) -> Contract:
    """The decoded contract of a goal."""
    return msgspec.json.decode(goal.definition.contract, type=Contract)


def open_goal(store: Store, project: Project, goal_id: str) -> GoalWork:
    """Raises NotFoundError (`goal_unknown`)."""
    with store.read() as tx:
        goal = goals.get(tx, goal_id)
    root = worktree_path(project, goal.goal_id) if goal.definition.tree_mode is TreeMode.WORKTREE else goal.root
    tree = WorkTree(store, goal.goal_id, root, project.trees)
    return GoalWork(goal=goal, contract=contract_of(goal), tree=tree)


def worktree_path(project: Project, goal_id: str) -> str:
    return os.path.join(project.state_dir, "worktrees", goal_id)


def prepare_tree(store: Store, project: Project, work: GoalWork) -> None:
    """Refuse a tree in the middle of a merge; make the goal's own worktree when it wants one and has none."""
    if work.goal.definition.tree_mode is not TreeMode.WORKTREE:
        work.tree.require_usable()
        return
    path = worktree_path(project, work.goal_id)
    if os.path.isdir(path):
        return
    from pathlib import Path

    from loopx.workspace import tree, worktree
    from loopx.workspace.repository import open_repository

    main = open_repository(Path(work.goal.root), Path(project.trees))
    state = tree.capture_repository(main)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    worktree.add_worktree(
        main,
        Path(path),
        state.tree_hash,
        owner=work.goal_id,
        when_ms=store.now_ms(),
        setup=work.goal.definition.setup,
    )


def baseline_of(store: Store, goal_id: str) -> Baseline | None:
    """The stored baseline, if one was taken for the contract as it is."""
    with store.read() as tx:
        row = goals.row_of(tx, goal_id)
    return load(row["baseline"], Baseline) if row["baseline"] is not None else None


def reference_of(store: Store, goal_id: str) -> ContractEvaluation | None:
    """The last accepted evaluation: what progress is measured against."""
    with store.read() as tx:
        row = goals.row_of(tx, goal_id)
    return load(row["evaluation"], ContractEvaluation) if row["evaluation"] is not None else None


def take_baseline(
    store: Store,
    work: GoalWork,
    env: dict[str, str],
    observer: Observer,
    cancelled: Callable[[], bool],
    left_ms: Callable[[], int | None],
) -> Baseline:
    """Evaluate the contract on the untouched tree and store it; the stored one where there is one.

    Raises UsageError (`check_program_missing`) naming the program and the fix, before anything was paid for, and
    ConflictError (`stale_revision`) when the goal was edited meanwhile.
    """
    known = baseline_of(store, work.goal_id)
    if known is not None:
        return known
    if not work.contract.checks:
        raise UsageError(
            "no_check", f"goal {work.goal_id} has no check", hint=f'loopx goal edit {work.goal_id} --check "CMD"'
        )
    _require_programs(work, env)
    base_tree = work.tree.base()
    tree_hash = work.tree.capture()
    evaluator = Evaluator(store, work.tree, work.contract, env, _quiet(observer), work.goal_id, "", left_ms, cancelled)
    baseline = evaluator.baseline(tree_hash)
    if cancelled():
        raise CancelledError("cancelled", "stopped during the baseline", hint=f"loopx run {work.goal_id}")
    if not _store(store, work.goal, baseline, base_tree, tree_hash):
        return _of_another(store, work)
    observer(
        BaselineTaken(
            goal_id=work.goal_id,
            checks=tuple(summarise(result) for result in baseline.evaluation.results if not result.held_out),
            gates_nothing=baseline.gates_nothing,
            not_snapshotable=bool(baseline.not_snapshotable),
        )
    )
    return baseline


def _of_another(store: Store, work: GoalWork) -> Baseline:
    """The baseline that another run stored first; this one must not replace it, however late it comes."""
    stored = baseline_of(store, work.goal_id)
    with store.read() as tx:
        revision = goals.row_of(tx, work.goal_id)["revision"]
    if stored is None or revision != work.goal.revision:
        raise ConflictError(
            "stale_revision",
            f"goal {work.goal_id} was edited while its baseline was taken",
            hint=f"loopx run {work.goal_id}",
        )
    return stored


def _quiet(observer: Observer) -> Observer:
    """Check starts at the baseline are told once, as its summary."""
    return lambda event, /: None


def _require_programs(work: GoalWork, env: dict[str, str]) -> None:
    missing = check_run.missing_programs(work.contract, check_run.session(work.tree.root, env=env))
    if missing:
        first = missing[0]
        raise UsageError(
            "check_program_missing",
            f"check {first.check}: there is no program {first.program!r}",
            hint=f"install it, or name another check: loopx goal edit {work.goal_id} --check CMD",
            data={"check": first.check, "program": first.program},
        )


def _store(store: Store, goal: Goal, baseline: Baseline, base_tree: str, tree_hash: str) -> bool:
    """Whether it was stored: there was none yet, and the goal is still as it was evaluated."""
    goal_id = goal.goal_id
    lean = msgspec.structs.replace(baseline, evaluation=without_output(baseline.evaluation))
    now = store.now_ms()
    with store.write() as tx:
        stored = tx.run(
            "goals.set_baseline",
            goal_id=goal_id,
            revision=goal.revision,
            baseline=dump(lean),
            evaluation=dump(lean.evaluation),
            base_tree=base_tree,
            contract_state=ContractState.GREEN if baseline.evaluation.all_green else ContractState.RED,
            contract_tree=tree_hash,
            now_ms=now,
        )
        if stored != 1:
            return False
        for result in baseline.evaluation.results:
            draft = EvidenceDraft(
                kind=EvidenceKind.CHECK,
                produced=Producer.VERIFIED,
                name=f"baseline: {result.name}",
                verdict=result.verdict,
                tree_hash=tree_hash,
                body=msgspec.Raw(dump(result).encode()),
            )
            evidence.insert(tx, store.ids.new("ev"), goal_id, draft, now)
        body = {
            "tree": tree_hash,
            "verdicts": {result.name: result.verdict for result in baseline.evaluation.results},
            "gates_nothing": baseline.gates_nothing,
            "not_snapshotable": baseline.not_snapshotable,
        }
        events.append(tx, goal_id, "baseline_taken", now, body)
    return True
