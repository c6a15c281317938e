"""What the keeper's tests share: plans for tiny real hosts, and waiting for a condition rather than for a time."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypedDict, Unpack

from loopx.hosts import identity, procs, protocol, runfiles, spool, supervise

ROOT = Path(__file__).resolve().parents[2]
PATIENT = protocol.Deadlines(first_event_s=120, idle_s=120, after_result_s=120, hard_s=240, grace_s=5)
RESULT = b'"type":"result"'


class Changes(TypedDict, total=False):
    """What a plan may have of its own."""

    stdin: bytes
    cwd: str
    env: tuple[tuple[str, str], ...]
    deadlines: protocol.Deadlines
    files: tuple[tuple[str, bytes], ...]


def shell(script: str, **changes: Unpack[Changes]) -> protocol.LaunchPlan:
    """A host that is one shell script."""
    return plan(("sh", "-c", script), **changes)


def python(script: str, **changes: Unpack[Changes]) -> protocol.LaunchPlan:
    """A host that is one Python program."""
    return plan((sys.executable, "-I", "-S", "-c", script), **changes)


def plan(
    argv: tuple[str, ...],
    *,
    stdin: bytes = b"do it",
    cwd: str = "/",
    env: tuple[tuple[str, str], ...] = (),
    deadlines: protocol.Deadlines = PATIENT,
    files: tuple[tuple[str, bytes], ...] = (),
) -> protocol.LaunchPlan:
    return protocol.LaunchPlan(
        argv=argv,
        cwd=cwd,
        env=(("PATH", os.environ["PATH"]), *env),
        stdin=stdin,
        deadlines=deadlines,
        result_markers=(RESULT,),
        files=files,
    )


class Run:
    """One run in a folder of its own; nothing of it is left when the test ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "spool"
        self.run_id = f"run-{os.getpid()}-{time.monotonic_ns()}"
        self.lines: list[bytes] = []

    @property
    def spool_dir(self) -> str:
        return str(self.folder)

    def start(self, launch_plan: protocol.LaunchPlan, limits: spool.Limits | None = None) -> supervise.Kept:
        return supervise.start(launch_plan, self.run_id, "turn-1", self.spool_dir, limits=limits)

    def adopt(self) -> supervise.Adopted:
        return supervise.adopt(self.spool_dir, self.run_id, "turn-1")

    def follow(self, kept: supervise.Kept, should_cancel: Callable[[], bool] | None = None) -> protocol.ExitRecord:
        return supervise.follow(kept, self.lines.append, should_cancel, 0.05)

    def complete(self, launch_plan: protocol.LaunchPlan, limits: spool.Limits | None = None) -> protocol.ExitRecord:
        return self.follow(self.start(launch_plan, limits))

    def clean_up(self) -> None:
        with contextlib.suppress(Exception):
            supervise.reap([self.spool_dir])
        found = runfiles.host(self.spool_dir)
        if found is not None:
            identity.send(found.keeper, 9)
        for proc in identity.bearers(self.run_id):
            procs.send(proc.pid, proc.start_ticks, 9)


@contextlib.contextmanager
def run_in(folder: Path) -> Iterator[Run]:
    run = Run(folder)
    try:
        yield run
    finally:
        run.clean_up()


def until(condition: Callable[[], object], what: str = "") -> None:
    """Waits for a condition; only a test that would hang for ever fails here."""
    give_up = time.monotonic() + 120
    while not condition():
        if time.monotonic() > give_up:
            raise AssertionError(f"never came true: {what or condition}")
        time.sleep(0.01)


def first_pid(path: Path) -> int:
    """The pid that a host wrote to a file, once it has."""
    until(lambda: path.exists() and path.read_text().endswith("\n"), f"{path} is written")
    return int(path.read_text().split()[0])


def gone(pid: int) -> bool:
    seen = procs.look(pid)
    return seen is None or seen.ended


def launcher(script: str) -> subprocess.Popen[bytes]:
    """Another LoopX process."""
    return subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE)


def kill_exactly(who: protocol.ProcessIdentity) -> None:
    """Ends a process with -9 and waits until it is gone."""
    identity.send(who, 9)
    until(lambda: not identity.alive(who), f"{who.pid} is gone")


def ticks_of_a_new_process() -> int:
    process = subprocess.Popen(["sleep", "600"])
    seen = procs.look(process.pid)
    process.kill()
    process.wait()
    return seen.start_ticks if seen else 0
