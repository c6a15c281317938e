"""Two workers on one store, with crashes, clock jumps and late writers, against a model of the ledger and the leases.

The model knows who holds the turn's lease, until when, and how far each turn is. Whatever the workers try, the store
must do what the model says, refuse what it refuses with the same code, and keep its books.
"""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from loopx.control_plane.effect_program import turn_key
from loopx.control_plane.errors import ConflictError
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
from loopx.control_plane.turn_driver.transaction import LoopXTurnResultKind
from loopx.control_plane.work_items.lease import TURN_LEASE_MS
from loopx.store import goals, leases, ledger, schedules, turns
from loopx.store.store import Store
from loopx.testing import CountingIds, FakeClock, find_leaks, temporary_store

GOAL, AGENT = GoalId("goal"), AgentId("loopx")
RESOURCE = turns.turn_resource(GOAL, AGENT)
PROGRESS = TurnResult(
    kind=LoopXTurnResultKind.VALIDATED_PROGRESS,
    tree_before="a",
    tree_after="b",
    changed=True,
    contract=ContractState.RED,
)
STEPS: tuple[JournalStep, ...] = (
    HostExecuted(HostReport(run_id="run", engine="command:true", end_kind="success", handed_over=True)),
    ResultTyped(PROGRESS),
    Validated(),
    WrittenBack(None),
    SlotSpent(),
    ScheduleApplied(NextDue()),
    ScheduleAcked(),
    Finished(),
)
PHASES = len(STEPS) - 1


class Hand:
    """What one process remembers of a turn: it may be out of date, and it may be a dead process's."""

    def __init__(self, owner: str, journal: TurnJournal, fence: Fence) -> None:
        self.owner = owner
        self.journal = journal
        self.fence = fence


