"""Decides, from the monotonic clock alone, when a host has used up one of its deadlines.

Runs inside the keeper process (light modules only) and is pure: every instant is handed in, in seconds of the monotonic
clock. It never ends anything itself.
"""

from __future__ import annotations

STALL_S = 5.0
"""Waking this much later than asked for means that this process (or the machine) stood still."""


class Watch:
    """The four deadlines of one host. `hard_s` is absolute; the others restart with what the host shows."""

    def __init__(
        self, started: float, *, first_event_s: float, idle_s: float, after_result_s: float, hard_s: float
    ) -> None:
        self.first_event_at: float | None = None
        self.result_at: float | None = None
        self._first_event_s = first_event_s
        self._idle_s = idle_s
        self._after_result_s = after_result_s
        self._started = started
        self._hard_at = started + hard_s
        self._mark = started
        """From here the waiting for the first event, and then the silence, is counted."""

    def output(self, now: float, *, event: bool) -> None:
        """The host printed something; `event` if a whole line of its stream was in it."""
        if event and self.first_event_at is None:
            self.first_event_at = now
        if self.first_event_at is not None:
            self._mark = now

    def result(self, now: float) -> None:
        """The host's terminal event was seen; only the first one counts."""
        if self.result_at is None:
            self.result_at = now

    def restart(self, now: float) -> None:
        """After a sleep or a standstill the host needs time to notice: every wait but the hard one starts again."""
        self._mark = now
        if self.result_at is not None:
            self.result_at = now

    def next(self) -> tuple[float, str]:
        """The instant of the earliest deadline and its `StopCause`."""
        if self.result_at is not None:
            soft = (self.result_at + self._after_result_s, "after_result")
        elif self.first_event_at is None:
            soft = (self._mark + self._first_event_s, "first_event")
        else:
            soft = (self._mark + self._idle_s, "idle")
        return min(soft, (self._hard_at, "hard"))

    def due(self, now: float) -> str | None:
        """The `StopCause` that applies now, if any."""
        at, cause = self.next()
        return cause if now >= at else None


class Sleep:
    """Notices that the machine slept (one clock counts sleep, the other does not) or that we stood still."""

    def __init__(self, now: float, with_sleep: float) -> None:
        self.slept_s = 0.0
        self._lead = with_sleep - now
        self._expected = now

    def expect(self, wake_at: float) -> None:
        """We mean to wake at this instant."""
        self._expected = wake_at

    def woke(self, now: float, with_sleep: float) -> bool:
        """Was there a sleep or a standstill since the last call?"""
        jump = with_sleep - now - self._lead
        self._lead += jump
        if jump > 1.0:
            self.slept_s += jump
            return True
        return now - self._expected > STALL_S
