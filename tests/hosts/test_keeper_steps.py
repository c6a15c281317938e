"""Keeper, second keeper and launcher are killed at every step of their own code: the host runs once or never.

A step is a line of the program under test, counted by its own process, which then kills itself with -9. The tests run
at every n-th step from a random first one; the marked ones (`make chaos`) at every single step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from loopx.control_plane import errors
from loopx.hosts import identity, protocol, runfiles, spawn, spool, supervise
from tests.hosts import keeper_kit as kit

HOSTS = kit.ROOT / "loopx" / "hosts"

KILL_AT = """
import os, sys
SKIPPED = ("<module>", "_text", "_quoted", "_escaped", "<genexpr>")
def _arm(left, names):
    def step(frame, event, arg):
        name = os.path.basename(frame.f_code.co_filename)
        if not name.startswith(names) or frame.f_code.co_name in SKIPPED:
            return None
        if event in ("line", "return"):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), 9)
        return step
    sys.settrace(step)
"""

KEEPER = (
    KILL_AT
    + """
sys.argv[0] = {program!r}
sys.path.insert(0, {folder!r})
import keeper
_arm([{steps}], ("keeper_",))
keeper.main()
"""
)

LAUNCHER = (
    KILL_AT
    + """
from loopx.hosts import supervise
from tests.hosts import keeper_kit as kit
plan = kit.shell({script!r})
_arm([{steps}], ("supervise.py", "spawn.py", "runfiles.py", "keeper_records.py"))
supervise.start(plan, {run_id!r}, "turn-1", {spool_dir!r})
sys.settrace(None)
print("started")
"""
)


@pytest.fixture(params=[pytest.param(False, id="sample"), pytest.param(True, id="all", marks=pytest.mark.chaos)])
def every_step(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def walk(every_step: bool, stride: int, at: Callable[[int], bool]) -> int:
    """Calls `at` with steps until it says that the program ended by itself; returns how many there were."""
    steps = 1 if every_step else 1 + time.time_ns() % stride
    while at(steps):
        steps += 1 if every_step else stride
    return steps


def crashing_keeper(folder: Path, steps: int) -> str:
    """A keeper that kills itself at its n-th step."""
    path = folder / f"keeper_at_{steps}.py"
    path.write_text(KEEPER.format(program=str(HOSTS / "keeper.py"), folder=str(HOSTS), steps=steps))
    return str(path)


def finish(run: kit.Run) -> supervise.Adopted:
    """What the next LoopX does with the run."""
    found = run.adopt()
    if found.kept is not None:
        run.follow(found.kept)
        found = run.adopt()
    assert found.record is not None
    assert not identity.bearers(run.run_id)
    return found


def times_run(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def start_with(
    program: str, run: kit.Run, plan: protocol.LaunchPlan, monkeypatch: pytest.MonkeyPatch
) -> supervise.Kept | None:
    with monkeypatch.context() as patched:
        patched.setattr(spawn, "_PROGRAM", program)
        try:
            return run.start(plan)
        except errors.EngineError:
            return None


@pytest.mark.timeout(1800)
def test_a_keeper_killed_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every_step: bool) -> None:
    states: set[supervise.RunState] = set()

    def at(steps: int) -> bool:
        folder = tmp_path / str(steps)
        folder.mkdir()
        ran = folder / "ran"
        with kit.run_in(folder) as run:
            kept = start_with(crashing_keeper(folder, steps), run, kit.shell(f"echo ran >> {ran}; cat"), monkeypatch)
            if kept is not None:
                run.follow(kept)
            found = finish(run)
            states.add(found.state)
            if found.state is supervise.RunState.NEVER_STARTED:
                assert times_run(ran) == 0
            else:
                assert times_run(ran) == 1 or (found.record is not None and found.record.unobserved)
            return kept is None or (found.record is not None and found.record.taken_over)

    assert walk(every_step, 67, at) > 300
    assert {supervise.RunState.NEVER_STARTED, supervise.RunState.LOST} <= states


@pytest.mark.timeout(1800)
def test_a_second_keeper_killed_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every_step: bool) -> None:
    def at(steps: int) -> bool:
        folder = tmp_path / str(steps)
        folder.mkdir()
        go = folder / "go"
        host = f"echo before; until [ -e {go} ]; do sleep 0.01; done; echo after; cat > /dev/null"
        with kit.run_in(folder) as run:
            kept = run.start(kit.shell(host))
            assert kept.keeper is not None
            kit.until(lambda: spool.tail(run.spool_dir, "stdout", 9), "the first line is spooled")
            kit.kill_exactly(kept.keeper)
            second = None
            with monkeypatch.context() as patched:
                patched.setattr(spawn, "_PROGRAM", crashing_keeper(folder, steps))
                try:
                    second = run.adopt().kept
                except errors.EngineError:
                    assert kept.host is not None
                    assert identity.alive(kept.host)
            go.touch()
            if second is not None and (keeper := second.keeper) is not None:
                kit.until(
                    lambda: (run.folder / "exit.json").exists() or not identity.alive(keeper),
                    "the second keeper ends or dies",
                )
            found = finish(run)
            assert found.record is not None
            assert found.record.taken_over
            assert found.record.handed_over
            # What was in the pipe is lost only if no keeper and no follower was there when the host ended.
            lines = [line.data for line in spool.read_lines(run.spool_dir)]
            assert lines == [b"before", b"after"] or (lines == [b"before"] and found.record.unobserved)
            return second is None or found.record.unobserved or _takeovers(run) > 1

    assert walk(every_step, 67, at) > 200


def _takeovers(run: kit.Run) -> int:
    found = runfiles.host(run.spool_dir)
    return found.takeovers if found else 0


@pytest.mark.timeout(1800)
def test_a_launcher_killed_at_any_step(tmp_path: Path, every_step: bool) -> None:
    states: set[supervise.RunState] = set()

    def at(steps: int) -> bool:
        folder = tmp_path / str(steps)
        folder.mkdir()
        ran = folder / "ran"
        with kit.run_in(folder) as run:
            process = kit.launcher(
                LAUNCHER.format(
                    script=f"echo ran >> {ran}; cat", steps=steps, run_id=run.run_id, spool_dir=run.spool_dir
                )
            )
            said = process.communicate()[0]
            found = finish(run)
            states.add(found.state)
            assert times_run(ran) == (0 if found.state is supervise.RunState.NEVER_STARTED else 1)
            if found.state is not supervise.RunState.NEVER_STARTED:
                assert found.state is supervise.RunState.ENDED
                assert found.record is not None
                assert found.record.exit_code == 0
            return said != b"started\n"

    assert walk(every_step, 19, at) > 100
    assert states == {supervise.RunState.NEVER_STARTED, supervise.RunState.ENDED}


def test_the_killing_kills(tmp_path: Path) -> None:
    """Without this the tests above would pass for a program that never dies."""
    script = LAUNCHER.format(script="true", steps=5, run_id="r", spool_dir=str(tmp_path / "spool"))
    process = kit.launcher(script)
    assert process.communicate()[0] == b""
    assert process.returncode == -9
