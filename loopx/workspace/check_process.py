"""Running one command in a session of its own, to its end or to the end of its time, and ending everything with it.

Standard input is empty. Whoever is left of the command is ended too: on Linux every process that descends from it,
daemons in sessions of their own included, because a subreaper stands between (`check_reaper`); elsewhere its process
group. A process that was not started here is never signalled.
"""

from __future__ import annotations

import contextlib
import enum
import os
import selectors
import signal
import subprocess
import sys
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
_REAPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "check_reaper.py")


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
    running = _start(argv, cwd=cwd, env=env, sink=sink)
    process = running.process
    try:
        by = _follow(running, sink, clock, cancelled, started)
        survivors = _end_everything(running, clock.grace_ms, gently=True)
        _drain(process, sink)
    except BaseException:
        _end_everything(running, 0, gently=False)
        process.wait()
        raise
    finally:
        for pipe in _pipes(process):
            pipe.close()
        running.close()
    code = running.code()
    sink.close()
    duration_ms = round((time.monotonic() - started) * 1000)
    return Ended(
        by=by,
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        duration_ms=duration_ms,
        survivors=survivors,
    )


class _Running:
    """A started command. With a `report` its process is the reaper, which tells there how the command itself ended."""

    def __init__(self, process: subprocess.Popen[bytes], report: int | None) -> None:
        self.process = process
        self.report = report
        self._said = b""

    @property
    def leader(self) -> int:
        return self.process.pid

    def has_ended(self) -> bool:
        """Whether the command's own process has; the one we started is not reaped here."""
        if self.report is not None:
            with contextlib.suppress(BlockingIOError):
                self._said += os.read(self.report, _CHUNK)
            if self._said:
                return True
        return _is_over(self.leader)

    def code(self) -> int:
        """The command's exit code, or the signal that ended it as a negative number. Raises `OSError` (not started)."""
        own = self.process.wait()
        if self.report is None:
            return own
        word, _, rest = self._said.partition(b" ")
        number = int(rest.split(b" ")[0]) if rest else 0
        if word == b"failed":
            raise OSError(number, os.strerror(number))
        # Without a word the reaper itself was killed, by LoopX or by the command: then nothing is known to be well.
        return os.waitstatus_to_exitcode(number) if word == b"ended" else -signal.SIGKILL

    def close(self) -> None:
        if self.report is not None:
            with contextlib.suppress(BlockingIOError):
                self._said += os.read(self.report, _CHUNK)
            os.close(self.report)


def _start(argv: Sequence[str], *, cwd: str, env: Mapping[str, str], sink: OutputSink) -> _Running:
    """Raises `OSError` when nothing could be started; with a reaper some of that is known only at the end."""
    words = list(argv)
    report = told = None
    if sys.platform == "linux" and sys.executable and os.path.isfile(_REAPER):
        report, told = os.pipe()
        os.set_blocking(report, False)
        # Python itself would set LC_CTYPE for what it starts where a C locale is in force.
        locale = f"={env['LC_CTYPE']}" if "LC_CTYPE" in env else ""
        words = [sys.executable, "-I", "-S", _REAPER, str(told), locale, *words]
    try:
        process = subprocess.Popen(
            words,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if sink.keep_stdout else subprocess.STDOUT,
            start_new_session=True,
            close_fds=True,
            pass_fds=() if told is None else (told,),
        )
    except BaseException:
        if report is not None:
            os.close(report)
        raise
    finally:
        if told is not None:
            os.close(told)
    return _Running(process, report)


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], ...]:
    return tuple(pipe for pipe in (process.stdout, process.stderr) if pipe is not None)


def _follow(
    running: _Running,
    sink: OutputSink,
    clock: Clock,
    cancelled: Callable[[], bool],
    started: float,
) -> EndedBy:
    """Read until the command's own process has ended or its time is up; that process is not reaped here."""
    limit_ms, reason = clock.limit
    deadline = started + limit_ms / 1000
    process = running.process
    with selectors.DefaultSelector() as selector, _exit_handle(process.pid) as handle:
        for pipe in _pipes(process):
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ, pipe)
        if handle is not None:
            selector.register(handle, selectors.EVENT_READ)
        if running.report is not None:
            selector.register(running.report, selectors.EVENT_READ)
        while not running.has_ended():
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


def _is_over(pid: int) -> bool:
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


def _end_everything(running: _Running, grace_ms: int, *, gently: bool) -> int:
    """TERM, a grace, then KILL to all that is left of the command; how many are left after that."""
    if not _members(running):
        return _release(running)
    if gently:
        _signal_all(running, signal.SIGTERM)
        if _gone_within(running, grace_ms, None):
            return _release(running)
    # Whoever starts others faster than they are found loses its group in the end.
    _gone_within(running, GRACE_MS, signal.SIGKILL)
    return _release(running)


def _release(running: _Running) -> int:
    """Let the reaper go, which has nobody below it any more, or not for want of trying; how many are left."""
    left = len(_members(running))
    if left or not running.has_ended():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(running.leader, signal.SIGKILL)
    return left


def _gone_within(running: _Running, wait_ms: int, number: signal.Signals | None) -> bool:
    """Wait until nobody is left, signalling whoever is found meanwhile."""
    until = time.monotonic() + wait_ms / 1000
    pause = 0.002
    while found := _members(running):
        if time.monotonic() >= until:
            return False
        if number is not None:
            _signal(found, number)
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    return True


def _signal_all(running: _Running, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(running.leader, number)
    _signal(_members(running), number)


def _signal(found: Sequence[int], number: signal.Signals) -> None:
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _members(running: _Running) -> list[int]:
    """The living processes of the command: its group, its session, and whoever descends from it; not the reaper.

    Without a process table, the process that was started is the only one known.
    """
    leader = running.leader
    try:
        names = [entry.name for entry in os.scandir(_PROC) if entry.name.isdigit()]
    except OSError:
        return [] if _is_over(leader) else [leader]
    table = {pid: facts for pid in map(int, names) if (facts := _facts(pid)) is not None}
    found = {pid for pid, (_, _, group, session) in table.items() if leader in (group, session)}
    children: dict[int, list[int]] = {}
    for pid, (_, parent, _, _) in table.items():
        children.setdefault(parent, []).append(pid)
    below = [leader]
    while below:
        below = [child for pid in below for child in children.get(pid, ())]
        found.update(below)
    if running.report is not None:
        found.discard(leader)
    return sorted(pid for pid in found if table[pid][0] not in (b"Z", b"X"))


def _facts(pid: int) -> tuple[bytes, int, int, int] | None:
    """(state, parent, group, session) of a process; None when it is gone."""
    try:
        with open(f"{_PROC}/{pid}/stat", "rb") as stat:
            state, parent, group, session = stat.read().rpartition(b")")[2].split()[:4]
    except (OSError, ValueError):
        return None
    return state, int(parent), int(group), int(session)
