"""What people, and agents with a runner of their own, do with todos: add, claim, release, change, end.

A claim is a lease, taken in the transaction that selects. Nothing here runs a check or starts a host; who completes
without a person's word brings evidence that was produced elsewhere (`todo_proof`). It is imported by hot commands, so
that it loads neither contracts nor hosts.
"""

from __future__ import annotations

import msgspec

from loopx.control_plane.errors import ConflictError, NeedsPersonError, NotNowError, UsageError
from loopx.control_plane.goal import CLOSED_GOAL_STATES, GoalState
from loopx.control_plane.ids import AgentId, GoalId, TodoId, TurnKey
from loopx.control_plane.work_items.lease import CLAIM_LEASE_MS
from loopx.control_plane.work_items.todo import (
    ENDED_TODO_STATUSES,
    Continuation,
    ContinuationKind,
    Monitor,
    TaskClass,
    Todo,
    TodoStatus,
    Wake,
    WakeKind,
)
from loopx.store import events, gates, goals, leases, selection, todos
from loopx.store.connection import Tx
from loopx.store.store import Store

TITLE_CHARS = 500
BODY_CHARS = 20_000
PRIORITY_MOST = 1_000_000
MONITOR_LEAST_MS = 1_000


class NewTodo(msgspec.Struct, frozen=True, kw_only=True):
    """A todo as it is asked for. `checks` are encoded already; `every_ms` belongs to a monitor."""

    title: str
    body: str = ""
    priority: int = 0
    depends_on: tuple[str, ...] = ()
    checks: msgspec.Raw = msgspec.Raw(b"[]")
    write_scope: tuple[str, ...] = ()
    review_of: str | None = None
    for_person: bool = False
    monitor: tuple[str, ...] = ()
    every_ms: int = 300_000
    wake: Wake | None = None


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A claim. `epoch` is the fence that every write of the claimant carries."""

    todo_id: str
    goal_id: str
    title: str
    agent_id: str
    epoch: int
    expires_at_ms: int


class TodoMoved(msgspec.Struct, frozen=True, kw_only=True):
    """A todo that was made or changed."""

    todo_id: str
    goal_id: str
    status: str


def add(store: Store, goal_id: str, new: NewTodo, by: str) -> Todo:
    """Add a todo. A review waits for what it reviews; a person's todo asks that person.

    Raises NotFoundError (`goal_unknown`, `todo_unknown`), ConflictError (`goal_closed`), UsageError (`title_empty`,
    `title_long`, `priority_invalid`, `todo_kinds`, `monitor_too_often`).
    """
    _require_sound(new)
    now = store.now_ms()
    with store.write() as tx:
        _require_open(tx, goal_id)
        depends_on = tuple(dict.fromkeys((*new.depends_on, *((new.review_of,) if new.review_of else ()))))
        todo = Todo(
            todo_id=TodoId(store.ids.new("td")),
            goal_id=GoalId(goal_id),
            title=new.title.strip(),
            body=new.body,
            task_class=_class_of(new),
            status=TodoStatus.DEFERRED if new.wake is not None else TodoStatus.OPEN,
            priority=new.priority,
            depends_on=tuple(TodoId(one) for one in depends_on),
            checks=new.checks,
            write_scope=new.write_scope,
            reviews=TodoId(new.review_of) if new.review_of else None,
            wake=new.wake,
            monitor=Monitor(argv=new.monitor, every_ms=new.every_ms) if new.monitor else None,
            created_at_ms=now,
        )
        todos.insert(tx, todo)
        if new.for_person:
            _ask_person(tx, store, todo, now)
        tx.run("goals.wake_active", goal_id=goal_id, now_ms=now)
    return todo


def _ask_person(tx: Tx, store: Store, todo: Todo, now_ms: int) -> None:
    """A person's todo is a question too, so that it reaches a person; the answer and the todo end together."""
    from loopx.control_plane.turn_driver.journal import GateDraft
    from loopx.control_plane.work_items.gate import GateKind

    draft = GateDraft(
        kind=GateKind.QUESTION,
        question=todo.title,
        dedupe_key=own_gate_key(todo.todo_id),
        options=("done",),
        blocks_goal=False,
        todos=(todo.todo_id,),
    )
    gates.ask(tx, todo.goal_id, store.ids.new("g"), draft, now_ms)


