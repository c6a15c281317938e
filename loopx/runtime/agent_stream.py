"""Follows what an agent says and does, for somebody who only watches: from the spool of its run, in bounded memory.

The run belongs to another process, so that nothing is asked of it: the spool is read and parsed by the same adapter
that drives the engine. Everything here is untrusted, redacted and cut; nothing decides on it.
"""

from __future__ import annotations

import os
from collections import deque

import msgspec

from loopx.control_plane.errors import LoopXError
from loopx.hosts import keeper_records, redact, registry, spool
from loopx.hosts.protocol import HostEventKind, LaunchRequest, StreamParser
from loopx.store.hosts import HostRun

TAIL_BYTES = 6 << 20
"""So much of the end of a stream is read when somebody begins to watch: more than the longest line that is kept."""
MOST_LINES = 400
MOST_CHARS = 1500
PROMPT_NAME = "prompt.txt"
"""The prompt in a run's spool folder."""
PROMPT_BYTES = 256 << 10
_SHOWN = frozenset(
    {
        HostEventKind.MESSAGE,
        HostEventKind.TOOL_CALL,
        HostEventKind.FILE_CHANGE,
        HostEventKind.LIMIT,
        HostEventKind.ERROR,
    }
)


class StreamLine(msgspec.Struct, frozen=True, kw_only=True):
    """One step of an agent in the common vocabulary. `text` is untrusted."""

    kind: str
    text: str = ""
    tool: str | None = None
    paths: tuple[str, ...] = ()
    denied: bool = False


class AgentStream:
    """Reads one run's stream from near its end on. Not thread-safe; close it when done."""

    def __init__(self, run: HostRun, *, tail_bytes: int = TAIL_BYTES) -> None:
        self.run_id = run.run_id
        self._folder = run.spool_dir
        size = stream_bytes(run.spool_dir)
        self.skipped_bytes = max(0, size - tail_bytes)
        """Earlier output that is not read."""
        self._reader = spool.Reader(run.spool_dir, self.skipped_bytes)
        self._cut = self.skipped_bytes > 0
        self._parser = _parser(run)

    def read(self, *, final: bool = False) -> tuple[StreamLine, ...]:
        """The steps since the last call, the last `MOST_LINES` of them. With `final` also an unfinished last line."""
        found: deque[StreamLine] = deque(maxlen=MOST_LINES)
        for line in self._reader.read(final=final):
            if self._cut:
                # Reading began inside of this line.
                self._cut = False
                continue
            found.extend(self._parse(line.data))
        return tuple(found)

    def _parse(self, line: bytes) -> list[StreamLine]:
        if self._parser is None:
            text = _clean(line[: 4 * MOST_CHARS].decode("utf-8", "replace").strip())
            return [StreamLine(kind=HostEventKind.MESSAGE, text=text)] if text else []
        return [
            StreamLine(
                kind=event.kind,
                text=_clean(event.text),
                tool=_clean(event.tool) if event.tool else None,
                paths=tuple(_clean(path) for path in event.paths[:20]),
                denied=event.denied,
            )
            for event in self._parser.feed(line)
            if event.kind in _SHOWN
        ]

    def close(self) -> None:
        self._reader.close()


def _clean(text: str) -> str:
    # Redact before cutting: half a credential is still one.
    whole = redact.redact(text)
    return whole if len(whole) <= MOST_CHARS else whole[: MOST_CHARS - 1] + "…"


def _parser(run: HostRun) -> StreamParser | None:
    """The engine's own parser; None for an engine that has no stream of its own."""
    try:
        adapter = registry.adapter_for(run.engine)
    except LoopXError:
        return None
    request = LaunchRequest(
        run_id=run.run_id,
        turn_key=run.turn_key,
        goal_id=run.goal_id,
        workdir=run.spool_dir,
        spool_dir=run.spool_dir,
        prompt="",
        resume_session=run.resumes,
    )
    return adapter.parser(request, run.started_at_ms)


def stream_bytes(spool_dir: str) -> int:
    """How much a run has printed."""
    found = keeper_records.segments(spool_dir, "stdout")
    if not found:
        return 0
    start, path = found[-1]
    try:
        return start + os.path.getsize(path)
    except OSError:
        return start


def moved_at_ms(spool_dir: str) -> int | None:
    """When a run last printed anything; None when it has not yet."""
    newest = 0.0
    for stream in ("stdout", "stderr"):
        for _, path in keeper_records.segments(spool_dir, stream)[-1:]:
            try:
                found = os.stat(path)
            except OSError:
                continue
            if found.st_size:
                newest = max(newest, found.st_mtime)
    return int(newest * 1000) or None


def prompt_of(spool_dir: str) -> str | None:
    """The prompt as it was given to the agent, redacted; None where it was not kept, or is gone."""
    try:
        with open(os.path.join(spool_dir, PROMPT_NAME), "rb") as file:
            raw = file.read(PROMPT_BYTES + 1)
    except OSError:
        return None
    text = redact.redact(raw[:PROMPT_BYTES].decode("utf-8", "replace"))
    return f"{text}…" if len(raw) > PROMPT_BYTES else text
