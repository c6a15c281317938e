"""Agents and people at work on one goal in any order, on a real store, against a model of who holds what.

The machine makes the moves; `Guide` then follows whatever LoopX says is next, from wherever the moves have led, and
must reach the end of the goal.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from loopx.control_plane.errors import ConflictError, LoopXError
from loopx.control_plane.ids import AgentId, Epoch, GoalId
from loopx.control_plane.quota import decision as decisions
from loopx.control_plane.quota.explain import ChangeKind, explain
from loopx.control_plane.quota.facts import ContractState
from loopx.control_plane.quota.rules import EffectiveAction, Rule
from loopx.control_plane.turn_driver.driver import REPLAN_ACTIONS
from loopx.control_plane.turn_driver.journal import (
    Finished,
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
from loopx.control_plane.work_items import scopes
from loopx.control_plane.work_items.lease import CLAIM_LEASE_MS, TURN_LEASE_MS
from loopx.control_plane.work_items.todo import (
    Continuation,
    ContinuationKind,
    TodoStatus,
    Wake,
    WakeKind,
)
from loopx.runtime import gate_service, replaying, stuck, todo_service
from loopx.runtime.todo_service import NewTodo
from loopx.store import facts, gates, leases, todos, turns
from loopx.store.store import Store
from tests.store import kit

GOAL = GoalId("goal")
AGENTS = ("a", "b")
SCOPES: tuple[tuple[str, ...], ...] = ((), (), ("src/**",), ("src/a.py",), ("docs/**",))
MOVES = (TodoStatus.BLOCKED, TodoStatus.DEFERRED, TodoStatus.SUPERSEDED, TodoStatus.OPEN)
MOST_STEPS = 200


def _result(done: bool) -> TurnResult:
    return TurnResult(
        kind=LoopXTurnResultKind.VALIDATED_COMPLETION if done else LoopXTurnResultKind.VALIDATED_PROGRESS,
        continuation=Continuation(kind=ContinuationKind.ACTIVE_GOAL) if done else None,
        tree_before="a",
        tree_after="b",
        changed=True,
        contract=ContractState.GREEN,
    )


def commit_turn(store: Store, journal: Any, fence: Any, *, done: bool) -> None:
    """Everything that follows a start, in one commit."""
    report = HostReport(
        run_id=f"run-{journal.turn.turn_key}", engine="command:true", end_kind="success", handed_over=True
    )
    steps = (
        HostExecuted(report),
        ResultTyped(_result(done)),
        Validated(),
        WrittenBack(None),
        SlotSpent(),
        ScheduleApplied(NextDue()),
        ScheduleAcked(),
        Finished(),
    )
    store.commit(journal.turn.turn_key, fence, steps)


def decide(store: Store, agent: str) -> tuple[Any, Any]:
    with store.read() as tx:
        found = facts.read(tx, GOAL, AgentId(agent), store.now_ms())
    return found, decisions.decide(found)


class Interleavings(RuleBasedStateMachine):
    """The moves. Each is refused with a typed error or does what it says; the model checks after every one."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="loopx-interleavings-")
        self.clock = kit.HandClock()
        self.store = kit.open_store(Path(self.folder), self.clock)
        kit.make_goal(self.store, allowed=10_000, todo=False)
        with self.store.write() as tx:
            tx.run("goals.set_contract", goal_id=GOAL, contract_state="green", contract_tree="b")
        self.ids: list[str] = []
        self.epochs: dict[str, int] = {}
        self.held: dict[str, tuple[str, int]] = {}
        """Who holds a todo's claim, and until when."""
        self.answers: dict[str, str] = {}

    def teardown(self) -> None:
        try:
            Guide(self.store, self.clock).to_the_end()
        finally:
            self.store.close()
            shutil.rmtree(self.folder)

    @initialize()
    def first(self) -> None:
        self.ids = [self._add(), self._add()]

    # -- moves --

    def _add(self, **fields: Any) -> str:
        return str(todo_service.add(self.store, GOAL, NewTodo(title="a slice", **fields), "ada").todo_id)

    def _todo(self, pick: int) -> str:
        return self.ids[pick % len(self.ids)]

    def _try(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except LoopXError as refused:
            return refused

    @rule(pick=st.integers(0, 9), scope=st.sampled_from(SCOPES), kind=st.sampled_from("pdrwu"), at=st.integers(0, 3))
    def add(self, pick: int, scope: tuple[str, ...], kind: str, at: int) -> None:
        if len(self.ids) >= 7:
            return
        other = self._todo(pick)
        more: dict[str, Any] = {
            "p": {},
            "d": {"depends_on": (other,)},
            "r": {"review_of": other},
            "w": {"wake": Wake(kind=WakeKind.INSTANT, at_ms=self.clock.now + 1000)},
            "u": {"for_person": True},
        }[kind]
        made = self._try(lambda: self._add(write_scope=scope, priority=at, **more))
        if isinstance(made, str):
            self.ids.append(made)

    @rule(pick=st.integers(0, 9), agent=st.sampled_from(AGENTS), named=st.booleans())
    def claim(self, pick: int, agent: str, named: bool) -> None:
        """Take one, or renew one's own."""
        wanted = self._todo(pick) if named else None
        now = self.clock.now
        claimed = self._try(lambda: todo_service.claim(self.store, GOAL, wanted, AgentId(agent)))
        if isinstance(claimed, LoopXError):
            return
        holder, until = self.held.get(claimed.todo_id, (agent, 0))
        assert holder == agent or until <= now, f"{claimed.todo_id}: {agent} took what {holder} holds"
        assert claimed.epoch > self.epochs.get(claimed.todo_id, 0)
        self.epochs[claimed.todo_id] = claimed.epoch
        self.held[claimed.todo_id] = (agent, claimed.expires_at_ms)

    @rule(pick=st.integers(0, 9), back=st.integers(0, 1))
    def renew(self, pick: int, back: int) -> None:
        """By a process that may have lost it: only the newest epoch renews, and only while it is not over."""
        todo_id = self._todo(pick)
        epoch = self.epochs.get(todo_id, 0) - back
        if epoch < 1:
            return
        with self.store.write() as tx:
            kept = leases.renew(tx, f"todo:{todo_id}", Epoch(epoch), CLAIM_LEASE_MS, self.clock.now)
        if kept:
            assert todo_id in self.held and not back and self.held[todo_id][1] > self.clock.now
            self.held[todo_id] = (self.held[todo_id][0], self.clock.now + CLAIM_LEASE_MS)

    @rule(pick=st.integers(0, 9), who=st.sampled_from((None, "a", "b")))
    def release(self, pick: int, who: str | None) -> None:
        agent = AgentId(who) if who is not None else None
        if not isinstance(self._try(lambda: todo_service.release(self.store, self._todo(pick), agent)), LoopXError):
            self.held.pop(self._todo(pick), None)

    @rule(pick=st.integers(0, 9), who=st.sampled_from(("ada", "a", "b")))
    def complete(self, pick: int, who: str) -> None:
        todo_id = self._todo(pick)
        with self.store.read() as tx:
            todo = todos.get(tx, todo_id)
            reviewed = todos.get(tx, todo.reviews).done_by if todo.reviews else None
        done = self._try(lambda: todo_service.complete(self.store, todo_id, who))
        assert who != reviewed or isinstance(done, LoopXError), "four eyes"
        if not isinstance(done, LoopXError):
            self.held.pop(todo_id, None)

    @rule(pick=st.integers(0, 9), other=st.integers(0, 9), status=st.sampled_from(MOVES), wakes=st.sampled_from("nit"))
    def move(self, pick: int, other: int, status: TodoStatus, wakes: str) -> None:
        """Block, defer, drop or open again, by a person."""
        wake = {
            "n": None,
            "i": Wake(kind=WakeKind.INSTANT, at_ms=self.clock.now + 5000),
            "t": Wake(kind=WakeKind.TODO_DONE, todo_id=self._todo(other)),  # type: ignore[arg-type]
        }[wakes]
        wake = wake if status in (TodoStatus.BLOCKED, TodoStatus.DEFERRED) else None
        moved = self._try(lambda: todo_service.move(self.store, self._todo(pick), status, None, "ada", wake=wake))
        if not isinstance(moved, LoopXError):
            self.held.pop(self._todo(pick), None)

    @rule(pick=st.integers(0, 9), scoped=st.booleans(), expires=st.booleans())
    def ask(self, pick: int, scoped: bool, expires: bool) -> None:
        about = (self._todo(pick),) if scoped else ()
        until = self.clock.now + 3000 if expires else None
        text = f"question {pick % 3}?"
        self._try(lambda: gate_service.ask(self.store, GOAL, text, (), about, until))

    @rule(pick=st.integers(0, 9), text=st.sampled_from(("yes", "no", "done")))
    def answer(self, pick: int, text: str) -> None:
        """The first answer counts, and no later one."""
        with self.store.read() as tx:
            known = [str(row["gate_id"]) for row in tx.all("gates.page", goal_id=GOAL, after="", limit=100)]
        if not known:
            return
        gate_id = known[pick % len(known)]
        said = self._try(lambda: gate_service.answer(self.store, gate_id, text, "ada"))
        if isinstance(said, LoopXError):
            return
        assert gate_id not in self.answers, "answered twice"
        self.answers[gate_id] = said.answer
        if said.ended_todo is not None:
            self.held.pop(said.ended_todo, None)

    @rule(agent=st.sampled_from(AGENTS), done=st.booleans(), meanwhile=st.sampled_from("nsrbe"))
    def turn(self, agent: str, done: bool, meanwhile: str) -> None:
        """A whole turn, and what somebody else does between its start and its end."""
        _, decision = decide(self.store, agent)
        if not decision.should_run or decision.selected_todo is None:
            return
        todo_id = decision.selected_todo.todo_id
        started = self._try(lambda: kit.start_turn(self.store, GOAL, todo_id, agent=AgentId(agent), owner=agent))
        if isinstance(started, LoopXError):
            assert started.code in ("lease_held", "scope_overlap"), started.code
            return
        holder, until = self.held.get(todo_id, (agent, 0))
        assert holder == agent or until <= self.clock.now
        with self.store.read() as tx:
            lease = leases.get(tx, f"todo:{todo_id}")
        assert lease is not None and lease.epoch > self.epochs.get(todo_id, 0)
        self.epochs[todo_id] = lease.epoch
        self.held[todo_id] = (agent, lease.expires_at_ms)
        self._meanwhile(meanwhile, todo_id)
        self._end(agent, *started, done=done)
        self.held.pop(todo_id, None)

    def _meanwhile(self, what: str, todo_id: str) -> None:
        if what == "s":
            self._try(lambda: todo_service.move(self.store, todo_id, TodoStatus.SUPERSEDED, None, "ada"))
        elif what == "b":
            self._try(lambda: todo_service.move(self.store, todo_id, TodoStatus.BLOCKED, None, "ada"))
        elif what == "r":
            self._try(lambda: todo_service.complete(self.store, todo_id, "ada"))
        elif what == "e":
            self.clock.pass_ms(TURN_LEASE_MS + 1)

    def _end(self, agent: str, journal: Any, fence: Any, *, done: bool) -> None:
        try:
            commit_turn(self.store, journal, fence, done=done)
        except ConflictError as late:
            assert late.code == "lease_lost"
            with self.store.write() as tx:
                journal, fence = turns.take_over(tx, journal.turn.turn_key, agent, self.clock.now)
            commit_turn(self.store, journal, fence, done=done)

    @rule(ms=st.sampled_from((1, 2000, 6000, CLAIM_LEASE_MS - 1, CLAIM_LEASE_MS)))
    def time_passes(self, ms: int) -> None:
        self.clock.pass_ms(ms)

    # -- what must always hold --

    @invariant()
    def nobody_shares_a_todo(self) -> None:
        now = self.clock.now
        with self.store.read() as tx:
            claimed = [one for one in todos.page(tx, GOAL) if one.status is TodoStatus.CLAIMED]
            live = []
            for todo in claimed:
                lease = leases.get(tx, f"todo:{todo.todo_id}")
                if lease is not None and lease.expires_at_ms > now:
                    assert lease.owner == todo.claimed_by
                    live.append(todo)
        for todo_id, (agent, until) in self.held.items():
            if until > now:
                assert todo_id in {one.todo_id for one in live if one.claimed_by == agent}, "a live claim was lost"
        for one in live:
            for other in live:
                if one.claimed_by != other.claimed_by:
                    assert not scopes.overlap(one.write_scope, other.write_scope), "two writers of the same files"

    @invariant()
    def no_answer_is_lost(self) -> None:
        with self.store.read() as tx:
            for gate_id, text in self.answers.items():
                gate = gates.get(tx, gate_id)
                assert (gate.status, gate.answer) == ("answered", text)

    @invariant()
    def the_counts_are_what_is_there(self) -> None:
        with self.store.read() as tx:
            assert tx.all("care.counters") == []

    @invariant()
    def the_log_tells_the_same(self) -> None:
        told = replaying.replay(self.store, GOAL)
        assert told.agrees, told.differences


class Guide:
    """Does what LoopX says is next, as the runner and a person would, until nothing is left."""

    def __init__(self, store: Store, clock: kit.HandClock) -> None:
        self.store = store
        self.clock = clock

    def to_the_end(self) -> None:
        seen = []
        for _ in range(MOST_STEPS):
            found, decision = decide(self.store, "a")
            seen.append((decision.rule, decision.reason))
            if decision.rule is Rule.NOTHING_LEFT:
                return
            self._step(found, decision)
        raise AssertionError(f"a dead end: {seen[-8:]}")

    def _step(self, found: Any, decision: Any) -> None:
        if decision.should_run and decision.effective_action in REPLAN_ACTIONS:
            # As the runner does; a replan that brings nothing is the worst that can happen.
            blocked = decision.rule is Rule.BLOCKED_WITHOUT_WAKE
            if not (blocked and stuck.ask_if_in_vain(self.store, GOAL)):
                self._replan_in_vain()
        elif decision.should_run:
            assert decision.selected_todo is not None
            journal, fence = kit.start_turn(self.store, GOAL, decision.selected_todo.todo_id, agent=AgentId("a"))
            commit_turn(self.store, journal, fence, done=True)
        elif decision.effective_action is EffectiveAction.USER_ACTION:
            if decision.rule is Rule.REPLAN_IN_VAIN and not found.gates:
                stuck.ask_breaker(self.store, GOAL)
                return
            self._answer(found, decision)
        else:
            wake = decision.wake_after_ms
            assert wake is not None, f"nothing runs, nobody is asked, and no time helps: {decision.reason}"
            self.clock.now = max(self.clock.now + 1, wake)

    def _answer(self, found: Any, decision: Any) -> None:
        """The printed command, with one of the question's own options."""
        printed = [change.command for change in explain(found, decision).changes if change.kind is ChangeKind.COMMAND]
        [gate_id, *_] = [words[3] for words in printed if words[1:3] == ("gate", "answer")]
        with self.store.read() as tx:
            options = gates.get(tx, gate_id).options
        gate_service.answer(self.store, gate_id, options[0] if options else "yes", "ada")

    def _replan_in_vain(self) -> None:
        connection = sqlite3.connect(self.store.path)
        with connection:
            before = connection.execute("SELECT replan_tried FROM goals").fetchone()
            connection.execute("UPDATE goals SET replan_tried = 1")
        connection.close()
        with self.store.read() as tx:
            left = [(one.task_class, one.status) for one in todos.unended(tx, GOAL)]
        assert before == (0,), f"a replan was tried, and another is due: {left}"
