"""What the agent of an open turn may do: the verbs behind its tools and behind the same verbs of the command line.

Every function takes the caller that a turn's token proved, is bound to that one goal, agent and turn, and is refused
once the turn is over. What an agent says is recorded as a claim: LoopX verifies it after the turn. Nothing here answers
a gate, raises a budget, edits a check, or touches another goal.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

import msgspec

from loopx.control_plane.errors import ConflictError, LoopXError, NotFoundError, UsageError
from loopx.control_plane.goal import Goal
from loopx.control_plane.ids import AgentId, GoalId, TodoId, TurnKey
from loopx.control_plane.turn_driver.journal import EvidenceDraft, EvidenceKind, Producer, Turn
from loopx.control_plane.work_items.delivery_outcome import claimed_outcome
from loopx.control_plane.work_items.todo import Todo
from loopx.hosts import redact
from loopx.runtime.claims import Claim, ClaimKind
from loopx.store import events, evidence, goals, meters, todos, turns
from loopx.store.codec import dump
from loopx.store.connection import Tx
from loopx.store.store import Store

TOKEN_VARIABLE = "LOOPX_TURN_TOKEN"
TEXT_CHARS = 4000
TITLE_CHARS = 300
MOST_TODOS_OF_A_TURN = 50
MOST_EVIDENCE_OF_A_TURN = 100
_LISTED = 100
_FAILURE_CHARS = 1500


class Caller(Protocol):
    """The agent of an open turn, known by its token."""

    @property
    def turn_key(self) -> str: ...
    @property
    def goal_id(self) -> str: ...
    @property
    def agent_id(self) -> str: ...


class TurnCaller(msgspec.Struct, frozen=True, kw_only=True):
    """A caller that a token proved."""

    turn_key: str
    goal_id: str
    agent_id: str


class TodoView(msgspec.Struct, frozen=True, kw_only=True):
    """A todo as an agent sees it."""

    todo_id: str
    title: str
    status: str
    task_class: str
    body: str = ""
    priority: int = 0
    depends_on: tuple[str, ...] = ()
    claimed_by: str | None = None


class CheckView(msgspec.Struct, frozen=True, kw_only=True):
    """A check that an agent may know of; held-out checks are never shown."""

    name: str
    command: str


class TurnView(msgspec.Struct, frozen=True, kw_only=True):
    """What `get_turn` answers: the task, what judges it, what may be touched, what failed last, what is left."""

    goal_id: str
    turn_key: str
    purpose: str
    objective: str
    todo: TodoView | None
    checks: tuple[CheckView, ...]
    write_scope: tuple[str, ...]
    last_failure: str
    answers: tuple[str, ...]
    capabilities: tuple[str, ...]
    slots_left: int
    budgets: tuple[str, ...]
    claims: tuple[str, ...]
    """What was already said in this turn."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A claim is on record. `status` says what it is worth until LoopX has looked."""

    turn_key: str
    recorded: str
    status: str = "candidate"
    todo_id: str | None = None


class Added(msgspec.Struct, frozen=True, kw_only=True):
    todo_id: str


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """The todo is this agent's until the lease ends."""

    todo_id: str
    expires_at_ms: int


class EvidenceAdded(msgspec.Struct, frozen=True, kw_only=True):
    evidence_id: str
    produced: str = "claimed"


def by_token(store: Store, token: str) -> TurnCaller:
    """The caller whose token this is. Raises UsageError (`token_refused`): a token dies with its turn."""
    digest = hashlib.sha256(token.encode()).hexdigest()
    with store.read() as tx:
        row = tx.one("turns.by_token", token_hash=digest)
    if row is None:
        raise UsageError(
            "token_refused", "the turn of this token is over, or never was", hint="a token dies with its turn"
        )
    return TurnCaller(turn_key=row["turn_key"], goal_id=row["goal_id"], agent_id=row["agent_id"])


def _open_turn(tx: Tx, caller: Caller) -> Turn:
    """Raises ConflictError (`turn_over`): asked again in the transaction that writes, because turns end meanwhile."""
    if tx.one("turns.is_open", turn_key=caller.turn_key) is None:
        raise ConflictError("turn_over", "the turn of this token is over", hint="a token dies with its turn")
    return turns.load_journal(tx, caller.turn_key).turn


