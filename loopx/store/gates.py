"""Gates and grants: questions to people, asked once, and standing answers."""

from __future__ import annotations

from loopx.control_plane.errors import ConflictError, NotFoundError
from loopx.control_plane.ids import GateId, GoalId, TodoId, TurnKey
from loopx.control_plane.turn_driver.journal import GateDraft
from loopx.control_plane.work_items.gate import Gate, GateKind, GateStatus, Grant, question_key
from loopx.store import capabilities, events, outbox
from loopx.store.codec import dump, load
from loopx.store.connection import Row, Tx


def ask(
    tx: Tx,
    goal_id: GoalId,
    gate_id: str,
    draft: GateDraft,
    now_ms: int,
    *,
    turn_key: TurnKey | None = None,
    expires_at_ms: int | None = None,
) -> GateId:
    """Ask once: the id of the open gate with this key, new or not.

    A new one is announced through the outbox, or answered at once where a person's standing answer covers it.
    """
    tx.run(
        "gates.insert",
        gate_id=gate_id,
        goal_id=goal_id,
        kind=draft.kind,
        question=draft.question,
        options=dump(draft.options),
        blocks_goal=int(draft.blocks_goal),
        todos=dump(draft.todos),
        dedupe_key=draft.dedupe_key,
        fix=draft.fix,
        turn_key=turn_key,
        now_ms=now_ms,
        expires_at_ms=expires_at_ms,
    )
    row = tx.one("gates.by_key", goal_id=goal_id, dedupe_key=draft.dedupe_key)
    asked = GateId(row["gate_id"]) if row is not None else GateId(gate_id)
    if asked == gate_id:
        for todo_id in draft.todos:
            tx.run("todos.gate_delta", todo_id=todo_id, delta=1, now_ms=now_ms)
        events.append(tx, goal_id, "gate_asked", now_ms, {"gate_id": gate_id, "question": draft.question}, turn_key)
        standing = _standing(tx, goal_id, draft, now_ms)
        if standing is not None:
            answer(tx, get(tx, gate_id), standing.answer, f"grant {standing.grant_id}", now_ms)
            return asked
        outbox.notify(
            tx, goal_id, f"gate:{gate_id}", "gate_asked", {"gate_id": gate_id, "question": draft.question}, now_ms
        )
    return asked


def _standing(tx: Tx, goal_id: GoalId, draft: GateDraft, now_ms: int) -> Grant | None:
    """The standing answer to this question; what a capability's grant allows is decided where it is asked for."""
    if draft.kind is not GateKind.QUESTION:
        return None
    return live_grant(tx, goal_id, f"question:{question_key(draft.question)}", now_ms)


def ever_granted(tx: Tx, gate: Gate) -> bool:
    """Whether a person ever gave this gate's question a standing answer, revoked by now or not."""
    scope = f"question:{question_key(gate.question)}"
    return tx.one("gates.ever_granted", goal_id=gate.goal_id, scope=scope) is not None


def from_row(row: Row) -> Gate:
    return Gate(
        gate_id=GateId(row["gate_id"]),
        goal_id=GoalId(row["goal_id"]),
        kind=GateKind(row["kind"]),
        question=row["question"],
        options=load(row["options"], tuple[str, ...]),
        todos=load(row["todos"], tuple[TodoId, ...]),
        dedupe_key=row["dedupe_key"],
        status=GateStatus(row["status"]),
        answer=row["answer"],
        answered_by=row["answered_by"],
        fix=row["fix"],
        turn_key=row["turn_key"],
        created_at_ms=row["created_at_ms"],
        answered_at_ms=row["answered_at_ms"],
        expires_at_ms=row["expires_at_ms"],
    )


def get(tx: Tx, gate_id: str) -> Gate:
    """Raises NotFoundError (`gate_unknown`)."""
    row = tx.one("gates.get", gate_id=gate_id)
    if row is None:
        raise NotFoundError("gate_unknown", f"no gate {gate_id!r}", hint="loopx gate list")
    return from_row(row)


def open_gates(tx: Tx, goal_id: str | None = None, limit: int = 20) -> tuple[Gate, ...]:
    rows = tx.all("gates.open_all", limit=limit) if goal_id is None else open_rows(tx, goal_id, limit)
    return tuple(from_row(row) for row in rows)


def open_rows(tx: Tx, goal_id: str, limit: int) -> list[Row]:
    """The open gates of a goal, the pressing ones first: last those whose todos wait for other todos anyway."""
    rows = tx.all("gates.open_of_goal", goal_id=goal_id, limit=limit)
    return rows if len(rows) < 2 else sorted(rows, key=lambda row: (not row["blocks_goal"], _can_wait(tx, row)))


