"""Proves which process is meant: boot id, pid and start time together, and who descends from whom.

It reads `/proc` and nothing else; it signals through `send` only, which refuses a pid whose start time differs.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable

from loopx.hosts import procs, protocol


@functools.cache
def boot_id() -> str:
    """This boot of this machine."""
    return procs.boot_id()


def of(pid: int) -> protocol.ProcessIdentity | None:
    """The identity of the process that has this pid now, or None."""
    seen = procs.look(pid)
    if seen is None or seen.ended:
        return None
    return protocol.ProcessIdentity(boot_id=boot_id(), pid=pid, start_ticks=seen.start_ticks, pgid=seen.pgrp)


def alive(who: protocol.ProcessIdentity) -> bool:
    """Does exactly this process still run? A recycled pid, a zombie and another boot do not."""
    return who.boot_id == boot_id() and procs.same(who.pid, who.start_ticks)


def send(who: protocol.ProcessIdentity, signum: int) -> bool:
    """Signals exactly this process; False if it is gone, is another one, or may not be signalled."""
    return who.boot_id == boot_id() and procs.send(who.pid, who.start_ticks, signum)


def bearers(run_id: str) -> list[procs.Proc]:
    """The living processes that were started with this run's marker in their environment."""
    return [proc for proc in procs.scan() if not proc.ended and procs.carries(proc.pid, run_id)]


def is_hosted(
    identities: Iterable[protocol.ProcessIdentity], pid: int | None = None
) -> protocol.ProcessIdentity | None:
    """The one of `identities` (hosts and keepers) that the process descends from, or None.

    The parent chain is walked from `pid` (default: this process); an orphan is still found by the session of its host.
    """
    chain = procs.ancestors(os.getpid() if pid is None else pid)
    started = {proc.pid: proc.start_ticks for proc in chain}
    sessions = {proc.session for proc in chain}
    for who in identities:
        if who.boot_id != boot_id():
            continue
        if started.get(who.pid) == who.start_ticks:
            return who
        if who.pid in sessions and _holds_session(who):
            return who
    return None


def _holds_session(who: protocol.ProcessIdentity) -> bool:
    """A session number proves something as long as its leader has not given its pid away."""
    seen = procs.look(who.pid)
    return seen is None or seen.start_ticks == who.start_ticks
