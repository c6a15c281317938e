"""Putting the work tree back to before a turn, or to before the goal (`turn revert`, `goal discard`).

It restores files only: the branch, its commits and the user's HEAD and index stay. It refuses when someone else has
changed the tree since LoopX last saw it, and every restore names the tree that it replaced, so it can be undone.
"""

from __future__ import annotations

from loopx.control_plane.errors import ConflictError, NotFoundError
from loopx.control_plane.ids import GoalId, TurnKey
from loopx.workspace import checkpoint, difference, restore, tree
from loopx.workspace.repository import Repository


def revert_turn(
    repo: Repository, goal_id: GoalId, turn_key: TurnKey, *, expected_tree: str | None = None, force: bool = False
) -> restore.RestoreResult:
    """Restore the tree from before this turn's checkpoint: the previous checkpoint's, or the base's.

    `expected_tree` is the tree LoopX saw last (default: this turn's). Raises `NotFoundError` (`checkpoint_missing`,
    `base_missing`), `ConflictError` (`tree_changed`, unless `force`) and what `restore_tree` raises.
    """
    done = checkpoint.checkpoints(repo, goal_id)
    for position, one in enumerate(done):
        if one.turn_key == turn_key:
            _refuse_changed(repo, expected_tree or one.tree_hash, force=force)
            earlier = done[position + 1 :]
            target = earlier[0].tree_hash if earlier else checkpoint.read_base(repo, goal_id).tree_hash
            return restore.restore_tree(repo, target)
    raise NotFoundError("checkpoint_missing", f"turn {turn_key} left no checkpoint on loopx/{goal_id}")


def discard(
    repo: Repository, goal_id: GoalId, *, expected_tree: str | None = None, force: bool = False
) -> restore.RestoreResult:
    """Restore the goal's base. `expected_tree` is the tree LoopX saw last (default: any of its own trees).

    Raises `NotFoundError` (`base_missing`), `ConflictError` (`tree_changed`, unless `force`) and what
    `restore_tree` raises.
    """
    start = checkpoint.read_base(repo, goal_id).tree_hash
    own = [one.tree_hash for one in checkpoint.checkpoints(repo, goal_id)] + [start]
    _refuse_changed(repo, *([expected_tree] if expected_tree else own), force=force)
    return restore.restore_tree(repo, start)


def _refuse_changed(repo: Repository, *expected: str, force: bool) -> None:
    """Go on only when the tree is one of those LoopX knows; the first of them is the one to compare with."""
    now = tree.write_down(repo)[0]
    if force or now in expected:
        return
    changed = difference.diff(repo, expected[0], now)
    raise ConflictError(
        "tree_changed",
        f"{len(changed)} files have changed since LoopX last saw this work tree",
        hint="Look at them first; --force puts the tree back all the same and names the tree that it replaced.",
        data={"expected": expected[0], "found": now, "files": len(changed), "first": changed[0].path},
    )
