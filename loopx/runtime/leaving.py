"""Everything that LoopX keeps on this machine for one project, and taking it away (`uninstall`).

The work itself stays: the project's files, and the branches with the checkpoints unless a person asks for them too.
Nothing is removed while a turn is open or a host runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

import msgspec

from loopx.control_plane.errors import ConflictError
from loopx.runtime import retention, schedule_install
from loopx.runtime.project import Project
from loopx.store.store import Store


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What there is. `timers` are unit files and crontab marks; `refs` are git references of LoopX's own."""

    state_dir: str
    state_bytes: int
    project_folder: str | None
    database: str | None
    """The store, when it lies elsewhere than in the state folder; it is never removed."""
    goals: tuple[str, ...]
    timers: tuple[str, ...]
    worktrees: tuple[str, ...]
    branches: tuple[str, ...]
    refs: tuple[str, ...]


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed."""

    removed: tuple[str, ...]
    stays: tuple[str, ...]


def look(store: Store | None, project: Project, env: Mapping[str, str]) -> Kept:
    """What LoopX keeps for this project; changes nothing."""
    goals: tuple[str, ...] = ()
    if store is not None:
        with store.read() as tx:
            goals = tuple(str(row["goal_id"]) for row in tx.all("care.goals"))
    folder = os.path.join(project.root, ".loopx")
    worktrees = os.path.join(project.state_dir, "worktrees")
    refs = _refs(project.root)
    worker = os.path.join(schedule_install.unit_folder(env), f"loopx-worker-{project.project_id}.service")
    timers = [path for goal_id in goals for path in schedule_install.timer_files(goal_id, project, env)]
    inside = os.path.commonpath([project.state_dir, os.path.abspath(project.database)]) == project.state_dir
    return Kept(
        state_dir=project.state_dir,
        state_bytes=retention.size(project.state_dir),
        project_folder=folder if os.path.isdir(folder) and not project.foreign else None,
        database=None if inside else project.database,
        goals=goals,
        timers=(*timers, *([worker] if os.path.exists(worker) else [])),
        worktrees=tuple(os.path.join(worktrees, name) for name in _names(worktrees)),
        branches=tuple(ref for ref in refs if ref.startswith("refs/heads/loopx/")),
        refs=tuple(ref for ref in refs if not ref.startswith("refs/heads/")),
    )


def require_idle(store: Store) -> None:
    """Raises ConflictError (`turn_open`) while any turn is open: its work is not written back yet."""
    with store.read() as tx:
        row = next(iter(tx.all("turns.open_all", limit=1)), None)
    if row is not None:
        raise ConflictError(
            "turn_open",
            f"turn {row['number']} of {row['goal_id']} is open",
            hint=f"loopx turn resume {row['goal_id']}, or loopx goal stop {row['goal_id']}",
            data={"turn_key": row["turn_key"]},
        )


def require_nothing_lost(found: Kept) -> None:
    """Raises ConflictError (`worktrees_present`) while goals have work trees of their own: they go with the folder."""
    if found.worktrees:
        raise ConflictError(
            "worktrees_present",
            f"{len(found.worktrees)} goals have a work tree in {found.state_dir}, which would be removed",
            hint="look at them first; --force removes them too (checkpoints stay on their branches)",
            data={"first": found.worktrees[0]},
        )


def remove(found: Kept, project: Project, env: Mapping[str, str], *, branches: bool) -> Left:
    """Take away what `look` found: timers first, so that nothing starts meanwhile; the store's folder last."""
    removed: list[str] = []
    for goal_id in found.goals:
        removed += schedule_install.remove(goal_id, project, env)
    for path in found.timers:
        if os.path.exists(path):
            _quietly("systemctl", "--user", "disable", "--now", os.path.basename(path))
            os.unlink(path)
            removed.append(path)
    for ref in (*found.refs, *(found.branches if branches else ())):
        if _quietly("git", "-C", project.root, "update-ref", "-d", ref):
            removed.append(ref)
    for folder in (found.project_folder, found.state_dir):
        if folder is not None and os.path.isdir(folder):
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    if found.worktrees:
        _quietly("git", "-C", project.root, "worktree", "prune")
    stays = [*(() if branches else found.branches), *([found.database] if found.database else [])]
    return Left(removed=tuple(removed), stays=tuple(stays))


def _refs(root: str) -> tuple[str, ...]:
    words = ["git", "-C", root, "for-each-ref", "--format=%(refname)", "refs/heads/loopx/", "refs/loopx/"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(done.stdout.split()) if done.returncode == 0 else ()


def _quietly(*words: str) -> bool:
    try:
        return subprocess.run(words, capture_output=True, timeout=30, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
