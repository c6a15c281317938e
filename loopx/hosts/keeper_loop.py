"""Keeps one host from its start to its exit record: reads, spools, enforces deadlines and caps, ends what is left over.

Runs inside the keeper process (light modules only), one thread, woken by output, by signals and every few seconds by
the clock. It signals the host's own group and processes proved to descend from the host, nothing else; it never starts
a second host, and leaves by writing `exit.json`, whatever happens to the disk, the folder or the host.
"""

from __future__ import annotations

import fcntl
import os
import select
import time

from loopx.hosts import keeper_end, keeper_launch, keeper_spool, keeper_watch, procs
from loopx.hosts import keeper_records as records

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping
    from typing import Any
else:
    import _signal as signal

_CHUNK = 65536
_READS_A_ROUND = 16
_DRAIN_S = 1.0
_UNTOLD_S = 0.2
"""How often to look for the end of a host that is not our child, where the kernel has no process handles."""
_REST_MS = 20
"""Small outputs are collected this long, so that a chatty host does not cost a wake-up a line; its end is not."""
_CHECK_BYTES = 32 << 20
"""Free space is also looked at after this much output."""
_LOCK_FD = 3


def _with_sleep() -> float:
    """A clock that goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class _Output:
    """One of the host's two streams: its pipe's reading end and its spool."""

    def __init__(self, name: str, spool: keeper_spool.Stream) -> None:
        self.name = name
        self.spool = spool
        self.handle: int | None = None
        self.ended = False


class Keeper:
    """One run of one host, from the order to the exit record."""

    def __init__(self, order: keeper_launch.Order) -> None:
        self.order = order
        limits = order.limits
        sizes = {"segment_bytes": int(limits["segment_bytes"]), "line_bytes": int(limits["line_bytes"])}
        self.stdout = _Output(
            "stdout", keeper_spool.Stream(order.spool, "stdout", total_bytes=int(limits["stdout_bytes"]), **sizes)
        )
        self.stderr = _Output(
            "stderr", keeper_spool.Stream(order.spool, "stderr", total_bytes=int(limits["stderr_bytes"]), **sizes)
        )
        self.prompt: keeper_launch.Prompt | None = None
        self.is_child = order.found is None
        self.started_at_ms = order.started_at_ms or _now_ms()
        self.start_error: str | None = None
        self.stop = "none"
        self.unobserved = False
        self._status: int | None = None
        self._gone = False
        self._ending = keeper_end.Ending(order.run_id, order.grace_s, is_child=self.is_child)
        self._tail = b""
        self._first_event_at_ms: int | None = None
        self._cancelled = False
        self._disk_low = False
        self._checked_bytes = 0
        self._tick_at = 0.0
        self._poll = select.poll()
        self._rest = select.poll()
        """What even a rest after output hears: signals and the host's end."""
        self._by_handle: dict[int, _Output] = {}
        self._wake_end = self._catch_signals()
        self._host_handle: int | None = None
        now = time.monotonic()
        self._begun = order.started_mono or now
        self._watch = keeper_watch.Watch(self._begun, **order.deadlines)
        self._sleep = keeper_watch.Sleep(now, _with_sleep())

    # -- the start ---------------------------------------------------------------------------------------------

    def launch(self, text: bytearray) -> None:
        """Starts the host behind its gate; afterwards it runs, or `start_error` says why not."""
        spool = self.order.spool
        if os.path.exists(os.path.join(spool, records.CANCEL)):
            self.start_error, self.stop, self._gone = "cancelled", "cancelled", True
            return
        ends = [self._open(output) for output in (self.stdout, self.stderr)]
        self.prompt = keeper_launch.Prompt(text)
        gate = keeper_launch.Gate(self.order, self.prompt.read_end, ends[0], ends[1])
        for handle in ends:
            os.close(handle)
        seen = procs.look(gate.pid)
        self._ending.host = (gate.pid, seen.start_ticks if seen else 0)
        self._begun = self._restarted()
        self.record_host()
        self.start_error = gate.open()
        if self.start_error:
            os.waitpid(gate.pid, 0)
            self._gone = True
        elif not self.prompt.delivered:
            self._poll.register(self.prompt.write_end, select.POLLOUT)

    def take_over(self) -> None:
        """Goes on keeping a host whose keeper died; its exit status can no longer be learned."""
        assert self.order.found is not None
        pid, start_ticks, _group = self.order.found
        self._ending.host = (pid, start_ticks)
        self._host_handle = procs.open_handle(pid)
        self._gone = self.unobserved = not procs.same(pid, start_ticks)
        if self._host_handle is not None and not self._gone:
            for poll in (self._poll, self._rest):
                poll.register(self._host_handle, select.POLLIN)
        for output in (self.stdout, self.stderr):
            output.spool.resume()
            handle = keeper_launch.reopen_output(self.order.spool, output.name, None if self._gone else pid)
            output.ended = handle is None
            if handle is not None:
                self._listen(output, handle)
        self._reread()
        self.record_host()
        if not self._gone and not self.order.delivered:
            # Half a prompt may have reached it: it must not act on that.
            self.start_error = "prompt_interrupted"

    def _restarted(self) -> float:
        now = time.monotonic()
        self._watch = keeper_watch.Watch(now, **self.order.deadlines)
        self.started_at_ms = _now_ms()
        return now

    def _open(self, output: _Output) -> int:
        reading, writing = keeper_launch.open_output(self.order.spool, output.name)
        self._listen(output, reading)
        return writing

    def _listen(self, output: _Output, handle: int) -> None:
        output.handle = handle
        self._by_handle[handle] = output
        self._poll.register(handle, select.POLLIN)

    def _reread(self) -> None:
        """What an earlier keeper already saw of the stream: was there an event, was there a result?"""
        for _, path in records.segments(self.order.spool, "stdout"):
            with open(path, "rb", buffering=0) as file:
                while chunk := file.read(_CHUNK):
                    self._notice(chunk)

    def record_host(self) -> None:
        """Writes `host.json`. Not synced: after a power cut no host runs, and `launch.json` is the durable intent."""
        data = records.encode(
            {
                "run_id": self.order.run_id,
                "turn_key": self.order.turn_key,
                "keeper": self._identity(os.getpid(), os.getpgrp()),
                "host": self._identity(self._ending.host[0], self._ending.host[0], self._ending.host[1]),
                "started_at_ms": self.started_at_ms,
                "started_mono": self._begun,
                "delivered": self._delivered(),
                "takeovers": self.order.takeovers,
            }
        )
        records.write_atomic(self.order.spool, records.HOST, data, durable=False)

    def _identity(self, pid: int, pgid: int, start_ticks: int | None = None) -> dict[str, str | int]:
        if start_ticks is None:
            seen = procs.look(pid)
            start_ticks = seen.start_ticks if seen else 0
        return {"boot_id": self.order.boot_id, "pid": pid, "start_ticks": start_ticks, "pgid": pgid}

    def _delivered(self) -> bool:
        return self.prompt.delivered if self.prompt else self.order.delivered

    @staticmethod
    def _catch_signals() -> int:
        """Only USR1 (look at the folder) and CHLD wake us; a shutdown's TERM reaches the host by itself."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, lambda _number, _frame: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        return reading

    # -- the loop ----------------------------------------------------------------------------------------------

    def keep(self) -> None:
        """Runs until the host and all that it left behind are gone, or are known to survive."""
        for poll in (self._poll, self._rest):
            poll.register(self._wake_end, select.POLLIN)
        if self.start_error == "prompt_interrupted":
            self._ending.begin(time.monotonic())
        while self._ending.phase != keeper_end.DONE:
            now = time.monotonic()
            wake_at = max(now, self._wake_at(now))
            self._sleep.expect(wake_at)
            ready = self._poll.poll((wake_at - now) * 1000)
            now = time.monotonic()
            if self._sleep.woke(now, _with_sleep()):
                self._watch.restart(now)
            got = self._serve([handle for handle, _ in ready])
            self._check(now)
            self._step(time.monotonic())
            if 0 < got < _CHUNK and self._ending.phase == keeper_end.RUN:
                self._rest.poll(_REST_MS)

    def _wake_at(self, now: float) -> float:
        told = self.is_child or self._host_handle is not None
        if self._ending.phase != keeper_end.RUN:
            return min(self._tick_at, self._ending.wake_at(now, waits_for_host=told and not self._gone))
        if self._gone:
            return now
        return min(self._watch.next()[0], self._tick_at, self._tick_at if told else now + _UNTOLD_S)

    def _serve(self, handles: list[int]) -> int:
        """Does what the ready handles ask for; returns how many bytes the host printed."""
        got = 0
        for handle in handles:
            if handle in self._by_handle:
                got += self._read(self._by_handle[handle])
            elif handle == self._wake_end:
                while len(_read_some(handle) or b"") == _CHUNK:
                    pass
                self._cancelled = self._cancelled or self._exists(records.CANCEL)
            elif self.prompt and handle == self.prompt.write_end:
                self._push_prompt(self.prompt)
        self._notice_end()
        return got

    def _push_prompt(self, prompt: keeper_launch.Prompt) -> None:
        self._poll.unregister(prompt.write_end)
        prompt.push()
        if not prompt.delivered:
            self._poll.register(prompt.write_end, select.POLLOUT)
            return
        try:
            records.touch(self.order.spool, records.DELIVERED)
        except OSError:
            self._disk_low = True

    def _read(self, output: _Output) -> int:
        assert output.handle is not None
        got = 0
        for _ in range(_READS_A_ROUND):
            chunk = _read_some(output.handle)
            if chunk is None:
                break
            if not chunk:
                self._poll.unregister(output.handle)
                del self._by_handle[output.handle]
                os.close(output.handle)
                output.handle, output.ended = None, True
                break
            got += len(chunk)
            output.spool.feed(chunk)
            if output is self.stdout:
                self._notice(chunk)
        if got:
            self._watch.output(time.monotonic(), event=self._first_event_at_ms is not None)
        return got

    def _notice(self, chunk: bytes) -> None:
        """Looks for the first whole line and for the terminal event, which may be split between two reads."""
        now = time.monotonic()
        if self._first_event_at_ms is None and b"\n" in chunk:
            self._first_event_at_ms = _now_ms()
            self._watch.output(now, event=True)
        if self._watch.result_at is None and self.order.markers:
            text = self._tail + chunk
            if any(marker in text for marker in self.order.markers):
                self._watch.result(now)
            self._tail = text[-max(map(len, self.order.markers)) :]

    def _notice_end(self) -> None:
        """Has the host ended? A child stays a zombie, so that its pid and group cannot be given to anybody else."""
        if self.is_child:
            self._reap_orphans()
        elif not self._gone and not procs.same(*self._ending.host):
            self._gone = True
            if self._host_handle is not None:
                for poll in (self._poll, self._rest):
                    poll.unregister(self._host_handle)
                os.close(self._host_handle)
                self._host_handle = None

    def _reap_orphans(self) -> None:
        if not hasattr(os, "waitid"):
            if not self._gone:
                pid, status = os.waitpid(self._ending.host[0], os.WNOHANG)
                self._gone, self._status = pid != 0, status if pid else None
            return
        while not self._gone:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            if ended.si_pid == self._ending.host[0]:
                self._gone = True
            else:
                os.waitpid(ended.si_pid, 0)

    def _check(self, now: float) -> None:
        """Every few seconds, and after much output: free space, a request to end, the folder itself."""
        printed = self.stdout.spool.raw_bytes + self.stderr.spool.raw_bytes
        if now < self._tick_at and printed - self._checked_bytes < _CHECK_BYTES:
            return
        self._tick_at = now + float(self.order.limits["check_s"])
        self._checked_bytes = printed
        self._cancelled = self._cancelled or self._exists(records.CANCEL)
        floor = self.order.limits["disk_floor_bytes"]
        self._disk_low = self._disk_low or any(
            _free(folder) < floor for folder in (os.fsencode(self.order.spool), self.order.cwd)
        )
        if os.fstat(_LOCK_FD).st_nlink == 0:
            self._restore_folder()

    def _restore_folder(self) -> None:
        """Somebody deleted the spool: without it a new LoopX would not find the host."""
        spool = self.order.spool
        try:
            os.makedirs(spool, mode=0o700, exist_ok=True)
            handle = os.open(os.path.join(spool, records.LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.dup2(handle, _LOCK_FD, inheritable=False)
            os.close(handle)
            records.write_atomic(spool, records.LAUNCH, self.order.launch_json, durable=False)
            self.record_host()
            self.stdout.spool.relocate()
            self.stderr.spool.relocate()
        except OSError as error:
            _log(spool, f"spool folder gone: {error}")

    def _exists(self, name: str) -> bool:
        return os.path.exists(os.path.join(self.order.spool, name))

    # -- the end -----------------------------------------------------------------------------------------------

    def _step(self, now: float) -> None:
        if self._ending.phase == keeper_end.RUN and not self._gone:
            if cause := self._cause(now):
                self.stop = cause
                self._ending.begin(now)
            return
        self._ending.step(now, gone=self._gone)

    def _cause(self, now: float) -> str | None:
        if self._cancelled:
            return "cancelled"
        printed = self.stdout.spool.raw_bytes + self.stderr.spool.raw_bytes
        if printed > self.order.limits["flood_bytes"]:
            return "output_flood"
        if self._disk_low or self.stdout.spool.failed or self.stderr.spool.failed:
            return "disk_floor"
        return self._watch.due(now)

    def finish(self) -> None:
        """Reads what is left, reaps the host and writes the exit record."""
        until = time.monotonic() + _DRAIN_S
        for output in (self.stdout, self.stderr):
            while output.handle is not None and time.monotonic() < until and self._read(output):
                pass
        ended_at_ms = _now_ms()
        unread = self.prompt.unread() if self.prompt else None
        if self.is_child and not self.start_error:
            self._reap_host()
        for output in (self.stdout, self.stderr):
            output.spool.close()
        self._write_exit(ended_at_ms, unread)
        for name in (records.fifo_name("stdout"), records.fifo_name("stderr"), records.CANCEL):
            records.remove(self.order.spool, name)

    def _reap_host(self) -> None:
        if self._status is None and self._gone:
            try:
                self._status = os.waitpid(self._ending.host[0], 0)[1]
            except ChildProcessError:
                self.unobserved = True

    def _write_exit(self, ended_at_ms: int, unread: int | None) -> None:
        code = None if self._status is None else os.waitstatus_to_exitcode(self._status)
        spools = (self.stdout.spool, self.stderr.spool)
        data = records.encode(
            {
                "run_id": self.order.run_id,
                "turn_key": self.order.turn_key,
                "started_at_ms": self.started_at_ms,
                "ended_at_ms": ended_at_ms,
                "handed_over": self.start_error is None and self._delivered(),
                "exit_code": code if code is not None and code >= 0 else None,
                "signal": -code if code is not None and code < 0 else None,
                "stop": self.stop,
                "result_seen": self._watch.result_at is not None,
                "first_event_ms": self._first_event_at_ms,
                "stdout_bytes": spools[0].raw_bytes,
                "stderr_bytes": spools[1].raw_bytes,
                "truncated_lines": sum(spool.truncated_lines for spool in spools),
                "survivors": self._ending.survivors,
                "start_error": self.start_error,
                "dropped_bytes": sum(spool.dropped_bytes for spool in spools),
                "leftovers": self._ending.leftovers,
                "slept_ms": round(self._sleep.slept_s * 1000),
                "prompt_unread": unread,
                "taken_over": not self.is_child,
                "unobserved": self.unobserved,
            }
        )
        records.write_exit(self.order.spool, data)


def _read_some(handle: int) -> bytes | None:
    """What is there: None for nothing now, empty at the end."""
    try:
        return os.read(handle, _CHUNK)
    except BlockingIOError:
        return None


def _free(folder: bytes) -> int:
    try:
        stats = os.statvfs(folder)
    except OSError:
        return 1 << 62  # A folder that is gone says nothing about the disk.
    return stats.f_bavail * stats.f_frsize


def _log(folder: str, text: str) -> None:
    try:
        handle = os.open(os.path.join(folder, records.LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        return
    os.write(handle, text.encode("utf-8", "replace") + b"\n")
    os.close(handle)


def main(fields: Mapping[str, Any], prompt: bytearray) -> None:
    """Runs the order and returns when the exit record is written.

    If the keeper itself fails, the reason goes to `keeper.log`; the host goes on and the next keeper takes it over.
    """
    order = keeper_launch.Order(**{**fields, "spool": os.fsdecode(fields["spool"])})
    try:
        _run(order, prompt)
    except BaseException:
        import traceback

        _log(order.spool, traceback.format_exc())
        raise


def _run(order: keeper_launch.Order, prompt: bytearray) -> None:
    nothing = os.open("/dev/null", os.O_RDWR)
    os.dup2(nothing, 0)
    answer = os.dup(1)
    os.dup2(nothing, 1)
    os.chdir("/")
    keeper = Keeper(order)
    if order.found is None:
        keeper.launch(prompt)
    else:
        keeper.take_over()
    _answer(answer, records.encode({"start_error": keeper.start_error}) + b"\n")
    # Last, since it costs milliseconds: no host leaves a double-forked child without our marker that soon.
    procs.become_subreaper()
    keeper.keep()
    keeper.finish()


def _answer(handle: int, data: bytes) -> None:
    """Tells the launcher that the host runs; if the launcher is gone, the host is not."""
    try:
        os.write(handle, data)
    except OSError:
        return
    finally:
        os.close(handle)
