"""Putting files of the work tree back as they were in a captured tree.

Each file is written beside its place and moved over it, so a reader sees the old or the new content, never a part.
It never follows a symbolic link, never touches ignored files that the tree does not name, nor `.git`, `.loopx/`,
submodules and nested repositories; and it refuses before the first change when something stands in the way.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from loopx.control_plane.errors import ConflictError, UsageError
from loopx.workspace import difference, tree
from loopx.workspace.repository import TEMPORARY_PREFIX, Repository


class RestoreResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore did. `previous_tree` (whole-tree restores only) can be restored in turn to undo it.

    `uncovered_tree` is set when ignore rules were put back: it holds what they had hidden and was then deleted.
    `left_alone` names submodules, which a restore does not move; `exact` says whether the work tree now is the tree.
    """

    written: tuple[str, ...]
    deleted: tuple[str, ...]
    left_alone: tuple[str, ...] = ()
    previous_tree: str | None = None
    uncovered_tree: str | None = None
    exact: bool = True


def restore_tree(repo: Repository, tree_hash: str) -> RestoreResult:
    """Make the whole work tree that tree again, deleting files which were not in it; ignored files stay.

    Raises `NotFoundError` (`tree_missing`), `ConflictError` (`path_occupied`), `UsageError` (`project_not_writable`).
    """
    before = tree.write_down(repo)[0]
    changed = _changed_paths(repo, before, tree_hash)
    rules = [path for path in changed if path.rpartition("/")[2] == ".gitignore"]
    seen = before
    if rules:
        # The tree's own rules say what is ignored: else a file that an edited rule uncovered would be deleted, and
        # one that it hid would stay.
        restore_paths(repo, tree_hash, rules)
        seen = tree.write_down(repo)[0]
        changed = sorted({*rules, *_changed_paths(repo, seen, tree_hash)})
    done = restore_paths(repo, tree_hash, changed)
    after = tree.write_down(repo)[0]
    return msgspec.structs.replace(
        done, previous_tree=before, uncovered_tree=seen if seen != before else None, exact=after == tree_hash
    )


def _changed_paths(repo: Repository, now: str, wanted: str) -> list[str]:
    return [
        path
        for change in difference.diff(repo, now, wanted)
        for path in (change.path, change.old_path)
        if path is not None and not tree.is_own(os.fsencode(path))
    ]


def restore_paths(repo: Repository, tree_hash: str, paths: Iterable[str]) -> RestoreResult:
    """Put back exactly these paths as they were in the tree; delete those that it does not have.

    Raises `NotFoundError` (`tree_missing`), `ConflictError` (`path_occupied`), `UsageError` (`path_outside`,
    `project_not_writable`).
    """
    wanted = {path: _checked(path) for path in paths}
    known = {entry.path: entry for entry in tree.list_paths(repo, tree_hash)}
    links = {path for path in wanted if path in known and known[path].mode == tree.GITLINK_MODE}
    write = sorted(path for path in wanted if path in known and path not in links)
    delete = sorted(path for path in wanted if path not in known)
    _refuse_occupied(repo.root, write, set(delete))
    with unpacked(repo, tree_hash, write) as folder, _writable(repo.root):
        deleted = [path for path in delete if _delete(repo.root, path)]
        for path in write:
            _put(folder / path, repo.root, path)
    return RestoreResult(written=tuple(write), deleted=tuple(deleted), left_alone=tuple(sorted(links)))


@contextlib.contextmanager
def unpacked(repo: Repository, tree_hash: str, paths: Iterable[str]) -> Iterator[Path]:
    """A temporary folder in LoopX's own space that holds these files of the tree, as git would check them out."""
    folder = repo.scratch("files")
    index = folder.with_name(f"{folder.name}.index")
    try:
        folder.mkdir(parents=True)
        check_out(repo, tree_hash, folder, index, paths)
        yield folder
    finally:
        index.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def check_out(repo: Repository, tree_hash: str, folder: Path, index: Path, paths: Iterable[str] | None = None) -> None:
    """Write files of a tree (all, or the named ones) into an empty folder through the given new index."""
    # The empty folder is the work tree here, so attributes come from the tree itself, not from edited files.
    repo.git("read-tree", tree_hash, index=index, work_tree=folder)
    if paths is None:
        repo.git("checkout-index", "-q", "-a", "-f", "-u", index=index, work_tree=folder)
        return
    names = b"".join(os.fsencode(path) + b"\0" for path in paths)
    if names:
        repo.git("checkout-index", "-q", "-f", "-z", "--stdin", stdin=names, index=index, work_tree=folder)


def _checked(path: str) -> tuple[str, ...]:
    parts = tuple(path.split("/"))
    if any(part in ("", ".", "..") or part.lower() == ".git" for part in parts) or tree.is_own(os.fsencode(path)):
        raise UsageError("path_outside", f"{path!r} is not a file of the work tree", data={"path": path})
    return parts


def _refuse_occupied(root: Path, write: list[str], delete: set[str]) -> None:
    """A folder in a file's place may go only when everything in it goes too."""
    for path in write:
        if not _is_folder(root, path):
            continue
        for folder, _, files in os.walk(root / path):
            for name in files:
                inside = str((Path(folder) / name).relative_to(root))
                if inside not in delete:
                    raise ConflictError(
                        "path_occupied",
                        f"{path!r} is now a folder that holds {inside!r}",
                        hint="Move that file away, then try again.",
                        data={"path": path, "inside": inside},
                    )


def _is_folder(root: Path, path: str) -> bool:
    return _parent_is_real(root, path) and (root / path).is_dir() and not (root / path).is_symlink()


def _parents(root: Path, path: str) -> Iterator[Path]:
    place = root
    for part in path.split("/")[:-1]:
        place = place / part
        yield place


def _parent_is_real(root: Path, path: str) -> bool:
    return all(parent.is_dir() and not parent.is_symlink() for parent in _parents(root, path))


def _delete(root: Path, path: str) -> bool:
    """Remove a file or link that is there by itself, and the folders that this leaves empty."""
    place = root / path
    if not _parent_is_real(root, path) or not os.path.lexists(place) or _is_folder(root, path):
        return False
    place.unlink()
    for parent in place.parents:
        if parent == root:
            break
        try:
            parent.rmdir()
        except OSError:
            break
    return True


def _put(source: Path, root: Path, path: str) -> None:
    """Move one file or link into place in a single step."""
    for parent in _parents(root, path):
        if os.path.lexists(parent) and (parent.is_symlink() or not parent.is_dir()):
            parent.unlink()
        parent.mkdir(exist_ok=True)
    target = root / path
    # The same name each time: who died here and comes again takes away what was left.
    fresh = target.with_name(TEMPORARY_PREFIX + hashlib.sha256(os.fsencode(path)).hexdigest()[:12])
    fresh.unlink(missing_ok=True)
    try:
        if source.is_symlink():
            fresh.symlink_to(source.readlink())
        else:
            shutil.copyfile(source, fresh, follow_symlinks=False)
            fresh.chmod(stat.S_IMODE(source.stat().st_mode))
        if _is_folder(root, path):
            _remove_empty_folders(target)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def _remove_empty_folders(top: Path) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        Path(folder).rmdir()


@contextlib.contextmanager
def _writable(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as failed:
        facts: Mapping[str, str] = {"path": str(failed.filename), "reason": failed.strerror or ""}
        raise UsageError(
            "project_not_writable",
            f"cannot write {facts['path']} in {root}: {facts['reason']}",
            hint="Make the folder writable for this user and free some space; the restore can then be repeated.",
            data=facts,
        ) from failed
