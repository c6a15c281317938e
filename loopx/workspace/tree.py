"""The whole current work tree as one git tree object: the identity that evidence is bound to (loops, "The contract").

`capture` reads tracked, staged and untracked files, modes, links and submodule heads through a private index whose
stat cache makes the next capture cheap. The hash depends on the files, on what the user's index tracks and on the
ignore rules; never on what was captured before. It never touches the user's HEAD, branch or index, follows no
symbolic link, and leaves out `.loopx/`, ignored files, sockets, pipes and nested repositories that are not submodules.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from loopx.control_plane.errors import LoopXError, NotFoundError, StoreError, UsageError
from loopx.workspace import git
from loopx.workspace.repository import OWN_NAMES, TEMPORARY_PREFIX, Kind, Repository, open_repository, writing_state

_ATTEMPTS = 3
GITLINK_MODE = "160000"
SYMLINK_MODE = "120000"


class TreeState(msgspec.Struct, frozen=True, kw_only=True):
    """One captured work tree. `left_out` names nested repositories that no tree can hold (to be disclosed)."""

    tree_hash: str
    head: str | None
    branch: str | None
    kind: Kind
    left_out: tuple[str, ...] = ()


class TreeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file, link or submodule of a tree. `path` is text by `os.fsdecode`, so any file name survives."""

    path: str
    mode: str
    blob: str


def capture(root: Path, state_dir: Path) -> TreeState:
    """Capture the work tree that `root` lies in: `capture_repository(open_repository(root, state_dir))`."""
    return capture_repository(open_repository(root, state_dir))


def capture_repository(repo: Repository) -> TreeState:
    """The current work tree as a tree object, with the commit and branch that the user is on; see `write_down`."""
    tree_hash, left_out = write_down(repo)
    return TreeState(tree_hash=tree_hash, head=head(repo), branch=branch(repo), kind=repo.kind, left_out=left_out)


def write_down(repo: Repository) -> tuple[str, tuple[str, ...]]:
    """Write the current work tree to a tree object; its hash, and the nested repositories that no tree can hold.

    Safe to call from several processes at once. Raises `UsageError` (`unreadable_file`, `project_missing`),
    `StoreError` (`tree_keeps_changing`, `git_timeout`) or `LoopXError` (`git_failed`).
    """
    with _working_index(repo) as index:
        for attempt in range(_ATTEMPTS):
            try:
                left_out = _bring_up_to_date(repo, index)
                tree_hash = repo.git("write-tree", index=index).line
                break
            except LoopXError as failed:
                if isinstance(failed, UsageError | StoreError) or failed.code != "git_failed":
                    raise
                if attempt == _ATTEMPTS - 1:
                    raise _explained(repo, failed) from failed
                # Either a file changed its kind between the listing and the reading, or a power loss left a broken
                # index or a missing object behind: reading everything afresh heals both.
                _seed(repo, index)
        with contextlib.suppress(FileNotFoundError):
            index.replace(repo.private_index)
    return tree_hash, left_out


def head(repo: Repository) -> str | None:
    """The user's current commit; None in a repository without one, and outside git."""
    if repo.kind is Kind.PLAIN:
        return None
    found = repo.git("rev-parse", "-q", "--verify", "HEAD^{commit}", expect=(0, 1, 128))
    return found.line if found.status == 0 else None


def branch(repo: Repository) -> str | None:
    """The user's current branch by its short name; None when HEAD is detached, and outside git."""
    if repo.kind is Kind.PLAIN:
        return None
    found = repo.git("symbolic-ref", "-q", "HEAD", expect=(0, 1))
    return found.line.removeprefix("refs/heads/") if found.status == 0 else None


def list_paths(repo: Repository, tree_hash: str) -> tuple[TreeEntry, ...]:
    """Every file of a tree in git's order; raises `NotFoundError` (`tree_missing`)."""
    return _listed(repo, tree_hash)


