"""The raw output of a turn's host, as its keeper spooled it: read while it grows, and shown without its powers.

Lines are what an agent printed: untrusted. They are decoded, redacted, and every character that could move a cursor,
change a colour or turn a line around is shown as its escape.
"""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Callable, Iterator

import msgspec

from loopx.control_plane.errors import NotFoundError
from loopx.hosts import runfiles, spool
from loopx.hosts.redact import redact
from loopx.runtime.turn_service import find
from loopx.store import hosts
from loopx.store.hosts import HostRun
from loopx.store.store import Store

POLL_S = 0.3
LINE_CHARS = 4_000
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Control and format characters (bidirectional marks among them), surrogates, and separators that break lines."""


class OutputLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a host's output, safe to print. `lost`: so many bytes before it were not kept."""

    run_id: str
    stream: str
    offset: int
    text: str
    lost: int = 0


def run_of(store: Store, goal_id: str | None, word: str | None) -> HostRun:
    """The last host run of a turn that has output. Raises NotFoundError (`turn_unknown`, `no_output`)."""
    with store.read() as tx:
        key = find(tx, goal_id, word)
        runs = hosts.of_turn(tx, key)
    spooled = [run for run in runs if run.spool_dir]
    if not spooled:
        raise NotFoundError("no_output", f"no host of turn {key} wrote any output here", hint=f"loopx turn show {key}")
    return spooled[-1]


def read(run: HostRun, stream: str) -> Iterator[OutputLine]:
    """Every line that is spooled now."""
    for line in spool.read_lines(run.spool_dir, stream=stream):
        yield _line(run, stream, line)


def follow(run: HostRun, stream: str, stopped: Callable[[], bool]) -> Iterator[OutputLine]:
    """The lines so far and those to come, until the host has ended or `stopped` says so."""
    reader = spool.Reader(run.spool_dir, stream=stream)
    try:
        while True:
            ended = run.ended or runfiles.exit_record(run.spool_dir) is not None
            for line in reader.read(final=ended):
                yield _line(run, stream, line)
            if ended or stopped():
                return
            time.sleep(POLL_S)
    finally:
        reader.close()


def _line(run: HostRun, stream: str, line: spool.Line) -> OutputLine:
    text = redact(line.data.decode("utf-8", "replace"))
    cut = f"{text[:LINE_CHARS]}… ({len(text)} characters)" if len(text) > LINE_CHARS else text
    return OutputLine(run_id=run.run_id, stream=stream, offset=line.offset, text=harmless(cut), lost=line.lost)


def harmless(text: str) -> str:
    """The text with every character that is not plainly printable written as its escape; tabs become a space."""
    return "".join(_shown(char) for char in text)


def _shown(char: str) -> str:
    if char == "\t":
        return " "
    if unicodedata.category(char) not in _UNSAFE:
        return char
    return f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"
