"""The clean copy of a large tree, kept from one completion to the next and brought up to date instead of written anew.

Whatever checks did in it is found and undone before it is used again: git compares each file's whole stat record with
the index that was written with it, and what the index does not name is removed. Where anything is in doubt the folder
is emptied and written from nothing, as small trees always are. One process uses it at a time; the others make copies of
their own. It never touches the project.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from loopx.control_plane.errors import LoopXError
from loopx.workspace import copytree, dependencies, git
from loopx.workspace.repository import Repository

KEEP_FROM = 2_000
"""From so many files on a copy is worth keeping."""
KEPT_S = 24 * 3600
"""How long nobody may have used it before it is removed."""
_NAME = "kept"


class _Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the folder was when it was last left: the tree, git's settings, and the mode of its folders."""

    tree_hash: str
    settings: str
    mode: int


class KeptCopy:
    """The folder and its index, while this process holds them."""

    def __init__(self, folder: Path) -> None:
        self.place = folder
        self.index = folder.with_suffix(".index")
        self._facts = folder.with_suffix(".facts")
        self._now: _Facts | None = None

    def bring_to(self, repo: Repository, tree_hash: str) -> bool:
        """Make it exactly that tree; False: it is an empty folder now, to be filled by the caller."""
        known = self._take_facts()
        settings = _settings(repo)
        if known is not None and known.settings == settings:
            with contextlib.suppress(LoopXError, OSError):
                if self._update(repo, known, tree_hash):
                    self._now = msgspec.structs.replace(known, tree_hash=tree_hash)
                    return True
        self._clear()
        self.place.mkdir()
        self._now = _Facts(tree_hash=tree_hash, settings=settings, mode=_mode(self.place))
        return False

    def spoil(self) -> None:
        """What is in it now can't be brought up to date later."""
        self._now = None

    def leave(self) -> None:
        """Write down what it is, or empty it."""
        if self._now is None:
            self._clear()
            return
        fresh = self._facts.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(self._now))
        fresh.replace(self._facts)

    def _take_facts(self) -> _Facts | None:
        """The facts, which are gone afterwards: a process that dies here leaves a folder that nobody trusts."""
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            text = self._facts.read_bytes()
            self._facts.unlink()
            if not self.place.is_symlink() and self.index.is_file():
                return msgspec.json.decode(text, type=_Facts)
        return None

    def _clear(self) -> None:
        for path in (self.index, self.index.with_name(f"{self.index.name}.lock"), self._facts, self.place):
            copytree.remove_tree(path)

    def _update(self, repo: Repository, known: _Facts, tree_hash: str) -> bool:
        """False where something can't be judged."""
        copytree.remove_tree(self.place / ".git")
        variables = repo.variables(index=self.index, work_tree=self.place, into_project=False)
        listed, others, changed = git.run_together(
            [
                (("ls-files", "-v", "-z"), variables),
                (("ls-files", "-o", "-z", "--directory"), variables),
                (("diff-tree", "-r", "-z", "--name-only", known.tree_hash, tree_hash), variables),
            ],
            cwd=self.place,
        )
        if any(path.rpartition(b"/")[2] == b".gitattributes" for path in changed.items):
            return False  # the same content may have to be written otherwise
        if not all(item.startswith(b"H ") for item in listed.items):
            return False  # somebody told git not to look
        folders = {os.fsdecode(item[2:].rpartition(b"/")[0]) for item in listed.items}
        if any(_mode(self.place / folder) != known.mode for folder in folders):
            return False
        for path in others.items:
            copytree.remove_tree(self.place / os.fsdecode(path.rstrip(b"/")))
        repo.git("read-tree", "--reset", "-u", tree_hash, index=self.index, work_tree=self.place)
        return True


@contextlib.contextmanager
def claimed(repo: Repository, dependency_dirs: Sequence[str]) -> Iterator[KeptCopy | None]:
    """The kept copy while nobody else has it; None where it is not worth it, or not safe.

    Build caches are compared with their sources by time stamps, so a copy with such folders is made anew each time.
    """
    if _size(repo) < KEEP_FROM or not all(map(dependencies.holds_no_builds, dependency_dirs)):
        yield None
        return
    folder = repo.state_dir / "snapshots" / _NAME
    with contextlib.ExitStack() as stack:
        try:
            folder.parent.mkdir(exist_ok=True)
            held = stack.enter_context(_lock(folder).open("ab"))
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            kept = None
        else:
            kept = KeptCopy(folder)
        if kept is None:
            yield None
            return
        try:
            yield kept
        finally:
            with contextlib.suppress(OSError):
                kept.leave()
                os.utime(_lock(folder))


def sweep(state_dir: Path) -> tuple[str, ...]:
    """Remove the kept copy when nobody used it for a day; what was removed."""
    folder = state_dir / "snapshots" / _NAME
    with contextlib.suppress(OSError):
        if folder.exists() and _lock(folder).stat().st_mtime < time.time() - KEPT_S:
            with _lock(folder).open("ab") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                kept = KeptCopy(folder)
                kept.leave()
            return (str(folder),)
    return ()


def _lock(folder: Path) -> Path:
    return folder.with_suffix(".held")


def _size(repo: Repository) -> int:
    """How many files the tree had when it was last captured, by the head of the index."""
    try:
        with repo.private_index.open("rb") as index:
            head = index.read(12)
    except OSError:
        return 0
    return int.from_bytes(head[8:12], "big") if head.startswith(b"DIRC") else 0


def _mode(folder: Path) -> int:
    return stat.S_IMODE(folder.lstat().st_mode) if not folder.is_symlink() else -1


def _settings(repo: Repository) -> str:
    """A digest of what decides how git writes files, beside the tree itself."""
    told = hashlib.sha256(repo.git("config", "-l", "-z").stdout)
    with contextlib.suppress(OSError):
        told.update(b"\0" + (repo.common_dir / "info" / "attributes").read_bytes())
    return told.hexdigest()