@functools.lru_cache(maxsize=4)
def _listed(repo: Repository, tree_hash: str) -> tuple[TreeEntry, ...]:
    """A hash names one list of files for ever, and every turn asks for the list of the goal's start."""
    refuse_options(tree_hash)
    found = repo.git("ls-tree", "-r", "-z", "--full-tree", tree_hash, expect=(0, 128))
    if found.status:
        require_tree(repo, tree_hash)
        raise git.failure(("ls-tree", tree_hash), found.status, found.stderr)
    return tuple(_entries(found.items))


def read_file(repo: Repository, tree_hash: str, path: str) -> bytes:
    """The content of one file of a tree as git keeps it (of a link: where it points).

    Raises `NotFoundError` (`tree_missing`, `path_not_in_tree`).
    """
    found = repo.git("cat-file", "blob", f"{tree_hash}:{path}", expect=(0, 128))
    if found.status:
        require_tree(repo, tree_hash)
        raise NotFoundError("path_not_in_tree", f"{path!r} is not a file of tree {tree_hash[:12]}", data={"path": path})
    return found.stdout


def overlaid(repo: Repository, tree_hash: str, blobs: Mapping[str, str | None]) -> str:
    """The tree with other contents at these paths (None: without them); new files are plain ones.

    Raises `NotFoundError` (`tree_missing`).
    """
    modes = {entry.path: entry.mode for entry in list_paths(repo, tree_hash)}
    gone = [os.fsencode(path) for path, blob in blobs.items() if blob is None]
    lines = [
        f"{modes.get(path, '100644')} {blob}\t".encode() + os.fsencode(path)
        for path, blob in blobs.items()
        if blob is not None
    ]
    index = repo.scratch("overlay")
    try:
        with writing_state(repo.state_dir):
            index.parent.mkdir(exist_ok=True)
        repo.git("read-tree", tree_hash, index=index)
        repo.git("update-index", "-z", "--force-remove", "--stdin", stdin=_lines(gone), index=index)
        repo.git("update-index", "--add", "--replace", "-z", "--index-info", stdin=_lines(lines), index=index)
        return repo.git("write-tree", index=index).line
    finally:
        index.unlink(missing_ok=True)


def require_tree(repo: Repository, tree_hash: str) -> None:
    """Raise `NotFoundError` (`tree_missing`) unless the tree's object can be read."""
    refuse_options(tree_hash)
    if repo.git("cat-file", "-e", f"{tree_hash}^{{tree}}", expect=(0, 1, 128)).status:
        raise _missing(tree_hash)


def refuse_options(*names: str) -> None:
    """Raise `NotFoundError` (`tree_missing`) for a name that git would read as an option."""
    for name in names:
        if name.startswith("-"):
            raise _missing(name)


def _missing(tree_hash: str) -> NotFoundError:
    return NotFoundError(
        "tree_missing",
        f"there is no tree {tree_hash[:12]} in this project or in LoopX's folder",
        hint="Its objects are kept in the project's state folder; restore that, or start from a checkpoint.",
    )


def submodules(repo: Repository, index: Path) -> tuple[TreeEntry, ...]:
    """The submodules that an index lists."""
    listed = repo.git("ls-files", "-s", "-z", index=index).stdout
    if not _links_among(listed):
        return ()
    return tuple(entry for entry in _entries(listed.removesuffix(b"\0").split(b"\0")) if entry.mode == GITLINK_MODE)


def is_own(path: bytes) -> bool:
    """Whether a path belongs to LoopX itself and is therefore never captured, restored or deleted."""
    first = os.fsencode(TEMPORARY_PREFIX)
    return any(part == b".loopx" or part.startswith(first) for part in path.split(b"/"))


def _entries(records: Iterable[bytes]) -> Iterator[TreeEntry]:
    # "mode type object\tpath" of ls-tree and "mode object stage\tpath" of ls-files.
    for record in records:
        facts, _, path = record.partition(b"\t")
        mode, second, third = facts.decode("ascii").split()
        yield TreeEntry(path=os.fsdecode(path), mode=mode, blob=second if len(second) >= 40 else third)


