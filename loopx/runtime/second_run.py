"""The tree for a second run: as it is now, with the start's protected files and programs put back.

In a copy wherever a copy can tell. Where the baseline showed that none can (`not_snapshotable`), the files are
put back in place for the length of the run, and the agent's come back after it; what is to be undone is on disk before
the first file moves, so that a crash in between is healed by whoever opens the tree next (contracts, section 10).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from loopx.contracts.model import Contract
from loopx.contracts.ports import Place
from loopx.contracts.programs import ProgramPin
from loopx.workspace import difference, restore, shadow, snapshot, tree
from loopx.workspace.repository import Repository, writing_state


class Swap(msgspec.Struct, frozen=True, kw_only=True):
    """Files that are as in `start` for now, and belong back to what they are in `now`."""

    start: str
    now: str
    paths: tuple[str, ...]


class SecondTree:
    """Implements `RestoredTree` for one turn."""

    def __init__(
        self, repository: Repository, root: str, contract: Contract, *, start: str, now: str, in_place: bool
    ) -> None:
        self._repository = repository
        self._root = root
        self._contract = contract
        self._start = start
        self._now = now
        self._in_place = in_place
        self._copy: snapshot.Snapshot | None = None
        self._pinned: str | None = None

    def environment(self, env: dict[str, str]) -> dict[str, str]:
        """The environment in which checks run inside the place that is open."""
        found = dict(self._copy.environment(env)) if self._copy is not None else dict(env)
        if self._pinned is not None:
            found["PATH"] = f"{self._pinned}{os.pathsep}{found.get('PATH', os.defpath)}"
        return found

    @contextlib.contextmanager
    def __call__(
        self, *, restore: tuple[str, ...], remove: tuple[str, ...], pins: tuple[ProgramPin, ...]
    ) -> Iterator[Place]:
        """Raises `LoopXError` where neither a copy can be made nor the files be moved."""
        with shadow.pinned(pins) as folder:
            self._pinned = folder
            try:
                if self._in_place:
                    with swapped(self._repository, Swap(start=self._start, now=self._now, paths=(*restore, *remove))):
                        yield Place(root=self._root, tree_hash=None)
                else:
                    with self._copied(restore, remove) as place:
                        yield place
            finally:
                self._pinned = None

    @contextlib.contextmanager
    def _copied(self, put_back: tuple[str, ...], remove: tuple[str, ...]) -> Iterator[Place]:
        dependency_dirs = self._contract.dependency_dirs or None
        with snapshot.materialize(self._repository, self._now, dependency_dirs=dependency_dirs) as copy:
            put_into(copy.path, self._repository, self._start, put_back, remove)
            inside = os.path.relpath(os.path.realpath(self._root), self._repository.root)
            self._copy = copy
            try:
                yield Place(root=str(Path(copy.path, inside)), tree_hash=None)
            finally:
                self._copy = None


def put_into(
    folder: Path, repository: Repository, start: str, put_back: tuple[str, ...], remove: tuple[str, ...]
) -> None:
    """Lay the start's files over a copy of the tree, and take others away."""
    for path in remove:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            (folder / path).unlink()
    if not put_back:
        return
    with restore.unpacked(repository, start, put_back) as source:
        for path in put_back:
            place = folder / path
            _clear_way(folder, place)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / path, place, follow_symlinks=False)


def _clear_way(folder: Path, place: Path) -> None:
    """Remove the file, link or emptied folder that stands in the place, and links on the way to it."""
    for parent in reversed(place.relative_to(folder).parents[:-1]):
        if (folder / parent).is_symlink() or (folder / parent).is_file():
            (folder / parent).unlink()
    if place.is_symlink() or place.is_file():
        place.unlink()
    elif place.is_dir():
        shutil.rmtree(place)


@contextlib.contextmanager
def swapped(repository: Repository, swap: Swap) -> Iterator[None]:
    """The work tree itself with these paths as they were at the start, and back again whatever happens."""
    record = _record(repository)
    with writing_state(repository.state_dir):
        record.parent.mkdir(exist_ok=True)
        with record.open("wb") as held:
            # Held for as long as this process lives, so that nobody heals what is still going on.
            fcntl.flock(held, fcntl.LOCK_EX)
            held.write(msgspec.json.encode(swap))
            held.flush()
            os.fsync(held.fileno())
            try:
                restore.restore_paths(repository, swap.start, swap.paths)
                yield
            finally:
                restore.restore_paths(repository, swap.now, swap.paths)
                record.unlink(missing_ok=True)


def heal(repository: Repository) -> tuple[str, ...]:
    """Undo what a killed process left swapped; the paths that went back. A file that was edited since is left alone."""
    record = _record(repository)
    with contextlib.suppress(FileNotFoundError), record.open("rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return ()
        try:
            swap = msgspec.json.decode(held.read(), type=Swap)
        except msgspec.DecodeError:  # killed while it wrote the intent: nothing had moved
            record.unlink(missing_ok=True)
            return ()
        here = tree.write_down(repository)[0]
        edited = {change.path for change in difference.diff(repository, swap.start, here)}
        edited |= {change.old_path for change in difference.diff(repository, swap.start, here) if change.old_path}
        back = tuple(path for path in swap.paths if path not in edited)
        restore.restore_paths(repository, swap.now, back)
        record.unlink(missing_ok=True)
        return back
    return ()


def _record(repository: Repository) -> Path:
    return repository.state_dir / "trees" / f"{repository.key}.swap"
