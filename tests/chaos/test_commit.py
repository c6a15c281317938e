"""One commit of a turn at the store itself: fenced, whole or not at all, and never repeated blind."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from loopx.control_plane.effect_program import turn_key
from loopx.control_plane.errors import ConflictError, StoreError
from loopx.control_plane.goal import GoalDefinition
from loopx.control_plane.ids import AgentId, GoalId, TurnKey
from loopx.control_plane.quota.facts import ContractState
from loopx.control_plane.scheduler.schedule import Schedule
from loopx.control_plane.turn_driver.driver import LoopXTurnRoute
from loopx.control_plane.turn_driver.journal import (
    Fence,
    Finished,
    HostExecuted,
    HostReport,
    JournalStep,
    NextDue,
    ResultTyped,
    ScheduleAcked,
    ScheduleApplied,
    SlotSpent,
    TurnJournal,
    TurnPurpose,
    TurnResult,
    Validated,
    WrittenBack,
)
from loopx.control_plane.turn_driver.settlement import JournalWriter
from loopx.control_plane.turn_driver.transaction import LoopXTurnResultKind
from loopx.control_plane.work_items.lease import TURN_LEASE_MS
from loopx.store import connection as connections
from loopx.store import goals, hosts, schedules, turns
from loopx.store.store import Store
from loopx.testing import CountingIds, FakeClock, find_leaks, temporary_store
from tests.chaos import kit

GOAL, AGENT = GoalId("goal"), AgentId("loopx")
PROGRESS = TurnResult(
    kind=LoopXTurnResultKind.VALIDATED_PROGRESS,
    tree_before="a",
    tree_after="b",
    changed=True,
    contract=ContractState.RED,
)
FIRST: tuple[JournalStep, ...] = (
    HostExecuted(HostReport(run_id="run", engine="command:true", end_kind="success", handed_over=True)),
    ResultTyped(PROGRESS),
    Validated(),
)
REST: tuple[JournalStep, ...] = (
    WrittenBack(None),
    SlotSpent(),
    ScheduleApplied(NextDue()),
    ScheduleAcked(),
    Finished(),
)


class Desk:
    """A store with one goal, a clock that stands still, and the turns that one starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = FakeClock()
        self.ids = CountingIds()
        self.store = self.opened()
        with self.store.write() as tx:
            goals.create(tx, GOAL, GoalDefinition(objective="x"), "/nowhere", "tree", self.clock.now_ms())
            schedules.create(tx, Schedule(goal_id=GOAL), self.clock.now_ms())

    def opened(self) -> Store:
        """Another process's view of the same store."""
        return temporary_store(str(self.folder), clock=self.clock, ids=self.ids)

    def start(self, owner: str = "worker-1") -> tuple[TurnJournal, Fence]:
        request = turns.StartTurn(
            turn_key=turn_key(GOAL, AGENT, self.ids.new("nonce")),
            goal_id=GOAL,
            agent_id=AGENT,
            owner=owner,
            revision=1,
            purpose=TurnPurpose.WORK,
            route=LoopXTurnRoute.READY_FOR_HOST,
            engine="command:true",
            todo_id=None,
            new_todo=None,
            predecessor=None,
            tree_before="a",
            envelope="{}",
            decision="{}",
            token_hash=None,
        )
        with self.store.write() as tx:
            return turns.start(tx, request, self.clock.now_ms())

    def take_over(self, key: TurnKey, owner: str) -> tuple[TurnJournal, Fence]:
        with self.store.write() as tx:
            return turns.take_over(tx, key, owner, self.clock.now_ms())

    def dump(self) -> list[str]:
        """Every row of the store."""
        with kit.rows(self.store.path) as connection:
            return list(connection.iterdump())


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.store.close()


# -- the fence ---------------------------------------------------------------------------------------------------

OPEN = pytest.mark.leaves("open_turn", reason="the turn is looked at in the middle")


@OPEN
def test_a_late_writer_can_write_nothing(desk: Desk) -> None:
    journal, old = desk.start()
    late = desk.opened()
    desk.clock.advance(TURN_LEASE_MS)
    desk.take_over(journal.turn.turn_key, "worker-2")
    before = desk.dump()
    with pytest.raises(ConflictError) as caught:
        late.commit(journal.turn.turn_key, old, FIRST)
    assert caught.value.code == "lease_lost"
    assert desk.dump() == before
    late.close()


@OPEN
def test_a_restarted_worker_of_the_same_name_does_not_let_the_old_one_write(desk: Desk) -> None:
    journal, old = desk.start("worker-1")
    desk.clock.advance(TURN_LEASE_MS)
    desk.take_over(journal.turn.turn_key, "worker-1")
    before = desk.dump()
    late = desk.opened()
    with pytest.raises(ConflictError) as caught:
        late.commit(journal.turn.turn_key, old, FIRST)
    assert caught.value.code == "lease_lost"
    assert desk.dump() == before
    late.close()


