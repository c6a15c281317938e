"""Ending a host ends everything that it started, wherever it hid, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from loopx.hosts import identity, procs, protocol, runfiles, supervise
from tests.hosts import keeper_kit as kit

QUICK = msgspec.structs.replace(kit.PATIENT, grace_s=0.2)
DAEMON = """
import os, sys
path, keep_env = sys.argv[1], sys.argv[2] == "1"
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(path, "w") as file:
            file.write(f"{os.getpid()}\\n")
        os.execve("/bin/sleep", ["sleep", "600"], dict(os.environ) if keep_env else {})
    os._exit(0)
os.wait()
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[kit.Run]:
    with kit.run_in(tmp_path) as started:
        yield started


def cancel_when(path: Path, run: kit.Run, plan: protocol.LaunchPlan) -> protocol.ExitRecord:
    kept = run.start(plan)
    kit.first_pid(path)
    return run.follow(kept, lambda: True)


def test_cancel_ends_host_and_children(run: kit.Run, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    record = cancel_when(pid_file, run, kit.shell(f"sleep 600 & echo $! > {pid_file}; wait"))
    assert (record.stop, record.signal) == (protocol.StopCause.CANCELLED, 15)
    assert kit.gone(kit.first_pid(pid_file))
    assert run.adopt().state is supervise.RunState.ENDED


def test_cancel_lets_a_host_that_listens_finish(run: kit.Run, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"trap 'echo saved; exit 7' TERM; echo $$ > {pid_file}; while :; do sleep 0.02; done"
    record = cancel_when(pid_file, run, kit.shell(script))
    assert (record.exit_code, record.stop) == (7, protocol.StopCause.CANCELLED)
    assert run.lines == [b"saved"]


def test_cancel_kills_a_host_that_ignores_term(run: kit.Run, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"trap '' TERM; echo $$ > {pid_file}; while :; do sleep 0.02; done"
    record = cancel_when(pid_file, run, kit.shell(script, deadlines=QUICK))
    assert (record.signal, record.survivors) == (9, ())


def test_cancel_reaches_a_stopped_host(run: kit.Run, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    kept = run.start(kit.shell(f"trap 'echo saved; exit 7' TERM; echo $$ > {pid_file}; while :; do sleep 0.02; done"))
    pid = kit.first_pid(pid_file)
    os.kill(pid, signal.SIGSTOP)
    kit.until(lambda: (seen := procs.look(pid)) and seen.state == "T", "the host is stopped")
    assert run.follow(kept, lambda: True).exit_code == 7


@pytest.mark.parametrize("keep_env", ["1", "0"])
@pytest.mark.parametrize("cancel", [True, False])
def test_a_grandchild_with_a_session_of_its_own(run: kit.Run, tmp_path: Path, keep_env: str, cancel: bool) -> None:
    """Double-forked and out of the session; without the environment only the parent chain finds it."""
    pid_file, go = tmp_path / "pid", tmp_path / "go"
    # The host starts it only once the keeper has become the adopter of orphans.
    script = f'until [ -e {go} ]; do sleep 0.01; done; {sys.executable} -I -S -c "$DAEMON" {pid_file} {keep_env}; ' + (
        "exec sleep 600" if cancel else "exit 0"
    )
    kept = run.start(kit.shell(script, env=(("DAEMON", DAEMON),)))
    go.touch()
    pid = kit.first_pid(pid_file)
    record = run.follow(kept, lambda: cancel)
    assert kit.gone(pid)
    if not cancel:
        assert record.exit_code == 0
        assert pid in record.leftovers


def test_a_grandchild_that_ignores_term_and_floods(run: kit.Run, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    child = f"trap '' TERM; echo $$ > {pid_file}; while :; do echo noise; done"
    script = f'setsid sh -c "$CHILD" & until [ -s {pid_file} ]; do sleep 0.01; done; echo last; exit 0'
    record = run.complete(kit.shell(script, env=(("CHILD", child),), deadlines=QUICK))
    assert record.exit_code == 0
    assert record.leftovers == (kit.first_pid(pid_file),)
    assert kit.gone(kit.first_pid(pid_file))


def test_what_ends_by_itself_is_no_leftover(run: kit.Run) -> None:
    record = run.complete(kit.shell("sleep 0.05 & exit 0"))
    assert record.leftovers == ()


def test_others_are_left_alone(run: kit.Run, tmp_path: Path) -> None:
    """A process of the same program, one with another run's marker, and one that began before."""
    env = {**os.environ, procs.RUN_ENV: run.run_id + "0"}
    marked = subprocess.Popen(["sleep", "600"], env=env, start_new_session=True)
    older = subprocess.Popen(["sleep", "600"], env={**os.environ, procs.RUN_ENV: run.run_id}, start_new_session=True)
    begun = procs.look(older.pid)
    assert begun is not None
    # Start times are counted in hundredths of a second.
    kit.until(lambda: (new := kit.ticks_of_a_new_process()) and new > begun.start_ticks, "a tick has passed")
    try:
        run.complete(kit.shell("sleep 600 & exit 0"))
        assert marked.poll() is None
        assert older.poll() is None
    finally:
        for process in (marked, older):
            process.kill()
            process.wait()


def test_a_signal_needs_the_recorded_start_time() -> None:
    process = subprocess.Popen(["sleep", "600"])
    try:
        seen = procs.look(process.pid)
        assert seen is not None
        assert not procs.send(process.pid, seen.start_ticks + 1, signal.SIGKILL)
        assert not procs.send(process.pid, seen.start_ticks - 1, signal.SIGKILL)
        assert process.poll() is None
        assert procs.send(process.pid, seen.start_ticks, signal.SIGKILL)
        assert process.wait() == -9
        assert not procs.send(process.pid, seen.start_ticks, signal.SIGKILL)
    finally:
        process.kill()


def test_a_recycled_pid_is_never_signalled(run: kit.Run) -> None:
    """The records name a pid that another process has by now: keeper and host of it are somebody else's."""
    kept = run.start(kit.shell("exec sleep 600"))
    found = runfiles.host(run.spool_dir)
    assert found is not None
    kit.kill_exactly(found.keeper)
    kit.kill_exactly(found.host)
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        now = identity.of(stranger.pid)
        assert now is not None
        forged = msgspec.structs.replace(now, start_ticks=now.start_ticks - 1)
        record = msgspec.structs.replace(found, host=forged, keeper=forged)
        (run.folder / "host.json").write_bytes(msgspec.json.encode(record))
        assert run.follow(kept, lambda: True).unobserved
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_cancel_before_the_start_means_no_start(run: kit.Run, tmp_path: Path) -> None:
    run.folder.mkdir()
    (run.folder / "cancel").touch()
    record = run.complete(kit.shell(f"touch {tmp_path}/ran"))
    assert (record.start_error, record.stop, record.handed_over) == ("cancelled", protocol.StopCause.CANCELLED, False)
    assert not (tmp_path / "ran").exists()


def test_a_keeper_that_hangs_is_replaced_to_cancel(
    run: kit.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "_PATIENCE_S", 0.3)
    kept = run.start(kit.shell("exec sleep 600", deadlines=QUICK))
    assert kept.keeper is not None
    assert identity.send(kept.keeper, signal.SIGSTOP)
    record = run.follow(kept, lambda: True)
    assert (record.stop, record.taken_over) == (protocol.StopCause.CANCELLED, True)
    assert kept.host is not None
    assert kit.gone(kept.host.pid)


def test_reap_ends_what_still_runs_and_only_that(run: kit.Run, tmp_path: Path) -> None:
    kept = run.start(kit.shell("exec sleep 600"))
    with kit.run_in(tmp_path / "ended") as ended:
        ended.complete(kit.shell("true"))
        reaped = supervise.reap([ended.spool_dir, run.spool_dir, str(tmp_path / "missing")])
    assert [(one.spool_dir, one.run_id, one.record.stop) for one in reaped] == [
        (run.spool_dir, run.run_id, protocol.StopCause.CANCELLED)
    ]
    assert kept.host is not None
    assert kit.gone(kept.host.pid)
    assert supervise.reap([run.spool_dir]) == ()
