"""Writes one stream of a host to size-capped, rotated files, in memory that does not grow with what the host prints.

Runs inside the keeper process, so it imports light modules only. A line longer than the cap keeps its beginning and a
mark with the number of bytes cut. When the files of a stream exceed their total, the oldest *middle* file goes: the
beginning (session, configuration) and the end (result, error) are what a reader needs. It never fails because of a
disk: what cannot be written is counted.
"""

from __future__ import annotations

import os

from loopx.hosts import keeper_records as records

CUT_MARK = b" [loopx: %d bytes cut]"
HOLE_MARK = b" [loopx: output lost]\n"


class Stream:
    """The spooled half of `stdout` or `stderr`; all sizes in bytes."""

    def __init__(self, folder: str, name: str, *, segment_bytes: int, total_bytes: int, line_bytes: int) -> None:
        self.raw_bytes = 0
        self.truncated_lines = 0
        self.dropped_bytes = 0
        self.failed = False
        """The disk refused a write."""
        self._folder = folder
        self._name = name
        self._segment_bytes = segment_bytes
        self._total_bytes = total_bytes
        self._line_bytes = line_bytes
        self._line = 0
        """Bytes kept of the line being written."""
        self._cut = 0
        """Bytes cut off the line being written."""
        self._hole = False
        self._files: list[tuple[int, int]] = []
        """(first byte, size) of each finished file."""
        self._start = 0
        self._size = 0
        self._handle: int | None = None

    def resume(self) -> None:
        """Goes on after the last byte that an earlier keeper spooled."""
        found = records.segments(self._folder, self._name)
        sizes = [(start, os.path.getsize(path)) for start, path in found]
        if sizes:
            self._files = sizes[:-1]
            self._start, self._size = sizes[-1]
            self._line = self._open_line(found[-1][1])
        self.raw_bytes = self._start + self._size

    def feed(self, chunk: bytes) -> None:
        """Spools what was read. Never raises OSError."""
        self.raw_bytes += len(chunk)
        if not self._cut and self._line + len(chunk) <= self._line_bytes:
            newline = chunk.rfind(b"\n")
            self._line = self._line + len(chunk) if newline < 0 else len(chunk) - newline - 1
            self._store(chunk)
        else:
            self._store(self._clip(chunk))

    def relocate(self) -> None:
        """Starts the files anew after somebody deleted the folder; what was spooled before is lost."""
        if self._handle is not None:
            os.close(self._handle)
        self.dropped_bytes += self._size + sum(size for _, size in self._files)
        self._files.clear()
        self._line = self._cut = 0
        self._handle, self._start, self._size = None, self._start + self._size, 0

    def close(self) -> None:
        """Ends the stream and makes its files durable. Never raises OSError."""
        if self._cut:
            self.truncated_lines += 1
            self._write(CUT_MARK % self._cut)
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        for _, path in records.segments(self._folder, self._name):
            self._sync(path)

    def _clip(self, chunk: bytes) -> bytes:
        parts: list[bytes] = []
        at = 0
        while at < len(chunk):
            newline = chunk.find(b"\n", at)
            end = newline if newline >= 0 else len(chunk)
            kept = min(end - at, self._line_bytes - self._line)
            parts.append(chunk[at : at + kept])
            self._line += kept
            self._cut += end - at - kept
            if newline >= 0:
                parts.append(self._line_end())
            at = end + 1
        return b"".join(parts)

    def _line_end(self) -> bytes:
        mark = b""
        if self._cut:
            self.truncated_lines += 1
            mark = CUT_MARK % self._cut
        self._line = self._cut = 0
        return mark + b"\n"

    def _store(self, data: bytes) -> None:
        """Files begin at the beginning of a line, so that a reader who lost the one before understands the next."""
        newline = data.rfind(b"\n") if self._size + len(data) > self._segment_bytes else -1
        if newline < 0:
            self._write(data)
            return
        self._write(data[: newline + 1])
        self._rotate()
        self._write(data[newline + 1 :])

    def _rotate(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        if not self._size:
            return
        self._files.append((self._start, self._size))
        self._start, self._size = self._start + self._size, 0
        while len(self._files) > 2 and sum(size for _, size in self._files) > self._total_bytes - self._segment_bytes:
            start, size = self._files.pop(1)
            self.dropped_bytes += size
            records.remove(self._folder, records.segment_name(self._name, start))

    def _write(self, data: bytes) -> None:
        if not data:
            return
        view = memoryview(HOLE_MARK + data if self._hole else data)
        try:
            if self._handle is None:
                self._handle = self._open()
            while view:
                written = os.write(self._handle, view)
                self._size += written
                view = view[written:]
            self._hole = False
        except OSError:
            self.failed = self._hole = True
            self.dropped_bytes += len(view)

    def _open(self) -> int:
        path = os.path.join(self._folder, records.segment_name(self._name, self._start))
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _open_line(self, path: str) -> int:
        """How much of an unfinished line the last file ends with."""
        with open(path, "rb", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - self._line_bytes))
            tail = file.read(self._line_bytes)
        return len(tail) - tail.rfind(b"\n") - 1

    def _sync(self, path: str) -> None:
        try:
            handle = os.open(path, os.O_RDONLY)
        except OSError:
            return
        try:
            os.fsync(handle)
        except OSError:
            self.failed = True
        finally:
            os.close(handle)
