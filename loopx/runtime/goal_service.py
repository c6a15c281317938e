"""What people do with goals: create, edit, pause, resume, stop, close, reopen. Each is one transaction."""

from __future__ import annotations

import re

import msgspec

from loopx.contracts.model import Contract
from loopx.control_plane.errors import ConflictError, UsageError
from loopx.control_plane.goal import CLOSED_GOAL_STATES, Goal, GoalDefinition, GoalState
from loopx.control_plane.ids import GoalId, TodoId
from loopx.control_plane.scheduler.schedule import Schedule, reopen_schedule
from loopx.control_plane.work_items.todo import GOAL_ITSELF, Todo
from loopx.hosts import registry
from loopx.runtime.project import Project
from loopx.store import goals, schedules, todos, turns
from loopx.store.connection import Tx
from loopx.store.store import Store

_WORD = re.compile(r"[a-z0-9]+")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_SMALL = frozenset(
    {
        "a",
        "an",
        "the",
        "to",
        "of",
        "and",
        "or",
        "in",
        "on",
        "for",
        "with",
        "make",
        "all",
        "that",
        "is",
        "it",
        "so",
        "be",
    }
)
ID_CHARS = 40


def require_goal_name(name: str) -> GoalId:
    """Raises UsageError (`bad_goal_id`): an id is also a branch's name, and is typed by people."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            "bad_goal_id", f"{name!r} can't be a goal's id", hint="use a-z, 0-9 and -, at most 63 characters"
        )
    return GoalId(name)


def slug(objective: str) -> str:
    """A short, readable id from an objective's telling words."""
    words = _WORD.findall(objective.lower())
    telling = [word for word in words if word not in _SMALL] or words or ["goal"]
    text = ""
    for word in telling:
        joined = f"{text}-{word}" if text else word
        if len(joined) > ID_CHARS:
            break
        text = joined
    return (text or telling[0][:ID_CHARS]).strip("-")


def free_id(tx: Tx, wanted: str) -> GoalId:
    """`wanted`, or the first `wanted-N` that no goal has."""
    candidate, number = wanted, 1
    while goals.exists(tx, candidate):
        number += 1
        candidate = f"{wanted}-{number}"
    return GoalId(candidate)


def require_definition(definition: GoalDefinition) -> None:
    """Raises UsageError: `objective_empty`, `unknown_engine`, `breaker_invalid`, `timeout_invalid`."""
    if not definition.objective.strip():
        raise UsageError("objective_empty", "a goal needs an objective", hint='loopx run "OBJECTIVE" --check CMD')
    for word in definition.engines:
        registry.kind_of(word)
    if definition.breaker_threshold < 1:
        raise UsageError("breaker_invalid", "breaker_threshold: at least 1", hint="the default is 3")
    if definition.turn_timeout_s < 1:
        raise UsageError("timeout_invalid", "turn_timeout_s: at least 1", hint="the default is 3600")


def create(
    store: Store,
    project: Project,
    definition: GoalDefinition,
    tree_key: str,
    *,
    goal_id: str | None = None,
    titles: tuple[str, ...] = (),
) -> Goal:
    """Create a goal with its schedule and its first todos, the first title first; without any, the goal is one itself.

    Raises UsageError for a bad definition or id, ConflictError (`goal_exists`) for a taken id.
    """
    require_definition(definition)
    now = store.now_ms()
    with store.write() as tx:
        name = require_goal_name(goal_id) if goal_id is not None else free_id(tx, slug(definition.objective))
        goals.create(tx, name, definition, project.root, tree_key, now)
        schedules.create(tx, Schedule(goal_id=name), now)
        for todo in _first_todos(store, name, definition.objective, titles, now):
            todos.insert(tx, todo)
        return goals.get(tx, name)


def _first_todos(store: Store, goal_id: GoalId, objective: str, titles: tuple[str, ...], now_ms: int) -> list[Todo]:
    if not titles:
        new = TodoId(store.ids.new("td"))
        return [Todo(todo_id=new, goal_id=goal_id, title=objective, reason=GOAL_ITSELF, created_at_ms=now_ms)]
    return [
        Todo(
            todo_id=TodoId(store.ids.new("td")),
            goal_id=goal_id,
            title=title,
            priority=len(titles) - place,
            created_at_ms=now_ms,
        )
        for place, title in enumerate(titles)
    ]


