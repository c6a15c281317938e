"""Starts hosts under a detached keeper, follows them, finds them again after a crash, and ends them.

The keeper (`keeper.py`) is a small process of its own, so a LoopX that is killed, stopped or restarted leaves the host
running; whoever comes next adopts it from the records in the spool folder (loops, "Processes"). This module decides
nothing about a turn and reads no stream: it hands raw lines on. It signals only processes whose boot id, pid and start
time are in a record, or that bear the run's own marker.

Who may do what is settled by one lock, `keeper.lock`: the launcher takes it before it writes the intent and hands it to
the keeper, which holds it for life. A free lock without an exit record means that no keeper is left; whoever takes it
then starts the next keeper (which goes on reading the host's pipes, see `keeper_launch`), or writes that the run was
never started or that nobody saw its end.
"""

from __future__ import annotations

import enum
import os
import select
import signal
import time
from collections.abc import Callable, Iterable

import msgspec

from loopx.control_plane import errors
from loopx.hosts import identity, keeper_launch, procs, protocol, runfiles, spawn, spool
from loopx.hosts import keeper_records as records

_FIRST_WAIT_S = 0.03
_PROBE_S = 0.5
"""How often the lock is tried while it is not known who the keeper is."""
_PATIENCE_S = 10.0
"""What a keeper may need beyond the grace to end everything, before it is itself taken for hung."""
_MOST_TAKEOVERS = 100
_STREAMS = ("stdout", "stderr")


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """One host run under a keeper. `host` is None while it starts, or if it could not be started."""

    spool_dir: str
    run_id: str
    turn_key: str
    keeper: protocol.ProcessIdentity | None = None
    host: protocol.ProcessIdentity | None = None
    started_at_ms: int | None = None


class RunState(enum.StrEnum):
    """What became of a run, as its records and the processes of this machine show it."""

    RUNNING = "running"
    ENDED = "ended"
    NEVER_STARTED = "never_started"
    """No host was started, and none will be: the run is fenced."""
    LOST = "lost"
    """A host was started and is gone, and nobody saw how it ended; its output may be incomplete."""
    FOREIGN = "foreign"
    """The records belong to another run, or cannot be read; nothing was touched."""


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    """A run found again: `kept` if it is running, `record` if it is not."""

    state: RunState
    kept: Kept | None = None
    record: protocol.ExitRecord | None = None


class Reaped(msgspec.Struct, frozen=True, kw_only=True):
    """A run that `reap` ended."""

    spool_dir: str
    run_id: str
    record: protocol.ExitRecord


# -- starting --------------------------------------------------------------------------------------------------


def start(
    plan: protocol.LaunchPlan, run_id: str, turn_key: str, spool_dir: str, *, limits: spool.Limits | None = None
) -> Kept:
    """Starts the host in its own session under a detached keeper and returns as soon as its program was entered.

    The intent is durable before anything starts (three fsyncs), the identity is recorded before the host's program is.
    A program that cannot be started is no error here: the exit record says so (`start_error`, not handed over).
    Raises UsageError `spool_dir_not_absolute`, `file_outside_spool`; ConflictError `run_already_launched`; NotNowError
    `disk_floor`; EngineError `spool_unwritable`, `keeper_failed` (then `adopt` tells whether a host runs).
    """
    limits = limits or spool.Limits()
    _validate(plan, spool_dir)
    try:
        _make_folder(spool_dir)
        for folder in (spool_dir, plan.cwd):
            _check_space(folder, limits)
        lock = _lock_new(spool_dir)
        try:
            intent = _write_intent(plan, run_id, turn_key, spool_dir, limits)
        except BaseException:
            os.close(lock)
            raise
        fields = {
            **spawn.order(intent, spool_dir),
            "argv": [os.fsencode(word) for word in plan.argv],
            "env": _environment(plan, run_id),
        }
        spawn.keeper(fields, plan.stdin, lock)
    except OSError as error:
        raise _unwritable(spool_dir, error) from error
    return _kept(spool_dir, run_id, turn_key)


def _unwritable(spool_dir: str, error: OSError) -> errors.EngineError:
    return errors.EngineError(
        "spool_unwritable", f"cannot write the records in {spool_dir}: {error}", hint="Check the folder and the disk."
    )


def _validate(plan: protocol.LaunchPlan, spool_dir: str) -> None:
    if not spool_dir.startswith("/"):
        raise errors.UsageError("spool_dir_not_absolute", f"the spool folder is not an absolute path: {spool_dir}")
    for path, _ in plan.files:
        if os.path.commonpath([spool_dir, os.path.abspath(path)]) != os.path.normpath(spool_dir):
            raise errors.UsageError("file_outside_spool", f"a launch file is outside the spool folder: {path}")


