"""A worker as a process that is listened to: what tests of the worker work with."""

from __future__ import annotations

import json
import signal
from typing import Any

from tests.e2e import services_kit as kit


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


class Running:
    """A worker that runs, and its lines as they come."""

    def __init__(self, world: kit.World, *words: str) -> None:
        self.world = world
        self.process = world.start("worker", "--json", *words)
        self.seen: list[dict[str, Any]] = []

    def until(self, type: str, **fields: object) -> dict[str, Any]:
        """Read on to the next line of a type (with these fields)."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            self.seen.append(event)
            if event["type"] == type and all(event.get(key) == value for key, value in fields.items()):
                return event
        raise AssertionError(f"the worker ended without {type}: {self.world.errors}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end; its exit status."""
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=60)
        self.seen += lines_of(out)
        return self.process.returncode
