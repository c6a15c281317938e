"""Schedules in the store: saved by compare-and-set, and a turn that is being settled outlives its goal's end."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from loopx.control_plane.errors import ConflictError
from loopx.control_plane.scheduler.schedule import ScheduleOwner, ScheduleState, Wanted, set_schedule
from loopx.control_plane.turn_driver.journal import NextDue
from loopx.store import schedules
from loopx.store.store import Store
from tests.store.kit import make_goal, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = open_store(tmp_path)
    make_goal(made)
    return made


def test_of_two_changes_to_one_revision_the_second_is_refused(store: Store) -> None:
    with store.read() as tx:
        before = schedules.get(tx, "goal")
    wanted = Wanted(rrule="FREQ=DAILY", dtstart_local="2026-01-01T02:00", owner=ScheduleOwner.CRON)
    after = set_schedule(before, wanted)
    with store.write() as tx:
        schedules.save(tx, before, after, store.now_ms(), "set")
    other = msgspec.structs.replace(after, rrule="FREQ=HOURLY")
    with pytest.raises(ConflictError) as refused, store.write() as tx:
        schedules.save(tx, before, other, store.now_ms(), "set")
    assert refused.value.code == "stale_revision"
    with store.read() as tx:
        assert schedules.get(tx, "goal") == after


def test_a_goal_closed_meanwhile_keeps_no_turn_from_ending(store: Store) -> None:
    with store.write() as tx:
        schedules.close(tx, "goal", store.now_ms())
        closed = schedules.get(tx, "goal")
        closed, applied = schedules.apply(tx, closed, NextDue(at_ms=store.now_ms() + 1), store.now_ms())
        _, acked = schedules.acknowledge_applied(tx, closed, store.now_ms())
        now = schedules.get(tx, "goal")
    assert (applied.next_due_ms, acked.revision, now.state, now.next_due_ms) == (None, 0, ScheduleState.CLOSED, None)
