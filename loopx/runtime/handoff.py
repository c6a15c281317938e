"""The hand-off packet: what whoever takes a goal over needs to know, as data. It reads, and says no prose."""

from __future__ import annotations

import msgspec

from loopx.control_plane.ids import AgentId
from loopx.control_plane.quota.decision import QuotaDecision
from loopx.control_plane.turn_driver.journal import Turn, TurnState
from loopx.control_plane.work_items.gate import Gate
from loopx.runtime.progress import CheckSummary
from loopx.runtime.reading import decide
from loopx.runtime.session import DEFAULT_AGENT
from loopx.runtime.summaries import checks_of
from loopx.store import gates, goals, todos, turns
from loopx.store.connection import Tx
from loopx.store.store import Store

MOST = 3


class TodoRef(msgspec.Struct, frozen=True, kw_only=True):
    todo_id: str
    title: str
    status: str


class LastTurn(msgspec.Struct, frozen=True, kw_only=True):
    """The last turn that closed, and what it found."""

    turn_key: str
    number: int
    result_kind: str
    reason: str
    message: str
    checks: tuple[CheckSummary, ...]
    changed: bool
    checkpoint: str | None


class Packet(msgspec.Struct, frozen=True, kw_only=True):
    """`loopx handoff --json`. Lists hold the first few; the counts are whole up to a cap."""

    goal_id: str
    state: str
    objective: str
    contract: str
    turns: int
    spent_slots: int
    branch: str | None
    root: str
    open_turn: int | None
    last: LastTurn | None
    open_todos: int
    next_todos: tuple[TodoRef, ...]
    questions: tuple[Gate, ...]
    quota_state: str
    reason: str
    wake_after_ms: int | None
    next_command: tuple[str, ...]


def packet(store: Store, goal_id: str, *, without_held_out: bool = False) -> Packet:
    """`without_held_out`: for an agent's eyes. Raises NotFoundError (`goal_unknown`)."""
    decision: QuotaDecision = decide(store, goal_id, AgentId(DEFAULT_AGENT))
    with store.read() as tx:
        row = goals.row_of(tx, goal_id)
        work = todos.unended(tx, goal_id, 200)
        key = turns.open_turn(tx, goal_id)
        running = turns.load_journal(tx, key).turn if key is not None else None
        last = turns.last_of_goal(tx, goal_id)
        judged = checks_of(tx, last.turn_key) if last is not None else ()
        asked = gates.open_gates(tx, goal_id, MOST)
        spent = tx.number("ledger.total", goal_id=goal_id)
        held_out = _held_out(tx, goal_id) if without_held_out else frozenset()
    judged = tuple(check for check in judged if check.name not in held_out)
    return Packet(
        goal_id=goal_id,
        state=row["state"],
        objective=row["objective"],
        contract=row["contract_state"],
        turns=row["turn_count"],
        spent_slots=spent,
        branch=f"loopx/{goal_id}" if row["last_checkpoint"] else None,
        root=row["root"],
        open_turn=running.number if running is not None and running.state is not TurnState.CLOSED else None,
        last=_last(last, judged) if last is not None else None,
        open_todos=len(work),
        next_todos=tuple(TodoRef(todo_id=one.todo_id, title=one.title, status=one.status) for one in work[:MOST]),
        questions=asked,
        quota_state=decision.state,
        reason=decision.reason,
        wake_after_ms=decision.wake_after_ms,
        next_command=decision.next_command,
    )


def _held_out(tx: Tx, goal_id: str) -> frozenset[str]:
    from loopx.runtime.goal_work import contract_of

    return frozenset(check.name for check in contract_of(goals.get(tx, goal_id)).checks if check.held_out)


def _last(turn: Turn, judged: tuple[CheckSummary, ...]) -> LastTurn:
    result = turn.result
    return LastTurn(
        turn_key=turn.turn_key,
        number=turn.number,
        result_kind=str(turn.result_kind or turn.intended_kind or ""),
        reason=result.reason if result is not None else "",
        message=result.message if result is not None else "",
        checks=judged,
        changed=result.changed if result is not None else False,
        checkpoint=turn.checkpoint,
    )
