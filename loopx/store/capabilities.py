"""Capability intents: what agents asked LoopX to do for them, and what became of it.

An intent is on record before anything runs; its status moves by compare-and-set, so that two processes never both
think that they run it. This module starts nothing.
"""

from __future__ import annotations

import msgspec

from loopx.control_plane.ids import AgentId, GoalId
from loopx.store import events
from loopx.store.codec import dump, load
from loopx.store.connection import Row, Tx

REQUESTED, GRANTED, REFUSED = "requested", "granted", "refused"
RUNNING, DONE, FAILED = "running", "done", "failed"

YES_WORDS = frozenset({"yes", "y", "ok", "grant", "allow", "always"})
ALWAYS = "always"
DONE_WORDS = frozenset({"done", "it_happened"})
AGAIN_WORDS = frozenset({"again", "run_again"})


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `command` is exactly what runs; `definition` is the declaration that was in force when asked."""

    intent_id: str
    goal_id: GoalId
    agent_id: AgentId
    turn_key: str | None
    capability: str
    command: tuple[str, ...]
    definition: msgspec.Raw
    reason: str
    status: str
    effect_ref: str
    attempt: int
    """The first attempt that may still have to run."""
    gate_id: str | None
    receipt: msgspec.Raw | None
    created_at_ms: int
    updated_at_ms: int


def from_row(row: Row) -> Intent:
    return Intent(
        intent_id=row["intent_id"],
        goal_id=GoalId(row["goal_id"]),
        agent_id=AgentId(row["agent_id"]),
        turn_key=row["turn_key"],
        capability=row["capability"],
        command=load(row["command"], tuple[str, ...]),
        definition=msgspec.Raw(row["definition"].encode()),
        reason=row["reason"],
        status=row["status"],
        effect_ref=row["effect_ref"],
        attempt=row["attempt"],
        gate_id=row["gate_id"],
        receipt=msgspec.Raw(row["receipt"].encode()) if row["receipt"] else None,
        created_at_ms=row["created_at_ms"],
        updated_at_ms=row["updated_at_ms"],
    )


def insert(tx: Tx, intent: Intent, now_ms: int) -> bool:
    """Record a request, once per `effect_ref`; False when it was on record already."""
    added = tx.run(
        "capabilities.insert",
        intent_id=intent.intent_id,
        goal_id=intent.goal_id,
        agent_id=intent.agent_id,
        turn_key=intent.turn_key,
        capability=intent.capability,
        command=dump(intent.command),
        definition=bytes(intent.definition).decode(),
        reason=intent.reason,
        status=intent.status,
        effect_ref=intent.effect_ref,
        gate_id=intent.gate_id,
        now_ms=now_ms,
    )
    if added == 1:
        _event(tx, intent, intent.status, now_ms, {"command": intent.command})
    return added == 1


def by_effect(tx: Tx, effect_ref: str) -> Intent | None:
    row = tx.one("capabilities.by_effect", effect_ref=effect_ref)
    return from_row(row) if row is not None else None


def get(tx: Tx, intent_id: str) -> Intent | None:
    row = tx.one("capabilities.get", intent_id=intent_id)
    return from_row(row) if row is not None else None


def next_to_run(tx: Tx, goal_id: str) -> Intent | None:
    """One that was begun and has no outcome on record, before one that was only granted."""
    for status in (RUNNING, GRANTED):
        row = tx.one("capabilities.first_with_status", goal_id=goal_id, status=status)
        if row is not None:
            return from_row(row)
    return None


def latest(tx: Tx, goal_id: str, limit: int = 20) -> tuple[Intent, ...]:
    """The newest first."""
    return tuple(from_row(row) for row in tx.all("capabilities.latest", goal_id=goal_id, limit=limit))


def move(tx: Tx, intent: Intent, status: str, now_ms: int, *, receipt: object | None = None, by: str = "loopx") -> bool:
    """Move an intent on from the status that was read; False when somebody else moved it first."""
    moved = tx.run(
        "capabilities.move",
        intent_id=intent.intent_id,
        expected=intent.status,
        status=status,
        receipt=None if receipt is None else dump(receipt),
        now_ms=now_ms,
    )
    if moved == 1:
        _event(tx, intent, status, now_ms, {"by": by, "receipt": receipt})
    return moved == 1


def ask(tx: Tx, intent: Intent, gate_id: str, now_ms: int, *, attempt: int | None = None) -> None:
    """Bind an intent to the question that decides about it; `attempt` is where it would go on."""
    attempt = intent.attempt if attempt is None else attempt
    tx.run("capabilities.set_gate", intent_id=intent.intent_id, gate_id=gate_id, attempt=attempt, now_ms=now_ms)


def answered(tx: Tx, gate_id: str, text: str | None, by: str, now_ms: int) -> Intent | None:
    """Let an answer (None: the question expired) decide about its intent; the intent, if there was one to decide."""
    row = tx.one("capabilities.by_gate", gate_id=gate_id)
    if row is None:
        return None
    intent = from_row(row)
    word = (text or "").strip().lower()
    if intent.status == REQUESTED:
        move(tx, intent, GRANTED if word in YES_WORDS else REFUSED, now_ms, by=by)
    elif intent.status == RUNNING:
        # Asked because nobody saw how it ended: only a person can say whether it happened.
        if word in AGAIN_WORDS:
            move(tx, intent, GRANTED, now_ms, by=by)
        else:
            happened = word in DONE_WORDS
            move(tx, intent, DONE if happened else FAILED, now_ms, receipt={"said_by": by, "answer": text}, by=by)
    return intent


def _event(tx: Tx, intent: Intent, status: str, now_ms: int, more: dict[str, object]) -> None:
    body = {"intent_id": intent.intent_id, "capability": intent.capability, **more}
    events.append(tx, intent.goal_id, f"capability_{status}", now_ms, body, intent.turn_key)
