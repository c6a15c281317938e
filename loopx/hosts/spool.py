"""Reads what the keeper spooled of a host's output: from any byte on, while it grows, in bounded memory.

It never writes to a spool (pruning an ended run's is the one exception), needs no keeper to be alive, and survives
files that are rotated, dropped or deleted while it reads. Offsets count the bytes of the spooled stream, so they stay
valid over rotation; where a dropped middle is missing, the next line says how much.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from loopx.control_plane import errors
from loopx.hosts import keeper_records as records

_CHUNK = 1 << 18
_LIST_EVERY = 16
_MARK_ROOM = 64
"""The keeper's mark on a cut line comes after the cap."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one host run may use of the disk; sizes in bytes."""

    line_bytes: int = 4 << 20
    """A longer line keeps its beginning and a mark."""
    segment_bytes: int = 8 << 20
    stdout_bytes: int = 64 << 20
    stderr_bytes: int = 24 << 20
    flood_bytes: int = 1 << 30
    """A host that prints more than this in all is ended."""
    disk_floor_bytes: int = 256 << 20
    """A host is ended when less than this is free where it works or where it is spooled."""
    check_s: float = 5.0
    """How often the keeper looks at the disk."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line without its end. `end` is where the next one begins; `lost` bytes before it were dropped."""

    offset: int
    end: int
    data: bytes
    lost: int = 0


class Reader:
    """Follows one stream of a spool folder. Not thread-safe; any number of readers may follow one spool."""

    def __init__(
        self, spool_dir: str, from_offset: int = 0, *, stream: str = "stdout", line_bytes: int = Limits().line_bytes
    ) -> None:
        self._folder = spool_dir
        self._stream = stream
        self._line_bytes = line_bytes + _MARK_ROOM
        self._offset = from_offset
        """Of the next line to hand out."""
        self._start = -1
        self._handle: int | None = None
        self._part = bytearray()
        self._over = 0
        """Bytes of the open line beyond the cap; the keeper cuts lines, so only a foreign file has any."""
        self._lost = 0
        self._asked = 0

    def read(self, *, final: bool = False) -> Iterator[Line]:
        """The whole lines that were spooled since the last call; with `final` also an unfinished last one."""
        while True:
            if self._handle is None and not self._enter():
                break
            yield from self._lines()
            if not self._leave(thoroughly=final):
                break
        if final and (self._part or self._over):
            yield self._take(0)

    def close(self) -> None:
        """Releases the file; reading on is an error."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _enter(self) -> bool:
        """Opens the file with the wanted byte, or the first one after it if that was dropped."""
        found = records.segments(self._folder, self._stream)
        wanted = self._offset + len(self._part) + self._over
        fitting = [pair for pair in found if pair[0] <= wanted and pair[0] > self._start]
        later = [pair for pair in found if pair[0] > wanted]
        for start, path in fitting[-1:] + later[:1]:
            try:
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            size = os.fstat(handle).st_size
            if start <= wanted and wanted > start + size and later:
                os.close(handle)
                continue
            self._handle, self._start = handle, start
            if start > wanted:
                self._skip_to(start)
            else:
                os.lseek(handle, wanted - start, os.SEEK_SET)
            return True
        return False

    def _skip_to(self, start: int) -> None:
        self._lost += start - self._offset
        self._part.clear()
        self._over = 0
        self._offset = start

    def _leave(self, *, thoroughly: bool) -> bool:
        """Closes the file if a later one exists: then this one was finished before, and has been read to its end."""
        if not self._has_later(thoroughly=thoroughly):
            return False
        assert self._handle is not None
        if os.fstat(self._handle).st_size > os.lseek(self._handle, 0, os.SEEK_CUR):
            return True
        self.close()
        return True

    def _has_later(self, *, thoroughly: bool) -> bool:
        """Asks for the next file by its name; only sometimes for any later one, since that lists the folder."""
        self._asked += 1
        if not thoroughly and self._asked % _LIST_EVERY:
            name = records.segment_name(self._stream, self._offset + len(self._part) + self._over)
            return self._offset > self._start and os.path.exists(os.path.join(self._folder, name))
        return any(start > self._start for start, _ in records.segments(self._folder, self._stream))

    def _lines(self) -> Iterator[Line]:
        while self._handle is not None and (chunk := os.read(self._handle, _CHUNK)):
            at = 0
            while (newline := chunk.find(b"\n", at)) >= 0:
                self._keep(chunk[at:newline])
                at = newline + 1
                yield self._take(1)
            self._keep(chunk[at:])

    def _keep(self, data: bytes) -> None:
        room = max(0, self._line_bytes - len(self._part))
        self._part += data[:room]
        self._over += len(data[room:])

    def _take(self, end_bytes: int) -> Line:
        end = self._offset + len(self._part) + self._over + end_bytes
        line = Line(offset=self._offset, end=end, data=bytes(self._part), lost=self._lost)
        self._offset, self._over, self._lost = end, 0, 0
        self._part = bytearray()
        return line


def read_lines(spool_dir: str, from_offset: int = 0, *, stream: str = "stdout") -> Iterator[Line]:
    """Every spooled line from a line's offset on, the unfinished last one included. A missing folder has none."""
    reader = Reader(spool_dir, from_offset, stream=stream)
    try:
        yield from reader.read(final=True)
    finally:
        reader.close()


def tail(spool_dir: str, stream: str, size: int) -> bytes:
    """The last `size` bytes of a stream at most."""
    parts: list[bytes] = []
    missing = size
    for _, path in reversed(records.segments(spool_dir, stream)):
        if missing <= 0:
            break
        try:
            with open(path, "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - missing))
                parts.append(file.read(missing))
        except OSError:
            break
        missing -= len(parts[-1])
    return b"".join(reversed(parts))


def prune(spool_dir: str) -> int:
    """Deletes the raw output of an ended run and keeps its records; returns the bytes freed.

    Raises ConflictError `run_not_ended` while there is no exit record.
    """
    if not os.path.exists(os.path.join(spool_dir, records.EXIT)):
        raise errors.ConflictError(
            "run_not_ended",
            f"the run in {spool_dir} has no exit record yet",
            hint="Wait for it to end, or end it with `loopx turn resume`.",
        )
    freed = 0
    for stream in ("stdout", "stderr"):
        for _, path in records.segments(spool_dir, stream):
            freed += os.path.getsize(path)
            os.unlink(path)
    return freed
