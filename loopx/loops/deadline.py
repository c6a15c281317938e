"""One deadline for a whole run, made above the engine ladder and shared by every step (loops, "Engines").

It reads the monotonic clock that it is given and nothing else, so that nothing restarts it and a changed wall clock
moves nothing. It says no; what is done with the work then is others' business.
"""

from __future__ import annotations

from collections.abc import Callable


class Deadline:
    """An instant on a monotonic clock (milliseconds). `None` as the end means: no limit was asked for."""

    __slots__ = ("_clock_ms", "_ends_at_ms")

    def __init__(self, clock_ms: Callable[[], int], ends_at_ms: int | None) -> None:
        self._clock_ms = clock_ms
        self._ends_at_ms = ends_at_ms

    @classmethod
    def after(cls, clock_ms: Callable[[], int], budget_ms: int | None) -> Deadline:
        """The deadline `budget_ms` from now; it is fixed here, once."""
        return cls(clock_ms, None if budget_ms is None else clock_ms() + budget_ms)

    def remaining_ms(self) -> int | None:
        """Milliseconds left, never negative; None without a limit."""
        return None if self._ends_at_ms is None else max(0, self._ends_at_ms - self._clock_ms())

    def admit(self, least_ms: int = 1) -> bool:
        """Whether another round that needs at least `least_ms` may begin."""
        remaining = self.remaining_ms()
        return remaining is None or remaining >= max(1, least_ms)

    def clamp_ms(self, wanted_ms: int) -> int:
        """`wanted_ms`, or what is left when that is less. Never negative."""
        remaining = self.remaining_ms()
        return max(0, wanted_ms if remaining is None else min(wanted_ms, remaining))