@contextlib.contextmanager
def _working_index(repo: Repository) -> Iterator[Path]:
    """A copy of the private index that only this call uses; two captures at once never share a lock."""
    index = repo.scratch("index")
    try:
        with writing_state(repo.state_dir):
            if _may_reuse(repo):
                _copy_index(repo.private_index, index)
            else:
                _seed(repo, index)
            yield index
    finally:
        index.unlink(missing_ok=True)
        index.with_name(f"{index.name}.lock").unlink(missing_ok=True)


def _may_reuse(repo: Repository) -> bool:
    if not repo.private_index.is_file():
        return False
    # In a sparse checkout only the user's index knows the files that are not here on purpose.
    if not (repo.git_dir / "info" / "sparse-checkout").exists():
        return True
    sparse = repo.git("config", "--type=bool", "--get", "core.sparseCheckout", expect=(0, 1, 128))
    return sparse.line != "true"


def _copy_index(source: Path, target: Path) -> None:
    # The time stamp comes along: git tells by it which entries changed within the same tick.
    shutil.copy2(source, target)
    target.chmod(0o600)


def _seed(repo: Repository, index: Path) -> None:
    """Start from the user's index (its stat cache spares reading every file) without its blind spots."""
    index.unlink(missing_ok=True)
    user_index = repo.user_index
    if user_index is not None and user_index.is_file() and not _unmerged(repo, user_index):
        _copy_index(user_index, index)
        _open_eyes(repo, index)
    else:
        repo.git("read-tree", head(repo) or "--empty", index=index)


def _unmerged(repo: Repository, index: Path) -> bool:
    return bool(repo.git("ls-files", "-u", "-z", index=index).stdout)


def _open_eyes(repo: Repository, index: Path) -> None:
    """Undo `assume-unchanged` everywhere and `skip-worktree` where the file is here: both hide edits."""
    tagged = [(item[:1], item[2:]) for item in repo.git("ls-files", "-v", "-z", index=index).items]
    assumed = [path for tag, path in tagged if tag.islower()]
    skipped = [path for tag, path in tagged if tag in b"Ss" and _exists(repo.root, path)]
    for option, paths in (("--no-assume-unchanged", assumed), ("--no-skip-worktree", skipped)):
        if paths:
            repo.git("update-index", option, "-z", "--stdin", stdin=_lines(paths), index=index)


def _bring_up_to_date(repo: Repository, index: Path) -> tuple[str, ...]:
    """Make the index describe the work tree as it is now; return the nested repositories left out."""
    theirs = repo.user_index
    variables = repo.variables(index=index, work_tree=None, into_project=False)
    asked: list[tuple[Sequence[str], Mapping[str, str]]] = [
        (("diff-files", "-z", "--name-status", "--no-renames", "--ignore-submodules=dirty"), variables),
        (_untracked_command(repo), variables),
        (_TRACKED_BUT_IGNORED, variables),
    ]
    if theirs is not None:
        asked.append((("ls-files", "-s", "-z"), variables))
        other = repo.variables(index=theirs, work_tree=None, into_project=False)
        asked.append((_TRACKED_BUT_IGNORED, other))
    answers = git.run_together(asked, cwd=repo.root)
    changed, removed = _tracked_changes(answers[0].items)
    present = {path for path in answers[1].items if not path.endswith(b"/")}
    nested = {path.rstrip(b"/") for path in answers[1].items if path.endswith(b"/")}
    ours = set(answers[2].items)
    if theirs is None:
        forced, dropped, left_out = set[bytes](), ours, nested
    else:
        links = _links_among(answers[3].stdout)
        forced, dropped, left_out = _by_the_users_index(repo, theirs, nested, ours, links, set(answers[4].items))
    gone = {path for path in removed | dropped if not is_own(path)}
    here = {path for path in (changed - dropped) | present | forced if not is_own(path)}
    if gone:
        repo.git("update-index", "-z", "--force-remove", "--stdin", stdin=_lines(gone), index=index)
    # Rewriting the index each time renews its time stamp, so that files as new as the index are not read again.
    repo.git(
        *("update-index", "--add", "--remove", "--replace", "--force-write-index", "-z", "--stdin"),
        stdin=_lines(here),
        index=index,
    )
    return tuple(sorted(os.fsdecode(path) for path in left_out))