@OPEN
def test_a_worker_that_slept_past_its_lease_writes_nothing_although_nobody_took_over(desk: Desk) -> None:
    journal, fence = desk.start()
    desk.clock.jump(TURN_LEASE_MS)
    before = desk.dump()
    with pytest.raises(ConflictError) as caught:
        desk.store.commit(journal.turn.turn_key, fence, FIRST)
    assert caught.value.code == "lease_lost"
    assert desk.dump() == before


@OPEN
def test_a_late_writer_can_t_record_a_launch_either(desk: Desk) -> None:
    """The host would run, and nobody who holds the turn would know."""
    journal, old = desk.start()
    key = journal.turn.turn_key
    desk.clock.advance(TURN_LEASE_MS)
    desk.take_over(key, "worker-2")
    before = desk.dump()
    with pytest.raises(ConflictError) as caught, desk.store.write() as tx:
        hosts.intend(
            tx,
            run_id="run",
            turn_key=key,
            goal_id=GOAL,
            engine="command:true",
            attempt=1,
            spool_dir="/nowhere",
            resumes=None,
            prompt_bytes=0,
            overhead_bytes=0,
            fence=old,
            now_ms=desk.clock.now_ms(),
        )
    assert caught.value.code == "lease_lost"
    assert desk.dump() == before


# -- all or nothing ----------------------------------------------------------------------------------------------


class Cut(Exception):
    """The process ended here."""


class _CutConnection(sqlite3.Connection):
    left: list[int]

    def execute(self, statement: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if not statement.lstrip().startswith(("SELECT", "PRAGMA", "ROLLBACK")):
            if self.left[0] == 0:
                raise Cut(statement)
            self.left[0] -= 1
        return super().execute(statement, parameters)


def test_a_crash_at_any_statement_of_the_settlement_leaves_all_of_it_or_nothing(desk: Desk) -> None:
    """Writeback, spend and scheduling are one commit here: no state in between is ever seen."""
    journal, fence = desk.start()
    key = journal.turn.turn_key
    desk.store.commit(key, fence, FIRST)
    before = desk.dump()
    statements = 0
    while True:
        left = [1 << 30]

        def driver(path: str, left: list[int] = left) -> sqlite3.Connection:
            made = sqlite3.connect(path, isolation_level=None, factory=_CutConnection)
            made.left = left
            return made

        dying = Store(connections.Connection(desk.store.path, driver=driver), desk.clock, desk.ids)
        left[0] = statements
        try:
            dying.commit(key, fence, REST)
            break
        except Cut:
            assert desk.dump() == before, f"after {statements} statements"
        finally:
            dying.close()
        statements += 1
    assert statements > 15
    assert desk.store.load(key).turn.completed == 7
    assert len(kit.all_of(desk.store.path, "SELECT 1 FROM ledger")) == 1
    assert find_leaks(desk.store) == ()


# -- a lost answer -----------------------------------------------------------------------------------------------


class LostAnswer:
    """A journal port that commits, and then can't tell."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.commits = 0

    def load(self, key: TurnKey) -> TurnJournal:
        return self._store.load(key)

    def commit(self, key: TurnKey, fence: Fence, steps: Sequence[JournalStep]) -> TurnJournal:
        self.commits += 1
        self._store.commit(key, fence, steps)
        raise StoreError("store_unreadable", "the connection was cut")


@OPEN
def test_a_commit_with_an_unknown_outcome_is_looked_up_and_not_tried_again(desk: Desk) -> None:
    journal, fence = desk.start()
    port = LostAnswer(desk.store)
    writer = JournalWriter(port, journal, fence, frozenset())
    for step in FIRST:
        writer.phase(step)
    writer.flush()
    assert (writer.turn.completed, port.commits) == (3, 1)


class NeverThere:
    """A journal port whose commit did not happen."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def load(self, key: TurnKey) -> TurnJournal:
        return self._store.load(key)

    def commit(self, key: TurnKey, fence: Fence, steps: Sequence[JournalStep]) -> TurnJournal:
        raise StoreError("store_full", "no space left")


@OPEN
def test_a_commit_that_did_not_happen_is_an_error(desk: Desk) -> None:
    journal, fence = desk.start()
    writer = JournalWriter(NeverThere(desk.store), journal, fence, frozenset())
    writer.phase(FIRST[0])
    with pytest.raises(StoreError):
        writer.flush()


# -- apply, then ack ---------------------------------------------------------------------------------------------


def test_what_is_acknowledged_is_what_was_applied(desk: Desk) -> None:
    """With a cadence that has moved since: the ack confirms the new revision, because apply came first."""
    with kit.rows(desk.store.path) as connection:
        connection.execute("UPDATE schedules SET revision = 5")
        connection.commit()
    journal, fence = desk.start()
    desk.store.commit(journal.turn.turn_key, fence, FIRST + REST)
    schedule = kit.one_of(desk.store.path, "SELECT revision, applied_revision, acked_revision FROM schedules")
    assert set(schedule.values()) == {5}