def get_turn(store: Store, caller: Caller, capability_names: tuple[str, ...] = ()) -> TurnView:
    """The turn as its agent may know it. Raises ConflictError (`turn_over`)."""
    from loopx.contracts.model import visible_checks
    from loopx.runtime import capabilities, last_failure
    from loopx.runtime.goal_work import contract_of

    with store.read() as tx:
        turn = _open_turn(tx, caller)
        goal = goals.get(tx, caller.goal_id)
        todo = todos.get(tx, turn.todo_id) if turn.todo_id is not None else None
        last = turns.last_of_goal(tx, caller.goal_id)
        failure = last_failure.text(tx, last)[:_FAILURE_CHARS]
        answers = (*_answers(tx, caller.goal_id), *capabilities.outcomes(tx, caller.goal_id))
        said = tuple(str(row["kind"]) for row in tx.all("turns.claims", turn_key=caller.turn_key))
        now = store.now_ms()
        uses = tuple(meters.budget_use(tx, caller.goal_id, one, now) for one in goal.definition.budgets)
        slots_left = _slots_left(tx, goal, now)
    return TurnView(
        goal_id=caller.goal_id,
        turn_key=caller.turn_key,
        purpose=turn.purpose,
        objective=goal.definition.objective,
        todo=view(todo) if todo is not None else None,
        checks=tuple(
            CheckView(
                name=check.name,
                command=check.command if isinstance(check.command, str) else " ".join(check.command),
            )
            for check in visible_checks(contract_of(goal))
        ),
        write_scope=goal.definition.boundary.write_scope,
        last_failure=failure,
        answers=answers,
        capabilities=capability_names,
        slots_left=slots_left,
        budgets=tuple(f"{use.unit} per {use.scope}: {use.used} of {use.limit}" for use in uses),
        claims=said,
    )


def _slots_left(tx: Tx, goal: Goal, now_ms: int) -> int:
    from loopx.store import ledger

    row = goals.row_of(tx, goal.goal_id)
    return max(0, int(row["allowed_slots"]) - ledger.spent_in_window(tx, goal.goal_id, row["window_ms"], now_ms))


def _answers(tx: Tx, goal_id: str) -> tuple[str, ...]:
    rows = tx.all("gates.last_answered", goal_id=goal_id, limit=3)
    return tuple(f"{row['question'][:200]} -> {row['answer']}" for row in rows if row["answer"])


def view(todo: Todo) -> TodoView:
    """A todo for an agent."""
    return TodoView(
        todo_id=todo.todo_id,
        title=todo.title,
        status=todo.status,
        task_class=todo.task_class,
        body=todo.body,
        priority=todo.priority,
        depends_on=todo.depends_on,
        claimed_by=todo.claimed_by,
    )


def list_todos(store: Store, caller: Caller) -> tuple[TodoView, ...]:
    """The goal's todos that have not ended, the most urgent first."""
    with store.read() as tx:
        return tuple(view(todo) for todo in todos.unended(tx, caller.goal_id, _LISTED))


def claim_todo(store: Store, caller: Caller, todo_id: str) -> Claimed:
    """Claim a todo of this goal, or renew one's own claim.

    Raises ConflictError (`turn_over`, `todo_taken`, `lease_held`, `scope_overlap`), NeedsPersonError (`four_eyes`),
    NotNowError (`goal_not_active`), NotFoundError (`todo_unknown`).
    """
    from loopx.runtime import todo_service

    claimed = todo_service.claim(
        store, caller.goal_id, todo_id, AgentId(caller.agent_id), turn_key=TurnKey(caller.turn_key)
    )
    return Claimed(todo_id=claimed.todo_id, expires_at_ms=claimed.expires_at_ms)


def add_todo(
    store: Store,
    caller: Caller,
    title: str,
    body: str = "",
    priority: int = 0,
    depends_on: tuple[str, ...] = (),
) -> Added:
    """Add a slice of the same goal.

    Raises UsageError (`title_empty`, `too_many_todos`), NotFoundError (`todo_unknown`), ConflictError (`turn_over`).
    """
    if not title.strip():
        raise UsageError("title_empty", "a todo needs a title", hint="say in a few words what is to be done")
    now = store.now_ms()
    todo = Todo(
        todo_id=TodoId(store.ids.new("td")),
        goal_id=GoalId(caller.goal_id),
        title=_text(title, TITLE_CHARS),
        body=_text(body, TEXT_CHARS),
        priority=max(-100, min(100, priority)),
        depends_on=tuple(TodoId(one) for one in depends_on),
        created_at_ms=now,
    )
    with store.write() as tx:
        turn = _open_turn(tx, caller)
        if len([one for one in todos.unended(tx, caller.goal_id, 500) if one.created_at_ms >= turn.started_at_ms]) >= (
            MOST_TODOS_OF_A_TURN
        ):
            raise UsageError(
                "too_many_todos", f"a turn adds at most {MOST_TODOS_OF_A_TURN} todos", hint="make them larger"
            )
        todos.insert(tx, todo)
    return Added(todo_id=todo.todo_id)


