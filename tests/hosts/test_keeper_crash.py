"""Launcher, keeper and host may be killed at any instant: the next LoopX finds out what became of the run."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from loopx.control_plane import errors
from loopx.hosts import identity, protocol, runfiles, spawn, spool, supervise
from tests.hosts import keeper_kit as kit


@pytest.fixture
def run(tmp_path: Path) -> Iterator[kit.Run]:
    with kit.run_in(tmp_path) as started:
        yield started


def waiting_host(go: Path, *, before: str = "echo before", after: str = "echo after; exit 5") -> protocol.LaunchPlan:
    return kit.shell(f"cat > /dev/null; {before}; until [ -e {go} ]; do sleep 0.01; done; {after}")


LAUNCH = """
import sys
from loopx.hosts import supervise
from tests.hosts import keeper_kit as kit
kept = supervise.start(kit.shell({script!r}), {run_id!r}, "turn-1", {spool_dir!r})
print(kept.host.pid, flush=True)
supervise.follow(kept)
print("ended", flush=True)
"""


def other_launcher(run: kit.Run, script: str) -> tuple[int, int]:
    """Another LoopX starts and follows the run: its pid and the host's."""
    process = kit.launcher(LAUNCH.format(script=script, run_id=run.run_id, spool_dir=run.spool_dir))
    assert process.stdout is not None
    return process.pid, int(process.stdout.readline())


@pytest.mark.parametrize("ends", ["while nobody looks", "while followed"])
def test_launcher_killed(run: kit.Run, tmp_path: Path, ends: str) -> None:
    go = tmp_path / "go"
    pid, host = other_launcher(run, f"echo before; until [ -e {go} ]; do sleep 0.01; done; echo after; exit 5")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    found = run.adopt()
    assert found.state is supervise.RunState.RUNNING
    kept = found.kept
    assert kept is not None
    assert kept.host is not None
    assert kept.host.pid == host
    go.touch()
    if ends == "while nobody looks":
        kit.until(lambda: (run.folder / "exit.json").exists())
        found = run.adopt()
        assert found.state is supervise.RunState.ENDED
        record = found.record
        run.lines = [line.data for line in spool.read_lines(run.spool_dir)]
    else:
        record = run.follow(kept)
    assert record is not None
    assert (record.exit_code, record.taken_over, record.unobserved) == (5, False, False)
    assert run.lines == [b"before", b"after"]


def test_launcher_stopped_and_continued(run: kit.Run) -> None:
    process = kit.launcher(LAUNCH.format(script="cat", run_id=run.run_id, spool_dir=run.spool_dir))
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGSTOP)
    kit.until(lambda: (run.folder / "exit.json").exists(), "the host ends while its launcher is stopped")
    assert run.adopt().state is supervise.RunState.ENDED
    process.send_signal(signal.SIGCONT)
    assert process.communicate()[0] == b"ended\n"


def test_keeper_killed_the_host_goes_on(run: kit.Run, tmp_path: Path) -> None:
    """It is read on from where the first keeper stopped; only its exit status cannot be learned any more."""
    go = tmp_path / "go"
    kept = run.start(waiting_host(go, after='echo after; echo \'{"type":"result"}\'; exit 5'))
    assert kept.keeper is not None
    kit.until(lambda: spool.tail(run.spool_dir, "stdout", 9), "the first line is spooled")
    kit.kill_exactly(kept.keeper)
    found = run.adopt()
    assert found.state is supervise.RunState.RUNNING
    assert found.kept is not None
    assert found.kept.host == kept.host
    assert found.kept.keeper != kept.keeper
    go.touch()
    record = run.follow(kept)
    assert run.lines == [b"before", b"after", b'{"type":"result"}']
    assert (record.taken_over, record.unobserved, record.handed_over) == (True, False, True)
    assert (record.exit_code, record.signal, record.stop) == (None, None, protocol.StopCause.NONE)
    assert record.result_seen
    assert run.adopt().state is supervise.RunState.ENDED


def test_keeper_killed_again_and_again_under_a_chatty_host(run: kit.Run) -> None:
    kept = run.start(kit.python("import time\nfor n in range(3000): print(n, flush=True); time.sleep(0.0003)"))
    killed: set[int] = set()

    def kill_some(line: bytes) -> None:
        run.lines.append(line)
        found = runfiles.host(run.spool_dir)
        if int(line) % 500 == 250 and found is not None and found.keeper.pid not in killed:
            killed.add(found.keeper.pid)
            identity.send(found.keeper, signal.SIGKILL)

    record = supervise.follow(kept, kill_some)
    assert len(killed) > 1
    assert record.taken_over
    numbers = [int(line) for line in run.lines if line.isdigit()]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == 2999
    # A keeper dies between reading and writing at worst once per kill.
    assert len(numbers) > 2900


def test_a_host_without_keeper_waits_rather_than_breaks(run: kit.Run) -> None:
    kept = run.start(kit.shell("cat >/dev/null; exec seq 500000"))
    assert kept.keeper is not None
    kit.kill_exactly(kept.keeper)
    assert kept.host is not None
    record = run.follow(kept)
    assert record.taken_over
    assert run.lines[-1] == b"500000"


def test_the_deadlines_outlive_the_keeper(run: kit.Run) -> None:
    quick = msgspec.structs.replace(kit.PATIENT, hard_s=1.0, grace_s=0.2)
    kept = run.start(kit.shell("echo; exec sleep 600", deadlines=quick))
    assert kept.keeper is not None
    kit.kill_exactly(kept.keeper)
    assert run.follow(kept).stop is protocol.StopCause.HARD