def _can_wait(tx: Tx, row: Row) -> bool:
    found = [tx.one("todos.get", todo_id=todo_id) for todo_id in load(row["todos"], tuple[str, ...])]
    return bool(found) and all(todo is not None and todo["open_deps"] > 0 for todo in found)


def answer(tx: Tx, gate: Gate, text: str, by: str, now_ms: int) -> None:
    """Record a person's answer; the first one counts. Raises ConflictError (`already_answered`)."""
    if tx.run("gates.answer", gate_id=gate.gate_id, answer=text, answered_by=by, now_ms=now_ms) != 1:
        current = get(tx, gate.gate_id)
        raise ConflictError(
            "already_answered", f"gate {gate.gate_id} is {current.status}: {current.answer}", hint="loopx gate list"
        )
    _let_go(tx, gate, now_ms)
    _decide_capability(tx, gate, text, by, now_ms)
    events.append(
        tx, gate.goal_id, "gate_answered", now_ms, {"gate_id": gate.gate_id, "answer": text, "by": by}, gate.turn_key
    )


def expire_due(tx: Tx, goal_id: str, now_ms: int) -> int:
    """Close the gates whose time is over; how many."""
    rows = tx.all("gates.expired", goal_id=goal_id, now_ms=now_ms)
    for row in rows:
        gate = from_row(row)
        tx.run("gates.expire", gate_id=gate.gate_id, now_ms=now_ms)
        _let_go(tx, gate, now_ms)
        _decide_capability(tx, gate, None, "expiry", now_ms)
        events.append(tx, gate.goal_id, "gate_expired", now_ms, {"gate_id": gate.gate_id}, gate.turn_key)
    return len(rows)


def _decide_capability(tx: Tx, gate: Gate, text: str | None, by: str, now_ms: int) -> None:
    """An answer about a capability decides in the answer's own transaction; `always` is a standing grant too."""
    if gate.kind is not GateKind.CAPABILITY:
        return
    intent = capabilities.answered(tx, gate.gate_id, text, by, now_ms)
    if intent is not None and (text or "").strip().lower() == capabilities.ALWAYS:
        grant = Grant(
            grant_id=f"gr-{gate.gate_id}",
            goal_id=gate.goal_id,
            scope=f"capability:{intent.capability}",
            answer="yes",
            granted_by=by,
            created_at_ms=now_ms,
        )
        add_grant(tx, grant)


def _let_go(tx: Tx, gate: Gate, now_ms: int) -> None:
    for todo_id in gate.todos:
        tx.run("todos.gate_delta", todo_id=todo_id, delta=-1, now_ms=now_ms)
    if gate.turn_key is not None:
        tx.run("turns.discharge", turn_key=gate.turn_key)
    tx.run("goals.set_due", goal_id=gate.goal_id, due_at_ms=now_ms)


def grant_from_row(row: Row) -> Grant:
    return Grant(
        grant_id=row["grant_id"],
        goal_id=GoalId(row["goal_id"]),
        scope=row["scope"],
        answer=row["answer"],
        granted_by=row["granted_by"],
        created_at_ms=row["created_at_ms"],
        expires_at_ms=row["expires_at_ms"],
        revoked=bool(row["revoked"]),
    )


def add_grant(tx: Tx, grant: Grant) -> None:
    tx.run(
        "gates.insert_grant",
        grant_id=grant.grant_id,
        goal_id=grant.goal_id,
        scope=grant.scope,
        answer=grant.answer,
        granted_by=grant.granted_by,
        now_ms=grant.created_at_ms,
        expires_at_ms=grant.expires_at_ms,
    )
    events.append(
        tx, grant.goal_id, "grant_added", grant.created_at_ms, {"grant_id": grant.grant_id, "scope": grant.scope}
    )


def live_grant(tx: Tx, goal_id: str, scope: str, now_ms: int) -> Grant | None:
    row = tx.one("gates.live_grant", goal_id=goal_id, scope=scope, now_ms=now_ms)
    return grant_from_row(row) if row is not None else None


def revoke_grant(tx: Tx, grant_id: str, by: str, now_ms: int) -> None:
    """Raises NotFoundError (`grant_unknown`), ConflictError (`already_revoked`)."""
    row = tx.one("gates.get_grant", grant_id=grant_id)
    if row is None:
        raise NotFoundError("grant_unknown", f"no grant {grant_id!r}", hint="loopx grant list")
    if tx.run("gates.revoke_grant", grant_id=grant_id) != 1:
        raise ConflictError("already_revoked", f"grant {grant_id} is revoked already", hint="loopx grant list")
    events.append(tx, row["goal_id"], "grant_revoked", now_ms, {"grant_id": grant_id, "by": by})
