"""Who may take a turn, and who may write: live drivers keep theirs, late ones change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loopx.control_plane.errors import ConflictError
from loopx.control_plane.ids import AgentId, TurnKey
from loopx.runtime.turn_runner import TurnRunner
from loopx.store import leases
from loopx.testing import Sandbox, find_leaks
from tests.chaos import child, kit
from tests.e2e.test_recovery import CHECKS, FILES, SLOW, WHOLE, order, rows, someone_makes_the_branch, spoil, turn_of


@pytest.fixture(scope="module")
def zygote() -> Iterator[kit.Zygote]:
    with kit.Zygote() as running:
        yield running


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(str(tmp_path), files=FILES) as sandbox:
        yield sandbox


def runner(box: Sandbox, goal_id: str) -> TurnRunner:
    return TurnRunner(
        box.store, box.project, goal_id, AgentId("loopx"), box.events.append, box.env, stopping=lambda: False
    )


def test_a_turn_that_another_process_finished_is_not_taken_and_no_lease_is_left(box: Sandbox) -> None:
    goal = box.goal(WHOLE, checks=CHECKS)
    assert box.run(goal).exit_code == 0
    with pytest.raises(ConflictError) as caught:
        runner(box, goal.goal_id).resume(TurnKey(turn_of(box)["turn_key"]))
    assert caught.value.code == "turn_closed"
    assert find_leaks(box.store) == ()
    assert rows(box, "SELECT 1 FROM events WHERE kind = 'turn_resumed'") == []


def test_a_turn_that_stays_open_may_be_taken_again_by_the_very_same_process(box: Sandbox) -> None:
    """A worker that lives on must not be locked out by its own lease until that runs out."""
    goal = box.goal(WHOLE, checks=CHECKS)
    assert box.run(goal, observer=someone_makes_the_branch(box, goal.goal_id)).exit_code == 11
    assert box.run(goal).exit_code == 11, "stuck as before, and not lease_held"
    box.git("branch", "-D", f"loopx/{goal.goal_id}")
    assert box.run(goal).exit_code == 0


def test_a_live_driver_keeps_its_turn(zygote: kit.Zygote, box: Sandbox) -> None:
    goal = box.goal(SLOW, checks=CHECKS)
    agent = box.agent(SLOW)
    first = zygote.start(**order(box, goal.goal_id))
    kit.until(lambda: agent.has_cued("at-work"), "the agent works")
    with pytest.raises(ConflictError) as caught:
        runner(box, goal.goal_id).resume(TurnKey(turn_of(box)["turn_key"]))
    assert caught.value.code == "lease_held"
    agent.cue("go-on")
    assert zygote.wait(first) == 0
    assert len(agent.started) == 1


def test_an_open_turn_is_recovered_although_the_goal_s_schedule_has_moved_on(zygote: kit.Zygote, box: Sandbox) -> None:
    """A claim is: the lease is free, and the goal is due or has an open turn."""
    goal = box.goal(WHOLE, checks=CHECKS)
    assert zygote.run(**order(box, goal.goal_id, all_boundaries=True, die_after="quota_spend")) == child.DIED
    far = box.store.now_ms() + 10**9
    spoil(box, f"UPDATE goals SET due_at_ms = {far}, wait_kind = 'outside', wait_until_ms = {far}")
    spoil(box, f"UPDATE schedules SET next_due_ms = {far}")
    assert box.run(goal).exit_code == 0
    assert len(rows(box, "SELECT * FROM ledger")) == 1


def test_an_owner_s_name_is_no_fence(box: Sandbox) -> None:
    """A worker that restarts under the same name has another epoch, and the old one can write nothing."""
    with box.store.write() as tx:
        first = leases.acquire(tx, "turn:x:loopx", "worker-1", 1000, 1_000)
        second = leases.acquire(tx, "turn:x:loopx", "worker-1", 1000, 3_000)
    assert second > first
    with box.store.write() as tx:
        assert not leases.renew(tx, "turn:x:loopx", first, 1000, 3_500)
        assert leases.renew(tx, "turn:x:loopx", second, 1000, 3_500)
        leases.release(tx, "turn:x:loopx", first)
        held = leases.get(tx, "turn:x:loopx")
        assert held is not None
        assert held.expires_at_ms == 4_500, "nor can it give the lease away"
        with pytest.raises(ConflictError):
            leases.acquire(tx, "turn:x:loopx", "worker-1", 1000, 3_600)
