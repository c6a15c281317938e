"""Ends a host and everything that it left behind: linger, TERM, grace, KILL, and the pids that survive even that.

Runs inside the keeper process (light modules only). It signals the host's own group and single processes proved to
belong to this run by descent, session or environment marker; each only while its start time is the one that was seen.
"""

from __future__ import annotations

import os

from loopx.hosts import procs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

RUN, LINGER, TERM, KILL, DONE = range(5)
LINGER_S = 0.25
"""What a host leaves behind gets this long to end by itself before it is told to."""
KILL_S = 2.0
"""After this long, what a KILL did not end is a survivor."""
SCAN_S = 0.02


class Ending:
    """The phases from a running host to nothing left of it. Instants are seconds of the monotonic clock."""

    def __init__(self, run_id: str, grace_s: float, *, is_child: bool) -> None:
        self.phase = RUN
        self.host = (0, 0)
        """pid and start ticks."""
        self.leftovers: list[int] = []
        """Processes that outlived the host and had to be told to end."""
        self.survivors: list[int] = []
        self._run_id = run_id
        self._grace_s = grace_s
        self._is_child = is_child
        self._until = 0.0

    def begin(self, now: float) -> None:
        """Tells the host and all its processes to end."""
        self.phase, self._until = TERM, now + self._grace_s
        self._signal(signal.SIGTERM, self.members())

    def wake_at(self, now: float, *, waits_for_host: bool) -> float:
        """When to call `step` next; the host's own end wakes the caller if `waits_for_host`."""
        return self._until if self.phase == TERM and waits_for_host else min(self._until, now + SCAN_S)

    def step(self, now: float, *, gone: bool) -> None:
        """Moves on as far as the time and the processes allow; `gone`: the host itself has ended."""
        if self.phase == RUN:
            self.phase, self._until = LINGER, now + LINGER_S
        members = self.members() if gone or self.phase == KILL else []
        if gone and not members:
            self.phase = DONE
        elif now >= self._until:
            self._harder(now, gone=gone)
        elif self.phase == KILL:
            self._signal(signal.SIGKILL, members)

    def members(self) -> list[procs.Proc]:
        """The living processes of this run: the host's session and group, its descendants, and bearers of its marker.

        The numbers of session and group prove something only as long as the host itself, alive or as our zombie, holds
        its pid; after that only descent and the marker do.
        """
        pid, start_ticks = self.host
        seen = procs.scan()
        held = any(proc.pid == pid and proc.start_ticks == start_ticks for proc in seen)
        roots = ([os.getpid()] if self._is_child else []) + ([pid] if held else [])
        below = procs.descendants(seen, roots)
        return [
            proc
            for proc in seen
            if not proc.ended
            and proc.pid != os.getpid()
            and proc.start_ticks >= start_ticks
            and (
                proc.pid in below
                or (held and pid in (proc.pid, proc.session, proc.pgrp))
                or procs.carries(proc.pid, self._run_id)
            )
        ]

    def _harder(self, now: float, *, gone: bool) -> None:
        """The waiting of this phase is over: TERM after lingering, KILL after TERM, survivors after KILL."""
        members = self.members()
        if self.phase == KILL:
            self.survivors = [proc.pid for proc in members]
            self.phase = DONE
            return
        if gone:
            self.leftovers += [proc.pid for proc in members if proc.pid not in self.leftovers]
        if self.phase == LINGER:
            self.phase, self._until = TERM, now + self._grace_s
            self._signal(signal.SIGTERM, members)
        else:
            self.phase, self._until = KILL, now + KILL_S
            self._signal(signal.SIGKILL, members)

    def _signal(self, signum: int, members: list[procs.Proc]) -> None:
        """The host's group as one (a group that forks cannot outrun it), then whatever left the group.

        A stopped process hears TERM only when it is continued.
        """
        pid, start_ticks = self.host
        owned = procs.look(pid)
        grouped = owned is not None and owned.start_ticks == start_ticks
        for number in (signum,) if signum == signal.SIGKILL else (signum, signal.SIGCONT):
            grouped = grouped and _signal_group(pid, number)
            for proc in members:
                if not grouped or proc.pgrp != pid:
                    procs.send(proc.pid, proc.start_ticks, number)


def _signal_group(pgid: int, signum: int) -> bool:
    try:
        os.killpg(pgid, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True
