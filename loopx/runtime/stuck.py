"""When open todos are left and a new plan can't help: a person is asked, instead of planning for ever.

A review that only its own author is here to do becomes a question about the review; a todo that is blocked and that a
replan did not free becomes a question about going on. It asks and decides nothing else.
"""

from __future__ import annotations

from loopx.control_plane.ids import GoalId
from loopx.control_plane.turn_driver.journal import GateDraft
from loopx.control_plane.work_items.gate import GateKind
from loopx.control_plane.work_items.todo import TaskClass, Todo, TodoStatus
from loopx.runtime.gate_service import CONTINUE, STOP
from loopx.runtime.todo_service import own_gate_key
from loopx.store import gates, goals, todos
from loopx.store.connection import Tx
from loopx.store.store import Store

NO_PROGRESS = "no_progress"
BLOCKED_QUESTION = "blocked_todo"
_LOOKED_AT = 50


def ask_breaker(store: Store, goal_id: str) -> None:
    """Ask whether to go on although nothing moves; asked once, however often it comes up."""
    draft = GateDraft(kind=GateKind.BREAKER, question=NO_PROGRESS, dedupe_key="breaker", options=(CONTINUE, STOP))
    with store.write() as tx:
        gates.ask(tx, GoalId(goal_id), store.ids.new("g"), draft, store.now_ms())


def ask_if_in_vain(store: Store, goal_id: str) -> bool:
    """Ask about the first todo that holds the goal up; False when a replan may still help."""
    now = store.now_ms()
    with store.write() as tx:
        row = goals.row_of(tx, goal_id)
        # What time alone has ended holds nothing up, and is written down before anybody is asked about it.
        todos.wake_due(tx, goal_id, now)
        gates.expire_due(tx, goal_id, now)
        left = _holding_up(todos.unended(tx, goal_id, _LOOKED_AT))
        persons = [todo for todo in left if _is_for_a_person(todo)]
        if persons and len(persons) == len(left):
            return _ask(tx, store, persons[0], _by_a_person(persons[0]), now)
        blocked = [todo for todo in left if todo.status is TodoStatus.BLOCKED and todo.wake is None]
        if row["replan_tried"] and (blocked or persons):
            first = blocked[0] if blocked else persons[0]
            return _ask(tx, store, first, _about_blocked(first) if blocked else _by_a_person(first), now)
    return False


def _holding_up(every: tuple[Todo, ...]) -> list[Todo]:
    """What others wait for, and not what itself waits for another open todo, or only watches."""
    ahead = {todo.todo_id for todo in every}
    return [
        todo
        for todo in every
        if not ahead.intersection(todo.depends_on)
        and not (todo.wake is not None and todo.wake.todo_id in ahead)
        and (todo.task_class is not TaskClass.MONITOR or todo.status is TodoStatus.BLOCKED)
    ]


def _is_for_a_person(todo: Todo) -> bool:
    """A review that nobody here may do, or a person's todo that nobody was asked about (it was opened again).

    A claim on one is over: a live one would be waited for.
    """
    person = todo.task_class in (TaskClass.REVIEW, TaskClass.USER)
    return person and todo.status in (TodoStatus.OPEN, TodoStatus.CLAIMED)


def _by_a_person(todo: Todo) -> GateDraft:
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
