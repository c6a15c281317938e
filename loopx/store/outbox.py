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


def put(
    tx: Tx, goal_id: str, effect_key: str, kind: str, payload: str, now_ms: int, *, next_at_ms: int | None = None
) -> None:
    """Record one delivery, once per key; due now, or at `next_at_ms`.

    The key doubles as the id: it is unique and sorts well enough.
    """
    tx.run(
        "outbox.insert",
        outbox_id=f"{now_ms:013d}:{effect_key}",
        goal_id=goal_id,
        effect_key=effect_key,
        kind=kind,
        payload=payload,
        next_at_ms=now_ms if next_at_ms is None else next_at_ms,
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


def take(tx: Tx, item: OutboxItem, until_ms: int) -> bool:
    """Keep an item from other senders until an instant; False when another one has it."""
    taken = tx.run("outbox.take", outbox_id=item.outbox_id, expected=item.next_at_ms, next_at_ms=until_ms)
    return taken == 1


def hold(tx: Tx, outbox_id: str, until_ms: int) -> None:
    """Put an item off without counting an attempt."""
    tx.run("outbox.hold", outbox_id=outbox_id, next_at_ms=until_ms)


def drop(tx: Tx, outbox_id: str, reason: str) -> None:
    """File an item that needs no delivery, with the reason; the record stays."""
    tx.run("outbox.drop", outbox_id=outbox_id, reason=reason[:500])


def sent_since(tx: Tx, goal_id: str, kind: str, since_ms: int) -> tuple[tuple[int, OutboxItem], ...]:
    """What went out since an instant, with its own."""
    rows = tx.all("outbox.sent_since", goal_id=goal_id, kind=kind, since_ms=since_ms)
    return tuple((int(row["sent_at_ms"]), from_row(row)) for row in rows)


def pending_of(tx: Tx, goal_id: str, kind: str) -> tuple[OutboxItem, ...]:
    return tuple(from_row(row) for row in tx.all("outbox.pending_of", goal_id=goal_id, kind=kind))
