"""A real store on a real file, with a clock and ids that a test holds in its hand."""

from __future__ import annotations

import itertools
from pathlib import Path

from loopx.control_plane.goal import GoalDefinition
from loopx.control_plane.ids import AgentId, GoalId, TodoId, TurnKey
from loopx.control_plane.quota.policy import Budget, QuotaPolicy
from loopx.control_plane.scheduler.schedule import Schedule
from loopx.control_plane.turn_driver.driver import LoopXTurnRoute
from loopx.control_plane.turn_driver.journal import Fence, TurnJournal, TurnPurpose
from loopx.control_plane.work_items.todo import Todo
from loopx.store import goals, schedules, todos, turns
from loopx.store.connection import Connection
from loopx.store.store import Store

START_MS = 1_800_000_000_000
AGENT = AgentId("loopx")


class HandClock:
    """Time moves when the test says so."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now = now_ms

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now

    def pass_ms(self, ms: int) -> None:
        self.now += ms


class CountedIds:
    """Ids that count up, so that a failing test reads the same twice."""

    def __init__(self) -> None:
        self._next = itertools.count(1)

    def new(self, prefix: str) -> str:
        return f"{prefix}{next(self._next):06d}"

    def secret(self) -> str:
        return f"secret-{next(self._next)}"


def open_store(folder: Path, clock: HandClock | None = None) -> Store:
    return Store(Connection(str(folder / "loopx.db"), create=True), clock or HandClock(), CountedIds())


def make_goal(
    store: Store,
    goal_id: str = "goal",
    *,
    allowed: int | None = 5,
    window_hours: float = 24,
    budgets: tuple[Budget, ...] = (),
    todo: bool = True,
    root: str = "/nowhere",
) -> GoalId:
    """An active goal with its schedule and one ready todo."""
    name, now = GoalId(goal_id), store.now_ms()
    definition = GoalDefinition(
        objective=f"do {goal_id}",
        engines=("command:true",),
        quota=QuotaPolicy(allowed_slots=allowed, window_hours=window_hours),
        budgets=budgets,
    )
    with store.write() as tx:
        goals.create(tx, name, definition, root, f"tree-{goal_id}", now)
        schedules.create(tx, Schedule(goal_id=name), now)
    if todo:
        add_todo(store, goal_id)
    return name


def add_todo(
    store: Store, goal_id: str, title: str = "a slice", *, priority: int = 0, depends_on: tuple[TodoId, ...] = ()
) -> TodoId:
    made = Todo(
        todo_id=TodoId(store.ids.new("td")),
        goal_id=GoalId(goal_id),
        title=title,
        created_at_ms=store.now_ms(),
        priority=priority,
        depends_on=depends_on,
    )
    with store.write() as tx:
        todos.insert(tx, made)
    return made.todo_id


def start_turn(
    store: Store, goal_id: str, todo_id: str | None, *, agent: AgentId = AGENT, owner: str = "here/boot/1/1"
) -> tuple[TurnJournal, Fence]:
    with store.write() as tx:
        row = goals.row_of(tx, goal_id)
        request = turns.StartTurn(
            turn_key=TurnKey(store.ids.new("t-")),
            goal_id=GoalId(goal_id),
            agent_id=agent,
            owner=owner,
            revision=row["revision"],
            purpose=TurnPurpose.WORK,
            route=LoopXTurnRoute.READY_FOR_HOST,
            engine="command:true",
            todo_id=TodoId(todo_id) if todo_id is not None else None,
            new_todo=None,
            predecessor=None,
            tree_before="0" * 40,
            envelope="{}",
            decision="{}",
            token_hash=None,
        )
        return turns.start(tx, request, store.now_ms())
