"""Hosts that misbehave, and a machine that does: each ends as designed, and LoopX stays small."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopx.control_plane.goal import GoalState
from loopx.hosts import procs
from loopx.runtime import goal_service
from loopx.testing import Act, Sandbox, find_leaks
from tests.chaos import child, kit, picture
from tests.chaos.test_store_damage import SmallDisk

FILES = {"n.txt": "0\n"}
CHECKS = ("grep -q 2 n.txt",)
WHOLE = Act(write={"n.txt": "2\n"})
MOST_KIB = 150 * 1024


@pytest.fixture(scope="module")
def zygote() -> Iterator[kit.Zygote]:
    with kit.Zygote() as running:
        yield running


def run(zygote: kit.Zygote, box: Sandbox, goal_id: str, **order: Any) -> int:
    """One LoopX, which must stay small whatever its host does."""
    code, most_kib = zygote.measure(zygote.start(folder=box.folder, goal_id=goal_id, **order))
    assert most_kib < MOST_KIB, f"LoopX used {most_kib} KiB"
    return code


def turns(box: Sandbox) -> list[dict[str, Any]]:
    return kit.all_of(box.store.path, "SELECT * FROM turns ORDER BY number")


def test_a_line_of_200_megabytes_is_cut_and_loopx_stays_under_150(zygote: kit.Zygote, tmp_path: Path) -> None:
    with Sandbox(str(tmp_path), files=FILES) as box:
        goal = box.goal(Act(print_bytes=200_000_000, write={"n.txt": "2\n"}), checks=CHECKS)
        assert run(zygote, box, goal.goal_id) == 0
        assert [turn["result_kind"] for turn in turns(box)] == ["validated_completion"]
        spools = Path(box.project.spools)
        assert sum(file.stat().st_size for file in spools.rglob("*") if file.is_file()) < 100 << 20


def test_a_host_that_ignores_term_and_leaves_a_grandchild_is_ended_when_a_person_stops_the_goal(
    zygote: kit.Zygote, tmp_path: Path
) -> None:
    act = Act(ignore_term=True, leave_grandchild=True, cue="at-work", wait_for="never", write={"n.txt": "2\n"})
    with Sandbox(str(tmp_path), files=FILES) as box:
        goal = box.goal(act, checks=CHECKS)
        agent = box.agent(act)
        running = zygote.start(folder=box.folder, goal_id=goal.goal_id, grace_s=0.3)
        kit.until(lambda: agent.has_cued("at-work"), "the agent works")
        goal_service.move(box.store, goal.goal_id, GoalState.STOPPED, "a person")
        assert zygote.wait(running) == 130
        [turn] = turns(box)
        assert (turn["state"], turn["result_kind"], turn["slots"]) == ("closed", "iteration_failed", 0)
        [found] = kit.all_of(box.store.path, "SELECT run_id FROM host_runs")
        assert [proc.pid for proc in procs.scan() if not proc.ended and procs.carries(proc.pid, found["run_id"])] == []


def test_a_grandchild_of_an_agent_that_finished_is_not_left_behind(zygote: kit.Zygote, tmp_path: Path) -> None:
    with Sandbox(str(tmp_path), files=FILES) as box:
        goal = box.goal(Act(leave_grandchild=True, write={"n.txt": "2\n"}), checks=CHECKS)
        assert run(zygote, box, goal.goal_id) == 0
        assert find_leaks(box.store) == ()


FILLER = """
import os, sys
here = {here!r}
with open(os.path.join(here, "started"), "a") as log:
    log.write(os.environ["LOOPX_TURN_KEY"] + "\\n")
sys.stdin.read()
open("n.txt", "w").write("2\\n")
with open({filler!r}, "ab", buffering=0) as file:
    for size in (1 << 20, 4096, 512, 1):
        try:
            while True:
                file.write(b"x" * size)
        except OSError:
            pass
sys.exit(0)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small tmpfs")
    try:
        mounted = SmallDisk(tmp_path / "disk", "24m")
    except OSError as error:
        pytest.skip(f"no tmpfs can be mounted here: {error}")
    try:
        yield mounted
    finally:
        mounted.close()


def test_a_host_that_fills_the_disk_loses_nothing_and_is_not_run_again(
    zygote: kit.Zygote, disk: SmallDisk, tmp_path: Path
) -> None:
    """Store, spool and work tree are on the full disk. LoopX says so; with room again it goes on where it was."""
    folder = disk.folder / "box"
    filler = disk.folder / "filler"
    program = tmp_path / "agent.py"
    program.write_text(FILLER.format(here=str(tmp_path), filler=str(filler)))
    with Sandbox(str(folder), files=FILES) as box:
        goal = box.goal(checks=CHECKS, engines=(f"command:{sys.executable} -I -S {program}",))
    errors = tmp_path / "errors"
    order = {
        "folder": str(folder),
        "goal_id": goal.goal_id,
        "errors": str(errors),
        "floor_bytes": 1 << 18,
        "check_s": 30,
    }
    for _ in range(2):
        assert zygote.run(**order) in {child.FAILED, 10, 13}, "nothing can be done on a full disk"
    assert filler.exists()
    assert {line.split(":")[0] for line in errors.read_text().splitlines()} <= {"store_full", "store_unopenable"}
    database = picture.database_of(folder)
    assert kit.all_of(database, "SELECT 1 FROM ledger") == []
    filler.unlink()
    assert zygote.run(**order) == 0, errors.read_text()
    starts = (tmp_path / "started").read_text().split()
    assert len(starts) == len(set(starts)) == 1, starts
    assert len(kit.all_of(database, "SELECT 1 FROM ledger")) == 1
    assert find_leaks(database) == ()


def test_below_the_floor_nothing_is_launched_and_the_goal_waits(zygote: kit.Zygote, disk: SmallDisk) -> None:
    folder = disk.folder / "box"
    with Sandbox(str(folder), files=FILES) as box:
        goal = box.goal(WHOLE, checks=CHECKS)
        code = zygote.run(folder=str(folder), goal_id=goal.goal_id, floor_bytes=1 << 40)
        assert code == 10
        assert box.agent(WHOLE).started == ()
        assert kit.all_of(box.store.path, "SELECT 1 FROM ledger") == []


def test_a_spool_that_is_deleted_under_a_running_agent_is_restored_and_the_agent_adopted(
    zygote: kit.Zygote, tmp_path: Path
) -> None:

    act = Act(cue="at-work", wait_for="go-on", write={"n.txt": "2\n"})
    with Sandbox(str(tmp_path), files=FILES) as box:
        goal = box.goal(act, checks=CHECKS)
        agent = box.agent(act)
        first = zygote.start(folder=box.folder, goal_id=goal.goal_id, check_s=0.05)
        kit.until(lambda: agent.has_cued("at-work"), "the agent works")
        kit.kill(first)
        zygote.wait(first)
        shutil.rmtree(box.project.spools)
        second = zygote.start(folder=box.folder, goal_id=goal.goal_id, check_s=0.05)
        kit.until(
            lambda: kit.all_of(box.store.path, "SELECT 1 FROM events WHERE kind = 'turn_resumed'"),
            "the second LoopX took over",
        )
        agent.cue("go-on")
        assert zygote.wait(second) == 0
        assert len(agent.started) == 1
