"""The record of everything that changed, for people: since an instant, or the newest, of one goal or of all."""

from __future__ import annotations

import msgspec

from loopx.store import goals
from loopx.store.codec import load
from loopx.store.connection import Row
from loopx.store.store import Store


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """One event, its body decoded. `seq` counts per goal."""

    goal_id: str
    seq: int
    kind: str
    turn_key: str | None
    at_ms: int
    body: dict[str, object]


def history(store: Store, goal_id: str | None, since_ms: int | None, limit: int) -> tuple[Happened, ...]:
    """Events in order, the newest last; without `since_ms` the newest `limit` of them.

    Raises NotFoundError (`goal_unknown`).
    """
    with store.read() as tx:
        if goal_id is not None:
            goals.row_of(tx, goal_id)
        if since_ms is None:
            newest = (
                tx.all("events.latest_all", limit=limit)
                if goal_id is None
                else tx.all("events.latest", goal_id=goal_id, limit=limit)
            )
            rows = newest[::-1]
        elif goal_id is None:
            rows = tx.all("events.since", since_ms=since_ms, limit=limit)
        else:
            rows = tx.all("events.goal_since", goal_id=goal_id, since_ms=since_ms, limit=limit)
    return tuple(_happened(row) for row in rows)


def _happened(row: Row) -> Happened:
    body = load(row["body"], object)
    return Happened(
        goal_id=row["goal_id"],
        seq=row["seq"],
        kind=row["kind"],
        turn_key=row["turn_key"],
        at_ms=row["at_ms"],
        body=msgspec.convert(body, dict[str, object]) if isinstance(body, dict) else {"value": body},
    )
