"""Git work trees of LoopX's own, for several goals at once and for divided work (loops, "Where the agent works").

Each is recorded with its owner before it is made, so one that a crash left behind is found and removed; it starts
detached at a commit that holds the base, dirty files included. It never moves or lists a work tree that LoopX did
not make, runs no hook, and removes nothing whose work is not kept somewhere.
"""

from __future__ import annotations

import enum
import hashlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loopx.control_plane.errors import ConflictError, LoopXError, NotFoundError, UsageError
from loopx.workspace import checkpoint, copytree, dependencies, difference, editable, git, tree
from loopx.workspace.repository import Repository, open_repository, writing_state

_SETUP_TIMEOUT_S = 1800.0


class WorktreeState(enum.StrEnum):
    """Whether a recorded work tree is there: `MISSING` ones are left from a crash or were removed by hand."""

    PRESENT = "present"
    MISSING = "missing"


class Worktree(msgspec.Struct, frozen=True, kw_only=True):
    """One work tree of LoopX's. `owner` is what the caller named it for (a goal, a subtask)."""

    path: str
    owner: str
    commit: str
    base_tree: str
    linked: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()
    state: WorktreeState = WorktreeState.PRESENT


def add_worktree(
    repo: Repository,
    path: Path,
    source: str,
    *,
    owner: str,
    when_ms: int,
    dependency_dirs: Sequence[str] | None = None,
    setup: Sequence[str] = (),
    setup_timeout_s: float = _SETUP_TIMEOUT_S,
) -> Worktree:
    """Make a work tree at `path` from a commit, or from a captured tree (a commit on the user's HEAD is made of it).

    Dependency folders (None: found ones) are linked; a Python environment with an editable install of the project
    is copied and pointed at the new tree, as a link would lead its tests back to the main tree. With `setup`, that
    command runs in the new tree instead. Raises `ConflictError` (`worktree_exists`), `UsageError`
    (`worktree_inside_project`, `worktree_setup_failed`), `NotFoundError` (`tree_missing`) and `LoopXError`
    (`worktree_not_isolated`).
    """
    place = Path(path).absolute()
    place = place.parent.resolve() / place.name
    if place.is_relative_to(repo.root) and not place.is_relative_to(repo.state_dir):
        raise UsageError("worktree_inside_project", f"{place} lies in the project", hint="Choose a place outside it.")
    if os.path.lexists(place):
        raise ConflictError("worktree_exists", f"there is already something at {place}", hint="Remove it first.")
    commit, base_tree = _commit_of(repo, source, owner, when_ms)
    made = Worktree(path=str(place), owner=owner, commit=commit, base_tree=base_tree)
    _record(repo, made)
    try:
        _git(repo, "worktree", "add", "-q", "--detach", str(place), commit)
        _require_isolated(repo, place)
        if setup:
            _run_setup(place, setup, setup_timeout_s)
        else:
            made = _bring_dependencies(repo, made, dependency_dirs)
            _record(repo, made)
    except BaseException:
        remove_worktree(repo, place, force=True)
        raise
    return made


def list_worktrees(repo: Repository) -> tuple[Worktree, ...]:
    """Every work tree that LoopX made for this project and has not removed, by path."""
    folder = repo.state_dir / "worktrees"
    found = []
    for record in sorted(folder.glob("*.json")):
        known = msgspec.json.decode(record.read_bytes(), type=Worktree)
        state = WorktreeState.PRESENT if (Path(known.path) / ".git").exists() else WorktreeState.MISSING
        found.append(msgspec.structs.replace(known, state=state))
    return tuple(sorted(found, key=lambda one: one.path))


def remove_worktree(repo: Repository, path: Path, *, kept_in: Sequence[str] = (), force: bool = False) -> None:
    """Remove one of LoopX's work trees and its registration; a missing one is only forgotten.

    Its work must be kept: the work tree unchanged, or all its changes contained in one of `kept_in` (commits or
    trees; a squash merge counts, since contents are compared, not ancestry). Raises `NotFoundError`
    (`worktree_unknown`) and `ConflictError` (`unmerged_work`, unless `force`).
    """
    place = Path(path).absolute()
    place = place.parent.resolve() / place.name
    known = next((one for one in list_worktrees(repo) if one.path == str(place)), None)
    if known is None:
        raise NotFoundError("worktree_unknown", f"{place} is not a work tree that LoopX made")
    if known.state is WorktreeState.PRESENT and not force:
        _require_kept(repo, known, kept_in)
    for name in known.linked:
        if (place / name).is_symlink():
            (place / name).unlink()
    if _registered(repo, place):
        _git(repo, "worktree", "remove", "--force", "--force", str(place), expect=(0, 128))
    copytree.remove_tree(place)
    if _registered(repo, place):  # git refused while files were in the way
        _git(repo, "worktree", "remove", "--force", "--force", str(place))
    there = msgspec.structs.replace(repo, root=place)
    for left in (there.private_excludes, there.private_index):
        left.unlink(missing_ok=True)
    _record_path(repo, place).unlink(missing_ok=True)


