"""When open todos are left and a new plan can't help: a person is asked, instead of planning for ever.

A review that only its own author is here to do becomes a question about the review; a todo that is blocked and that a
replan did not free becomes a question about going on. It asks and decides nothing else.
"""

from __future__ import annotations

from loopx.control_plane.turn_driver.journal import GateDraft
from loopx.control_plane.work_items.gate import GateKind
from loopx.control_plane.work_items.todo import TaskClass, Todo, TodoStatus
from loopx.runtime.gate_service import CONTINUE, STOP
from loopx.runtime.todo_service import own_gate_key
from loopx.store import gates, goals, todos
from loopx.store.connection import Tx
from loopx.store.store import Store

BLOCKED_QUESTION = "blocked_todo"
_LOOKED_AT = 50


def ask_if_in_vain(store: Store, goal_id: str) -> bool:
    """Ask about the first todo that holds the goal up; False when a replan may still help."""
    now = store.now_ms()
    with store.write() as tx:
        row = goals.row_of(tx, goal_id)
        every = [todo for todo in todos.unended(tx, goal_id, _LOOKED_AT) if todo.task_class is not TaskClass.MONITOR]
        ahead = {todo.todo_id for todo in every}
        # What waits for another open todo is not what holds the goal up.
        left = [todo for todo in every if not ahead.intersection(todo.depends_on)]
        reviews = [todo for todo in left if todo.task_class is TaskClass.REVIEW and todo.status is TodoStatus.OPEN]
        blocked = [todo for todo in left if todo.status is TodoStatus.BLOCKED and todo.wake is None]
        if reviews and len(reviews) == len(left):
            return _ask(tx, store, reviews[0], _review(reviews[0]), now)
        if row["replan_tried"] and blocked:
            return _ask(tx, store, blocked[0], _about_blocked(blocked[0]), now)
    return False


def _review(todo: Todo) -> GateDraft:
    return GateDraft(
        kind=GateKind.QUESTION,
        question=todo.title,
        dedupe_key=own_gate_key(todo.todo_id),
        options=("done",),
        blocks_goal=False,
        todos=(todo.todo_id,),
    )


def _about_blocked(todo: Todo) -> GateDraft:
    return GateDraft(
        kind=GateKind.BREAKER,
        question=BLOCKED_QUESTION,
        dedupe_key=f"blocked:{todo.todo_id}",
        options=(CONTINUE, STOP),
        blocks_goal=False,
        todos=(todo.todo_id,),
    )


def _ask(tx: Tx, store: Store, todo: Todo, draft: GateDraft, now_ms: int) -> bool:
    gates.ask(tx, todo.goal_id, store.ids.new("g"), draft, now_ms)
    return True
