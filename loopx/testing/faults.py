"""Ends this process at one exact point: before or after the n-th time that it touches the store, a file or a process.

The points are found by instrumentation, not listed by hand: every statement of a write transaction, every call that
changes the file system, every start of a process and every signal passes through here once `install` was called. Only
the main thread is counted, so that the same run has the same points. It changes nothing that it counts.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import re
import secrets
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from loopx.store import connection as connections

BEFORE: Final = "before"
AFTER: Final = "after"
WITH_CHILDREN: Final = "with_children"
"""Shortly after it, and the process's whole group with it: a started git is torn in the middle."""
STOP: Final = "stop"
"""The process does not end there: it is stopped before the effect, until somebody continues it."""

_OS_CALLS: Final = (
    "chmod",
    "fsync",
    "ftruncate",
    "kill",
    "killpg",
    "link",
    "mkdir",
    "mkfifo",
    "posix_spawn",
    "remove",
    "rename",
    "replace",
    "rmdir",
    "symlink",
    "truncate",
    "unlink",
    "utime",
    "write",
)
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EFFECTFUL_SQL: Final = re.compile(r"\s*(BEGIN IMMEDIATE|COMMIT|INSERT|UPDATE|DELETE|CREATE|PRAGMA \w+\()", re.I)
_VARYING: Final = re.compile(r"[0-9a-f]{6,}|\d+|t-[0-9a-z]+|tmp\w+")
_TEAR_US: Final = 6000
_NONE_OF_OURS: Final = frozenset({1, 2})


class Points:
    """The points passed so far, as labels; and the one at which the process ends."""

    def __init__(self, at: int | None, side: str, exit_code: int) -> None:
        self.labels: list[str] = []
        self._at = at
        self._side = side
        self._exit_code = exit_code
        self._thread = threading.get_ident()
        self._counting = True
        self._kill, self._stop = os.killpg, os.kill

    def stop(self) -> None:
        """Count no more: what follows belongs to the harness."""
        self._counting = False

    def around(self, label: str, act: Callable[[], Any]) -> Any:
        """Do it; or end the process on the wanted side of it."""
        if not self._counting or threading.get_ident() != self._thread:
            return act()
        self.labels.append(label)
        here = len(self.labels) == self._at
        if here and self._side == BEFORE:
            os._exit(self._exit_code)
        if here and self._side == STOP:
            self._counting = False
            self._stop(os.getpid(), signal.SIGSTOP)
            return act()
        try:
            return act()
        finally:
            if here:
                self._end()

    def _end(self) -> None:
        if self._side == WITH_CHILDREN:
            time.sleep(secrets.randbelow(_TEAR_US) / 1e6)
            self._kill(0, signal.SIGKILL)
        os._exit(self._exit_code)


def install(at: int | None, side: str, exit_code: int) -> Points:
    """Count from now on, for the rest of this process; with `at`, end it there with `exit_code`.

    `WITH_CHILDREN` needs a process that leads a group of its own, and ends all of that group.
    """
    points = Points(at, side, exit_code)
    for name in _OS_CALLS:
        setattr(os, name, _counted_call(points, name, getattr(os, name)))
    setattr(os, "open", _counted_os_open(points, os.open))  # noqa: B010  (typed as a constant)
    opener = _counted_open(points, builtins.open)
    setattr(builtins, "open", opener)  # noqa: B010  (typed as a constant)
    setattr(io, "open", opener)  # noqa: B010  (typed as a constant)
    setattr(subprocess.Popen, "__init__", _counted_start(points, subprocess.Popen.__init__))  # noqa: B010  (typed as a constant)
    connections.use_driver(functools.partial(_counted_connection, points))
    return points


def _name(path: object) -> str:
    if isinstance(path, int):
        return "a handle"
    text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else str(path)
    return _VARYING.sub("#", os.path.basename(text))


def _counted_call(points: Points, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def counted(*args: Any, **keywords: Any) -> Any:
        if name == "write" and args[0] in _NONE_OF_OURS:
            return call(*args, **keywords)
        label = "process " if name in ("kill", "killpg", "posix_spawn") else "file "
        return points.around(f"{label}{name} {_name(args[0])}", lambda: call(*args, **keywords))

    return counted


def _counted_os_open(points: Points, call: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(call)
    def counted(path: Any, flags: int, *args: Any, **keywords: Any) -> Any:
        if not flags & _WRITING:
            return call(path, flags, *args, **keywords)
        return points.around(f"file open {_name(path)}", lambda: call(path, flags, *args, **keywords))

    return counted


def _counted_open(points: Points, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def counted(file: Any, mode: str = "r", *args: Any, **keywords: Any) -> Any:
        if not set(mode) & set("wax+") or isinstance(file, int):
            return call(file, mode, *args, **keywords)
        return points.around(f"file open {_name(file)}", lambda: call(file, mode, *args, **keywords))

    return counted


def _counted_start(points: Points, start: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(start)
    def counted(self: Any, args: Any, *rest: Any, **keywords: Any) -> Any:
        return points.around(f"process {_command(args)}", lambda: start(self, args, *rest, **keywords))

    return counted


def _command(args: Any) -> str:
    """A command's program and, for git, what git is asked to do."""
    words = [args] if isinstance(args, str) else [os.fsdecode(word) for word in args]
    program = os.path.basename(words[0].split()[0])
    if program != "git":
        return program
    at = 1
    while at < len(words) and words[at] == "-c":
        at += 2
    return f"git {words[at] if at < len(words) else ''}"


class _CountedConnection(sqlite3.Connection):
    points: Points

    def execute(self, statement: str, parameters: Any = (), /) -> sqlite3.Cursor:
        found = _EFFECTFUL_SQL.match(statement)
        if found is None:
            return super().execute(statement, parameters)
        label = f"store {found[1].upper()}"
        whole = super().execute
        cursor: sqlite3.Cursor = self.points.around(label, lambda: whole(statement, parameters))
        return cursor


def _counted_connection(points: Points, path: str) -> sqlite3.Connection:
    made = sqlite3.connect(
        path,
        timeout=connections.BUSY_TIMEOUT_S,
        isolation_level=None,
        cached_statements=256,
        factory=_CountedConnection,
    )
    made.points = points
    return made
