"""The audit log against the store: a goal's events, replayed, must tell the states that the store holds.

It reads and compares; it mends nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from loopx.control_plane.work_items.replay import Past, States
from loopx.control_plane.work_items.replay import replay as fold
from loopx.store import events, goals
from loopx.store.codec import load
from loopx.store.connection import Tx
from loopx.store.store import Store

_PAGE = 1000


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What the log tells. `differences`: one line for each thing of which the store says something else."""

    goal_id: str
    events: int
    broken_link: int | None
    """The first event at which the chain of hashes does not hold."""
    todos: dict[str, str]
    gates: dict[str, str]
    capabilities: dict[str, str]
    differences: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        return self.broken_link is None and not self.differences


def replay(store: Store, goal_id: str) -> Replay:
    """Read all events of a goal in one snapshot and compare. Raises NotFoundError (`goal_unknown`)."""
    with store.read() as tx:
        count = int(goals.row_of(tx, goal_id)["event_seq"])
        told, held = fold(_past(tx, goal_id)), _held(tx, goal_id)
        broken = events.broken_link(tx, goal_id)
    return Replay(
        goal_id=goal_id,
        events=count,
        broken_link=broken,
        todos=told.todos,
        gates=told.gates,
        capabilities=told.capabilities,
        differences=tuple(
            f"{noun} {key}: {before.get(key)} in the log, {now.get(key)} in the store"
            for noun, before, now in (
                ("todo", told.todos, held.todos),
                ("gate", told.gates, held.gates),
                ("capability", told.capabilities, held.capabilities),
            )
            for key in sorted(before.keys() | now.keys())
            if before.get(key) != now.get(key)
        ),
    )


def _past(tx: Tx, goal_id: str) -> Iterator[Past]:
    after = 0
    while rows := tx.all("events.page", goal_id=goal_id, after=after, limit=_PAGE):
        for row in rows:
            body = load(row["body"], object)
            yield Past(kind=row["kind"], turn_key=row["turn_key"], body=body if isinstance(body, dict) else {})
        after = rows[-1]["seq"]


def _held(tx: Tx, goal_id: str) -> States:
    found = {"todos": "todo_id", "gates": "gate_id", "capabilities": "intent_id"}
    return States(
        **{
            noun: {str(row[key]): str(row["status"]) for row in tx.all(f"{noun}.statuses", goal_id=goal_id)}
            for noun, key in found.items()
        }
    )
