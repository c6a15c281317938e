"""A clock that stands still until it is told to move, and ids that count; LoopX takes both wherever it wants one.

They read no time and no randomness, so that the same test is the same history.
"""

from __future__ import annotations

START_MS = 1_760_000_000_000


class FakeClock:
    """Implements `Clock`. Wall and monotonic time move together, except where the machine is said to have slept."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._wall_ms = now_ms
        self._steady_ms = 1_000_000

    def now_ms(self) -> int:
        return self._wall_ms

    def monotonic_ms(self) -> int:
        return self._steady_ms

    def advance(self, ms: int) -> None:
        """Time passes."""
        if ms < 0:
            raise ValueError("time that passes is not negative; use jump")
        self._wall_ms += ms
        self._steady_ms += ms

    def jump(self, ms: int) -> None:
        """The wall clock alone is set forward or back, as by a sleep of the machine or a correction."""
        self._wall_ms += ms


class CountingIds:
    """Implements `Ids`: `td00000001`, `td00000002`, ... in the order of asking, the same in every run."""

    def __init__(self, start: int = 0) -> None:
        self._last = start

    def new(self, prefix: str) -> str:
        self._last += 1
        return f"{prefix}{self._last:08d}"

    def secret(self) -> str:
        return self.new("secret-")
