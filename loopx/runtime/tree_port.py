"""The work tree's effects on behalf of a turn: captures, checkpoints on the goal's branch, restorations.

A checkpoint is found by its trailer before it is made, so that a crash between the commit and its record repeats
nothing. It judges nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from loopx.contracts.findings import Finding
from loopx.control_plane.errors import ConflictError, NotFoundError, UsageError
from loopx.control_plane.ids import EffectRef, GoalId
from loopx.control_plane.turn_driver.journal import RestoreOrder, TurnJournal
from loopx.runtime import alarms, second_run
from loopx.store.store import Store
from loopx.workspace import checkpoint, restore, tree
from loopx.workspace import identity as tree_identity
from loopx.workspace.repository import Repository, open_repository

SUBJECT_CHARS = 72


class WorkTree:
    """One goal's work tree. Implements `TreePort`. Opened lazily, because most commands never look at files."""

    def __init__(self, store: Store, goal_id: GoalId, root: str, state_dir: str) -> None:
        self._store = store
        self._goal_id = goal_id
        self._root = root
        self._state_dir = state_dir
        self._repository: Repository | None = None

    @property
    def root(self) -> str:
        return self._root

    @property
    def repository(self) -> Repository:
        """Raises UsageError when the folder is gone or is no work tree that LoopX can use."""
        if self._repository is None:
            os.makedirs(self._state_dir, mode=0o700, exist_ok=True)
            self._repository = open_repository(Path(self._root), Path(self._state_dir))
            # A process that was killed in the middle of a second run left the start's files in the place of the work.
            second_run.heal(self._repository)
        return self._repository

    def capture(self) -> str:
        """The hash of the whole tree as it is now."""
        return tree.write_down(self.repository)[0]

    def remember_user(self, turn_key: str) -> None:
        """Keep how the user's HEAD, branch, index and git rules are as this turn begins."""
        alarms.remember(self.repository, turn_key)

    def forget_user(self, turn_key: str) -> None:
        """The turn is over."""
        alarms.forget(self.repository, turn_key)

    def alarms(self, turn_key: str, last_checkpoint: str | None) -> tuple[Finding, ...]:
        """What of the user's repository and of the goal's branch was moved by somebody else while the turn ran."""
        tip = checkpoint.tip(self.repository, self._goal_id)
        moves = alarms.user_moves(self.repository, turn_key)
        return (*moves, *alarms.goal_branch(last_checkpoint, tip))

    def with_accepted(self, base_tree: str, accepted: Mapping[str, str | None]) -> str:
        """The tree of the goal's start with what people changed since, by path; None: they deleted it."""
        return tree.overlaid(self.repository, base_tree, accepted) if accepted else base_tree

    def require_usable(self) -> None:
        """Raises UsageError (`tree_in_progress`) in the middle of a merge, rebase, cherry-pick or bisect."""
        operation = tree_identity.in_progress(self.repository.git_dir)
        if operation is not None:
            raise UsageError(
                "tree_in_progress",
                f"{self._root} is in the middle of a {operation}",
                hint="finish or abort it first",
                data={"in_progress": str(operation)},
            )

    def base(self) -> str:
        """The tree at the goal's start, recorded once."""
        try:
            return checkpoint.read_base(self.repository, self._goal_id).tree_hash
        except NotFoundError:
            pass
        made = checkpoint.base(Path(self._root), Path(self._state_dir), self._goal_id, self._store.now_ms())
        return made.tree_hash

    def branch(self) -> str:
        return checkpoint.branch_ref(self._goal_id).removeprefix("refs/heads/")

    def checkpoint(self, journal: TurnJournal, effect_ref: EffectRef) -> str | None:
        """The commit of this turn's tree: found by its trailer, else made."""
        turn, result = journal.turn, journal.turn.result
        if result is None or result.tree_after is None:
            return None
        known = checkpoint.history(self.repository, self._goal_id, effect_ref)
        found, parent = known.same, known.tip
        if found is not None and found.tree_hash == result.tree_after:
            return found.sha
        newest = known.newest
        before = newest.tree_hash if newest is not None and newest.sha == parent else self._parent_tree(parent)
        if result.tree_after == before and found is None:
            return None
        subject = f"{result.kind}: {result.message or result.reason}".replace("\n", " ")[:SUBJECT_CHARS]
        return checkpoint.commit_checkpoint(
            self.repository,
            goal_id=self._goal_id,
            tree_hash=result.tree_after,
            parent=parent if parent is not None else self._base_commit(),
            turn_key=turn.turn_key,
            effect_ref=effect_ref,
            subject=subject,
            when_ms=turn.started_at_ms,
            known=known,
        )

    def _parent_tree(self, parent: str | None) -> str | None:
        if parent is not None:
            return checkpoint.tree_of(self.repository, parent)
        try:
            return checkpoint.read_base(self.repository, self._goal_id).tree_hash
        except NotFoundError:
            return None

    def _base_commit(self) -> str | None:
        """The user's own changes at the start are a commit apart, so that a turn's commit shows only its work."""
        try:
            base = checkpoint.read_base(self.repository, self._goal_id)
        except NotFoundError:
            return None
        return base.commit if base.dirty else None

    def restore(self, journal: TurnJournal, order: RestoreOrder) -> None:
        """Put the offending files back as they were at the base. Idempotent."""
        restore.restore_paths(self.repository, order.base_tree, order.paths)

    def discard(self, *, force: bool = False) -> str:
        """Put the whole tree back to the goal's start. Raises ConflictError when others changed it since."""
        base = checkpoint.read_base(self.repository, self._goal_id)
        if not force:
            tip = checkpoint.tip(self.repository, self._goal_id)
            expected = checkpoint.tree_of(self.repository, tip) if tip else base.tree_hash
            if self.capture() != expected:
                raise ConflictError(
                    "tree_changed",
                    f"{self._root} has changes that no turn of {self._goal_id} made",
                    hint="commit or stash them, or add --force",
                )
        restore.restore_tree(self.repository, base.tree_hash)
        return base.tree_hash
