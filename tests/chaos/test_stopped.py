"""A LoopX that was stopped for longer than its lease and wakes can write nothing: another process has the turn.

The first LoopX is stopped (SIGSTOP) at a point where it touches the store, a file or a process. Its lease runs out,
a second LoopX takes the turn and finishes the goal. Then the first is continued.
"""

from __future__ import annotations

import fcntl
import random
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopx.hosts import keeper_records as records
from loopx.hosts import procs
from loopx.testing import Act, Sandbox, faults, find_leaks
from tests.chaos import child, kit, picture
from tests.chaos.test_every_point import CHECKS, FILES, Undisturbed, stage

LEASE_MS = 700
SLICE = 5
PARTS = 8


@pytest.fixture(scope="module")
def zygote() -> Iterator[kit.Zygote]:
    with kit.Zygote() as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(zygote: kit.Zygote, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(zygote, tmp_path_factory.mktemp("undisturbed"))


def is_stopped(pid: int) -> bool:
    seen = procs.look(pid)
    return seen is not None and seen.state in "Tt"


def expired(database: str) -> bool:
    """Whether every lease of work has run out."""
    with kit.rows(database) as connection:
        now = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
        question = f"SELECT COUNT(*) FROM leases WHERE expires_at_ms > {now} AND resource NOT LIKE 'todo:%'"
        return bool(connection.execute(question).fetchone()[0] == 0)


def is_locked(database: str) -> bool:
    """Whether the stopped process holds a write transaction open."""
    with kit.rows(database) as connection:
        connection.execute("PRAGMA busy_timeout = 100")
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.rollback()
    return False


def points_outside_transactions(wanted: Undisturbed) -> list[int]:
    """Where a process may be stopped without keeping every other writer waiting."""
    outside, found = True, []
    for number, label in enumerate(wanted.labels, start=1):
        if label.startswith("store BEGIN"):
            found.append(number)
            outside = False
        elif label.startswith("store COMMIT"):
            outside = True
        elif outside:
            found.append(number)
    return found


def stop_at(zygote: kit.Zygote, folder: Path, wanted: Undisturbed, point: int) -> None:
    folder.mkdir()
    goal_id = stage(folder)
    where = f"stopped at point {point} ({wanted.labels[point - 1]})"
    order: dict[str, Any] = {"folder": str(folder), "goal_id": goal_id, "lease_ms": LEASE_MS}
    first = zygote.start(**order, points=str(folder / "points"), point=point, side=faults.STOP)
    kit.until(lambda: is_stopped(first), where)
    database = picture.database_of(folder)
    if is_locked(database):
        # A repeated look moved the points by a few: inside a transaction it would only keep the others waiting.
        kit.kill(first)
        zygote.wait(first)
        shutil.rmtree(folder)
        return
    kit.until(lambda: expired(database), "the lease ran out")
    second = zygote.start(**order)
    kit.until(lambda: not runs(second) or keeps_the_launch(folder), where)
    if runs(second):
        # It was stopped with the lock of a launch in its hand, which nobody can take from a living process. The other
        # waits, and goes on with the host that the woken one starts.
        kit.kill(first, signal.SIGCONT)
        assert zygote.wait(second) == 0, where
        assert zygote.wait(first) == child.FAILED, where
        assert picture.of(folder, goal_id) == wanted.picture, where
        assert find_leaks(database) == (), where
        shutil.rmtree(folder)
        return
    ended = zygote.wait(second)
    errors = (folder / "error.txt").read_text() if (folder / "error.txt").exists() else ""
    assert ended == 0 or errors.startswith("goal_closed"), f"{where}: {ended} {errors}"
    before = frozen(folder, goal_id)
    kit.kill(first, signal.SIGCONT)
    woken = zygote.wait(first)
    assert woken in (0, 10, child.FAILED), f"{where}: {woken}"
    after = frozen(folder, goal_id)
    assert after == before, f"{where}: the woken process wrote something"
    assert after["picture"] == wanted.picture, where
    assert find_leaks(database) == (), where
    shutil.rmtree(folder)


def runs(pid: int) -> bool:
    seen = procs.look(pid)
    return seen is not None and not seen.ended


def keeps_the_launch(folder: Path) -> bool:
    """Whether a run's lock is held although no keeper was ever started, and the turn was taken over."""
    if not kit.all_of(picture.database_of(folder), "SELECT 1 FROM events WHERE kind = 'turn_resumed'"):
        return False
    for lock in folder.glob("state/projects/*/spool/*/keeper.lock"):
        if (lock.parent / records.HOST).exists() or (lock.parent / records.EXIT).exists():
            continue
        with lock.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return True
    return False


def frozen(folder: Path, goal_id: str) -> dict[str, Any]:
    """Everything that a woken process might have changed."""
    database = picture.database_of(folder)
    events = kit.all_of(database, "SELECT seq, kind, hash FROM events ORDER BY seq")
    runs = kit.all_of(database, "SELECT run_id, state, end_kind FROM host_runs ORDER BY run_id")
    return {"picture": picture.of(folder, goal_id), "events": events, "runs": runs}


def test_stopped_at_some_points(zygote: kit.Zygote, undisturbed: Undisturbed, tmp_path: Path) -> None:
    seed = kit.seed()
    print(f"{kit.SEED_VARIABLE}={seed}")
    for point in random.Random(seed).sample(points_outside_transactions(undisturbed), SLICE):
        stop_at(zygote, tmp_path / str(point), undisturbed, point)


@pytest.mark.chaos
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(PARTS))
def test_stopped_at_every_point(zygote: kit.Zygote, undisturbed: Undisturbed, tmp_path: Path, part: int) -> None:
    failures: list[str] = []
    points = points_outside_transactions(undisturbed)[part::PARTS]
    for point in points:
        try:
            stop_at(zygote, tmp_path / str(point), undisturbed, point)
        except AssertionError as error:
            failures.append(str(error))
    assert not failures, "\n\n".join([f"{len(failures)} of {len(points)}:", *failures])


def test_stopped_while_its_agent_works_it_wakes_and_leaves_the_agent_to_the_new_owner(
    zygote: kit.Zygote, tmp_path: Path
) -> None:
    """The worst that a woken process could do is to end the host that somebody else has adopted."""
    act = Act(cue="at-work", wait_for="go-on", write={"n.txt": "2\n"})
    with Sandbox(str(tmp_path), files=FILES) as box:
        goal = box.goal(act, checks=CHECKS)
        agent = box.agent(act)
        order = {"folder": box.folder, "goal_id": goal.goal_id, "lease_ms": LEASE_MS}
        first = zygote.start(**order)
        kit.until(lambda: agent.has_cued("at-work"), "the agent works")
        kit.kill(first, signal.SIGSTOP)
        kit.until(lambda: is_stopped(first), "it is stopped")
        kit.until(lambda: expired(box.store.path), "the lease ran out")
        second = zygote.start(**order)
        kit.until(
            lambda: kit.all_of(box.store.path, "SELECT 1 FROM events WHERE kind = 'turn_resumed'"),
            "the second LoopX took over",
        )
        kit.kill(first, signal.SIGCONT)
        assert zygote.wait(first) == child.FAILED
        assert (tmp_path / "error.txt").read_text().startswith("lease_lost")
        assert agent.finished == (), "the agent was not ended"
        agent.cue("go-on")
        assert zygote.wait(second) == 0
        assert len(agent.started) == 1
        assert len(kit.all_of(box.store.path, "SELECT 1 FROM ledger")) == 1