def _make_folder(spool_dir: str) -> None:
    if not os.path.isdir(spool_dir):
        os.makedirs(spool_dir, mode=0o700, exist_ok=True)
        records.fsync_dir(os.path.dirname(os.path.normpath(spool_dir)))


def _check_space(folder: str, limits: spool.Limits) -> None:
    try:
        stats = os.statvfs(folder)
    except FileNotFoundError:
        return  # The host's start will say so.
    free = stats.f_bavail * stats.f_frsize
    if free < limits.disk_floor_bytes:
        raise errors.NotNowError(
            "disk_floor",
            f"only {free >> 20} MiB are free where {folder} is",
            hint="Make room; launches go on by themselves then.",
            data={"free_bytes": free, "floor_bytes": limits.disk_floor_bytes},
        )


def _lock_new(spool_dir: str) -> int:
    lock = runfiles.try_lock(spool_dir)
    if lock is None or runfiles.exists(spool_dir, records.LAUNCH) or runfiles.exists(spool_dir, records.EXIT):
        if lock is not None:
            os.close(lock)
        raise errors.ConflictError(
            "run_already_launched",
            f"a run was already launched or given up in {spool_dir}",
            hint="Adopt it; a new attempt needs a folder of its own.",
        )
    return lock


def _write_intent(
    plan: protocol.LaunchPlan, run_id: str, turn_key: str, spool_dir: str, limits: spool.Limits
) -> runfiles.LaunchFile:
    for path, data in plan.files:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
    records.reserve(spool_dir)
    intent = runfiles.LaunchFile(
        run_id=run_id,
        turn_key=turn_key,
        boot_id=identity.boot_id(),
        created_at_ms=time.time_ns() // 1_000_000,
        program=plan.argv[0],
        cwd=plan.cwd,
        deadlines=plan.deadlines,
        limits=limits,
        markers=plan.result_markers,
    )
    records.write_atomic(spool_dir, records.LAUNCH, msgspec.json.encode(intent), durable=True)
    return intent


def _environment(plan: protocol.LaunchPlan, run_id: str) -> dict[bytes, bytes]:
    env = {os.fsencode(name): os.fsencode(value) for name, value in plan.env}
    env[procs.RUN_ENV.encode()] = os.fsencode(run_id)
    return env


def _kept(spool_dir: str, run_id: str, turn_key: str) -> Kept:
    found = runfiles.host(spool_dir)
    if found is None or (found.run_id, found.turn_key) != (run_id, turn_key):
        return Kept(spool_dir=spool_dir, run_id=run_id, turn_key=turn_key)
    return Kept(
        spool_dir=spool_dir,
        run_id=run_id,
        turn_key=turn_key,
        keeper=found.keeper,
        host=found.host,
        started_at_ms=found.started_at_ms,
    )


# -- following -------------------------------------------------------------------------------------------------


def follow(
    kept: Kept,
    on_line: Callable[[bytes], None] | None = None,
    should_cancel: Callable[[], bool] | None = None,
    poll_s: float = 0.2,
) -> protocol.ExitRecord:
    """Hands on every line of the host's stdout from the first one, and returns the exit record once it is written.

    Lines come without their end, cut at the spool's cap. `poll_s` bounds the delay of a line after silence. When
    `should_cancel`, asked at every poll, says so the host is ended: TERM to its group, the plan's grace, KILL, then
    what is left of the run. A keeper that died is replaced on the way. Any number of processes may follow one run. An
    exception of a callback passes through, and the host goes on. Raises EngineError `keeper_stuck`, `keeper_failed`.
    """
    follower = _Follower(kept, on_line, should_cancel, poll_s)
    try:
        return follower.run()
    finally:
        follower.close()


def request_stop(kept: Kept) -> None:
    """Asks the keeper to end the host, and returns at once; the exit record will say `cancelled`."""
    if runfiles.exists(kept.spool_dir, records.EXIT):
        return
    os.makedirs(kept.spool_dir, mode=0o700, exist_ok=True)
    records.touch(kept.spool_dir, records.CANCEL)
    found = runfiles.host(kept.spool_dir)
    keeper = found.keeper if found else kept.keeper
    if keeper is not None:
        identity.send(keeper, signal.SIGUSR1)