def own_gate_key(todo_id: str) -> str:
    """The dedupe key of the question that stands for a person's todo."""
    return f"todo:{todo_id}"


def _class_of(new: NewTodo) -> TaskClass:
    if new.for_person:
        return TaskClass.USER
    if new.monitor:
        return TaskClass.MONITOR
    return TaskClass.REVIEW if new.review_of else TaskClass.ADVANCEMENT


def _require_sound(new: NewTodo) -> None:
    require_text(new.title, new.body, new.priority)
    if sum((bool(new.monitor), bool(new.review_of), new.for_person)) > 1:
        raise UsageError("todo_kinds", "a todo is one of: a monitor, a review, a person's", hint="make two todos of it")
    if new.monitor and new.every_ms < MONITOR_LEAST_MS:
        raise UsageError("monitor_too_often", "a monitor looks at most once a second", hint="--every 5m")


def require_text(title: str, body: str, priority: int) -> None:
    """Raises UsageError (`title_empty`, `title_long`, `body_long`, `priority_invalid`)."""
    if not title.strip():
        raise UsageError("title_empty", "a todo needs a title", hint="say in a few words what is to be done")
    if len(title) > TITLE_CHARS:
        raise UsageError("title_long", f"a title has at most {TITLE_CHARS} characters", hint="the rest: --body TEXT")
    if len(body) > BODY_CHARS:
        raise UsageError("body_long", f"a body has at most {BODY_CHARS} characters", hint="name a file instead")
    if abs(priority) > PRIORITY_MOST:
        raise UsageError("priority_invalid", f"a priority is within {PRIORITY_MOST}", hint="higher goes first")


def _require_open(tx: Tx, goal_id: str) -> None:
    state = goals.row_of(tx, goal_id)["state"]
    if state in CLOSED_GOAL_STATES:
        raise ConflictError("goal_closed", f"goal {goal_id} is {state}", hint=f"loopx goal reopen {goal_id}")


def claim(
    store: Store, goal_id: str, todo_id: str | None, agent_id: AgentId, *, turn_key: TurnKey | None = None
) -> Claimed:
    """Claim a todo, or the next one that is ready (None): selected and leased in one transaction.

    Claiming one's own again renews it under a new epoch. `turn_key`: the claimant's turn, which must still be open
    (ConflictError `turn_over`). Raises NotNowError (`nothing_ready`, `goal_not_active`),
    ConflictError (`lease_held`, `todo_taken`, `scope_overlap`), NeedsPersonError (`four_eyes`), NotFoundError.
    """
    now = store.now_ms()
    with store.write() as tx:
        row = goals.row_of(tx, goal_id)
        if turn_key is not None and tx.one("turns.is_open", turn_key=turn_key) is None:
            raise ConflictError("turn_over", "the turn of this token is over", hint="a token dies with its turn")
        if row["state"] != GoalState.ACTIVE:
            raise NotNowError("goal_not_active", f"goal {goal_id} is {row['state']}", hint=f"loopx goal show {goal_id}")
        todos.wake_due(tx, goal_id, now)
        gates.expire_due(tx, goal_id, now)
        if todo_id is None:
            return _claim_next(tx, goal_id, agent_id, now, turn_key)
        todo = todos.get(tx, todo_id, goal_id)
        require_four_eyes(tx, todo, agent_id)
        return _take(tx, todo, agent_id, now, turn_key)


def _claim_next(tx: Tx, goal_id: str, agent_id: AgentId, now_ms: int, turn_key: TurnKey | None) -> Claimed:
    selected = selection.select(tx, goal_id, agent_id, now_ms)
    if selected.ready is not None:
        return _take(tx, todos.get(tx, selected.ready.todo_id), agent_id, now_ms, turn_key)
    raise NotNowError(
        "nothing_ready",
        f"no todo of {goal_id} can be claimed now",
        hint=f"loopx todo list {goal_id}",
        data={"overlapping": selected.held is not None},
    )