def edit(
    store: Store, goal_id: str, change: GoalDefinition, what: tuple[str, ...], *, expected: int | None = None
) -> int:
    """Replace a goal's definition by a new revision; its number. A changed contract asks for a new baseline.

    `expected`: the revision that was looked at; None takes whatever there is.

    Raises ConflictError (`stale_revision`, `goal_closed`, `turn_open`), UsageError for a bad definition.
    """
    require_definition(change)
    now = store.now_ms()
    with store.write() as tx:
        goal = goals.get(tx, goal_id)
        if goal.state in CLOSED_GOAL_STATES:
            raise ConflictError("goal_closed", f"goal {goal_id} is {goal.state}", hint=f"loopx goal reopen {goal_id}")
        if bytes(goal.definition.contract) != bytes(change.contract):
            _require_no_turn(tx, goal_id)
            tx.run("goals.drop_baseline", goal_id=goal_id)
        return goals.edit(tx, goal.goal_id, goal.revision if expected is None else expected, change, now, what)


def _require_no_turn(tx: Tx, goal_id: str) -> None:
    """A turn that runs is judged by the contract under which it started."""
    open_turn = turns.open_turn(tx, goal_id)
    if open_turn is not None:
        raise ConflictError(
            "turn_open",
            f"turn {open_turn} of {goal_id} is judged by the checks as they are",
            hint=f"loopx goal pause {goal_id} lets it finish; then edit the checks",
            data={"turn_key": open_turn},
        )


_MOVES = {
    GoalState.PAUSED: frozenset({GoalState.ACTIVE}),
    GoalState.STOPPED: frozenset({GoalState.ACTIVE, GoalState.PAUSED}),
    GoalState.CANCELLED: frozenset({GoalState.ACTIVE, GoalState.PAUSED, GoalState.STOPPED}),
    GoalState.ACTIVE: frozenset({GoalState.PAUSED, GoalState.STOPPED}),
}


def move(store: Store, goal_id: str, state: GoalState, by: str, reason: str = "") -> Goal:
    """Pause, stop, cancel or resume a goal. Being there already is fine. Raises ConflictError (`goal_closed`)."""
    with store.write() as tx:
        goal = goals.get(tx, goal_id)
        if goal.state is state:
            return goal
        if goal.state not in _MOVES[state]:
            raise ConflictError("goal_closed", f"goal {goal_id} is {goal.state}", hint=f"loopx goal reopen {goal_id}")
        goals.set_state(tx, goal.goal_id, goal.state, state, store.now_ms(), by, reason)
        if state is GoalState.CANCELLED:
            schedules.close(tx, goal_id, store.now_ms())
        return goals.get(tx, goal_id)


def reopen(store: Store, goal_id: str, by: str) -> Goal:
    """Open a closed goal again, with a fresh todo for itself: the only way back from a terminal state."""
    now = store.now_ms()
    with store.write() as tx:
        goal = goals.get(tx, goal_id)
        if goal.state not in CLOSED_GOAL_STATES:
            raise ConflictError("goal_open", f"goal {goal_id} is {goal.state}", hint=f"loopx run {goal_id}")
        goals.set_state(tx, goal.goal_id, goal.state, GoalState.ACTIVE, now, by, "reopened")
        before = schedules.get(tx, goal_id)
        schedules.save(tx, before, reopen_schedule(before), now, "reopened")
        tx.run("goals.reset_streaks", goal_id=goal_id)
        tx.run("goals.set_contract", goal_id=goal_id, contract_state="unknown", contract_tree=None)
        todo = Todo(
            todo_id=TodoId(store.ids.new("td")),
            goal_id=goal.goal_id,
            title=goal.definition.objective,
            reason=GOAL_ITSELF,
            created_at_ms=now,
        )
        todos.insert(tx, todo)
        return goals.get(tx, goal_id)


def encode_contract(contract: Contract) -> msgspec.Raw:
    """The contract as a definition holds it."""
    return msgspec.Raw(msgspec.json.encode(contract))
