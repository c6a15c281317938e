"""Which todo a turn of an agent would take now: the most urgent that is ready, gated by nothing, held by nobody, and
whose write scope no live claim of another agent may meet. It only reads; starting a turn asks the same again.
"""

from __future__ import annotations

import msgspec

from loopx.control_plane.ids import AgentId, TodoId
from loopx.control_plane.quota.facts import HeldTodo, TodoRef
from loopx.control_plane.work_items import scopes
from loopx.store.codec import load
from loopx.store.connection import Row, Tx

_CANDIDATES = 50
_NO_SCOPE = "[]"


class Selected(msgspec.Struct, frozen=True, kw_only=True):
    """`held`: the most urgent todo that only another agent's claim keeps from being taken."""

    ready: TodoRef | None = None
    held: HeldTodo | None = None


def select(tx: Tx, goal_id: str, agent_id: str, now_ms: int) -> Selected:
    """The todo that a turn starting now would take.

    A deferral whose instant has come and a gate whose time is over hold nothing back any more, although only the next
    start writes that down: asking changes nothing, so it must see what starting would.
    """
    held: HeldTodo | None = None
    for rows in (_one(tx, goal_id, agent_id, now_ms), _others(tx, goal_id, agent_id, now_ms)):
        for row in rows:
            claim = overlapping(tx, goal_id, row, agent_id, now_ms)
            if claim is None:
                return Selected(ready=ref(row), held=held)
            held = held or HeldTodo(
                todo_id=TodoId(row["todo_id"]), by_todo=TodoId(claim["todo_id"]), by_agent=AgentId(claim["claimed_by"])
            )
        if held is None:
            break
    return Selected(held=held)


def overlapping(tx: Tx, goal_id: str, todo: Row, agent_id: str, now_ms: int) -> Row | None:
    """The live claim of another agent on a todo that may write the same files."""
    if todo["write_scope"] == _NO_SCOPE:
        return None
    scope = load(todo["write_scope"], tuple[str, ...])
    for row in tx.all("todos.live_claims", goal_id=goal_id, agent_id=agent_id, now_ms=now_ms):
        theirs = load(row["write_scope"], tuple[str, ...])
        if row["todo_id"] != todo["todo_id"] and scopes.overlap(theirs, scope):
            return row
    return None


def ref(row: Row) -> TodoRef:
    return TodoRef(todo_id=TodoId(row["todo_id"]), title=row["title"])


def _one(tx: Tx, goal_id: str, agent_id: str, now_ms: int) -> list[Row]:
    """What is most often the answer: the agent's own todo, else the most urgent one."""
    mine = tx.one("todos.reclaimable", goal_id=goal_id, agent_id=agent_id, now_ms=now_ms)
    if mine is not None:
        return [mine]
    found = [
        tx.one("todos.ready", goal_id=goal_id, agent_id=agent_id),
        tx.one("todos.woken", goal_id=goal_id, agent_id=agent_id, now_ms=now_ms),
        *_past_their_gates(tx, goal_id, agent_id, now_ms),
    ]
    return sorted((row for row in found if row is not None), key=_urgency)[:1]


def _others(tx: Tx, goal_id: str, agent_id: str, now_ms: int) -> list[Row]:
    """Everything else that is ready; looked at only where the first one is held."""
    found = [
        *tx.all("todos.ready_page", goal_id=goal_id, agent_id=agent_id, limit=_CANDIDATES),
        tx.one("todos.woken", goal_id=goal_id, agent_id=agent_id, now_ms=now_ms),
        *_past_their_gates(tx, goal_id, agent_id, now_ms),
    ]
    return sorted((row for row in found if row is not None), key=_urgency)


def _past_their_gates(tx: Tx, goal_id: str, agent_id: str, now_ms: int) -> list[Row | None]:
    """Todos that nothing holds back any more: every gate of theirs has expired."""
    expired: dict[str, int] = {}
    for gate in tx.all("gates.expired", goal_id=goal_id, now_ms=now_ms):
        for todo_id in load(gate["todos"], tuple[str, ...]):
            expired[todo_id] = expired.get(todo_id, 0) + 1
    return [
        tx.one("todos.gated_only", todo_id=todo_id, gates=count, agent_id=agent_id, now_ms=now_ms)
        for todo_id, count in expired.items()
    ]


def _urgency(row: Row) -> tuple[int, str]:
    return -int(row["priority"]), str(row["todo_id"])
