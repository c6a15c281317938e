"""The live view of a run: an observer that prints finished blocks and, on a terminal, keeps one line up to date.

Piped, it prints only what happened, so that a log reads like a report. It never raises into the run, and nothing
blinks: the one live line changes at most once a second.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable
from typing import TextIO, assert_never

from loopx.presentation.renderers import run_text, words
from loopx.presentation.renderers.paint import Paint
from loopx.presentation.renderers.run_text import Doing
from loopx.runtime.progress import (
    AgentDid,
    BaselineTaken,
    CheckDone,
    CheckRuns,
    CheckSummary,
    Disposed,
    GoalOpened,
    PhaseDone,
    ProgressEvent,
    RunEnded,
    Slept,
    TurnEnded,
    TurnOpened,
    Waiting,
)

BEAT_S = 1.0
_PLAIN = str.maketrans({"▰": "#", "▱": "-", "✓": "+", "✗": "x", "·": "|", "…": "~", "→": ">"})


class LiveView:
    """Implements `Observer`. Use as a context manager: the live line's thread ends with it."""

    def __init__(
        self,
        out: TextIO,
        *,
        live: bool,
        color: bool,
        defaults: bool = False,
        others: str = "",
        stopping: Callable[[], bool] = lambda: False,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._out = out
        self._live = live
        self._paint = Paint(color=color)
        self._defaults = defaults
        self._others = others
        self._stopping = stopping
        self._now_ms = now_ms
        self._lock = threading.RLock()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._drawn = ""
        self._broken = False
        self._engine = ""
        self._turn: TurnOpened | None = None
        self._doing = Doing()
        self._completed = 0
        self._action = ""
        self._last_event_ms = 0
        self._started_ms = 0
        self._waiting: Waiting | None = None
        self._before: dict[str, int] = {}

    def __enter__(self) -> LiveView:
        if self._live:
            self._thread = threading.Thread(target=self._beat, name="loopx-live", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._wipe()

    def __call__(self, event: ProgressEvent, /) -> None:
        with self._lock:
            self._hear(event)
            self._draw()

    def _hear(self, event: ProgressEvent) -> None:
        match event:
            case GoalOpened():
                self._engine = event.engine
                self._print(run_text.goal_lines(event, self._paint, defaults=self._defaults))
                self._action = "baseline: running the checks on the untouched tree" if event.created else ""
                self._started_ms = self._last_event_ms = self._now_ms()
            case BaselineTaken():
                self._remember(event.checks)
                self._print(run_text.baseline_lines(event, self._paint))
                self._action = ""
            case TurnOpened():
                self._open(event)
            case AgentDid():
                self._agent(event)
            case CheckRuns():
                self._act(f"check {event.name}")
            case CheckDone():
                self._act(f"check {event.check.name} {event.check.verdict}")
            case PhaseDone():
                self._completed = event.completed
                self._last_event_ms = self._now_ms()
            case TurnEnded():
                self._close(event)
            case Waiting():
                self._wait(event)
            case Slept():
                jump = words.span(abs(event.jump_ms))
                self._print([f"{run_text.INDENT}the machine's clock jumped by {jump}; deadlines are read again"])
            case RunEnded():
                self._turn = self._waiting = None
                self._action = ""
                self._print(run_text.end_lines(event, self._paint))
            case Disposed():
                pass
            case _:
                assert_never(event)

    def _open(self, event: TurnOpened) -> None:
        self._turn, self._doing, self._completed = event, Doing(), event.completed
        self._waiting = None
        if event.asked not in ("", event.engine) and self._engine != event.engine:
            self._print([run_text.instead_line(event)])
        self._engine = event.engine
        self._action = ""
        self._started_ms = self._last_event_ms = self._now_ms()
        if event.resumed_after is not None:
            self._print([run_text.resumed_line(event)])
        elif not self._live:
            purpose = "" if event.purpose == "work" else f" ({event.purpose})"
            self._print([f"  turn {event.number}  {run_text.engine_label(event.engine)} starts{purpose}"])

    def _agent(self, event: AgentDid) -> None:
        if event.kind == "file_change":
            self._doing.edited.update(event.paths)
        elif event.kind == "tool_call":
            self._doing.commands += 1
        elif event.kind == "message" and event.text:
            self._doing.said = event.text
        text = event.text or ", ".join(event.paths[:2]) or event.kind
        tool = f"{event.tool}: " if event.tool and event.tool not in text else ""
        self._act(f"{run_text.engine_label(self._engine)}: {tool}{text}")

    def _act(self, text: str) -> None:
        self._action = words.one_line(text, 160)
        self._last_event_ms = self._now_ms()

    def _close(self, event: TurnEnded) -> None:
        lines = run_text.turn_lines(event, self._engine, self._doing, self._completed, self._before, self._paint)
        self._turn = None
        self._action = ""
        self._print(lines)
        self._remember(event.checks)

    def _remember(self, checks: tuple[CheckSummary, ...]) -> None:
        self._before.update({check.name: check.failed for check in checks if check.failed is not None})

    def _wait(self, event: Waiting) -> None:
        known = self._waiting
        self._waiting = event
        if event.until_ms is None:
            return  # the run ends here, and its last block says why
        if known is None or (known.action, known.reason, known.until_ms) != (
            event.action,
            event.reason,
            event.until_ms,
        ):
            limited = event.reason.startswith("limit")
            self._print(run_text.waiting_lines(event, self._now_ms(), self._others if limited else ""))

    def _line(self) -> str:
        now = self._now_ms()
        if self._stopping():
            return f"{run_text.INDENT}stopping: the agent is ended, the tree is kept"
        if self._turn is not None:
            running = words.duration(now - self._started_ms)
            silent = now - self._last_event_ms
            quiet = f"last event {words.span(silent)} ago" if silent >= 2_000 else ""
            parts = [self._action or f"{run_text.engine_label(self._engine)} starts", quiet]
            bar = run_text.bar(self._completed)
            return f"  turn {self._turn.number}  {bar}  {running}  {words.joined(parts, words.SEP)}"
        if self._waiting is not None and self._waiting.until_ms is not None:
            return f"{run_text.INDENT}sleeping, wakes {words.until(self._waiting.until_ms, now)}"
        return f"  {self._action}  {words.duration(now - self._started_ms)}" if self._action else ""

    def _beat(self) -> None:
        while not self._done.wait(BEAT_S):
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        if not self._live or self._broken:
            return
        line = self._line()
        width = max(20, shutil.get_terminal_size().columns - 1)
        if line and line == self._drawn:
            return
        if line:
            self._write(f"\r\033[2K{self._paint.dim(Paint.cut(line, width))}")
            self._drawn = line
        else:
            self._wipe()

    def _wipe(self) -> None:
        if self._drawn:
            self._write("\r\033[2K")
            self._drawn = ""

    def _print(self, lines: list[str]) -> None:
        self._wipe()
        self._write("".join(f"{line}\n" for line in lines))

    def _write(self, text: str) -> None:
        """A reader that went away, or a terminal of another alphabet, never fails the run."""
        if self._broken:
            return
        try:
            self._out.write(text)
            self._out.flush()
        except UnicodeEncodeError:
            self._broken = True
            encoding = self._out.encoding or "ascii"
            plain = text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
            with contextlib.suppress(OSError, ValueError, UnicodeError):
                self._out.write(plain)
                self._out.flush()
                self._broken = False
        except (OSError, ValueError):
            self._broken = True