def complete_todo(
    store: Store,
    caller: Caller,
    todo_id: str | None = None,
    summary: str = "",
    successors: tuple[str, ...] = (),
    outcome: str | None = None,
) -> Recorded:
    """Say that the turn's todo is done: a candidate, until LoopX has run the checks.

    `outcome` is the delivery that the agent itself claims; it can lower LoopX's own finding, never raise it. Raises
    UsageError (`not_your_todo`), NotFoundError (`todo_unknown`) for successors, ConflictError (`turn_over`).
    """
    with store.read() as tx:
        turn = _open_turn(tx, caller)
        if todo_id is not None and todo_id != turn.todo_id:
            raise UsageError(
                "not_your_todo",
                f"this turn works on todo {turn.todo_id}, not on {todo_id}",
                hint="complete_todo without an id means the turn's own",
            )
        for one in successors:
            todos.get(tx, one, caller.goal_id)
    claim = Claim(
        kind=ClaimKind.COMPLETION,
        text=_text(summary, TEXT_CHARS),
        todo_id=turn.todo_id,
        successors=successors,
        outcome=claimed_outcome(outcome),
    )
    return _record(store, caller, claim, turn.todo_id)


def ask_person(store: Store, caller: Caller, question: str, choices: tuple[str, ...] = ()) -> Recorded:
    """Ask a person something concrete; the gate opens when the turn ends. An agent never answers one."""
    _require_text("question", question)
    claim = Claim(
        kind=ClaimKind.QUESTION,
        text=_text(question, 2000),
        choices=tuple(_text(one, 200) for one in choices[:20]),
    )
    return _record(store, caller, claim)


def report_blocker(store: Store, caller: Caller, blocker: str) -> Recorded:
    """Say what makes the work impossible; it becomes a question to a person."""
    _require_text("blocker", blocker)
    return _record(store, caller, Claim(kind=ClaimKind.BLOCKER, text=_text(blocker, 2000)))


def nominate_no_change(store: Store, caller: Caller, reason: str) -> Recorded:
    """Say that nothing needs to change; accepted only if LoopX's own record shows it."""
    _require_text("reason", reason)
    return _record(store, caller, Claim(kind=ClaimKind.NO_CHANGE, text=_text(reason, TEXT_CHARS)))


def add_evidence(
    store: Store, caller: Caller, name: str, text: str = "", link: str = "", metric: float | None = None
) -> EvidenceAdded:
    """Store what the agent brings as evidence, as claimed: it decides nothing.

    Raises UsageError (`text_empty`, `too_much_evidence`), ConflictError (`turn_over`).
    """
    _require_text("name", name)
    kind = EvidenceKind.METRIC if metric is not None else EvidenceKind.LINK if link else EvidenceKind.NOTE
    body = {"text": _text(text, TEXT_CHARS), "link": _text(link, 2000), "metric": metric}
    draft = EvidenceDraft(
        kind=kind,
        produced=Producer.CLAIMED,
        name=_text(name, 200),
        body=msgspec.Raw(dump({key: value for key, value in body.items() if value not in ("", None)}).encode()),
    )
    evidence_id = store.ids.new("ev")
    now = store.now_ms()
    with store.write() as tx:
        turn = _open_turn(tx, caller)
        if len(evidence.of_turn(tx, caller.turn_key)) >= MOST_EVIDENCE_OF_A_TURN:
            raise UsageError("too_much_evidence", "this turn has brought enough evidence", hint="finish the turn")
        evidence.insert(tx, evidence_id, caller.goal_id, draft, now, turn_key=caller.turn_key, todo_id=turn.todo_id)
        body_of_event = {"evidence_id": evidence_id, "kind": kind, "produced": Producer.CLAIMED}
        events.append(tx, caller.goal_id, "evidence_added", now, body_of_event, caller.turn_key)
    return EvidenceAdded(evidence_id=evidence_id)


def refuse(store: Store, caller: Caller, what: str, error: LoopXError) -> None:
    """Put on record that the agent tried something that it may not do."""
    with store.write() as tx:
        body = {"what": what[:80], "code": error.code, "agent_id": caller.agent_id}
        events.append(tx, caller.goal_id, "agent_refused", store.now_ms(), body, caller.turn_key)


def require_same_goal(caller: Caller, goal_id: str) -> None:
    """Raises NotFoundError (`goal_unknown`): to an agent, other goals do not exist."""
    if goal_id != caller.goal_id:
        raise NotFoundError("goal_unknown", f"this turn has no goal {goal_id!r}", hint=f"its goal: {caller.goal_id}")


def _record(store: Store, caller: Caller, claim: Claim, todo_id: str | None = None) -> Recorded:
    now = store.now_ms()
    with store.write() as tx:
        added = tx.run("turns.insert_claim", turn_key=caller.turn_key, kind=claim.kind, body=dump(claim), now_ms=now)
        if added != 1:
            raise ConflictError("turn_over", "the turn of this token is over", hint="a token dies with its turn")
        events.append(tx, caller.goal_id, "agent_claimed", now, {"kind": claim.kind}, caller.turn_key)
    return Recorded(turn_key=caller.turn_key, recorded=claim.kind, todo_id=todo_id)


def _require_text(field: str, text: str) -> None:
    if not text.strip():
        raise UsageError("text_empty", f"{field}: empty", hint="say it in a sentence")


def _text(text: str, limit: int) -> str:
    """Text as it may be stored: no credentials, no NUL, no lone surrogates, at most `limit` characters."""
    clean = redact.redact(text).replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
