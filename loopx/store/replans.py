"""Carrying out a replan's delta: todos added, dropped, reordered, in the transaction of whoever decided it.

That is the turn's own write-back, or a person's answer where the goal wants each new plan confirmed. The contract is
never touched here.
"""

from __future__ import annotations

from collections.abc import Callable

from loopx.control_plane.ids import GoalId, TodoId, TurnKey
from loopx.control_plane.turn_driver.journal import ReplanDelta
from loopx.control_plane.work_items.todo import Todo, TodoStatus
from loopx.store import todos
from loopx.store.connection import Tx

_MOVABLE = frozenset({TodoStatus.OPEN, TodoStatus.BLOCKED, TodoStatus.DEFERRED})


def apply(
    tx: Tx,
    goal_id: GoalId,
    delta: ReplanDelta,
    now_ms: int,
    new_id: Callable[[str], str],
    *,
    by: str,
    turn_key: TurnKey | None = None,
) -> None:
    """Carry the delta out. A todo to be dropped that somebody works on, or that has ended, is left alone."""
    for draft in delta.add:
        todo = Todo(
            todo_id=TodoId(new_id("td")),
            goal_id=goal_id,
            title=draft.title,
            body=draft.body,
            priority=draft.priority,
            created_at_ms=now_ms,
        )
        todos.insert(tx, todo)
    for todo_id in delta.drop:
        todo = todos.get(tx, todo_id, goal_id)
        if todo.status in _MOVABLE:
            todos.set_status(tx, todo, TodoStatus.SUPERSEDED, now_ms, reason="replanned", by=by, turn_key=turn_key)
    todos.reorder(tx, goal_id, delta.order, now_ms)
