"""Questions to people, and what an answer does. The first answer wins; it and all that follows are one transaction.

Who may answer is decided by the caller: no agent has a way here. Nothing else is decided about the goal.
"""

from __future__ import annotations

import msgspec

from loopx.control_plane.errors import ConflictError, UsageError
from loopx.control_plane.goal import CLOSED_GOAL_STATES, GoalState
from loopx.control_plane.ids import GoalId, TodoId
from loopx.control_plane.turn_driver.journal import GateDraft
from loopx.control_plane.work_items.gate import Gate, GateKind, Grant, question_key
from loopx.control_plane.work_items.todo import ENDED_TODO_STATUSES, Continuation, ContinuationKind, TodoStatus
from loopx.store import gates, goals, todos
from loopx.store.connection import Tx
from loopx.store.store import Store

QUESTION_CHARS = 2000
ANSWER_CHARS = 4000
MOST_OPTIONS = 20
CONTINUE, STOP = "continue", "stop"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A question. `already`: the same one was open; `answer`: a standing grant answered it at once."""

    gate_id: str
    goal_id: str
    already: bool = False
    answer: str | None = None


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer did."""

    gate_id: str
    goal_id: str
    answer: str
    goal_state: str
    grant_id: str | None = None
    ended_todo: str | None = None


def ask(
    store: Store,
    goal_id: str,
    question: str,
    options: tuple[str, ...] = (),
    todo_ids: tuple[str, ...] = (),
    expires_at_ms: int | None = None,
) -> Asked:
    """Ask a person; of named todos only those wait for the answer, else the whole goal does.

    Raises UsageError (`question_empty`, `question_long`, `options_invalid`), NotFoundError, ConflictError.
    """
    _require_question(question, options)
    key = question_key(question)
    now = store.now_ms()
    with store.write() as tx:
        state = goals.row_of(tx, goal_id)["state"]
        if state in CLOSED_GOAL_STATES:
            raise ConflictError("goal_closed", f"goal {goal_id} is {state}", hint=f"loopx goal reopen {goal_id}")
        for todo_id in todo_ids:
            if todos.get(tx, todo_id, goal_id).status in ENDED_TODO_STATUSES:
                raise ConflictError("todo_ended", f"todo {todo_id} has ended", hint=f"loopx todo show {todo_id}")
        draft = GateDraft(
            kind=GateKind.QUESTION,
            question=question.strip(),
            dedupe_key=f"question:{','.join(sorted(todo_ids))}:{key}",
            options=options,
            blocks_goal=not todo_ids,
            todos=tuple(TodoId(one) for one in todo_ids),
        )
        new = store.ids.new("g")
        asked = gates.ask(tx, GoalId(goal_id), new, draft, now, expires_at_ms=expires_at_ms)
        answered = gates.get(tx, asked).answer
    return Asked(gate_id=asked, goal_id=goal_id, already=asked != new, answer=answered)


def _require_question(question: str, options: tuple[str, ...]) -> None:
    if not question.strip():
        raise UsageError("question_empty", "what is to be asked?", hint='loopx gate ask GOAL "QUESTION"')
    if len(question) > QUESTION_CHARS:
        raise UsageError("question_long", f"a question has at most {QUESTION_CHARS} characters", hint="ask shorter")
    known = [option.strip().lower() for option in options]
    if len(options) > MOST_OPTIONS or not all(known) or len(set(known)) != len(known):
        raise UsageError(
            "options_invalid", "options are different, not empty, and few", hint="--option yes --option no"
        )


def answer(
    store: Store, gate_id: str, text: str, by: str, *, always: bool = False, until_ms: int | None = None
) -> Answered:
    """Record a person's answer and do what follows from it. `always` makes a standing grant of it.

    Raises ConflictError (`already_answered`, exit 15), UsageError (`not_an_option`, `answer_empty`), NotFoundError.
    """
    now = store.now_ms()
    with store.write() as tx:
        gate = gates.get(tx, gate_id)
        words = _allowed(gate, text)
        gates.answer(tx, gate, words, by, now)
        _follow(tx, gate, words, by, now)
        if gate.kind is GateKind.REPLAN_PREVIEW:
            from loopx.runtime import replanning

            replanning.answered(tx, store, gate, words, by, now)
        ended = _end_persons_todo(tx, gate, by, now)
        grant = _stand(tx, store, gate, words, by, now, until_ms) if always else None
        state = str(goals.row_of(tx, gate.goal_id)["state"])
    return Answered(
        gate_id=gate_id, goal_id=gate.goal_id, answer=words, goal_state=state, grant_id=grant, ended_todo=ended
    )


def _allowed(gate: Gate, text: str) -> str:
    words = text.strip()
    if not words:
        raise UsageError("answer_empty", "the answer is empty", hint=f"loopx gate show {gate.gate_id}")
    if len(words) > ANSWER_CHARS:
        raise UsageError("answer_long", f"an answer has at most {ANSWER_CHARS} characters", hint="answer shorter")
    if not gate.options:
        return words
    found = next((option for option in gate.options if option.strip().lower() == words.lower()), None)
    if found is None:
        raise UsageError(
            "not_an_option",
            f"{words!r} is no answer to this question",
            hint=f"loopx gate answer {gate.gate_id} {'|'.join(gate.options)}",
            data={"options": ", ".join(gate.options)},
        )
    return found