def test_keeper_and_host_killed_is_lost(run: kit.Run) -> None:
    kept = run.start(kit.shell("echo something; sleep 600 & exec sleep 600"))
    assert kept.keeper is not None
    assert kept.host is not None
    kit.until(lambda: spool.tail(run.spool_dir, "stdout", 9))
    kit.kill_exactly(kept.keeper)
    kit.kill_exactly(kept.host)
    assert identity.bearers(run.run_id)
    for _ in range(2):
        found = run.adopt()
        assert found.state is supervise.RunState.LOST
        assert found.record is not None
        assert (found.record.unobserved, found.record.exit_code, found.record.handed_over) == (True, None, True)
    assert not identity.bearers(run.run_id)
    assert [line.data for line in spool.read_lines(run.spool_dir)] == [b"something"]


def test_half_a_prompt_is_never_acted_on(run: kit.Run, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"until [ -e {go} ]; do sleep 0.01; done; cat > /dev/null; touch {tmp_path}/acted; exec sleep 600"
    kept = run.start(kit.shell(script, stdin=b"x" * 5_000_000))
    assert kept.keeper is not None
    kit.kill_exactly(kept.keeper)
    record = run.follow(kept)
    assert (record.handed_over, record.start_error) == (False, "prompt_interrupted")
    assert not (tmp_path / "acted").exists()


def test_after_a_reboot_the_run_is_lost(run: kit.Run) -> None:
    """Whether the host had been started is unknown then, so it must not count as never started."""
    kept = run.start(kit.shell("exec sleep 600"))
    assert kept.keeper is not None
    kit.kill_exactly(kept.keeper)
    intent = runfiles.launch(run.spool_dir)
    assert intent is not None
    old = msgspec.structs.replace(intent, boot_id="an earlier boot")
    (run.folder / "launch.json").write_bytes(msgspec.json.encode(old))
    (run.folder / "host.json").unlink()
    found = run.adopt()
    assert found.state is supervise.RunState.LOST
    assert kept.host is not None
    assert identity.send(kept.host, signal.SIGKILL)


def test_never_started_is_final(run: kit.Run, tmp_path: Path) -> None:
    assert run.adopt().state is supervise.RunState.NEVER_STARTED
    with pytest.raises(errors.ConflictError) as refused:
        run.start(kit.shell(f"touch {tmp_path}/ran"))
    assert refused.value.code == "run_already_launched"
    assert run.adopt().state is supervise.RunState.NEVER_STARTED
    assert not (tmp_path / "ran").exists()


def test_a_launcher_that_died_before_its_keeper(run: kit.Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(spawn, "_PROGRAM", "/no/such/keeper.py")
    with pytest.raises(errors.EngineError) as failed:
        run.start(kit.shell(f"touch {tmp_path}/ran"))
    assert failed.value.code == "keeper_failed"
    assert run.adopt().state is supervise.RunState.NEVER_STARTED
    assert not (tmp_path / "ran").exists()


def test_a_launcher_stopped_before_its_keeper_is_not_passed_by(run: kit.Run) -> None:
    run.folder.mkdir()
    lock = runfiles.try_lock(run.spool_dir)
    assert lock is not None
    assert run.adopt().state is supervise.RunState.RUNNING
    os.close(lock)
    assert run.adopt().state is supervise.RunState.NEVER_STARTED


@pytest.mark.parametrize("running", [True, False])
def test_another_runs_records_are_never_touched(run: kit.Run, running: bool) -> None:
    kept = run.start(kit.shell("exec sleep 600" if running else "true"))
    if not running:
        run.follow(kept)
    before = {path.name: path.read_bytes() for path in run.folder.iterdir() if path.is_file()}
    for other in ((run.run_id, "turn-2"), (run.run_id + "x", "turn-1")):
        assert supervise.adopt(run.spool_dir, *other).state is supervise.RunState.FOREIGN
    assert {path.name: path.read_bytes() for path in run.folder.iterdir() if path.is_file()} == before
    if running:
        assert kept.host is not None
        assert identity.alive(kept.host)


def test_unreadable_records_are_never_touched(run: kit.Run) -> None:
    run.folder.mkdir()
    (run.folder / "launch.json").write_bytes(b'{"run_id":"r')
    assert run.adopt().state is supervise.RunState.FOREIGN


def test_a_torn_exit_record_is_written_again(run: kit.Run) -> None:
    run.complete(kit.shell("echo one"))
    (run.folder / "exit.json").write_bytes(b"\0\0\0")
    found = run.adopt()
    assert found.state is supervise.RunState.LOST
    assert found.record is not None
    assert found.record.stdout_bytes == 4


def test_the_spool_deleted_under_a_running_host(run: kit.Run, tmp_path: Path) -> None:
    """The keeper notices and restores what a new LoopX needs to find the host."""
    go = tmp_path / "go"
    kept = run.start(waiting_host(go), spool.Limits(check_s=0.1))
    kit.until(lambda: spool.tail(run.spool_dir, "stdout", 9))
    shutil.rmtree(run.folder)
    assert run.adopt().state is supervise.RunState.RUNNING
    kit.until(lambda: (run.folder / "host.json").exists(), "the records are back")
    assert run.adopt().kept == kept
    go.touch()
    record = run.follow(kept)
    assert (record.exit_code, record.handed_over) == (5, True)
    assert record.dropped_bytes == len(b"before\n")
    assert run.lines == [b"after"]


def test_the_spool_deleted_and_the_keeper_killed(run: kit.Run) -> None:
    kept = run.start(kit.shell("exec sleep 600"))
    assert kept.keeper is not None
    assert kept.host is not None
    kit.kill_exactly(kept.keeper)
    shutil.rmtree(run.folder)
    assert run.adopt().state is supervise.RunState.RUNNING
    assert identity.alive(kept.host)
    record = run.follow(kept, lambda: True)
    assert record.unobserved
    assert kit.gone(kept.host.pid)
