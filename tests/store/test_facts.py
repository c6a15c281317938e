"""The facts of a decision: asking sees what starting would do, and writes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopx.control_plane.ids import GoalId, TodoId
from loopx.control_plane.quota.decision import decide
from loopx.control_plane.quota.rules import Rule
from loopx.control_plane.turn_driver.journal import GateDraft
from loopx.control_plane.work_items.gate import GateKind
from loopx.control_plane.work_items.todo import TodoStatus, Wake, WakeKind
from loopx.store import gates, todos
from loopx.store.store import Store
from tests.store.kit import AGENT, HandClock, add_todo, make_goal, open_store, start_turn

HOUR_MS = 3_600_000


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def store(tmp_path: Path, clock: HandClock) -> Store:
    made = open_store(tmp_path, clock)
    make_goal(made, todo=False)
    return made


def rule(store: Store) -> Rule:
    return decide(store.facts("goal", AGENT)).rule


def test_a_deferral_whose_instant_has_come_holds_nothing_back(store: Store, clock: HandClock) -> None:
    todo_id = add_todo(store, "goal")
    with store.write() as tx:
        wake = Wake(kind=WakeKind.INSTANT, at_ms=clock.now + HOUR_MS)
        todos.set_status(tx, todos.get(tx, todo_id), TodoStatus.DEFERRED, clock.now, wake=wake)
    assert rule(store) is Rule.BLOCKED_WITH_WAKE
    clock.pass_ms(HOUR_MS)
    facts = store.facts("goal", AGENT)
    assert (rule(store), facts.ready and facts.ready.todo_id) == (Rule.READY, todo_id)
    start_turn(store, "goal", todo_id)
    with store.read() as tx:
        assert todos.get(tx, todo_id).status is TodoStatus.CLAIMED


def ask(store: Store, clock: HandClock, todo_id: TodoId, key: str, *, expires_in: int) -> None:
    draft = GateDraft(kind=GateKind.QUESTION, question=key, dedupe_key=key, blocks_goal=False, todos=(todo_id,))
    with store.write() as tx:
        gates.ask(tx, GoalId("goal"), f"g-{key}", draft, clock.now, expires_at_ms=clock.now + expires_in)


def test_a_todo_goes_on_when_the_last_of_its_gates_has_expired(store: Store, clock: HandClock) -> None:
    todo_id = add_todo(store, "goal")
    ask(store, clock, todo_id, "first", expires_in=HOUR_MS)
    ask(store, clock, todo_id, "second", expires_in=2 * HOUR_MS)
    clock.pass_ms(HOUR_MS)
    assert rule(store) is Rule.GATE_BLOCKS
    clock.pass_ms(HOUR_MS)
    facts = store.facts("goal", AGENT)
    assert facts.ready is not None and facts.ready.todo_id == todo_id
    assert decide(facts).should_run
    start_turn(store, "goal", todo_id)
    with store.read() as tx:
        assert tx.one("gates.any_open", goal_id="goal")[0] == 0


def test_the_most_urgent_of_ready_and_woken_goes_first(store: Store, clock: HandClock) -> None:
    add_todo(store, "goal", "ready", priority=1)
    late = add_todo(store, "goal", "woken", priority=2)
    with store.write() as tx:
        wake = Wake(kind=WakeKind.INSTANT, at_ms=clock.now)
        todos.set_status(tx, todos.get(tx, late), TodoStatus.DEFERRED, clock.now, wake=wake)
    facts = store.facts("goal", AGENT)
    assert facts.ready is not None and facts.ready.todo_id == late


def test_asking_writes_nothing(store: Store) -> None:
    add_todo(store, "goal")
    before = store.connection.pragma("data_version"), _changes(store)
    rule(store)
    assert (store.connection.pragma("data_version"), _changes(store)) == before


def _changes(store: Store) -> int:
    with store.read() as tx:
        return tx.number("goals.head", goal_id="goal")