_TRACKED_BUT_IGNORED = ("ls-files", "-c", "-i", "-z", "--exclude-standard")


def _tracked_changes(listed: list[bytes]) -> tuple[set[bytes], set[bytes]]:
    """The paths that changed, and those that are gone."""
    pairs = list(zip(listed[::2], listed[1::2], strict=True))
    removed = {path for status, path in pairs if status == b"D"}
    return {path for status, path in pairs if status != b"D"}, removed


def _untracked_command(repo: Repository) -> list[str]:
    """Asks for files that git would offer to add, and for folders that are repositories of their own."""
    arguments = ["ls-files", "-o", "-z", "--exclude-standard", *(f"--exclude={name}" for name in OWN_NAMES)]
    if repo.private_excludes.is_file():
        arguments.append(f"--exclude-from={repo.private_excludes}")
    if repo.state_dir.is_relative_to(repo.root):
        arguments.append(f"--exclude=/{literal_pattern(str(repo.state_dir.relative_to(repo.root)))}/")
    return arguments


def _by_the_users_index(
    repo: Repository, user_index: Path, nested: set[bytes], ours: set[bytes], links: set[bytes], theirs: set[bytes]
) -> tuple[set[bytes], set[bytes], set[bytes]]:
    """(to add although ignored, to drop, nested repositories left out): what only the user's index can tell.

    `ours` and `theirs` are tracked although ignored; `links` are the submodules of our index.

    An ignored file belongs to the tree exactly when the user's index tracks it, and a nested repository exactly
    when it is a submodule there.
    """
    submodules = set[bytes]()
    if nested or links:
        submodules = _links_among(repo.git("ls-files", "-s", "-z", index=user_index).stdout)
    forced = {path for path in theirs - ours if _exists(repo.root, path)} | (nested & submodules)
    released = {path for path in links - submodules if _exists(repo.root, path)}
    return forced, (ours - theirs) | (links - submodules), (nested - submodules) | released


def _links_among(listed: bytes) -> set[bytes]:
    """The submodules that a staged listing names."""
    mode = GITLINK_MODE.encode()
    if not listed.startswith(mode) and b"\0" + mode not in listed:
        return set()
    return {item.partition(b"\t")[2] for item in listed.split(b"\0") if item.startswith(mode)}


def _exists(root: Path, path: bytes) -> bool:
    """Whether the path itself is there, not reached through a link."""
    place = root
    parts = os.fsdecode(path).split("/")
    for part in parts[:-1]:
        place = place / part
        if place.is_symlink():
            return False
    return os.path.lexists(place / parts[-1])


def _lines(paths: Iterable[bytes]) -> bytes:
    return b"".join(path + b"\0" for path in sorted(paths))


def literal_pattern(path: str) -> str:
    return "".join(f"\\{letter}" if letter in "\\*?[]! #" else letter for letter in path)


def _explained(repo: Repository, failed: LoopXError) -> LoopXError:
    """Say which file cannot be read, when that is what stopped git."""
    for path in _unreadable(repo):
        return UsageError(
            "unreadable_file",
            f"{path!r} in {repo.root} cannot be read",
            hint="Make it readable for this user, or add it to .gitignore.",
            data={"path": path},
        )
    return failed


def _unreadable(repo: Repository) -> Iterator[str]:
    index = repo.user_index or repo.private_index
    listed = repo.git("ls-files", "-c", "-o", "-z", "--exclude-standard", index=index).items
    for path in (os.fsdecode(item) for item in listed):
        place = repo.root / path
        if place.is_file() and not place.is_symlink() and not os.access(place, os.R_OK):
            yield path