class _Follower:
    def __init__(
        self,
        kept: Kept,
        on_line: Callable[[bytes], None] | None,
        should_cancel: Callable[[], bool] | None,
        poll_s: float,
    ) -> None:
        self._kept = kept
        self._on_line = on_line
        self._should_cancel = should_cancel
        self._poll_s = poll_s
        self._wait_s = _FIRST_WAIT_S
        self._reader = spool.Reader(kept.spool_dir)
        self._keeper: protocol.ProcessIdentity | None = None
        self._handle: int | None = None
        self._ended = False
        """The keeper's handle said that it is gone."""
        self._pipes: list[int] = []
        """Held, not read: so the pipes keep what is in them if the host ends while its keeper is dead."""
        self._poll = select.poll()
        self._probe_at = 0.0
        self._escalate_at: float | None = None

    def run(self) -> protocol.ExitRecord:
        while True:
            record = runfiles.exit_record(self._kept.spool_dir)
            got = self._hand_on(final=record is not None)
            if record is not None:
                return record
            self._heed_cancel()
            self._look_after()
            self._wait_s = _FIRST_WAIT_S if got else min(self._wait_s * 1.5, self._poll_s)
            self._ended = bool(self._poll.poll(self._wait_s * 1000))

    def close(self) -> None:
        self._reader.close()
        self._forget()
        self._let_go()

    def _hand_on(self, *, final: bool) -> bool:
        got = False
        if self._on_line is not None:
            for line in self._reader.read(final=final):
                got = True
                self._on_line(line.data)
        return got

    def _heed_cancel(self) -> None:
        now = time.monotonic()
        if self._escalate_at is None:
            if self._should_cancel is not None and self._should_cancel():
                request_stop(self._kept)
                self._escalate_at = now + self._grace_s() + _PATIENCE_S
        elif now >= self._escalate_at:
            # It did not answer in time: a new keeper finds the request and does it.
            if self._keeper is None or not identity.send(self._keeper, signal.SIGKILL):
                raise _stuck(self._kept)
            self._escalate_at = now + self._grace_s() + _PATIENCE_S

    def _grace_s(self) -> float:
        intent = runfiles.launch(self._kept.spool_dir)
        return (intent.deadlines if intent else protocol.Deadlines()).grace_s

    def _look_after(self) -> None:
        """Is there a keeper? If nobody holds the lock there is none, and we see to it that there is one."""
        if self._handle is not None and not self._ended:
            return
        if self._keeper is not None and identity.alive(self._keeper):
            return
        if self._keeper is not None:
            self._forget()
        found = runfiles.host(self._kept.spool_dir)
        if found is not None and identity.alive(found.keeper):
            self._know(found)
            return
        now = time.monotonic()
        if now < self._probe_at:
            return
        self._probe_at = now + _PROBE_S
        _ensure_folder(self._kept)
        lock = runfiles.try_lock(self._kept.spool_dir)
        if lock is not None:
            settle(self._kept, lock)

    def _know(self, found: runfiles.HostFile) -> None:
        self._keeper = found.keeper
        self._handle = procs.open_handle(found.keeper.pid)
        if self._handle is not None:
            self._poll.register(self._handle, select.POLLIN)
        self._let_go()
        pid = found.host.pid if identity.alive(found.host) else None
        pipes = (keeper_launch.reopen_output(self._kept.spool_dir, name, pid) for name in _STREAMS)
        self._pipes = [pipe for pipe in pipes if pipe is not None]

    def _let_go(self) -> None:
        while self._pipes:
            os.close(self._pipes.pop())

    def _forget(self) -> None:
        self._keeper = None
        self._probe_at = 0.0
        if self._handle is not None:
            self._poll.unregister(self._handle)
            os.close(self._handle)
            self._handle = None


def _stuck(kept: Kept) -> errors.EngineError:
    return errors.EngineError(
        "keeper_stuck",
        f"the keeper of run {kept.run_id} does not end its host",
        hint="Look at the processes of the run; one may be stopped or wait for a device.",
    )


# -- finding again ---------------------------------------------------------------------------------------------


def adopt(spool_dir: str, run_id: str, turn_key: str) -> Adopted:
    """Finds out what became of a run, and makes that final: afterwards it has a keeper, or an exit record.

    A host whose keeper died gets a new one. A run that was not started is fenced, so that a launcher that was stopped
    and wakes cannot start it. After FOREIGN nothing was touched. Raises EngineError `keeper_failed`.
    """
    if not _is_ours(spool_dir, run_id, turn_key):
        return Adopted(state=RunState.FOREIGN)
    kept = _kept(spool_dir, run_id, turn_key)
    record = runfiles.exit_record(spool_dir)
    if record is None:
        record = _make_final(kept)
    if record is None:
        return Adopted(state=RunState.RUNNING, kept=_kept(spool_dir, run_id, turn_key))
    return Adopted(state=_state_of(record), record=record)


