"""Taking over goals of the other program of this name: as paused goals of ours, for a person to look at first.

A goal without a check can't be judged, so it waits for one; what its records call done is not repeated, because
nothing here has seen it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from loopx.control_plane.errors import UsageError
from loopx.control_plane.goal import Boundary, GoalDefinition, GoalState
from loopx.control_plane.ids import GoalId, TodoId
from loopx.control_plane.quota import budgets
from loopx.control_plane.quota.policy import QuotaPolicy
from loopx.control_plane.scheduler.schedule import Schedule
from loopx.control_plane.turn_driver.journal import GateDraft
from loopx.control_plane.work_items.gate import GateKind
from loopx.control_plane.work_items.todo import Todo
from loopx.runtime import goal_service
from loopx.runtime.project import Project
from loopx.runtime.rival import RivalGoal, RivalState, RivalTodo
from loopx.store import events, gates, goals, schedules, todos
from loopx.store.connection import Tx
from loopx.store.store import Store
from loopx.workspace.identity import repository_key

_ENDED = frozenset({"done", "superseded", "archived", "cancelled"})
_CLOSED_GOALS = frozenset({"completed", "done", "archived", "cancelled", "closed"})


class TakenGoal(msgspec.Struct, frozen=True, kw_only=True):
    """One goal as it was taken over. `notes` are codes for what was left out, each with its number or id."""

    goal_id: str
    rival_id: str
    todos: int
    questions: int
    notes: tuple[str, ...]


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What was taken over. `skipped`: goals that had ended."""

    registry: str
    goals: tuple[TakenGoal, ...]
    skipped: tuple[str, ...]


def take_over(store: Store, project: Project, state: RivalState, by: str) -> Taken:
    """Make a paused goal of each that is not over; all in one transaction.

    Raises UsageError (`rival_empty`) when there is nothing to take.
    """
    wanted = [goal for goal in state.goals if goal.status.lower() not in _CLOSED_GOALS]
    skipped = tuple(goal.rival_id for goal in state.goals if goal not in wanted)
    if not wanted:
        raise UsageError(
            "rival_empty", f"{state.registry} has no goal that is not over", hint="there is nothing to take over"
        )
    tree_key = repository_key(Path(project.root))
    with store.write() as tx:
        taken = tuple(_take(store, tx, project, tree_key, goal, by) for goal in wanted)
    return Taken(registry=state.registry, goals=taken, skipped=skipped)


def _take(store: Store, tx: Tx, project: Project, tree_key: str, goal: RivalGoal, by: str) -> TakenGoal:
    now = store.now_ms()
    notes = list(goal.notes)
    name = goal_service.free_id(tx, goal_service.slug(goal.rival_id))
    definition = GoalDefinition(
        objective=goal.objective,
        quota=_quota(goal, notes),
        boundary=Boundary(write_scope=goal.write_scope),
    )
    goals.create(tx, name, definition, project.root, tree_key, now)
    schedules.create(tx, Schedule(goal_id=name), now)
    made = _todos(store, tx, name, goal, notes, now)
    asked = _questions(store, tx, name, goal, now)
    goals.set_state(tx, name, GoalState.ACTIVE, GoalState.PAUSED, now, by, "imported")
    events.append(tx, name, "goal_imported", now, {"from": goal.rival_id, "notes": notes, "by": by})
    return TakenGoal(goal_id=name, rival_id=goal.rival_id, todos=made, questions=asked, notes=tuple(notes))


def _quota(goal: RivalGoal, notes: list[str]) -> QuotaPolicy:
    """Its allocation, where this program would accept it."""
    written = {"compute": goal.compute, "window_hours": goal.window_hours}
    try:
        return budgets.read_quota_policy({name: value for name, value in written.items() if value is not None})
    except UsageError as error:
        notes.append(f"quota_not_usable:{error.data.get('field')}")
        return QuotaPolicy()


def _todos(store: Store, tx: Tx, goal_id: GoalId, goal: RivalGoal, notes: list[str], now_ms: int) -> int:
    """The agent's todos that have not ended, their dependencies kept where both ends are taken."""
    ids: dict[str, TodoId] = {}
    mine = [todo for todo in goal.todos if todo.owner == "agent" and todo.task_class != "user_gate"]
    open_ones = [todo for todo in mine if todo.status not in _ENDED]
    work = [todo for todo in open_ones if "monitor" not in todo.task_class]
    notes += [f"monitor_left_out:{todo.rival_id or todo.title[:40]}" for todo in open_ones if todo not in work]
    ended = len(mine) - len(open_ones)
    if ended:
        notes.append(f"ended_todos_left_out:{ended}")
    for todo in _after_their_own(work):
        made = TodoId(store.ids.new("td"))
        after = ids.get(todo.after) if todo.after is not None else None
        if todo.after is not None and after is None:
            notes.append(f"dependency_left_out:{todo.rival_id}")
        todos.insert(
            tx,
            Todo(
                todo_id=made,
                goal_id=goal_id,
                title=todo.title or todo.rival_id,
                priority=todo.priority,
                depends_on=(after,) if after is not None else (),
                created_at_ms=now_ms,
            ),
        )
        if todo.rival_id:
            ids[todo.rival_id] = made
    return len(work)


def _after_their_own(work: list[RivalTodo]) -> list[RivalTodo]:
    """What others wait for comes first; in a circle somebody has to begin, and that link is left out."""
    left, ordered = list(work), []
    while left:
        waiting = {todo.rival_id for todo in left if todo.rival_id}
        first = next((todo for todo in left if todo.after not in waiting), left[0])
        left.remove(first)
        ordered.append(first)
    return ordered


def _questions(store: Store, tx: Tx, goal_id: GoalId, goal: RivalGoal, now_ms: int) -> int:
    """What it left to a person is asked here, and holds the goal back as it did there."""
    open_ones = [
        todo
        for todo in goal.todos
        if todo.status not in _ENDED and (todo.owner == "user" or todo.task_class == "user_gate")
    ]
    for todo in open_ones:
        draft = GateDraft(
            kind=GateKind.QUESTION,
            question=todo.title[:2000],
            dedupe_key=f"imported:{todo.rival_id or todo.title[:200]}",
            options=("done", "not needed"),
        )
        gates.ask(tx, goal_id, store.ids.new("g"), draft, now_ms)
    return len(open_ones)