def _follow(tx: Tx, gate: Gate, words: str, by: str, now_ms: int) -> None:
    """What LoopX's own questions lead to; an answer to an agent's question is told to the agent."""
    if gate.kind is not GateKind.BREAKER:
        return
    if words == STOP:
        goal = goals.get(tx, gate.goal_id)
        if goal.state in (GoalState.ACTIVE, GoalState.PAUSED):
            goals.set_state(tx, goal.goal_id, goal.state, GoalState.STOPPED, now_ms, by, "answered")
        return
    for todo_id in gate.todos:
        todo = todos.get(tx, todo_id)
        if todo.status is TodoStatus.BLOCKED:
            todos.set_status(tx, todo, TodoStatus.OPEN, now_ms, reason="answered", by=by)
    tx.run("goals.reset_streaks", goal_id=gate.goal_id)
    tx.run("turns.discharge_goal", goal_id=gate.goal_id, after=-1)


def _end_persons_todo(tx: Tx, gate: Gate, by: str, now_ms: int) -> TodoId | None:
    """A question that stands for a person's todo ends it."""
    if len(gate.todos) != 1 or gate.dedupe_key != f"todo:{gate.todos[0]}":
        return None
    todo = todos.get(tx, gate.todos[0])
    if todo.status in ENDED_TODO_STATUSES:
        return None
    todos.finish(tx, gate.goal_id, todo.todo_id, by, Continuation(kind=ContinuationKind.ACTIVE_GOAL), now_ms)
    return todo.todo_id


def _stand(tx: Tx, store: Store, gate: Gate, words: str, by: str, now_ms: int, until_ms: int | None) -> str | None:
    if gate.kind is GateKind.CAPABILITY:
        raise UsageError(
            "use_option", "a capability has its own standing answer", hint=f"loopx gate answer {gate.gate_id} always"
        )
    return add_grant(tx, store, gate.goal_id, f"question:{question_key(gate.question)}", words, by, until_ms).grant_id


def add_grant(tx: Tx, store: Store, goal_id: GoalId, scope: str, words: str, by: str, until_ms: int | None) -> Grant:
    """A standing answer. Raises UsageError (`scope_invalid`, `expiry_past`)."""
    now = store.now_ms()
    kind, _, name = scope.partition(":")
    if kind not in ("capability", "question") or not name.strip():
        raise UsageError("scope_invalid", f"{scope!r} is no scope", hint="capability:NAME or question:KEY")
    if until_ms is not None and until_ms <= now:
        raise UsageError("expiry_past", "the grant would be over already", hint="--expires 7d")
    grant = Grant(
        grant_id=store.ids.new("gr"),
        goal_id=goal_id,
        scope=scope,
        answer=words,
        granted_by=by,
        created_at_ms=now,
        expires_at_ms=until_ms,
    )
    gates.add_grant(tx, grant)
    return grant


class GatePage(msgspec.Struct, frozen=True, kw_only=True):
    """`next_after`: the cursor of the next page of one goal's gates, None at the end."""

    gates: tuple[Gate, ...]
    next_after: str | None = None


def open_page(store: Store, goal_id: str | None, limit: int) -> GatePage:
    """The open questions: of one goal, or of all. Raises NotFoundError (`goal_unknown`)."""
    now = store.now_ms()
    with store.read() as tx:
        if goal_id is not None:
            goals.row_of(tx, goal_id)
        found = gates.open_gates(tx, goal_id, limit)
    return GatePage(gates=tuple(gate for gate in found if gate.expires_at_ms is None or gate.expires_at_ms > now))


def whole_page(store: Store, goal_id: str, *, after: str, limit: int) -> GatePage:
    """All questions of a goal by id, from a cursor, answered ones too. Raises NotFoundError (`goal_unknown`)."""
    with store.read() as tx:
        goals.row_of(tx, goal_id)
        rows = tx.all("gates.page", goal_id=goal_id, after=after, limit=limit + 1)
    found = tuple(gates.from_row(row) for row in rows)
    return GatePage(gates=found[:limit], next_after=found[limit - 1].gate_id if len(found) > limit else None)


def get(store: Store, gate_id: str) -> Gate:
    """Raises NotFoundError (`gate_unknown`)."""
    with store.read() as tx:
        return gates.get(tx, gate_id)


def new_grant(store: Store, goal_id: str, scope: str, words: str, by: str, until_ms: int | None) -> Grant:
    """Raises NotFoundError (`goal_unknown`), UsageError (`scope_invalid`, `expiry_past`, `answer_empty`)."""
    if not words.strip():
        raise UsageError("answer_empty", "the answer is empty", hint="--answer yes")
    with store.write() as tx:
        goals.row_of(tx, goal_id)
        return add_grant(tx, store, GoalId(goal_id), scope, words.strip(), by, until_ms)


class GrantPage(msgspec.Struct, frozen=True, kw_only=True):
    """`next_after`: the cursor of the next page, None at the end."""

    grants: tuple[Grant, ...]
    next_after: str | None = None


def grants_of(store: Store, goal_id: str, *, after: str, limit: int) -> GrantPage:
    """The standing answers of a goal by id, revoked ones too. Raises NotFoundError (`goal_unknown`)."""
    with store.read() as tx:
        goals.row_of(tx, goal_id)
        rows = tx.all("gates.grants", goal_id=goal_id, after=after, limit=limit + 1)
    found = tuple(gates.grant_from_row(row) for row in rows)
    return GrantPage(grants=found[:limit], next_after=found[limit - 1].grant_id if len(found) > limit else None)


def revoke(store: Store, grant_id: str, by: str) -> None:
    """Raises NotFoundError (`grant_unknown`), ConflictError (`already_revoked`)."""
    with store.write() as tx:
        gates.revoke_grant(tx, grant_id, by, store.now_ms())
