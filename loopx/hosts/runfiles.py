"""Reads the records of one host run from its spool folder, and holds the lock that says whether a keeper lives.

A record that is missing, torn or of another shape is None here; what that means is decided by the caller. The one
record written here is the exit record of a run that no keeper can finish any more.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import TypeVar

import msgspec

from loopx.hosts import keeper_records as records
from loopx.hosts import protocol, spool

ABANDONED = "abandoned"
"""`start_error` of a run that was given up before its host was started; it can never start after that."""


class LaunchFile(msgspec.Struct, frozen=True, kw_only=True):
    """`launch.json`: the intent. No environment and no prompt are in it, since those may hold secrets."""

    run_id: str
    turn_key: str
    boot_id: str
    created_at_ms: int
    program: str
    cwd: str
    deadlines: protocol.Deadlines
    limits: spool.Limits
    markers: tuple[bytes, ...]


class HostFile(msgspec.Struct, frozen=True, kw_only=True):
    """`host.json`: who runs. `started_mono` is in seconds of this boot's monotonic clock."""

    run_id: str
    turn_key: str
    keeper: protocol.ProcessIdentity
    host: protocol.ProcessIdentity
    started_at_ms: int
    started_mono: float
    delivered: bool
    takeovers: int = 0


_Record = TypeVar("_Record", LaunchFile, HostFile, protocol.ExitRecord)


def launch(spool_dir: str) -> LaunchFile | None:
    """The intent, if there is a readable one."""
    return _read(spool_dir, records.LAUNCH, LaunchFile)


def host(spool_dir: str) -> HostFile | None:
    """Who runs, if there is a readable record."""
    return _read(spool_dir, records.HOST, HostFile)


def exit_record(spool_dir: str) -> protocol.ExitRecord | None:
    """The last word, if it was said."""
    return _read(spool_dir, records.EXIT, protocol.ExitRecord)


def exists(spool_dir: str, name: str) -> bool:
    """Is there such a record, readable or not?"""
    try:
        os.stat(f"{spool_dir}/{name}")
    except OSError:
        return False
    return True


def try_lock(spool_dir: str) -> int | None:
    """Takes the keeper's lock, or None while a keeper (or its launcher) holds it or the folder is missing.

    The holder of the returned handle is the only one who may start a keeper or write records; close it to let go.
    """
    try:
        handle = os.open(f"{spool_dir}/{records.LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def write_end(
    spool_dir: str, run_id: str, turn_key: str, *, start_error: str | None = None, unobserved: bool = False
) -> protocol.ExitRecord:
    """Writes the exit record of a run without a keeper; only under the lock. Raises OSError."""
    now_ms = time.time_ns() // 1_000_000
    known = host(spool_dir)
    record = protocol.ExitRecord(
        run_id=run_id,
        turn_key=turn_key,
        started_at_ms=known.started_at_ms if known else now_ms,
        ended_at_ms=now_ms,
        handed_over=start_error is None,
        exit_code=None,
        signal=None,
        stop=protocol.StopCause.NONE,
        result_seen=False,
        stdout_bytes=_spooled(spool_dir, "stdout"),
        stderr_bytes=_spooled(spool_dir, "stderr"),
        start_error=start_error,
        taken_over=unobserved,
        unobserved=unobserved,
    )
    records.write_exit(spool_dir, msgspec.json.encode(record))
    return record


def _spooled(spool_dir: str, stream: str) -> int:
    found = records.segments(spool_dir, stream)
    return found[-1][0] + os.stat(found[-1][1]).st_size if found else 0


def _read(spool_dir: str, name: str, shape: type[_Record]) -> _Record | None:
    try:
        handle = os.open(f"{spool_dir}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return msgspec.json.decode(os.read(handle, 1 << 20), type=shape)
    except (msgspec.MsgspecError, OSError, UnicodeError):
        return None
    finally:
        os.close(handle)