def _take(tx: Tx, todo: Todo, agent_id: AgentId, now_ms: int, turn_key: TurnKey | None) -> Claimed:
    todos.require_no_overlap(tx, todo.goal_id, todo.todo_id, agent_id, now_ms)
    # A claim belongs to the agent, so that it may be renewed by its own next process.
    epoch = leases.acquire(tx, f"todo:{todo.todo_id}", agent_id, CLAIM_LEASE_MS, now_ms, dead_owner=agent_id)
    todos.claim(tx, todo.goal_id, todo.todo_id, agent_id, now_ms)
    body = {"todo_id": todo.todo_id, "by": agent_id, "epoch": epoch}
    events.append(tx, todo.goal_id, "todo_claimed", now_ms, body, turn_key)
    return Claimed(
        todo_id=todo.todo_id,
        goal_id=todo.goal_id,
        title=todo.title,
        agent_id=agent_id,
        epoch=epoch,
        expires_at_ms=now_ms + CLAIM_LEASE_MS,
    )


def _is_own_review(tx: Tx, todo: Todo, agent_id: str) -> bool:
    return todo.reviews is not None and todos.get(tx, todo.reviews).done_by == agent_id


def require_four_eyes(tx: Tx, todo: Todo, who: str) -> None:
    """Raises NeedsPersonError (`four_eyes`): whoever did the work can't review it."""
    if _is_own_review(tx, todo, who):
        raise NeedsPersonError(
            "four_eyes",
            f"{who} did {todo.reviews} and can't review it",
            hint=f"somebody else completes it: loopx todo complete {todo.todo_id}",
            data={"todo_id": todo.todo_id},
        )


def release(store: Store, todo_id: str, by: AgentId | None) -> TodoMoved:
    """Give a claim up. `by` None: a person, who may take anybody's away. Raises ConflictError (`not_yours`)."""
    now = store.now_ms()
    with store.write() as tx:
        todo = todos.get(tx, todo_id)
        require_own(todo, by)
        if todos.release(tx, todo_id, now):
            events.append(tx, todo.goal_id, "todo_released", now, {"todo_id": todo_id, "by": by or "person"})
        _let_go(tx, todo_id)
        tx.run("goals.wake_active", goal_id=todo.goal_id, now_ms=now)
        return _moved(tx, todo_id)


def require_own(todo: Todo, by: AgentId | None) -> None:
    """Raises ConflictError (`not_yours`): an agent moves only what it has claimed."""
    if by is not None and todo.claimed_by != by:
        holder = f"claimed by {todo.claimed_by}" if todo.claimed_by else str(todo.status)
        raise ConflictError(
            "not_yours",
            f"todo {todo.todo_id} is {holder}, not claimed by {by}",
            hint=f"loopx todo claim {todo.goal_id} {todo.todo_id} --agent-id {by}",
            data={"claimed_by": todo.claimed_by},
        )


def _let_go(tx: Tx, todo_id: str) -> None:
    held = leases.get(tx, f"todo:{todo_id}")
    if held is not None:
        leases.release(tx, held.resource, held.epoch)


def _moved(tx: Tx, todo_id: str) -> TodoMoved:
    todo = todos.get(tx, todo_id)
    return TodoMoved(todo_id=todo_id, goal_id=todo.goal_id, status=todo.status)


class TodoEdit(msgspec.Struct, frozen=True, kw_only=True):
    """What changes; None leaves a field as it is."""

    title: str | None = None
    body: str | None = None
    priority: int | None = None
    checks: msgspec.Raw | None = None


def update(store: Store, todo_id: str, edit: TodoEdit, by: str) -> TodoMoved:
    """Raises UsageError (`nothing_to_edit`, ...), ConflictError (`todo_ended`), NotFoundError (`todo_unknown`)."""
    said = {name: getattr(edit, name) for name in edit.__struct_fields__ if getattr(edit, name) is not None}
    if not said:
        raise UsageError("nothing_to_edit", "nothing to change was named", hint="loopx todo update --help")
    now = store.now_ms()
    with store.write() as tx:
        old = todos.get(tx, todo_id)
        if old.status in ENDED_TODO_STATUSES:
            raise ConflictError("todo_ended", f"todo {todo_id} is {old.status}", hint=f"loopx todo show {todo_id}")
        new = msgspec.structs.replace(old, **said)
        require_text(new.title, new.body, new.priority)
        tx.run(
            "todos.edit",
            todo_id=todo_id,
            title=new.title,
            body=new.body,
            priority=new.priority,
            checks=bytes(new.checks).decode(),
            now_ms=now,
        )
        body = {"todo_id": todo_id, "what": sorted(said), "by": by}
        events.append(tx, old.goal_id, "todo_edited", now, body)
        return _moved(tx, todo_id)


