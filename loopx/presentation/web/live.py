"""Server-sent events: that something moved, and what the agent says. The truth is the store; nothing is decided here.

The run is another process, so that the store and the spool are looked at twice a second, each with one short look-up.
A page that goes away ends its stream at the next look.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from loopx.control_plane.errors import LoopXError
from loopx.presentation.renderers import page_words
from loopx.presentation.web import pages
from loopx.presentation.web.desk import Desk
from loopx.runtime import views
from loopx.runtime.agent_stream import AgentStream, StreamLine
from loopx.store.store import Store

if TYPE_CHECKING:
    from starlette.requests import Request

LOOK_S = 0.5
PING_LOOKS = 30
"""A sign of life after so many looks without news, so that proxies and people see that the line is open."""
REREAD_LOOKS = 60
"""A page is read again after so many looks even without a change: time alone moves some things."""


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """One step of an agent as the page's script shows it: text only."""

    kind: str
    verb: str
    text: str
    denied: bool


def shown(line: StreamLine) -> Shown:
    """The step in a reader's words."""
    verb = page_words.stream_verb(line.kind, line.tool, denied=line.denied)
    return Shown(kind=line.kind, verb=verb, text=pages.stream_text(line), denied=line.denied)


def event(name: str, data: object) -> bytes:
    """One event; JSON has no line breaks of its own, so that no text can end it early."""
    return f"event: {name}\ndata: {msgspec.json.encode(data).decode()}\n\n".encode()


class Watch:
    """What one open page has seen so far. Its methods run in worker threads, one after the other."""

    def __init__(self, desk: Desk, goal_id: str | None, number: int) -> None:
        self._desk = desk
        self._goal_id = goal_id
        self._number = number
        self._mark: int | str | None = None
        self._stream: AgentStream | None = None
        self._ended = False
        self._looks = 0

    def look(self) -> list[bytes]:
        """What is new since the last look."""
        found: list[bytes] = []
        self._looks += 1
        try:
            with self._desk.session() as session:
                store = session.store
                mark: int | str
                if self._goal_id is None:
                    mark = views.store_mark(store)
                else:
                    mark = views.goal_mark(store, self._goal_id)
                    found += self._lines(store, self._goal_id)
        except LoopXError:
            # A store that is busy or away now is looked at again; the page says what it says until then.
            return found
        moved = self._mark is not None and mark != self._mark
        self._mark = mark
        if moved or self._looks % REREAD_LOOKS == 0:
            found.append(event("changed", {"mark": mark}))
        elif not found and self._looks % PING_LOOKS == 0:
            found.append(b": still here\n\n")
        return found

    def _lines(self, store: Store, goal_id: str) -> list[bytes]:
        run = views.run_of(store, goal_id, self._number)
        if run is None:
            return []
        found: list[bytes] = []
        if self._stream is None or self._stream.run_id != run.run_id:
            if self._stream is not None:
                self._stream.close()
            # The page may have been rendered a moment ago: it begins anew, so that no line is missing or doubled.
            self._stream = AgentStream(run)
            self._ended = False
            found.append(event("fresh", {"run": run.run_id}))
        if self._ended:
            return found
        lines = self._stream.read(final=run.ended)
        self._ended = run.ended
        return [*found, event("lines", [shown(line) for line in pages.shown_lines(lines)])] if lines else found

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()


def _events(desk: Desk, request: Request, make: Callable[[], Watch]) -> Response:
    if not desk.streams.acquire(blocking=False):
        return Response("too many pages follow already\n", status_code=503, media_type="text/plain")

    async def follow() -> AsyncIterator[bytes]:
        watch = make()
        try:
            yield b"retry: 1500\n"
            yield event("hello", {})
            while not await request.is_disconnected():
                for piece in await run_in_threadpool(watch.look):
                    yield piece
                await asyncio.sleep(LOOK_S)
        finally:
            watch.close()
            desk.streams.release()

    return StreamingResponse(follow(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def board_events(desk: Desk, request: Request) -> Response:
    """News of the board."""
    return _events(desk, request, lambda: Watch(desk, None, 0))


def goal_events(desk: Desk, request: Request, goal_id: str, number: int) -> Response:
    """News of one goal and the stream of its agent; with a number, of that turn's."""
    return _events(desk, request, lambda: Watch(desk, goal_id, number))
