"""Taking in a check's output in bounded memory: head and tail for people, and what judging needs on the way.

It never holds more than its limits however much is printed, and however long a line is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from loopx.contracts.model import Output
from loopx.contracts.reports import GoScanner
from loopx.contracts.summaries import Scanner, plain

HEAD_BYTES = 8 * 1024
TAIL_BYTES = 24 * 1024
STDOUT_BYTES = 8 * 1024 * 1024
LINE_BYTES = 8 * 1024


class BoundedText:
    """The first `head` and the last `tail` bytes of a stream; the middle is only counted."""

    def __init__(self, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
        self._head_limit, self._tail_limit = head, tail
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def feed(self, data: bytes) -> None:
        """Take in one chunk."""
        self.total += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._tail_limit:
            del self._tail[: -self._tail_limit]

    def output(self) -> Output:
        """What was kept, as text; bytes that are not UTF-8, and NUL, become replacement characters."""
        tail = bytes(self._tail[-self._tail_limit :])
        return Output(
            head=_text(bytes(self._head)),
            tail=_text(tail),
            omitted_bytes=self.total - len(self._head) - len(tail),
            total_bytes=self.total,
        )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace").replace("\0", "\ufffd")


class _Lines:
    """Cuts a stream into lines; what is beyond a line's limit is dropped."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._rest = bytearray()

    def feed(self, data: bytes) -> None:
        *whole, rest = data.split(b"\n")
        for piece in whole:
            self._append(piece)
            self._flush()
        self._append(rest)

    def _append(self, piece: bytes) -> None:
        room = LINE_BYTES - len(self._rest)
        self._rest += piece[: max(0, room)]

    def _flush(self) -> None:
        text = self._rest.decode("utf-8", "replace").rstrip("\r")
        self._rest.clear()
        self._take(text)

    def close(self) -> None:
        if self._rest:
            self._flush()


class OutputSink:
    """One run's output. `needle` is searched for; standard output is kept apart when `keep_stdout`."""

    def __init__(self, *, needle: str = "", keep_stdout: bool = False, scanner: Scanner | None = None) -> None:
        self._kept = BoundedText()
        self._needle = needle.encode()
        self._overlap = b""
        self.contains = False
        self.keep_stdout = keep_stdout
        self._stdout = bytearray()
        self._stdout_whole = True
        self._digest = hashlib.sha256()
        self._scanner = scanner
        self._lines = _Lines(self._line) if scanner is not None else None
        self._go = scanner if isinstance(scanner, GoScanner) else None

    def feed(self, data: bytes, *, is_stdout: bool) -> None:
        """Take in one chunk."""
        if self._go is None:
            self._kept.feed(data)
        self._search(data)
        if is_stdout and self.keep_stdout:
            self._digest.update(data)
            self._stdout_whole = self._stdout_whole and len(self._stdout) + len(data) <= STDOUT_BYTES
            if self._stdout_whole:
                self._stdout += data
        if self._lines is not None:
            self._lines.feed(data)

    def _line(self, text: str) -> None:
        assert self._scanner is not None
        self._scanner.line(plain(text))
        if self._go is not None:
            self._kept.feed(self._go.text_of(text).encode())

    def _search(self, data: bytes) -> None:
        if not self._needle or self.contains:
            return
        window = self._overlap + data
        self.contains = self._needle in window
        self._overlap = window[-(len(self._needle) - 1) :] if len(self._needle) > 1 else b""

    def close(self) -> None:
        """The stream ended: a last line without its end counts."""
        if self._lines is not None:
            self._lines.close()

    def output(self) -> Output:
        """Head, tail, and the count of what is between."""
        return self._kept.output()

    @property
    def stdout(self) -> bytes | None:
        """Standard output alone; None when it was longer than is kept, or not kept apart."""
        return bytes(self._stdout) if self.keep_stdout and self._stdout_whole else None

    @property
    def stdout_hash(self) -> str:
        """The SHA-256 of all of standard output, however long."""
        return self._digest.hexdigest()
