"""Todos: the work graph. Dependencies and gates are counted on the row, so that `ready` is one indexed look-up."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loopx.control_plane.errors import ConflictError, NotFoundError, UsageError
from loopx.control_plane.ids import AgentId, GoalId, TodoId, TurnKey
from loopx.control_plane.work_items.todo import (
    ENDED_TODO_STATUSES,
    GOAL_ITSELF,
    Continuation,
    Monitor,
    TaskClass,
    Todo,
    TodoStatus,
    Wake,
    WakeKind,
)
from loopx.store import events, selection
from loopx.store.codec import dump, load
from loopx.store.connection import Row, Tx


def insert(tx: Tx, todo: Todo) -> None:
    """Add a todo with its dependencies. Raises NotFoundError (`todo_unknown`) for one that is not of this goal."""
    open_deps = 0
    for dependency in todo.depends_on:
        row = tx.one("todos.get", todo_id=dependency)
        if row is None or row["goal_id"] != todo.goal_id:
            raise NotFoundError(
                "todo_unknown", f"{todo.goal_id} has no todo {dependency}", hint=f"loopx todo list {todo.goal_id}"
            )
        if row["status"] not in ENDED_TODO_STATUSES:
            open_deps += 1
    if todo.task_class is TaskClass.ADVANCEMENT and todo.reason != GOAL_ITSELF:
        for row in tx.all("todos.displace", goal_id=todo.goal_id, reason=GOAL_ITSELF, now_ms=todo.created_at_ms):
            body = {"todo_id": row["todo_id"], "reason": "sliced", "by": "loopx"}
            events.append(tx, todo.goal_id, "todo_superseded", todo.created_at_ms, body)
    wake = todo.wake
    tx.run(
        "todos.insert",
        todo_id=todo.todo_id,
        goal_id=todo.goal_id,
        title=todo.title,
        body=todo.body,
        task_class=todo.task_class,
        status=todo.status,
        priority=todo.priority,
        open_deps=open_deps,
        open_gates=0,
        checks=bytes(todo.checks).decode(),
        write_scope=dump(todo.write_scope),
        reviews=todo.reviews,
        wake_kind=wake.kind if wake else None,
        wake_at_ms=_wake_at(wake, todo.created_at_ms),
        wake_todo=wake.todo_id if wake else None,
        wake=dump(wake) if wake else None,
        monitor=dump(todo.monitor) if todo.monitor else None,
        monitor_due_ms=todo.created_at_ms if todo.monitor else None,
        reason=todo.reason,
        now_ms=todo.created_at_ms,
    )
    for dependency in todo.depends_on:
        tx.run("todos.insert_dep", todo_id=todo.todo_id, depends_on=dependency)
    body = {"todo_id": todo.todo_id, "title": todo.title, "status": todo.status}
    events.append(tx, todo.goal_id, "todo_added", todo.created_at_ms, body)


def _wake_at(wake: Wake | None, now_ms: int) -> int | None:
    """When to look at a wake condition: its instant, or for a probe at once."""
    if wake is None:
        return None
    return now_ms if wake.kind is WakeKind.PROBE and wake.at_ms is None else wake.at_ms


def from_row(tx: Tx, row: Row) -> Todo:
    return Todo(
        todo_id=TodoId(row["todo_id"]),
        goal_id=GoalId(row["goal_id"]),
        title=row["title"],
        body=row["body"],
        task_class=TaskClass(row["task_class"]),
        status=TodoStatus(row["status"]),
        priority=row["priority"],
        depends_on=tuple(TodoId(dep["depends_on"]) for dep in tx.all("todos.deps", todo_id=row["todo_id"])),
        checks=msgspec.Raw(row["checks"].encode()),
        write_scope=load(row["write_scope"], tuple[str, ...]),
        reviews=row["reviews"],
        wake=load(row["wake"], Wake) if row["wake"] else None,
        monitor=load(row["monitor"], Monitor) if row["monitor"] else None,
        continuation=load(row["continuation"], Continuation) if row["continuation"] else None,
        claimed_by=row["claimed_by"],
        done_by=row["done_by"],
        last_turn=row["last_turn"],
        reason=row["reason"],
        created_at_ms=row["created_at_ms"],
        updated_at_ms=row["updated_at_ms"],
    )


def get(tx: Tx, todo_id: str, goal_id: str | None = None) -> Todo:
    """Raises NotFoundError (`todo_unknown`), also for a todo of another goal."""
    row = tx.one("todos.get", todo_id=todo_id)
    if row is None or (goal_id is not None and row["goal_id"] != goal_id):
        where = f" in {goal_id}" if goal_id else ""
        raise NotFoundError("todo_unknown", f"no todo {todo_id!r}{where}", hint="loopx todo list")
    return from_row(tx, row)


def page(tx: Tx, goal_id: str, *, after: str = "", limit: int = 200) -> tuple[Todo, ...]:
    return tuple(from_row(tx, row) for row in tx.all("todos.page", goal_id=goal_id, after=after, limit=limit))


def unended(tx: Tx, goal_id: str, limit: int = 50) -> tuple[Todo, ...]:
    return tuple(from_row(tx, row) for row in tx.all("todos.unended_page", goal_id=goal_id, limit=limit))


def claim(
    tx: Tx, goal_id: str, todo_id: str, agent_id: AgentId, now_ms: int, *, turn_key: TurnKey | None = None
) -> None:
    """Mark as claimed, by a turn or by hand. Raises ConflictError (`todo_taken`) when it is not ready any more."""
    claimed = tx.run(
        "todos.claim", todo_id=todo_id, goal_id=goal_id, agent_id=agent_id, turn_key=turn_key, now_ms=now_ms
    )
    if claimed != 1:
        todo = get(tx, todo_id, goal_id)
        raise ConflictError(
            "todo_taken",
            f"todo {todo_id} is {todo.status}" + (f" by {todo.claimed_by}" if todo.claimed_by else ""),
            hint=f"loopx todo list {goal_id}",
            data={"todo_id": todo_id, "status": todo.status, "claimed_by": todo.claimed_by},
        )


def require_no_overlap(tx: Tx, goal_id: str, todo_id: str, agent_id: str, now_ms: int) -> None:
    """Raises ConflictError (`scope_overlap`): another agent works on a todo that may write the same files."""
    row = tx.one("todos.get", todo_id=todo_id)
    other = selection.overlapping(tx, goal_id, row, agent_id, now_ms) if row is not None else None
    if other is not None:
        raise ConflictError(
            "scope_overlap",
            f"todo {other['todo_id']} is claimed and may write the same files as {todo_id}",
            hint="take another todo first",
            data={"todo_id": other["todo_id"], "claimed_by": other["claimed_by"]},
        )


def release(tx: Tx, todo_id: str, now_ms: int) -> bool:
    return tx.run("todos.release", todo_id=todo_id, now_ms=now_ms) == 1


def finish(
    tx: Tx,
    goal_id: str,
    todo_id: str,
    by: str | None,
    continuation: Continuation | None,
    now_ms: int,
    turn_key: TurnKey | None = None,
) -> None:
    """Mark as done and let go of what waited for it. Raises ConflictError (`todo_ended`)."""
    encoded = dump(continuation) if continuation else None
    if (
        tx.run(
            "todos.finish",
            todo_id=todo_id,
            agent_id=by,
            continuation=encoded,
            continuation_kind=continuation.kind if continuation else None,
            now_ms=now_ms,
        )
        != 1
    ):
        raise ConflictError("todo_ended", f"todo {todo_id} has ended already", hint=f"loopx todo show {todo_id}")
    _release_dependents(tx, goal_id, todo_id, now_ms)
    events.append(tx, goal_id, "todo_done", now_ms, {"todo_id": todo_id, "by": by}, turn_key)


def _release_dependents(tx: Tx, goal_id: str, todo_id: str, now_ms: int) -> None:
    tx.run("todos.recount_deps", todo_id=todo_id, now_ms=now_ms)
    woken = tx.all("todos.wake_by_todo", goal_id=goal_id, todo_id=todo_id, now_ms=now_ms)
    if woken:
        events.append(tx, goal_id, "todos_woken", now_ms, {"todo_ids": [row["todo_id"] for row in woken]})


def set_status(
    tx: Tx,
    todo: Todo,
    status: TodoStatus,
    now_ms: int,
    *,
    reason: str = "",
    wake: Wake | None = None,
    by: str = "",
    turn_key: TurnKey | None = None,
) -> None:
    """Move a todo between statuses that are not `done`.

    Raises ConflictError (`todo_moved`), UsageError (`use_finish`).
    """
    if status is TodoStatus.DONE:
        raise UsageError("use_finish", "a todo is finished by completing it", hint="loopx todo complete")
    changed = tx.run(
        "todos.set_status",
        todo_id=todo.todo_id,
        expected=todo.status,
        status=status,
        reason=reason,
        wake_kind=wake.kind if wake else None,
        wake_at_ms=_wake_at(wake, now_ms),
        wake_todo=wake.todo_id if wake else None,
        wake=dump(wake) if wake else None,
        now_ms=now_ms,
    )
    if changed != 1:
        raise ConflictError(
            "todo_moved", f"todo {todo.todo_id} is no longer {todo.status}", hint="run the command again"
        )
    if status in ENDED_TODO_STATUSES:
        _release_dependents(tx, todo.goal_id, todo.todo_id, now_ms)
    elif todo.status in ENDED_TODO_STATUSES:
        tx.run("todos.recount_deps", todo_id=todo.todo_id, now_ms=now_ms)
    body = {"todo_id": todo.todo_id, "from": todo.status, "reason": reason, "by": by}
    events.append(tx, todo.goal_id, f"todo_{status}", now_ms, body, turn_key)


def reorder(tx: Tx, goal_id: str, order: Sequence[TodoId], now_ms: int) -> None:
    """Give the named todos falling priorities, the first one the highest."""
    top = len(order)
    for place, todo_id in enumerate(order):
        tx.run("todos.set_priority", goal_id=goal_id, todo_id=todo_id, priority=top - place, now_ms=now_ms)


def wake_due(tx: Tx, goal_id: str, now_ms: int) -> int:
    """Open the deferred todos whose instant has come; how many."""
    # Most of the time nothing sleeps; to look costs a fifth of an update, which opens every index of the table.
    if tx.one("todos.any_wake_due", goal_id=goal_id, now_ms=now_ms) is None:
        return 0
    woken = [row["todo_id"] for row in tx.all("todos.wake_by_instant", goal_id=goal_id, now_ms=now_ms)]
    events.append(tx, goal_id, "todos_woken", now_ms, {"todo_ids": woken})
    return len(woken)


def wake_instant(wake: Wake | None) -> int | None:
    return wake.at_ms if wake is not None and wake.kind is WakeKind.INSTANT else None
