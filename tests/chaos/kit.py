"""What the chaos tests share: children that can be killed, waiting for a condition, and reading a store's file."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SEED_VARIABLE = "LOOPX_CHAOS_SEED"


def seed() -> int:
    """The seed of this run: from the environment where it replays one, else a new one. Tests print it."""
    given = os.environ.get(SEED_VARIABLE)
    return int(given) if given else time.time_ns() % 1_000_000_007


def until(condition: Callable[[], object], what: str = "") -> None:
    """Waits for a condition; only a test that would hang for ever fails here."""
    give_up = time.monotonic() + 120
    while not condition():
        if time.monotonic() > give_up:
            raise AssertionError(f"never came true: {what or condition}")
        time.sleep(0.005)


class Zygote:
    """Starts children of a process that has LoopX imported. Use as a context manager."""

    def __init__(self, env: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.zygote"],
            cwd=ROOT,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, **order: Any) -> int:
        """A new child with this order; its pid."""
        return int(self._ask(order))

    def wait(self, pid: int) -> int:
        """The child's exit code, or minus the signal that ended it."""
        return self.measure(pid)[0]

    def measure(self, pid: int) -> tuple[int, int]:
        """The same, and the most memory that it used, in KiB."""
        code, most = self._ask({"wait": pid})
        return int(code), int(most)

    def run(self, **order: Any) -> int:
        return self.wait(self.start(**order))

    def _ask(self, order: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the zygote died"
        return json.loads(answer)

    def __enter__(self) -> Zygote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@contextlib.contextmanager
def rows(database: str) -> Iterator[sqlite3.Connection]:
    """The store's file, read with nothing of LoopX."""
    connection = sqlite3.connect(database)
    connection.row_factory = sqlite3.Row
    try:
        yield connection
    finally:
        connection.close()


def all_of(database: str, question: str, *values: object) -> list[dict[str, Any]]:
    with rows(database) as connection:
        return [dict(row) for row in connection.execute(question, values).fetchall()]


def one_of(database: str, question: str, *values: object) -> dict[str, Any]:
    found = all_of(database, question, *values)
    assert len(found) == 1, (question, found)
    return found[0]
