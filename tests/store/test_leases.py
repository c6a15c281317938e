"""Leases: one holder at a time, an epoch that only grows, and writes that only the newest epoch can make."""

from __future__ import annotations

import multiprocessing
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopx.control_plane.errors import ConflictError
from loopx.control_plane.ids import AgentId, Epoch
from loopx.control_plane.quota.facts import ContractState
from loopx.control_plane.turn_driver.journal import (
    Fence,
    Finished,
    HostEnded,
    HostExecuted,
    HostReport,
    NextDue,
    ResultTyped,
    ScheduleAcked,
    ScheduleApplied,
    SlotSpent,
    TurnResult,
    Validated,
    WrittenBack,
)
from loopx.control_plane.turn_driver.transaction import LoopXTurnResultKind
from loopx.control_plane.work_items.lease import CLAIM_LEASE_MS, TURN_LEASE_MS
from loopx.control_plane.work_items.todo import TodoStatus
from loopx.runtime import todo_service
from loopx.store import leases, todos, turns
from loopx.store.connection import Connection
from loopx.store.store import Store
from tests.store.kit import START_MS, HandClock, add_todo, make_goal, open_store, start_turn

TTL_MS = 1_000


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def store(tmp_path: Path, clock: HandClock) -> Store:
    return open_store(tmp_path, clock)


def take(store: Store, owner: str, *, dead: str | None = None) -> Epoch:
    with store.write() as tx:
        return leases.acquire(tx, "thing", owner, TTL_MS, store.now_ms(), dead_owner=dead)


def test_a_held_lease_is_refused_and_says_by_whom_and_until_when(store: Store, clock: HandClock) -> None:
    take(store, "first")
    with pytest.raises(ConflictError) as refused:
        take(store, "second")
    assert refused.value.code == "lease_held"
    assert refused.value.data["owner"] == "first"
    assert refused.value.data["expires_at_ms"] == START_MS + TTL_MS
    clock.pass_ms(TTL_MS)
    assert take(store, "second") == 2


def test_an_owners_name_is_no_fence(store: Store, clock: HandClock) -> None:
    """A worker that was restarted has the same name, and what its earlier self holds is worth nothing."""
    old = take(store, "worker")
    clock.pass_ms(TTL_MS)
    new = take(store, "worker")
    with store.write() as tx:
        assert not leases.renew(tx, "thing", old, TTL_MS, clock.now)
        leases.release(tx, "thing", old)
        assert leases.renew(tx, "thing", new, TTL_MS, clock.now)


def test_a_proved_death_frees_it_at_once_and_only_for_that_owner(store: Store) -> None:
    take(store, "dead")
    with pytest.raises(ConflictError):
        take(store, "next", dead="somebody else")
    assert take(store, "next", dead="dead") == 2


def test_an_expired_lease_can_not_be_renewed(store: Store, clock: HandClock) -> None:
    epoch = take(store, "first")
    clock.pass_ms(TTL_MS)
    with store.write() as tx:
        assert not leases.renew(tx, "thing", epoch, TTL_MS, clock.now)


def test_a_process_that_slept_past_its_lease_writes_nothing(store: Store, clock: HandClock) -> None:
    make_goal(store, todo=False)
    todo = add_todo(store, "goal")
    journal, fence = start_turn(store, "goal", todo)
    with store.read() as tx:
        before = tx.one("goals.head", goal_id="goal")["event_seq"]
    clock.pass_ms(10 * 60_000)
    report = HostReport(run_id="r", engine="command:true", end_kind="success", handed_over=True)
    with pytest.raises(ConflictError) as refused:
        store.commit(journal.turn.turn_key, fence, (HostEnded(report),))
    assert refused.value.code == "lease_lost"
    stolen = Fence(resource=fence.resource, epoch=Epoch(fence.epoch + 1))
    with pytest.raises(ConflictError):
        store.commit(journal.turn.turn_key, stolen, (HostEnded(report),))
    with store.read() as tx:
        assert tx.one("goals.head", goal_id="goal")["event_seq"] == before


Step = tuple[str, int]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "renew", "release", "pass", "jump"]), st.integers(0, 2000)), max_size=25
    )
)
def test_two_never_hold_it_at_once_whatever_the_clock_does(steps: list[Step]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        clock = HandClock()
        store = open_store(Path(folder), clock)
        held: dict[str, Epoch] = {}
        top = 0
        for what, ms in steps:
            if what == "pass":
                clock.pass_ms(ms)
            elif what == "jump":
                clock.pass_ms(-ms)
            elif what in ("a", "b"):
                try:
                    epoch = take(store, what)
                except ConflictError:
                    continue
                assert epoch == top + 1
                top = epoch
                held[what] = epoch
            else:
                for epoch in held.values():
                    with store.write() as tx:
                        if what == "release":
                            leases.release(tx, "thing", epoch)
                        elif leases.renew(tx, "thing", epoch, TTL_MS, clock.now):
                            # Whatever was handed out before is dead: only the newest epoch is ever renewed.
                            assert epoch == top
        store.close()


def _claim(path: str, name: str, gate: Barrier, out: Queue) -> None:
    gate.wait()
    connection = Connection(path)
    try:
        with connection.write() as tx:
            out.put((name, leases.acquire(tx, "thing", name, 60_000, START_MS)))
    except ConflictError:
        out.put((name, None))
    finally:
        connection.close()


def test_of_eight_processes_one_gets_it(store: Store) -> None:
    context = multiprocessing.get_context("fork")
    gate, out = context.Barrier(8), context.Queue()
    workers = [context.Process(target=_claim, args=(store.path, f"w{number}", gate, out)) for number in range(8)]
    for worker in workers:
        worker.start()
    said = [out.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert [epoch for _, epoch in said if epoch is not None] == [1]


def test_a_late_turn_takes_no_claim_from_the_agent_that_has_the_todo_by_now(store: Store, clock: HandClock) -> None:
    goal = make_goal(store, todo=False)
    todo_id = add_todo(store, goal)
    journal, _ = start_turn(store, goal, todo_id)
    clock.pass_ms(CLAIM_LEASE_MS + TURN_LEASE_MS)
    todo_service.claim(store, goal, todo_id, AgentId("bob"))
    key = journal.turn.turn_key
    with store.write() as tx:
        _, fence = turns.take_over(tx, key, "here/boot/2/2", store.now_ms())

    report = HostReport(run_id=f"{key}.1", engine="command:true", end_kind="success", handed_over=True)
    result = TurnResult(kind=LoopXTurnResultKind.VALIDATED_PROGRESS, contract=ContractState.RED)
    store.commit(key, fence, (HostExecuted(report), ResultTyped(result), Validated(), WrittenBack(None), SlotSpent()))
    store.commit(key, fence, (ScheduleApplied(NextDue()), ScheduleAcked(), Finished()))

    with store.read() as tx:
        todo, lease = todos.get(tx, todo_id), leases.get(tx, f"todo:{todo_id}")
    assert (todo.status, todo.claimed_by) == (TodoStatus.CLAIMED, "bob")
    assert lease is not None and (lease.owner, lease.expires_at_ms > store.now_ms()) == ("bob", True)
