"""Watches what a process does between BEGIN IMMEDIATE and the end of the transaction: SQL, and nothing else.

What Python itself does to load a module for the first time is let pass: it reads LoopX's own files once.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from typing import Any

import loopx
from loopx.store import connection as connections

_WATCHED = ("open", "os.", "subprocess.", "socket.", "fcntl.", "shutil.", "tempfile.", "time.sleep", "signal.")
_OWN = tuple(
    os.path.realpath(folder)
    for folder in (os.path.dirname(loopx.__file__), os.path.dirname(os.__file__), sys.prefix, sys.base_prefix)
)


class Audit:
    """Install it once per process; it can't be taken out again, only switched off."""

    def __init__(self) -> None:
        self.transactions = 0
        self.found: list[str] = []
        self._inside: set[int] = set()
        self._on = True
        sys.addaudithook(self._hear)
        connections.use_driver(self._driver)

    def stop(self) -> None:
        self._on = False

    def _driver(self, path: str) -> sqlite3.Connection:
        made = sqlite3.connect(path, timeout=30, isolation_level=None, factory=_AuditedConnection)
        made.audit = self
        return made

    def begin(self) -> None:
        self.transactions += 1
        self._inside.add(threading.get_ident())

    def end(self) -> None:
        self._inside.discard(threading.get_ident())

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._on or threading.get_ident() not in self._inside or not event.startswith(_WATCHED):
            return
        if event in ("open", "os.listdir", "os.scandir") and args and _is_own(args[0]):
            return
        caller = sys._getframe(1)
        self.found.append(f"{event} {args[:1]} by {caller.f_code.co_filename}:{caller.f_lineno}")


def _is_own(path: object) -> bool:
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    return os.path.abspath(os.fsdecode(path)).startswith(_OWN)


class _AuditedConnection(sqlite3.Connection):
    audit: Audit

    def execute(self, statement: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if statement in ("COMMIT", "ROLLBACK"):
            self.audit.end()
        done = super().execute(statement, parameters)
        if statement == "BEGIN IMMEDIATE":
            self.audit.begin()
        return done
