"""Looks at processes of this machine and signals one only after proving that it is the recorded one.

Shared by LoopX and by the keeper process, so it imports nothing but light standard modules. A pid alone proves nothing
(the kernel hands it out again); boot id, pid and start time together do. Nothing here is found by name, and nothing is
signalled that the caller did not name by pid *and* start time.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Iterable
else:
    import _signal as signal  # The public module costs an `enum` import, a fifth of the keeper's start-up.

RUN_ENV = "LOOPX_RUN_ID"
"""Set to the run id in every host's environment: descendants that left the session are found by it."""

_HAS_PROC = sys.platform.startswith("linux")
_PR_SET_CHILD_SUBREAPER = 36


class Proc:
    """One process as the kernel shows it. `start_ticks`: clock ticks after boot (on macOS seconds of the epoch)."""

    __slots__ = ("pgrp", "pid", "ppid", "session", "start_ticks", "state")

    def __init__(self, pid: int, ppid: int, pgrp: int, session: int, state: str, start_ticks: int) -> None:
        self.pid = pid
        self.ppid = ppid
        self.pgrp = pgrp
        self.session = session
        self.state = state
        self.start_ticks = start_ticks

    @property
    def ended(self) -> bool:
        """A zombie keeps its pid but runs no more."""
        return self.state in "ZXx"


def boot_id() -> str:
    """An opaque text that differs after every boot."""
    if _HAS_PROC:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    return _command_output("sysctl", "-n", "kern.bootsessionuuid").strip() or "unknown"


def look(pid: int) -> Proc | None:
    """The process with this pid now, zombies included, or None."""
    if not _HAS_PROC:
        return next(iter(parse_ps(_ps("-p", str(pid)))), None)
    try:
        handle = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        return parse_stat(os.read(handle, 4096))
    except OSError:
        return None
    finally:
        os.close(handle)


def scan() -> list[Proc]:
    """Every process that this user may see."""
    if not _HAS_PROC:
        return parse_ps(_ps("-A"))
    found = (look(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [proc for proc in found if proc is not None]


def parse_stat(data: bytes) -> Proc | None:
    """Reads `/proc/PID/stat`; the command in it may contain anything, so fields are counted from the last bracket."""
    head, bracket, rest = data.rpartition(b")")
    fields = rest.split()
    if not bracket or len(fields) < 20:
        return None
    return Proc(
        pid=int(head.split(b" ", 1)[0]),
        ppid=int(fields[1]),
        pgrp=int(fields[2]),
        session=int(fields[3]),
        state=fields[0].decode("ascii"),
        start_ticks=int(fields[19]),
    )


def parse_ps(text: str) -> list[Proc]:
    """Reads the lines that `_ps` asks for, where there is no `/proc`; the session is asked of the kernel."""
    import time

    found: list[Proc] = []
    for line in text.splitlines():
        fields = line.split(None, 4)
        try:
            started = int(time.mktime(time.strptime(fields[4].strip(), "%a %b %d %H:%M:%S %Y")))
            pid, ppid, pgrp = (int(field) for field in fields[:3])
        except (IndexError, ValueError):
            continue
        found.append(Proc(pid, ppid, pgrp, _session(pid), fields[3][:1], started))
    return found


def same(pid: int, start_ticks: int) -> bool:
    """Does the process that was recorded still run? A zombie does not."""
    seen = look(pid)
    return seen is not None and seen.start_ticks == start_ticks and not seen.ended


def send(pid: int, start_ticks: int, signum: int) -> bool:
    """Signals the process only if its start time is the recorded one; says whether a signal was sent.

    Where the kernel has process handles, the check and the signal concern the same process even if it ends between.
    """
    handle = open_handle(pid)
    try:
        seen = look(pid)
        if seen is None or seen.start_ticks != start_ticks:
            return False
        if handle is None:
            os.kill(pid, signum)
        else:
            signal.pidfd_send_signal(handle, signum)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if handle is not None:
            os.close(handle)


def open_handle(pid: int) -> int | None:
    """A pidfd (readable when the process has ended), or None where there is none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def carries(pid: int, run_id: str) -> bool:
    """Was the process started with this run's marker in its environment? Unreadable is no."""
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            environ = file.read()
    except OSError:
        return False
    return f"{RUN_ENV}={run_id}".encode() in environ.split(b"\0")


def descendants(procs: Iterable[Proc], roots: Iterable[int]) -> set[int]:
    """The pids below `roots` in the parent chain, the roots excluded."""
    children: dict[int, list[int]] = {}
    for proc in procs:
        children.setdefault(proc.ppid, []).append(proc.pid)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        fresh = [pid for pid in children.get(todo.pop(), ()) if pid not in found]
        found.update(fresh)
        todo.extend(fresh)
    return found


def ancestors(pid: int) -> list[Proc]:
    """The process itself, its parent and so on, as far as they can be seen."""
    chain: list[Proc] = []
    seen: set[int] = set()
    while pid > 0 and pid not in seen:
        seen.add(pid)
        proc = look(pid)
        if proc is None:
            break
        chain.append(proc)
        pid = proc.ppid
    return chain


def become_subreaper() -> bool:
    """Asks Linux to hand orphans below this process to it, so that a double fork does not escape the parent chain."""
    if not _HAS_PROC:
        return False
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def _ps(*selection: str) -> str:
    return _command_output("ps", *selection, "-o", "pid=,ppid=,pgid=,state=,lstart=")


def _command_output(*argv: str) -> str:
    import subprocess

    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    except OSError:
        return ""
    return done.stdout
