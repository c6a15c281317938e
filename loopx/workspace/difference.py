"""What changed between two captured trees: as data, and as a bounded text for people.

Renames are found by content. It runs no external diff program, no text conversion and reads no file of the work tree.
"""

from __future__ import annotations

import enum
import os
import subprocess
from collections.abc import Iterator, Sequence

import msgspec

from loopx.control_plane.errors import LoopXError
from loopx.workspace import git, tree
from loopx.workspace.repository import Repository

_COMMON = ("--no-ext-diff", "--no-textconv", "--full-index", "-M", "-l2000")


class ChangeKind(enum.StrEnum):
    """How one path differs. `MODE` is a change of the file mode only."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    RENAMED = "renamed"
    MODE = "mode"


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """One changed path. Line counts are None for binary files; blobs and modes are None where there is no file."""

    path: str
    kind: ChangeKind
    old_path: str | None
    old_blob: str | None
    new_blob: str | None
    old_mode: str | None
    new_mode: str | None
    additions: int | None
    deletions: int | None


class DiffText(msgspec.Struct, frozen=True, kw_only=True):
    """A patch for people: at most the asked-for number of bytes, cut at a line end and marked when cut."""

    text: str
    truncated: bool


def diff(repo: Repository, old_tree: str, new_tree: str) -> tuple[FileChange, ...]:
    """Every difference between two trees (or commits), in git's order. Raises `NotFoundError` (`tree_missing`)."""
    if old_tree == new_tree:
        tree.require_tree(repo, old_tree)
        return ()
    tree.refuse_options(old_tree, new_tree)
    words = ("diff-tree", "-r", "-z", "--raw", "--numstat", *_COMMON, old_tree, new_tree)
    found = repo.git(*words, expect=(0, 128))
    if found.status:
        for name in (old_tree, new_tree):
            tree.require_tree(repo, name)
        raise git.failure(words, found.status, found.stderr)
    return tuple(_changes(found.items))


def diff_text(
    repo: Repository, old_tree: str, new_tree: str, limit_bytes: int, *, paths: Sequence[str] = ()
) -> DiffText:
    """The patch from one tree to the other, of all paths or of the named ones, up to `limit_bytes`.

    Bytes that are not UTF-8 are shown as replacement characters. Raises `NotFoundError` (`tree_missing`).
    """
    for name in (old_tree, new_tree):
        tree.require_tree(repo, name)
    args = ["diff-tree", "-r", "-p", "--no-color", *_COMMON, old_tree, new_tree, "--", *paths]
    read = _read_start(repo, args, limit_bytes + 1)
    if len(read) <= limit_bytes:
        return DiffText(text=read.decode("utf-8", "replace"), truncated=False)
    kept = read[:limit_bytes]
    end = kept.rfind(b"\n") + 1
    return DiffText(text=kept[: end or limit_bytes].decode("utf-8", "replace"), truncated=True)


def _read_start(repo: Repository, args: Sequence[str], limit: int) -> bytes:
    """The first `limit` bytes that git writes; git is ended when it has more to say."""
    env = git.environment(repo.variables(index=None, work_tree=None, into_project=False))
    try:
        process = subprocess.Popen(
            git.command(args),
            cwd=repo.root,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as failed:
        raise git.cannot_start(failed, repo.root) from failed
    with process:
        assert process.stdout is not None
        read = process.stdout.read(limit)
        cut = len(read) == limit
        if cut:
            process.kill()
    if process.returncode and not cut:
        raise LoopXError("git_failed", f"git {args[0]} ended with {process.returncode}")
    return read


def _changes(tokens: list[bytes]) -> Iterator[FileChange]:
    """Join git's raw records with its line counts: all of the first come before all of the second."""
    raw: list[tuple[list[str], str, str | None]] = []
    position = 0
    while position < len(tokens) and tokens[position].startswith(b":"):
        facts = tokens[position][1:].decode("ascii").split(" ")
        two_paths = facts[4][0] in "RC"
        first = os.fsdecode(tokens[position + 1])
        raw.append((facts, os.fsdecode(tokens[position + 2]), first) if two_paths else (facts, first, None))
        position += 3 if two_paths else 2
    counts = _counts(tokens[position:])
    for facts, path, old_path in raw:
        yield _change(facts, path, old_path, counts.get(path, (None, None)))


def _counts(tokens: list[bytes]) -> dict[str, tuple[int | None, int | None]]:
    found: dict[str, tuple[int | None, int | None]] = {}
    position = 0
    while position < len(tokens):
        added, deleted, path = tokens[position].split(b"\t", 2)
        if not path:  # a rename: old and new path follow as records of their own
            path = tokens[position + 2]
            position += 2
        binary = added == b"-"
        found[os.fsdecode(path)] = (None, None) if binary else (int(added), int(deleted))
        position += 1
    return found


def _change(facts: list[str], path: str, old_path: str | None, counts: tuple[int | None, int | None]) -> FileChange:
    old_mode, new_mode, old_blob, new_blob, status = facts
    return FileChange(
        path=path,
        kind=_kind(status[0], same_blob=old_blob == new_blob),
        old_path=old_path,
        old_blob=old_blob if old_blob.strip("0") else None,
        new_blob=new_blob if new_blob.strip("0") else None,
        old_mode=old_mode if old_mode.strip("0") else None,
        new_mode=new_mode if new_mode.strip("0") else None,
        additions=counts[0],
        deletions=counts[1],
    )


def _kind(status: str, *, same_blob: bool) -> ChangeKind:
    if status == "M" and same_blob:
        return ChangeKind.MODE
    return {"A": ChangeKind.ADDED, "D": ChangeKind.DELETED, "R": ChangeKind.RENAMED}.get(status, ChangeKind.MODIFIED)