def complete(store: Store, todo_id: str, by: str, successors: tuple[str, ...] = (), note: str = "") -> TodoMoved:
    """Mark as done, on a person's word or on evidence that was produced before.

    Raises ConflictError (`todo_ended`), NeedsPersonError (`four_eyes`), NotFoundError (`todo_unknown`).
    """
    now = store.now_ms()
    with store.write() as tx:
        todo = todos.get(tx, todo_id)
        require_four_eyes(tx, todo, by)
        for one in successors:
            todos.get(tx, one, todo.goal_id)
        kind = ContinuationKind.SUCCESSOR if successors else ContinuationKind.ACTIVE_GOAL
        continuation = Continuation(kind=kind, successors=tuple(TodoId(one) for one in successors))
        todos.finish(tx, todo.goal_id, todo_id, by, continuation, now)
        if note:
            events.append(tx, todo.goal_id, "todo_note", now, {"todo_id": todo_id, "by": by, "note": note[:2000]})
        _let_go(tx, todo_id)
        _answer_own_gates(tx, todo, by, now)
        tx.run("goals.wake_active", goal_id=todo.goal_id, now_ms=now)
        return _moved(tx, todo_id)


def _answer_own_gates(tx: Tx, todo: Todo, by: str, now_ms: int) -> None:
    """Questions that were only about this todo have no subject any more."""
    for gate in gates.open_gates(tx, todo.goal_id, 100):
        if gate.todos == (todo.todo_id,):
            gates.answer(tx, gate, "done", by, now_ms)


def move(
    store: Store,
    todo_id: str,
    status: TodoStatus,
    by: AgentId | None,
    person: str,
    *,
    reason: str = "",
    wake: Wake | None = None,
) -> TodoMoved:
    """Block, defer, drop or open a todo again. `by` None: a person.

    Raises ConflictError (`not_yours`, `todo_moved`, `todo_ended`), UsageError (`wake_missing`, `wake_circle`),
    NotFoundError (`todo_unknown`).
    """
    now = store.now_ms()
    with store.write() as tx:
        todo = todos.get(tx, todo_id)
        require_own(todo, by)
        if todo.status in ENDED_TODO_STATUSES and status is not TodoStatus.OPEN:
            raise ConflictError("todo_ended", f"todo {todo_id} is {todo.status}", hint=f"loopx todo reopen {todo_id}")
        _require_wake(tx, todo, status, wake)
        _let_go(tx, todo_id)
        if status is TodoStatus.OPEN:
            _require_open(tx, todo.goal_id)
        todos.set_status(tx, todo, status, now, reason=reason[:500], wake=wake, by=by or person)
        if status is TodoStatus.SUPERSEDED:
            _answer_own_gates(tx, todo, by or person, now)
        tx.run("goals.wake_active", goal_id=todo.goal_id, now_ms=now)
        return _moved(tx, todo_id)


def _require_wake(tx: Tx, todo: Todo, status: TodoStatus, wake: Wake | None) -> None:
    if status is TodoStatus.DEFERRED and wake is None:
        raise UsageError(
            "wake_missing", "a deferral needs what ends it", hint="--wake-at 2h, --wake-todo TODO or --wake-probe CMD"
        )
    if wake is None or wake.kind is not WakeKind.TODO_DONE or wake.todo_id is None:
        return
    other = todos.get(tx, wake.todo_id, todo.goal_id)
    if other.todo_id == todo.todo_id or todo.todo_id in _waits_for(tx, other):
        raise UsageError("wake_circle", f"{other.todo_id} waits for {todo.todo_id} itself", hint="name another todo")
    if other.status in ENDED_TODO_STATUSES:
        raise UsageError("wake_past", f"todo {other.todo_id} is {other.status} already", hint="it needs no deferral")


def _waits_for(tx: Tx, todo: Todo) -> set[str]:
    """Everything that this todo waits for, directly or not."""
    seen: set[str] = set()
    open_ones = [todo]
    while open_ones:
        current = open_ones.pop()
        after = [*current.depends_on]
        if current.wake is not None and current.wake.todo_id is not None:
            after.append(current.wake.todo_id)
        for one in after:
            if one not in seen:
                seen.add(one)
                open_ones.append(todos.get(tx, one))
    return seen
