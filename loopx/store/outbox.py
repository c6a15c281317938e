"""The outbox: whatever must leave the store is recorded in the transaction that causes it, under a key of its own."""

from __future__ import annotations

import msgspec

from loopx.store.codec import dump
from loopx.store.connection import Row, Tx

NOTIFICATION = "notification"
BACKOFF_MS = (5_000, 30_000, 120_000, 600_000, 3_600_000)
MAX_ATTEMPTS = 12


class OutboxItem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to deliver at least once, with the key by which its receiver can tell a repeat."""

    outbox_id: str
    goal_id: str
    effect_key: str
    kind: str
    payload: msgspec.Raw
    status: str
    attempts: int
    next_at_ms: int
    last_error: str


def notify(tx: Tx, goal_id: str, effect_key: str, what: str, data: object, now_ms: int) -> None:
    """Record a notification, once per key."""
    payload = dump({"what": what, "goal_id": goal_id, "data": data, "at_ms": now_ms})
    put(tx, goal_id, effect_key, NOTIFICATION, payload, now_ms)


def put(tx: Tx, goal_id: str, effect_key: str, kind: str, payload: str, now_ms: int) -> None:
    """Record one delivery, once per key. The key doubles as the id: it is unique and sorts well enough."""
    tx.run(
        "outbox.insert",
        outbox_id=f"{now_ms:013d}:{effect_key}",
        goal_id=goal_id,
        effect_key=effect_key,
        kind=kind,
        payload=payload,
        next_at_ms=now_ms,
        now_ms=now_ms,
    )


def from_row(row: Row) -> OutboxItem:
    return OutboxItem(
        outbox_id=row["outbox_id"],
        goal_id=row["goal_id"],
        effect_key=row["effect_key"],
        kind=row["kind"],
        payload=msgspec.Raw(row["payload"].encode()),
        status=row["status"],
        attempts=row["attempts"],
        next_at_ms=row["next_at_ms"],
        last_error=row["last_error"],
    )


def due(tx: Tx, now_ms: int, limit: int = 20) -> tuple[OutboxItem, ...]:
    return tuple(from_row(row) for row in tx.all("outbox.due", now_ms=now_ms, limit=limit))


def sent(tx: Tx, outbox_id: str, now_ms: int) -> None:
    tx.run("outbox.sent", outbox_id=outbox_id, now_ms=now_ms)


def failed(tx: Tx, item: OutboxItem, error: str, now_ms: int) -> None:
    """Try again later, ever more slowly; give up after MAX_ATTEMPTS and keep the record."""
    wait = BACKOFF_MS[min(item.attempts, len(BACKOFF_MS) - 1)]
    tx.run(
        "outbox.failed",
        outbox_id=item.outbox_id,
        next_at_ms=now_ms + wait,
        last_error=error[:500],
        status="dead" if item.attempts + 1 >= MAX_ATTEMPTS else "pending",
    )
