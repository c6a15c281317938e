"""Todos as people and programs read them: one whole, or a page of them. It writes nothing, and loads nothing heavy."""

from __future__ import annotations

import msgspec

from loopx.control_plane.errors import NotFoundError
from loopx.control_plane.work_items.todo import (
    ENDED_TODO_STATUSES,
    Continuation,
    Monitor,
    Todo,
    TodoStatus,
    Wake,
)
from loopx.store import goals, leases, todos
from loopx.store.connection import Tx
from loopx.store.store import Store


class TodoShown(msgspec.Struct, frozen=True, kw_only=True):
    """A todo whole, with its claim's end and whether it can be taken now."""

    todo_id: str
    goal_id: str
    title: str
    body: str
    task_class: str
    status: str
    priority: int
    ready: bool
    depends_on: tuple[str, ...]
    checks: msgspec.Raw
    write_scope: tuple[str, ...]
    reviews: str | None
    wake: Wake | None
    monitor: Monitor | None
    continuation: Continuation | None
    claimed_by: str | None
    claim_ends_at_ms: int | None
    done_by: str | None
    last_turn: str | None
    reason: str
    open_gates: int
    created_at_ms: int
    updated_at_ms: int


def show(store: Store, todo_id: str, goal_id: str | None = None) -> TodoShown:
    """Raises NotFoundError (`todo_unknown`)."""
    with store.read() as tx:
        return shown(tx, todos.get(tx, todo_id, goal_id))


class TodoPage(msgspec.Struct, frozen=True, kw_only=True):
    """`next_after`: the cursor of the next page, None at the end."""

    todos: tuple[TodoShown, ...]
    next_after: str | None


def page(store: Store, goal_id: str, *, after: str, limit: int, every: bool) -> TodoPage:
    """The todos of a goal by id, from a cursor; without `every`, only those that have not ended.

    Raises NotFoundError (`goal_unknown`).
    """
    found: list[Todo] = []
    with store.read() as tx:
        goals.row_of(tx, goal_id)
        while len(found) <= limit:
            rows = todos.page(tx, goal_id, after=after, limit=limit + 1)
            found += [todo for todo in rows if every or todo.status not in ENDED_TODO_STATUSES]
            if len(rows) <= limit:
                break
            after = rows[-1].todo_id
        some = tuple(shown(tx, todo) for todo in found[:limit])
    return TodoPage(todos=some, next_after=some[-1].todo_id if some and len(found) > limit else None)


def shown(tx: Tx, todo: Todo) -> TodoShown:
    """The todo with what its row and its lease add."""
    row = tx.one("todos.get", todo_id=todo.todo_id)
    if row is None:
        raise NotFoundError("todo_unknown", f"no todo {todo.todo_id!r}", hint="loopx todo list GOAL")
    held = leases.get(tx, f"todo:{todo.todo_id}") if todo.status is TodoStatus.CLAIMED else None
    ready = todo.status is TodoStatus.OPEN and row["open_deps"] == 0 and row["open_gates"] == 0
    return TodoShown(
        todo_id=todo.todo_id,
        goal_id=todo.goal_id,
        title=todo.title,
        body=todo.body,
        task_class=todo.task_class,
        status=todo.status,
        priority=todo.priority,
        ready=ready,
        depends_on=todo.depends_on,
        checks=todo.checks,
        write_scope=todo.write_scope,
        reviews=todo.reviews,
        wake=todo.wake,
        monitor=todo.monitor,
        continuation=todo.continuation,
        claimed_by=todo.claimed_by,
        claim_ends_at_ms=held.expires_at_ms if held is not None else None,
        done_by=todo.done_by,
        last_turn=todo.last_turn,
        reason=todo.reason,
        open_gates=row["open_gates"],
        created_at_ms=todo.created_at_ms,
        updated_at_ms=todo.updated_at_ms,
    )
