"""What the live terminal view reads: the board, one goal, and what its agent says. One look at a time, any thread.

It opens the store for each look, because a connection belongs to one thread, and changes nothing by looking.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from loopx.control_plane.goal import GoalState
from loopx.runtime import board_view, gate_service, goal_service, looking, views
from loopx.runtime.agent_stream import AgentStream, StreamLine
from loopx.runtime.board_view import Board
from loopx.runtime.session import Session
from loopx.runtime.views import GoalView


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One look. `restart`: `lines` begin another run's stream, so that what was shown before goes."""

    board: Board
    goal: GoalView | None
    lines: tuple[StreamLine, ...]
    restart: bool


class Source:
    """Looks, and acts for the person. Safe to be called from several threads."""

    def __init__(self, open_session: Callable[[], Session], person: str) -> None:
        self._open = open_session
        self._person = person
        self._stream: AgentStream | None = None
        self._shown = ""
        self._ended = False
        self._looked: int | None = None
        # A look that was given up for a newer one still runs to its end in its thread.
        self._lock = threading.Lock()

    def look(self, goal_id: str | None) -> Seen:
        """The board, and the goal that is looked at. Raises LoopXError."""
        with self._lock:
            return self._look(goal_id)

    def _look(self, goal_id: str | None) -> Seen:
        session = self._open()
        try:
            store = session.store
            if self._looked is None:
                self._looked = looking.last(session.project, store.now_ms())
            looking.remember(session.project, store.now_ms())
            board = board_view.board(store, self._looked)
            if goal_id is None:
                return Seen(board=board, goal=None, lines=(), restart=False)
            lines, restart = self._lines(session, goal_id)
            return Seen(board=board, goal=views.goal_view(store, goal_id), lines=lines, restart=restart)
        finally:
            session.close()

    def _lines(self, session: Session, goal_id: str) -> tuple[tuple[StreamLine, ...], bool]:
        run = views.live_run(session.store, goal_id)
        key = f"{goal_id}/{run.run_id if run is not None else ''}"
        restart = key != self._shown
        if restart:
            self._leave()
            self._shown, self._ended = key, False
            self._stream = AgentStream(run) if run is not None else None
        if run is None or self._stream is None or self._ended:
            return (), restart
        self._ended = run.ended
        return self._stream.read(final=run.ended), restart

    def move(self, goal_id: str, state: GoalState) -> None:
        """Pause, resume or stop a goal. Raises LoopXError."""
        session = self._open()
        try:
            goal_service.move(session.store, goal_id, state, self._person)
        finally:
            session.close()

    def answer(self, gate_id: str, text: str) -> None:
        """Answer a question. Raises LoopXError."""
        session = self._open()
        try:
            gate_service.answer(session.store, gate_id, text, self._person)
        finally:
            session.close()

    def close(self) -> None:
        """End the stream that is followed."""
        with self._lock:
            self._leave()

    def _leave(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
