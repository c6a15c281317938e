"""A host that is silent, hangs, floods or fills the disk is ended, and the record says why."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from loopx.hosts import keeper_watch, protocol, runfiles, spool
from tests.hosts import keeper_kit as kit

STUBBORN = "trap '' TERM; "
EVENT = 'echo \'{"type":"start"}\'; '
RESULT = 'echo \'{"type":"result"}\'; '


@pytest.fixture
def run(tmp_path: Path) -> Iterator[kit.Run]:
    with kit.run_in(tmp_path) as started:
        yield started


def short(**seconds: float) -> protocol.Deadlines:
    return msgspec.structs.replace(kit.PATIENT, grace_s=0.2, **seconds)


@pytest.mark.parametrize("stubborn", ["", STUBBORN])
@pytest.mark.parametrize(
    ("script", "deadlines", "stop"),
    [
        ("exec sleep 600", short(first_event_s=0.3), protocol.StopCause.FIRST_EVENT),
        ("while :; do echo no event >&2; sleep 0.05; done", short(first_event_s=0.3), protocol.StopCause.FIRST_EVENT),
        (EVENT + "exec sleep 600", short(idle_s=0.3), protocol.StopCause.IDLE),
        (EVENT + RESULT + "exec sleep 600", short(after_result_s=0.3), protocol.StopCause.AFTER_RESULT),
        (
            RESULT + "while :; do echo more; sleep 0.05; done",
            short(after_result_s=0.3),
            protocol.StopCause.AFTER_RESULT,
        ),
        ("while :; do echo more; sleep 0.05; done", short(hard_s=0.3), protocol.StopCause.HARD),
    ],
)
def test_each_deadline(
    run: kit.Run, stubborn: str, script: str, deadlines: protocol.Deadlines, stop: protocol.StopCause
) -> None:
    record = run.complete(kit.shell(stubborn + script, deadlines=deadlines))
    assert record.stop is stop
    assert record.signal in ({9} if stubborn and "exec" not in script else {9, 15})
    assert record.result_seen == (stop is protocol.StopCause.AFTER_RESULT)
    assert record.handed_over
    assert record.survivors == ()


def test_output_on_stderr_keeps_a_working_host_alive(run: kit.Run, tmp_path: Path) -> None:
    chatter = f"{EVENT} for i in $(seq 30); do echo thinking >&2; sleep 0.05; done; echo done"
    record = run.complete(kit.shell(chatter, deadlines=short(idle_s=1.0)))
    assert record.stop is protocol.StopCause.NONE
    assert run.lines[-1] == b"done"


def test_a_host_that_floods_is_ended(run: kit.Run) -> None:
    record = run.complete(kit.shell("exec yes $(printf %01000d 0)"), spool.Limits(flood_bytes=50 << 20))
    assert record.stop is protocol.StopCause.OUTPUT_FLOOD
    assert record.stdout_bytes > 50 << 20


def test_a_host_is_ended_below_the_free_space_floor(run: kit.Run) -> None:
    kept = run.start(kit.shell("exec sleep 600"), spool.Limits(check_s=0.1))
    assert kept.keeper is not None
    # Nobody can fill this disk for a test, so the floor rises: the next keeper reads the raised one.
    intent = runfiles.launch(run.spool_dir)
    assert intent is not None
    raised = msgspec.structs.replace(intent, limits=spool.Limits(check_s=0.1, disk_floor_bytes=1 << 60))
    (run.folder / "launch.json").write_bytes(msgspec.json.encode(raised))
    kit.kill_exactly(kept.keeper)
    record = run.follow(kept)
    assert record.stop is protocol.StopCause.DISK_FLOOR


def watch(**seconds: float) -> keeper_watch.Watch:
    every = {"first_event_s": 10.0, "idle_s": 20.0, "after_result_s": 5.0, "hard_s": 100.0}
    return keeper_watch.Watch(1000.0, **{**every, **seconds})


def test_watch_first_event_then_idle() -> None:
    clock = watch()
    assert clock.due(1009.9) is None
    clock.output(1009.0, event=False)
    assert clock.due(1010.0) == "first_event"
    clock.output(1009.5, event=True)
    assert clock.due(1029.4) is None
    clock.output(1020.0, event=False)
    assert clock.next() == (1040.0, "idle")


def test_watch_counts_from_the_first_result() -> None:
    clock = watch()
    clock.result(1001.0)
    clock.result(1004.0)
    clock.output(1005.0, event=True)
    assert clock.next() == (1006.0, "after_result")


def test_watch_after_a_sleep_every_wait_but_the_hard_one_starts_again() -> None:
    clock = watch()
    clock.restart(1009.0)
    assert clock.next() == (1019.0, "first_event")
    clock.output(1010.0, event=True)
    clock.restart(1090.0)
    assert clock.next() == (1100.0, "hard")
    clock.result(1091.0)
    clock.restart(1094.0)
    assert clock.next() == (1099.0, "after_result")


def test_sleep_is_what_only_one_of_two_clocks_counts() -> None:
    sleep = keeper_watch.Sleep(10.0, 500.0)
    sleep.expect(15.0)
    assert not sleep.woke(15.0, 505.0)
    sleep.expect(20.0)
    assert sleep.woke(16.0, 506.0 + 3600)
    assert sleep.slept_s == 3600
    sleep.expect(20.0)
    assert not sleep.woke(20.0, 510.0 + 3600)


def test_a_standstill_of_our_own_is_noticed_and_is_no_sleep() -> None:
    sleep = keeper_watch.Sleep(10.0, 500.0)
    sleep.expect(15.0)
    assert sleep.woke(15.1 + keeper_watch.STALL_S, 505.1 + keeper_watch.STALL_S)
    assert sleep.slept_s == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB of its own; only an administrator can have one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small disk needs mount rights")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_spool_that_fills_its_disk_still_ends_with_a_record(small_disk: Path) -> None:
    with kit.run_in(small_disk) as run:
        record = run.complete(
            kit.shell("exec yes $(printf %01000d 0)", deadlines=short(idle_s=120.0)), spool.Limits(disk_floor_bytes=0)
        )
        assert record.stop is protocol.StopCause.DISK_FLOOR
        assert record.dropped_bytes > 0
        assert run.adopt().record == record


def test_a_host_that_fills_its_own_disk_is_ended_above_the_floor(run: kit.Run, small_disk: Path) -> None:
    filling = "while :; do head -c 100000 /dev/zero >> big || sleep 600; sleep 0.01; done"
    record = run.complete(
        kit.shell(filling, cwd=str(small_disk), deadlines=short()), spool.Limits(disk_floor_bytes=2 << 20, check_s=0.05)
    )
    assert record.stop is protocol.StopCause.DISK_FLOOR
