"""Todos as text: the list, and one todo whole."""

from __future__ import annotations

import shlex

import msgspec

from loopx.control_plane.work_items.todo import Wake, WakeKind
from loopx.presentation.renderers import words
from loopx.runtime.todo_reads import TodoPage, TodoShown


def page_text(page: TodoPage, goal_id: str, now_ms: int) -> str:
    """One line for each todo; what it waits for stands beside it."""
    if not page.todos:
        return f'  nothing is open in {goal_id}   loopx todo add {goal_id} "TITLE"'
    lines = [
        f"  {todo.todo_id}  {_state(todo):<9}  {words.one_line(todo.title, 56)}{_waits(todo, now_ms)}"
        for todo in page.todos
    ]
    if page.next_after is not None:
        lines.append(f"  more:  loopx todo list {goal_id} --after {page.next_after}")
    return "\n".join(lines)


def _state(todo: TodoShown) -> str:
    if todo.status == "open" and not todo.ready:
        return "waits"
    return words.word(words.TODO_STATUSES, todo.status)


def _waits(todo: TodoShown, now_ms: int) -> str:
    parts = []
    if todo.priority:
        parts.append(f"priority {todo.priority}")
    if todo.claimed_by:
        ends = f", {words.until(todo.claim_ends_at_ms, now_ms)}" if todo.claim_ends_at_ms else ""
        parts.append(f"by {todo.claimed_by}{ends}")
    if todo.depends_on and not todo.ready and todo.status == "open":
        parts.append(f"after {', '.join(todo.depends_on)}")
    if todo.open_gates:
        parts.append("a person is asked")
    if todo.wake is not None:
        parts.append(wake_text(todo.wake, now_ms))
    if todo.task_class != "advancement":
        parts.append(str(todo.task_class))
    if todo.status in ("blocked", "deferred") and todo.reason:
        parts.append(words.one_line(todo.reason, 40))
    return f"   {words.joined(parts)}" if parts else ""


def wake_text(wake: Wake, now_ms: int) -> str:
    """What ends a deferral."""
    if wake.kind is WakeKind.INSTANT and wake.at_ms is not None:
        return f"wakes {words.clock(wake.at_ms, now_ms)}"
    if wake.kind is WakeKind.TODO_DONE:
        return f"wakes when {wake.todo_id} is done"
    return f"wakes when {words.one_line(shlex.join(wake.probe), 40)} succeeds"


def todo_text(todo: TodoShown, now_ms: int) -> str:
    """One todo with everything that is known of it."""
    checks = msgspec.json.decode(todo.checks, type=list[dict[str, object]])
    lines = [
        f"  {todo.todo_id}   {words.one_line(todo.title, 100)}",
        *_row("state", words.joined([_state(todo), _waits(todo, now_ms).strip()])),
        *_row("goal", todo.goal_id),
        *[line for part in todo.body.splitlines()[:20] for line in _row("", words.one_line(part, 110))],
        *_row("checks", ", ".join(str(check.get("name")) for check in checks)),
        *_row("writes", ", ".join(todo.write_scope)),
        *_row("reviews", todo.reviews or ""),
        *_row("watches", _monitor(todo)),
        *_row("done by", todo.done_by or ""),
        *_row("last turn", f"loopx turn show {todo.last_turn}" if todo.last_turn else ""),
        *_row("changed", words.ago(todo.updated_at_ms, now_ms)),
    ]
    return "\n".join(lines)


def _monitor(todo: TodoShown) -> str:
    if todo.monitor is None:
        return ""
    return f"{shlex.join(todo.monitor.argv)}   every {words.span(todo.monitor.every_ms)}"


def _row(name: str, text: str) -> list[str]:
    return [f"    {name:<11}{text}"] if text else []
