"""What is kept for how long, and what is let go of after that (`gc`).

Output, prompts and check caches age; facts do not: goals, turns, ledger, evidence and events stay. A work tree goes
only when all its work is on the goal's branch, and a branch never goes: it may be the only copy of the work.
"""

from __future__ import annotations

import enum
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from loopx.control_plane.errors import LoopXError
from loopx.control_plane.ids import GoalId
from loopx.runtime import care, goal_work
from loopx.runtime.project import Project
from loopx.store.connection import Tx
from loopx.store.store import Store

DAYS = 30
DAY_MS = 86_400_000
_PAGE = 500


class Kind(enum.StrEnum):
    """What may go."""

    OUTPUT = "output"
    """The spool of an ended launch: raw output, prompt, records."""
    AGENT_FILES = "agent_files"
    CHECK_CACHE = "check_cache"
    NOTIFICATIONS = "notifications"
    HEARTBEATS = "heartbeats"
    WORKTREE = "worktree"


class Old(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that retention lets go: a folder (with its size), or so many rows."""

    kind: Kind
    subject: str
    bytes: int = 0
    rows: int = 0


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What was, or would be, let go of. `kept`: work trees whose work is nowhere else, with the reason."""

    days: int
    removed: bool
    items: tuple[Old, ...]
    bytes: int
    kept: tuple[str, ...]


_ROWS = (
    (Kind.CHECK_CACHE, "care.count_cached_checks", "care.drop_cached_checks"),
    (Kind.NOTIFICATIONS, "care.count_sent", "care.drop_sent"),
    (Kind.HEARTBEATS, "care.count_beats", "care.drop_beats"),
)


def collect(store: Store, project: Project, *, days: int = DAYS, remove: bool) -> Collected:
    """Find what is older than `days`, and remove it unless this is only a look."""
    before = store.now_ms() - days * DAY_MS
    with store.read() as tx:
        folders = [*_outputs(tx, before), *_agent_files(tx, project, before)]
        rows = [Old(kind=kind, subject="store", rows=tx.number(count, before_ms=before)) for kind, count, _ in _ROWS]
        closed = [str(row["goal_id"]) for row in tx.all("care.closed_goals", before_ms=before)]
    rows = [old for old in rows if old.rows]
    if remove:
        folders = [old for old in folders if _remove(old.subject)]
        with store.write() as tx:
            for _, _, drop in _ROWS:
                tx.run(drop, before_ms=before)
    trees, kept = _worktrees(store, project, closed, remove=remove)
    items = (*folders, *rows, *trees)
    return Collected(days=days, removed=remove, items=items, bytes=sum(one.bytes for one in items), kept=kept)


def _outputs(tx: Tx, before_ms: int) -> Iterator[Old]:
    after = ""
    while rows := tx.all("care.old_launches", after=after, before_ms=before_ms, limit=_PAGE):
        for row in rows:
            path = str(row["spool_dir"])
            if os.path.isdir(path) and care.alive(path) is None:
                yield Old(kind=Kind.OUTPUT, subject=path, bytes=size(path))
        after = str(rows[-1]["run_id"])


def _agent_files(tx: Tx, project: Project, before_ms: int) -> Iterator[Old]:
    """The folders through which agents of closed turns handed over their results."""
    folder = os.path.join(project.state_dir, "agent")
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        row = tx.one("turns.get", turn_key=name)
        path = os.path.join(folder, name)
        if row is None or row["state"] != "closed" or (row["ended_at_ms"] or 0) >= before_ms:
            continue
        yield Old(kind=Kind.AGENT_FILES, subject=path, bytes=size(path))


def _worktrees(
    store: Store, project: Project, closed: list[str], *, remove: bool
) -> tuple[tuple[Old, ...], tuple[str, ...]]:
    """The work trees of goals that ended long ago and whose work is on their branch."""
    found: list[Old] = []
    kept: list[str] = []
    for goal_id in closed:
        path = goal_work.worktree_path(project, goal_id)
        if not os.path.isdir(path):
            continue
        old = Old(kind=Kind.WORKTREE, subject=path, bytes=size(path))
        try:
            if remove:
                _remove_worktree(store, project, GoalId(goal_id), path)
        except LoopXError as error:
            kept.append(f"{path}: {error.code}")
            continue
        found.append(old)
    return tuple(found), tuple(kept)


def _remove_worktree(store: Store, project: Project, goal_id: GoalId, path: str) -> None:
    """Raises ConflictError (`unmerged_work`) while the tree holds anything that the branch does not."""
    from loopx.workspace import checkpoint, worktree
    from loopx.workspace.repository import open_repository

    with store.read() as tx:
        row = tx.one("goals.get", goal_id=goal_id)
    root = row["root"] if row is not None else project.root
    main = open_repository(Path(root), Path(project.trees))
    tip = checkpoint.tip(main, goal_id)
    worktree.remove_worktree(main, Path(path), kept_in=(tip,) if tip is not None else ())


def _remove(path: str) -> bool:
    if os.path.islink(path):
        return False
    shutil.rmtree(path, ignore_errors=True)
    return not os.path.exists(path)


def size(path: str) -> int:
    """The bytes of all files below a folder."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return total
