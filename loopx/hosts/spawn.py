"""Starts the keeper process: detached, with its order and the prompt through a pipe, so that no secret is on the disk.

It starts nothing else. The keeper inherits the run's lock, so there is no instant between intent and exit record at
which a run that may still start looks abandoned.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import select
import sys

import msgspec

from loopx.control_plane import errors
from loopx.hosts import runfiles

_PROGRAM = f"{os.path.dirname(os.path.abspath(__file__))}/keeper.py"
_ANSWER_S = 60.0
_DEADLINES = ("first_event_s", "idle_s", "after_result_s", "hard_s")


def order(intent: runfiles.LaunchFile, spool_dir: str) -> dict[str, object]:
    """What a first and a later keeper both need to know."""
    return {
        "spool": os.fsencode(spool_dir),
        "run_id": intent.run_id,
        "turn_key": intent.turn_key,
        "boot_id": intent.boot_id,
        "launch_json": msgspec.json.encode(intent),
        "deadlines": {name: getattr(intent.deadlines, name) for name in _DEADLINES},
        "grace_s": intent.deadlines.grace_s,
        "limits": msgspec.to_builtins(intent.limits),
        "markers": list(intent.markers),
        "cwd": os.fsencode(intent.cwd),
    }


def keeper(fields: dict[str, object], prompt: bytes, lock: int) -> None:
    """Runs the keeper with this order and returns when it has said that its host runs, or cannot run.

    `lock` becomes the keeper's: it is closed here in every case, as soon as the keeper has it, so that a launcher that
    is stopped does not keep it from others. Raises EngineError `keeper_failed`, OSError.
    """
    data = marshal.dumps(fields)
    header = len(data).to_bytes(8, "little") + len(prompt).to_bytes(8, "little")
    opened: list[int] = [lock]
    try:
        reading, writing = _pipe(opened)
        answer, answering = _pipe(opened)
        pid = _spawn_process(reading, answering, lock)
        for handle in (lock, reading, answering):
            _close(opened, handle)
        delivered = _send_all(writing, header + data, prompt)
        _close(opened, writing)
        answered = delivered and _await_answer(answer)
        _collect(pid)
        if not answered:
            raise errors.EngineError(
                "keeper_failed", "the keeper process did not start", hint="See keeper.log in the run's spool folder."
            )
    finally:
        for handle in opened:
            os.close(handle)


def _pipe(opened: list[int]) -> tuple[int, int]:
    ends = os.pipe()
    opened.extend(ends)
    return ends


def _close(opened: list[int], handle: int) -> None:
    opened.remove(handle)
    os.close(handle)


def _spawn_process(stdin: int, stdout: int, lock: int) -> int:
    """Handles 0 to 3 of the keeper are its order, its answer, nothing, and the lock."""
    # Sources above the targets, so that no dup2 overwrites a later source.
    high = [fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 10) for handle in (stdin, stdout, lock)]
    keep = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", _PROGRAM],
            keep,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, high[0], 0),
                (os.POSIX_SPAWN_DUP2, high[1], 1),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_RDWR, 0),
                (os.POSIX_SPAWN_DUP2, high[2], 3),
            ],
            setsigmask=[],
        )
    finally:
        for handle in high:
            os.close(handle)


def _send_all(handle: int, *parts: bytes) -> bool:
    try:
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(handle, view) :]
    except BrokenPipeError:
        return False
    return True


def _await_answer(handle: int) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(_ANSWER_S * 1000)) and bool(os.read(handle, 4096))


def _collect(pid: int) -> None:
    """The first process of the double fork ended long ago; it must not stay behind as a zombie."""
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return
