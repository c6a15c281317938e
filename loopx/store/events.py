"""The append-only record of everything that changed, hash-chained per goal.

The chain's head lives on the goal's row and is compared and set in the statement that moves it, in the transaction of
the change itself, so that no event is lost, doubled, or out of order.
"""

from __future__ import annotations

import msgspec

from loopx.control_plane.canonical import sha256_hex
from loopx.control_plane.errors import ConflictError
from loopx.control_plane.ids import GoalId
from loopx.store.codec import dump
from loopx.store.connection import ChainHead, Row, Tx


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded change. `hash` covers everything here and the hash before it."""

    goal_id: GoalId
    seq: int
    kind: str
    turn_key: str | None
    at_ms: int
    body: msgspec.Raw
    prev_hash: str
    hash: str


def event_hash(goal_id: str, seq: int, kind: str, turn_key: str | None, at_ms: int, body: str, prev_hash: str) -> str:
    """The hash of one link, from its parts."""
    return sha256_hex([prev_hash, goal_id, seq, kind, turn_key, at_ms, body])


def append(tx: Tx, goal_id: str, kind: str, now_ms: int, body: object, turn_key: str | None = None) -> int:
    """Add one event to the goal's chain; its sequence number. Raises ConflictError if the head moved meanwhile."""
    head = tx.heads.get(goal_id) or _head_of(tx, goal_id, tx.one("goals.head", goal_id=goal_id))
    seq, prev_hash, text = head.seq + 1, head.hash, dump(body)
    link = event_hash(goal_id, seq, kind, turn_key, now_ms, text, prev_hash)
    if head.seq == head.read_seq:
        tx.before_commit(lambda: _move_head(tx, goal_id))
    head.seq, head.hash = seq, link
    tx.run(
        "events.insert",
        goal_id=goal_id,
        seq=seq,
        kind=kind,
        turn_key=turn_key,
        at_ms=now_ms,
        body=text,
        prev_hash=prev_hash,
        hash=link,
    )
    return seq


def read_with(tx: Tx, goal: Row) -> None:
    """Take the chain's head from the goal's row, where this transaction has read it before it added any event."""
    _head_of(tx, goal["goal_id"], goal)


def _head_of(tx: Tx, goal_id: str, row: Row | None) -> ChainHead:
    if row is None:
        raise ConflictError("goal_gone", f"goal {goal_id} disappeared while it was written", hint="loopx doctor")
    seq, link = int(row["event_seq"]), str(row["event_head"])
    head = tx.heads[goal_id] = ChainHead(read_seq=seq, read_hash=link, seq=seq, hash=link)
    return head


def _move_head(tx: Tx, goal_id: str) -> None:
    """Compare the head with what was read and set it to the last link, once for all events of the transaction."""
    head = tx.heads[goal_id]
    moved = tx.run(
        "goals.move_head",
        goal_id=goal_id,
        seq=head.seq,
        hash=head.hash,
        expected_seq=head.read_seq,
        expected_hash=head.read_hash,
    )
    if moved != 1:
        raise ConflictError("event_head_moved", f"the event chain of {goal_id} moved", hint="run the command again")


def from_row(row: Row) -> Event:
    """The event of a row."""
    return Event(
        goal_id=GoalId(row["goal_id"]),
        seq=row["seq"],
        kind=row["kind"],
        turn_key=row["turn_key"],
        at_ms=row["at_ms"],
        body=msgspec.Raw(row["body"].encode()),
        prev_hash=row["prev_hash"],
        hash=row["hash"],
    )


def broken_link(tx: Tx, goal_id: str) -> int | None:
    """The first sequence number at which the goal's chain does not hold, or None when all of it does."""
    prev_hash, after = "", 0
    while True:
        rows = tx.all("events.page", goal_id=goal_id, after=after, limit=1000)
        if not rows:
            break
        for row in rows:
            expected = event_hash(
                goal_id, row["seq"], row["kind"], row["turn_key"], row["at_ms"], row["body"], prev_hash
            )
            if row["seq"] != after + 1 or row["prev_hash"] != prev_hash or row["hash"] != expected:
                return int(row["seq"])
            prev_hash, after = row["hash"], row["seq"]
    head = tx.one("goals.head", goal_id=goal_id)
    if head is not None and (head["event_seq"], head["event_head"]) != (after, prev_hash):
        return after + 1
    return None