def reap(spool_dirs: Iterable[str]) -> tuple[Reaped, ...]:
    """Ends every run in these folders that has not ended, with all its processes, and says which they were."""
    reaped: list[Reaped] = []
    for spool_dir in spool_dirs:
        intent = runfiles.launch(spool_dir)
        if intent is None or runfiles.exit_record(spool_dir) is not None:
            continue
        kept = _kept(spool_dir, intent.run_id, intent.turn_key)
        record = follow(kept, should_cancel=lambda: True)
        reaped.append(Reaped(spool_dir=spool_dir, run_id=intent.run_id, record=record))
    return tuple(reaped)


def _is_ours(spool_dir: str, run_id: str, turn_key: str) -> bool:
    """Every readable record must name this run; if none can be read, none may exist."""
    names = (records.LAUNCH, records.HOST, records.EXIT)
    found = (runfiles.launch(spool_dir), runfiles.host(spool_dir), runfiles.exit_record(spool_dir))
    named = {(record.run_id, record.turn_key) for record in found if record is not None}
    if not named:
        return not any(runfiles.exists(spool_dir, name) for name in names)
    return named == {(run_id, turn_key)}


def _state_of(record: protocol.ExitRecord) -> RunState:
    if record.start_error == runfiles.ABANDONED:
        return RunState.NEVER_STARTED
    return RunState.LOST if record.unobserved else RunState.ENDED


def _make_final(kept: Kept) -> protocol.ExitRecord | None:
    """Gives a run without keeper a new keeper or its last word; None if it runs."""
    _ensure_folder(kept)
    lock = runfiles.try_lock(kept.spool_dir)
    if lock is None:
        return None
    settle(kept, lock)
    found = runfiles.host(kept.spool_dir)
    if found is not None and identity.alive(found.host):
        return runfiles.exit_record(kept.spool_dir)
    return follow(kept)


def _ensure_folder(kept: Kept) -> None:
    """Without a folder there is no lock. If it was deleted under a running host, its keeper is about to restore it."""
    if not runfiles.exists(kept.spool_dir, "") and not identity.bearers(kept.run_id):
        os.makedirs(kept.spool_dir, mode=0o700, exist_ok=True)


def settle(kept: Kept, lock: int) -> None:
    """With the lock in hand (it is closed here): starts the next keeper, or writes the last word of the run."""
    try:
        if runfiles.exit_record(kept.spool_dir) is not None:
            return
        intent, found = runfiles.launch(kept.spool_dir), runfiles.host(kept.spool_dir)
        if intent is not None and intent.boot_id != identity.boot_id():
            # Whether it got as far as starting the host, the power cut took with it.
            runfiles.write_end(kept.spool_dir, kept.run_id, kept.turn_key, unobserved=True)
        elif intent is None or found is None:
            _settle_without_records(kept)
        else:
            handed, lock = lock, -1
            _take_over(kept.spool_dir, intent, found, handed)
    except OSError as error:
        raise _unwritable(kept.spool_dir, error) from error
    finally:
        if lock >= 0:
            os.close(lock)


def _settle_without_records(kept: Kept) -> None:
    """No host was recorded. None was started then, unless the records were deleted: the marker tells."""
    if kept.host is None and not identity.bearers(kept.run_id):
        runfiles.write_end(kept.spool_dir, kept.run_id, kept.turn_key, start_error=runfiles.ABANDONED)
        return
    left = identity.bearers(kept.run_id)
    if not left:
        runfiles.write_end(kept.spool_dir, kept.run_id, kept.turn_key, unobserved=True)
    elif runfiles.exists(kept.spool_dir, records.CANCEL):
        for proc in left:
            procs.send(proc.pid, proc.start_ticks, signal.SIGKILL)


def _take_over(spool_dir: str, intent: runfiles.LaunchFile, found: runfiles.HostFile, lock: int) -> None:
    if found.takeovers >= _MOST_TAKEOVERS:
        os.close(lock)
        raise errors.EngineError(
            "keeper_failed", f"the keeper of run {intent.run_id} fails again and again", hint="See keeper.log."
        )
    fields = {
        **spawn.order(intent, spool_dir),
        "found": (found.host.pid, found.host.start_ticks, found.host.pgid),
        "started_at_ms": found.started_at_ms,
        "started_mono": found.started_mono,
        "delivered": found.delivered or runfiles.exists(spool_dir, records.DELIVERED),
        "takeovers": found.takeovers + 1,
    }
    spawn.keeper(fields, b"", lock)