def not_contained(repo: Repository, base_tree: str, work_tree: str, target: str) -> tuple[str, ...]:
    """The paths whose change from `base_tree` to `work_tree` is not in `target`; empty means safely merged."""
    there = {entry.path: (entry.mode, entry.blob) for entry in tree.list_paths(repo, target)}
    missing = []
    for change in difference.diff(repo, base_tree, work_tree):
        wanted = (change.new_mode, change.new_blob) if change.new_blob else None
        renamed_away = change.old_path is not None and change.old_path in there
        if there.get(change.path) != wanted or renamed_away:
            missing.append(change.path)
    return tuple(missing)


def _commit_of(repo: Repository, source: str, owner: str, when_ms: int) -> tuple[str, str]:
    base_tree = checkpoint.tree_of(repo, source)
    if repo.git("cat-file", "-t", source).line == "commit":
        return repo.git("rev-parse", "--verify", f"{source}^{{commit}}").line, base_tree
    message = f"LoopX: where the work tree of {owner} starts\n\n{checkpoint.BASE_TRAILER}: {owner}\n"
    return checkpoint.publish_commit(repo, base_tree, message, when_ms), base_tree


def _git(repo: Repository, *args: str, expect: Sequence[int] = (0,)) -> git.GitResult:
    # Without GIT_WORK_TREE and with the project's own objects: git sets both for the new work tree itself.
    return git.run(args, cwd=repo.root, env={"GIT_DIR": str(repo.git_dir)}, expect=expect)


def _require_isolated(repo: Repository, place: Path) -> None:
    top = Path(git.run(["rev-parse", "--show-toplevel"], cwd=place).line).resolve()
    if top != place or top == repo.root:
        raise LoopXError("worktree_not_isolated", f"the work tree at {place} turned out to be {top}")


def _bring_dependencies(repo: Repository, made: Worktree, wanted: Sequence[str] | None) -> Worktree:
    names = dependencies.detect(repo) if wanted is None else dependencies.named(repo, wanted)
    place = Path(made.path)
    linked, copied = [], []
    for name in (name for name in names if not os.path.lexists(place / name)):
        source, target = repo.root / name, place / name
        if name.endswith(".egg-info") or editable.points_into(source, repo.roots):
            copytree.copy_tree(source, target)
            editable.rewrite(target, repo.roots, place)
            copied.append(name)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source)
            linked.append(name)
    _exclude(repo, place, [*linked, *copied])
    return msgspec.structs.replace(made, linked=tuple(linked), copied=tuple(copied))


def _exclude(repo: Repository, place: Path, names: Sequence[str]) -> None:
    """A pattern like `node_modules/` ignores a folder, not a link to one; captures must ignore both."""
    lines = "".join(f"/{tree.literal_pattern(name)}\n" for name in names)
    with writing_state(repo.state_dir):
        _excludes_of(repo, place).write_bytes(os.fsencode(lines))


def _excludes_of(repo: Repository, place: Path) -> Path:
    return msgspec.structs.replace(repo, root=place).private_excludes


def _run_setup(place: Path, setup: Sequence[str], timeout_s: float) -> None:
    variables = {name: value for name, value in git.environment().items() if not name.startswith("GIT_")}
    try:
        process = subprocess.Popen(
            list(setup),
            cwd=place,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as failed:
        raise _setup_failed(setup, str(failed), 127) from failed
    with process:
        try:
            said, _ = process.communicate(timeout=timeout_s)
        except BaseException as stopped:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(stopped, subprocess.TimeoutExpired):
                raise _setup_failed(setup, f"not done after {timeout_s:g} s", None) from stopped
            raise
    if process.returncode:
        raise _setup_failed(setup, said.decode("utf-8", "replace").strip()[-2000:], process.returncode)


def _setup_failed(setup: Sequence[str], said: str, status: int | None) -> UsageError:
    return UsageError(
        "worktree_setup_failed",
        f"the setup command {' '.join(setup)!r} failed in the new work tree: {said}",
        hint="Run it by hand in a fresh clone to see what it needs.",
        data={"status": status},
    )


def _require_kept(repo: Repository, known: Worktree, kept_in: Sequence[str]) -> None:
    inside = open_repository(Path(known.path), repo.state_dir)
    now = tree.write_down(inside)[0]
    missing: tuple[str, ...] = tuple(change.path for change in difference.diff(inside, known.base_tree, now))
    for target in kept_in:
        if missing:
            # A name like HEAD means the main tree's; in the new tree it would be the very work in question.
            missing = not_contained(inside, known.base_tree, now, checkpoint.tree_of(repo, target))
    if missing:
        raise ConflictError(
            "unmerged_work",
            f"{len(missing)} changed files in the work tree {known.path} of {known.owner} are kept nowhere else",
            hint="Merge or copy them first, or remove it with force.",
            data={"files": len(missing), "first": missing[0], "tree": now},
        )


def _registered(repo: Repository, place: Path) -> bool:
    listed = _git(repo, "worktree", "list", "--porcelain").stdout
    return b"worktree " + os.fsencode(place) + b"\n" in listed


def _record_path(repo: Repository, place: Path) -> Path:
    return repo.state_dir / "worktrees" / f"{hashlib.sha256(os.fsencode(place)).hexdigest()[:16]}.json"


def _record(repo: Repository, made: Worktree) -> None:
    target = _record_path(repo, Path(made.path))
    fresh = repo.scratch("record")
    with writing_state(repo.state_dir):
        target.parent.mkdir(exist_ok=True)
        fresh.write_bytes(msgspec.json.encode(made))
        fresh.replace(target)
