"""Running one command in a session of its own, to its end or to the end of its time, and ending everything with it.

Standard input is empty. Whoever is left of the command's process group or session is ended too; a process that was not
started here is never signalled.
"""

from __future__ import annotations

import contextlib
import enum
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO

import msgspec

from loopx.workspace.check_output import OutputSink

GRACE_MS = 2_000
_POLL_S = 0.1
_CHUNK = 64 * 1024
_DRAIN_READS = 1_024
_PROC = "/proc"


class EndedBy(enum.StrEnum):
    """What ended a command: itself, its own time-out, the session's clock, or a person."""

    ITSELF = "itself"
    TIMEOUT = "timeout"
    SESSION_CLOCK = "session_clock"
    CANCELLED = "cancelled"


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended. `exit_code` is None when a signal ended it. `survivors` outlived being killed."""

    by: EndedBy
    exit_code: int | None
    signal: int | None
    duration_ms: int
    survivors: int = 0


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """A command's own time, and what is left of the session's (None: no limit), in milliseconds."""

    timeout_ms: int
    session_left_ms: int | None = None
    grace_ms: int = GRACE_MS

    @property
    def limit(self) -> tuple[int, EndedBy]:
        """Whichever ends first; on a tie the command's own time-out."""
        if self.session_left_ms is not None and self.session_left_ms < self.timeout_ms:
            return self.session_left_ms, EndedBy.SESSION_CLOCK
        return self.timeout_ms, EndedBy.TIMEOUT


def run_command(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    sink: OutputSink,
    clock: Clock,
    cancelled: Callable[[], bool],
) -> Ended:
    """Run to the end. Raises `OSError` when the command can't be started (nothing ran then)."""
    started = time.monotonic()
    process = subprocess.Popen(
        list(argv),
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if sink.keep_stdout else subprocess.STDOUT,
        start_new_session=True,
        close_fds=True,
    )
    try:
        by = _follow(process, sink, clock, cancelled, started)
        survivors = _end_everything(process, clock.grace_ms, gently=True)
        _drain(process, sink)
    except BaseException:
        _end_everything(process, 0, gently=False)
        process.wait()
        raise
    finally:
        for pipe in _pipes(process):
            pipe.close()
    code = process.wait()
    sink.close()
    duration_ms = round((time.monotonic() - started) * 1000)
    return Ended(
        by=by,
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        duration_ms=duration_ms,
        survivors=survivors,
    )


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], ...]:
    return tuple(pipe for pipe in (process.stdout, process.stderr) if pipe is not None)


def _follow(
    process: subprocess.Popen[bytes],
    sink: OutputSink,
    clock: Clock,
    cancelled: Callable[[], bool],
    started: float,
) -> EndedBy:
    """Read until the command's own process has ended or its time is up; that process is not reaped here."""
    limit_ms, reason = clock.limit
    deadline = started + limit_ms / 1000
    with selectors.DefaultSelector() as selector, _exit_handle(process.pid) as handle:
        for pipe in _pipes(process):
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ, pipe)
        if handle is not None:
            selector.register(handle, selectors.EVENT_READ)
        while not _has_ended(process.pid):
            if cancelled():
                return EndedBy.CANCELLED
            left = deadline - time.monotonic()
            if left <= 0:
                return reason
            for key, _ in selector.select(min(left, _POLL_S)):
                if key.data is not None and not _read(key.data, key.data is process.stdout, sink):
                    selector.unregister(key.data)
    return EndedBy.ITSELF


@contextlib.contextmanager
def _exit_handle(pid: int) -> Iterator[int | None]:
    """A descriptor that becomes readable when the process ends, where the system has one."""
    handle: int | None = None
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


def _has_ended(pid: int) -> bool:
    """Whether our child is a zombie now; it stays one, so that its group's number can't be given to another."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _read(pipe: IO[bytes], is_stdout: bool, sink: OutputSink) -> bool:
    """Take in what is there; False at the end of the stream."""
    try:
        data = os.read(pipe.fileno(), _CHUNK)
    except BlockingIOError:
        return True
    sink.feed(data, is_stdout=is_stdout)
    return bool(data)


def _drain(process: subprocess.Popen[bytes], sink: OutputSink) -> None:
    """What was printed and not yet read. Not to the end of the stream: someone in another session may hold it open."""
    for pipe in _pipes(process):
        for _ in range(_DRAIN_READS):
            try:
                data = os.read(pipe.fileno(), _CHUNK)
            except BlockingIOError:
                break
            if not data:
                break
            sink.feed(data, is_stdout=pipe is process.stdout)


def _end_everything(process: subprocess.Popen[bytes], grace_ms: int, *, gently: bool) -> int:
    """TERM, a grace, then KILL to all that is left of the command; how many are left after that."""
    leader = process.pid
    if not _members(leader):
        return 0
    if gently:
        _signal_all(leader, signal.SIGTERM)
        if _gone_within(leader, grace_ms):
            return 0
    _signal_all(leader, signal.SIGKILL)
    return 0 if _gone_within(leader, GRACE_MS) else len(_members(leader))


def _gone_within(leader: int, wait_ms: int) -> bool:
    until = time.monotonic() + wait_ms / 1000
    pause = 0.002
    while _members(leader):
        if time.monotonic() >= until:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    return True


def _signal_all(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
    for pid in _members(leader):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _members(leader: int) -> list[int]:
    """The living processes of the command's group or session. Without a process table, the leader alone is known."""
    try:
        names = [entry.name for entry in os.scandir(_PROC) if entry.name.isdigit()]
    except OSError:
        return [] if _has_ended(leader) else [leader]
    return [pid for pid in map(int, names) if _belongs(pid, leader)]


def _belongs(pid: int, leader: int) -> bool:
    try:
        with open(f"{_PROC}/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return False
    return fields[0] not in (b"Z", b"X") and (int(fields[2]) == leader or int(fields[3]) == leader)
