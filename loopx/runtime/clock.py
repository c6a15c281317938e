"""The real clock and the real source of ids; tests pass others in."""

from __future__ import annotations

import os
import time

# The lock alone: the rest of `threading` would cost a decision more than its reads.
from _thread import allocate_lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loopx.control_plane.ports import Clock

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_TIME_DIGITS = 9
_RANDOM_DIGITS = 5
_GATE_DIGITS = 6
_HALF = 1 << (5 * _RANDOM_DIGITS - 1)


class SystemClock:
    """Wall and monotonic time of this machine, in milliseconds."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


def _digits(number: int, width: int) -> str:
    text = ""
    for _ in range(width):
        text = _ALPHABET[number & 31] + text
        number >>= 5
    return text


def _bits(count: int) -> int:
    return int.from_bytes(os.urandom((count + 7) // 8), "big")


class SystemIds:
    """Random ids that sort in the order in which this process made them, and by their instant between processes.

    Gate ids are short and only random: people type them.
    """

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._last_ms = 0
        self._suffix = 0

    def new(self, prefix: str) -> str:
        if prefix == "g":
            return f"g{_digits(_bits(5 * _GATE_DIGITS), _GATE_DIGITS)}"
        with self._lock:
            now = max(time.time_ns() // 1_000_000, self._last_ms)
            # Half the space is left above a random start, so that a burst within one instant never wraps around.
            self._suffix = self._suffix + 1 if now == self._last_ms else _bits(5 * _RANDOM_DIGITS) % _HALF
            self._last_ms = now
            return f"{prefix}{_digits(now, _TIME_DIGITS)}{_digits(self._suffix, _RANDOM_DIGITS)}"

    def secret(self) -> str:
        return os.urandom(24).hex()


class Throttle:
    """Says yes at most once an interval, because a question to the store costs more than a look at the clock."""

    def __init__(self, clock: Clock, interval_ms: int) -> None:
        self._clock = clock
        self._interval_ms = interval_ms
        self._next = 0

    def due(self) -> bool:
        now = self._clock.monotonic_ms()
        if now < self._next:
            return False
        self._next = now + self._interval_ms
        return True
