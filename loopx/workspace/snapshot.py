"""A clean copy of exactly one captured tree, with copies of the ignored dependency folders, to run checks in.

Ignored leftovers of the work tree are not in it, so they cannot make a check green; editable installs in the copied
environments point at the copy (loops, "Where the agent works"). It lives in LoopX's own folder, is removed when the
context ends (a large one is kept for the next time, see `kept_copy`), and writing in it never reaches the project.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from loopx.control_plane.errors import StoreError
from loopx.workspace import copytree, dependencies, editable, git, kept_copy, restore, tree
from loopx.workspace.repository import Kind, Repository, writing_state

_SCRATCH_AGE_S = 24 * 3600


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A materialised tree. `path` stands for the top of the work tree; `rewritten` names files whose paths were
    changed in the copied environments; `missing_submodules` could not be filled because they are not here."""

    path: Path
    tree_hash: str
    roots: tuple[Path, ...]
    dependency_dirs: tuple[str, ...]
    manifest: tuple[dependencies.ManifestEntry, ...]
    rewritten: tuple[str, ...]
    missing_submodules: tuple[str, ...]

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The variables for a process in the snapshot: paths into the project lead into the snapshot."""
        return editable.redirected(variables, self.roots, self.path)


@contextlib.contextmanager
def materialize(
    repo: Repository, tree_hash: str, *, dependency_dirs: Sequence[str] | None = None, with_git: bool = True
) -> Iterator[Snapshot]:
    """Make the copy, hand it out, and remove it whatever happens.

    `dependency_dirs` None means: find them. `with_git` gives a git project's copy a repository of its own that reads
    the project's objects and names the same HEAD, branches and tags, for checks that ask git; changes to it stay in
    it. Raises `NotFoundError` (`tree_missing`), `UsageError` (`path_outside`), `StoreError` (`copy_failed`,
    `state_dir_unwritable`).
    """
    tree.require_tree(repo, tree_hash)
    names = dependencies.detect(repo) if dependency_dirs is None else dependencies.named(repo, dependency_dirs)
    sweep(repo.state_dir)
    with _filled(repo, tree_hash, names) as (place, missing):
        before = dependencies.manifest(repo.root, names)
        rewritten = [changed for name in names for changed in _copy_dependency(repo, name, place)]
        if with_git and repo.kind is Kind.GIT:
            _give_git(repo, place)
        yield Snapshot(
            path=place,
            tree_hash=tree_hash,
            roots=repo.roots,
            dependency_dirs=names,
            manifest=before,
            rewritten=tuple(rewritten),
            missing_submodules=missing,
        )


@contextlib.contextmanager
def _filled(repo: Repository, tree_hash: str, dependency_dirs: Sequence[str]) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """A folder that holds exactly the tree, and the submodules that could not be filled."""
    with kept_copy.claimed(repo, dependency_dirs) as kept:
        if kept is None:
            with _place(repo.state_dir) as place:
                index = place.with_suffix(".index")
                try:
                    restore.check_out(repo, tree_hash, place, index)
                    missing = _fill_submodules(repo, place, index)[0]
                finally:
                    index.unlink(missing_ok=True)
                yield place, missing
            return
        try:
            if not kept.bring_to(repo, tree_hash):
                restore.check_out(repo, tree_hash, kept.place, kept.index)
            missing, has_submodules = _fill_submodules(repo, kept.place, kept.index)
        except BaseException:
            kept.spoil()
            raise
        if has_submodules:
            kept.spoil()  # git does not look into them
        yield kept.place, missing


def sweep(state_dir: Path) -> tuple[str, ...]:
    """Remove snapshots and scratch files that a killed process left behind; what was removed, sorted."""
    removed: list[str] = [*kept_copy.sweep(state_dir)]
    for lock in sorted((state_dir / "snapshots").glob("*.lock")):
        with contextlib.suppress(OSError), lock.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in (lock.with_suffix(""), lock.with_suffix(".index"), lock):
                copytree.remove_tree(path)
            removed.append(str(lock.with_suffix("")))
    oldest = time.time() - _SCRATCH_AGE_S
    for path in sorted((state_dir / "scratch").glob("*")):
        with contextlib.suppress(OSError):
            if path.lstat().st_ctime < oldest:
                copytree.remove_tree(path)
                removed.append(str(path))
    return tuple(removed)


@contextlib.contextmanager
def _place(state_dir: Path) -> Iterator[Path]:
    """A new empty folder, held by a file lock for as long as this process lives."""
    folder = state_dir / "snapshots" / secrets.token_hex(6)
    lock = folder.with_suffix(".lock")
    with contextlib.ExitStack() as stack:
        with writing_state(state_dir):
            folder.parent.mkdir(exist_ok=True)
            held = stack.enter_context(lock.open("wb"))
            fcntl.flock(held, fcntl.LOCK_EX)
            folder.mkdir()
        try:
            yield folder
        finally:
            with contextlib.suppress(OSError):
                copytree.remove_tree(folder)
                lock.unlink(missing_ok=True)


def _copy_dependency(repo: Repository, name: str, place: Path) -> list[str]:
    target = place / name
    if os.path.lexists(target):  # the tree itself holds something there; the tree wins
        return []
    try:
        copytree.copy_tree(repo.root / name, target)
        return [f"{name}/{changed}" for changed in editable.rewrite(target, repo.roots, place)]
    except OSError as failed:
        raise StoreError("copy_failed", f"cannot copy {name}: {failed}", hint="Free some space.") from failed


def _fill_submodules(repo: Repository, place: Path, index: Path) -> tuple[tuple[str, ...], bool]:
    """Check out each submodule's recorded commit from the repository that the work tree has for it.

    The ones that are not here, and whether there is any at all.
    """
    links = tree.submodules(repo, index)
    missing = [entry.path for entry in links if not _fill(repo.root / entry.path, entry.blob, place / entry.path)]
    return tuple(missing), bool(links)


def _fill(source: Path, commit: str, target: Path) -> bool:
    if not (source / ".git").exists():
        return False
    git_dir = Path(git.run(["rev-parse", "--absolute-git-dir"], cwd=source).line)
    index = target.with_name(f"{target.name}.loopx-index")
    target.mkdir(parents=True, exist_ok=True)
    env = {"GIT_DIR": str(git_dir), "GIT_WORK_TREE": str(target), "GIT_INDEX_FILE": str(index)}
    try:
        if git.run(["read-tree", commit], cwd=target, env=env, expect=(0, 128)).status:
            return False
        git.run(["checkout-index", "-q", "-a", "-f"], cwd=target, env=env)
        listed = git.run(["ls-files", "-s", "-z"], cwd=target, env=env).items
    finally:
        index.unlink(missing_ok=True)
    inner = [item for item in listed if item.startswith(tree.GITLINK_MODE.encode())]
    return all(
        _fill(source / path, item.split(b" ")[1].decode(), target / path)
        for item, path in ((item, os.fsdecode(item.partition(b"\t")[2])) for item in inner)
    )


def _give_git(repo: Repository, place: Path) -> None:
    """A repository in the copy with borrowed objects: `git describe`, `ls-files` and `diff` answer as usual."""
    head = tree.head(repo)
    if head is None or os.path.lexists(place / ".git"):
        return
    object_format = "sha256" if len(head) == 64 else "sha1"
    git.run(["init", "-q", "--template=", f"--object-format={object_format}", "."], cwd=place)
    info = place / ".git" / "objects" / "info"
    info.mkdir(parents=True, exist_ok=True)
    sources = (repo.common_dir / "objects", repo.state_dir / "objects")
    lines = "".join(f"{git.quoted_alternate(str(source))}\n" for source in sources)
    (info / "alternates").write_bytes(os.fsencode(lines))
    refs = repo.git("for-each-ref", "--format=%(objectname) %(refname)", "refs/heads", "refs/tags", "refs/remotes")
    (place / ".git" / "packed-refs").write_bytes(b"# pack-refs with: sorted \n" + refs.stdout)
    branch = tree.branch(repo)
    (place / ".git" / "HEAD").write_text(f"ref: refs/heads/{branch}\n" if branch else f"{head}\n", encoding="utf-8")
    git.run(["read-tree", head], cwd=place)