class Machine(RuleBasedStateMachine):
    """The store and its model side by side."""

    hands = Bundle("hands")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="loopx-machine-")
        self.clock = FakeClock()
        self.ids = CountingIds()
        self.stores = {name: temporary_store(self.folder, clock=self.clock, ids=self.ids) for name in ("a", "b")}
        with self.stores["a"].write() as tx:
            goals.create(tx, GOAL, GoalDefinition(objective="x"), "/nowhere", "tree", self.clock.now_ms())
            schedules.create(tx, Schedule(goal_id=GOAL), self.clock.now_ms())
        # The model.
        self.epoch = 0
        self.holder: str | None = None
        self.expires = 0
        self.open: TurnKey | None = None
        self.completed = 0
        self.spent: list[TurnKey] = []
        self.closed: list[TurnKey] = []

    def teardown(self) -> None:
        for store in self.stores.values():
            store.close()
        shutil.rmtree(self.folder)

    # -- what the model says --

    def lease_is_free(self, dead: str | None) -> bool:
        return self.expires <= self.clock.now_ms() or (self.holder is not None and self.holder == dead)

    def holds(self, fence: Fence) -> bool:
        return fence.epoch == self.epoch and self.expires > self.clock.now_ms()

    def take(self, owner: str) -> None:
        self.epoch += 1
        self.holder, self.expires = owner, self.clock.now_ms() + TURN_LEASE_MS

    # -- what workers do --

    @initialize(target=hands, who=st.sampled_from("ab"))
    def first(self, who: str) -> Hand:
        return self._start(who, None)

    @rule(target=hands, who=st.sampled_from("ab"), dead=st.sampled_from([None, "a", "b"]))
    def start(self, who: str, dead: str | None) -> Hand:
        if self.open is not None:
            self._refused({"turn_open"}, lambda: self._start(who, dead))
            return self._nobody(who)
        if not self.lease_is_free(dead):
            self._refused({"lease_held"}, lambda: self._start(who, dead))
            return self._nobody(who)
        return self._start(who, dead)

    def _nobody(self, who: str) -> Hand:
        """A hand with an epoch that never was."""
        journal = self.stores[who].load(self.open or self.closed[-1])
        return Hand(who, journal, Fence(resource=RESOURCE, epoch=0))  # type: ignore[arg-type]

    def _start(self, who: str, dead: str | None) -> Hand:
        store = self.stores[who]
        key = turn_key(GOAL, AGENT, self.ids.new("nonce"))
        request = turns.StartTurn(
            turn_key=key,
            goal_id=GOAL,
            agent_id=AGENT,
            owner=who,
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
            dead_owner=dead,
        )
        with store.write() as tx:
            journal, fence = turns.start(tx, request, self.clock.now_ms())
        self.take(who)
        assert fence.epoch == self.epoch
        self.open, self.completed = key, 0
        return Hand(who, journal, fence)

    @rule(target=hands, who=st.sampled_from("ab"), dead=st.sampled_from([None, "a", "b"]))
    def take_over(self, who: str, dead: str | None) -> Hand:
        store = self.stores[who]
        key = self.open or self.closed[-1]

        def act() -> Hand:
            with store.write() as tx:
                journal, fence = turns.take_over(tx, key, who, self.clock.now_ms(), dead_owner=dead)
            return Hand(who, journal, fence)

        if self.open is None:
            self._refused({"turn_closed"}, act)
            return self._nobody(who)
        if not self.lease_is_free(dead):
            self._refused({"lease_held"}, act)
            return self._nobody(who)
        hand = act()
        self.take(who)
        assert hand.fence.epoch == self.epoch
        assert hand.journal.turn.completed == self.completed
        return hand

    @rule(hand=hands, many=st.integers(1, len(STEPS)))
    def commit(self, hand: Hand, many: int) -> None:
        """Go on from where this process thinks that the turn is."""
        believed = hand.journal.turn.completed
        key = hand.journal.turn.turn_key
        steps = STEPS[believed : believed + many]
        current = key == self.open and believed == self.completed

        def act() -> TurnJournal:
            return self.stores[hand.owner].commit(key, hand.fence, steps)

        if not current or not self.holds(hand.fence):
            self._refused({"prefix_moved", "lease_lost"}, act)
            return
        hand.journal = act()
        self.completed = min(PHASES, believed + len(steps))
        if believed <= 4 < believed + len(steps):
            self.spent.append(key)
        if believed + len(steps) == len(STEPS):
            self.open, self.expires = None, 0
            self.closed.append(key)
        assert hand.journal.turn.completed == self.completed

    @rule(hand=hands)
    def read_again(self, hand: Hand) -> None:
        """A late writer may look before it writes; its fence is as old as it was."""
        hand.journal = self.stores[hand.owner].load(hand.journal.turn.turn_key)

    @rule(hand=hands)
    def renew(self, hand: Hand) -> None:
        with self.stores[hand.owner].write() as tx:
            kept = leases.renew(tx, RESOURCE, hand.fence.epoch, TURN_LEASE_MS, self.clock.now_ms())
        assert kept == self.holds(hand.fence)
        if kept:
            self.expires = self.clock.now_ms() + TURN_LEASE_MS

    @rule(hand=hands)
    def let_go(self, hand: Hand) -> None:
        with self.stores[hand.owner].write() as tx:
            leases.release(tx, RESOURCE, hand.fence.epoch)
        if hand.fence.epoch == self.epoch:
            self.expires = 0

    @rule(who=st.sampled_from("ab"))
    def crash(self, who: str) -> None:
        """The process is gone, and another of the same name opens the store again."""
        self.stores[who].close()
        self.stores[who] = temporary_store(self.folder, clock=self.clock, ids=self.ids)

    @rule(hand=hands)
    def spend_again(self, hand: Hand) -> None:
        """Somebody repeats a spend of a settled turn: the first receipt comes back, and nothing moves."""
        key = hand.journal.turn.turn_key
        if key not in self.spent:
            return
        with self.stores[hand.owner].write() as tx:
            receipt = ledger.spend(tx, GOAL, f"{key}/quota_spend", 1, self.clock.now_ms(), turn_key=key)
        assert receipt.replayed
        assert receipt.entry.run_index == self.spent.index(key) + 1

    @rule(ms=st.sampled_from([1, 1000, TURN_LEASE_MS - 1, TURN_LEASE_MS, TURN_LEASE_MS * 3]))
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(ms=st.sampled_from([-TURN_LEASE_MS * 2, -1000, 1000, TURN_LEASE_MS * 2]))
    def clock_jumps(self, ms: int) -> None:
        self.clock.jump(ms)

    # -- what must always hold --

    @invariant()
    def the_store_is_as_the_model(self) -> None:
        store: Store = self.stores["a"]
        with store.read() as tx:
            lease = leases.get(tx, RESOURCE)
            entries = ledger.page(tx, GOAL)
            current = turns.open_turn(tx, GOAL, AGENT)
            index = goals.row_of(tx, GOAL)["run_index"]
        assert current == self.open
        assert index == len(self.spent)
        assert [entry.turn_key for entry in entries] == self.spent
        if lease is not None:
            assert (lease.epoch, lease.expires_at_ms) == (self.epoch, self.expires)
        if self.open is not None:
            assert store.load(self.open).turn.completed == self.completed

    @invariant()
    def the_books_balance(self) -> None:
        assert find_leaks(self.stores["a"], open_turns=True, processes=False) == ()

    def _refused(self, codes: set[str], act: Any) -> None:
        try:
            act()
        except ConflictError as error:
            assert error.code in codes, f"{error.code}, wanted {codes}"
            return
        raise AssertionError(f"allowed, wanted {codes}")


@pytest.mark.parametrize(
    "examples", [pytest.param(20, id="some"), pytest.param(600, id="many", marks=pytest.mark.chaos)]
)
@pytest.mark.timeout(3600)
def test_two_workers_against_the_model(examples: int) -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
