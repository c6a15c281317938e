"""Schedules: the wanted cadence, what was applied, and what its owner acknowledged. Apply comes first, then ack."""

from __future__ import annotations

import msgspec

from loopx.control_plane.errors import ConflictError, NotFoundError
from loopx.control_plane.turn_driver.journal import NextDue
from loopx.store import events
from loopx.store.connection import Row, Tx

OWNER_LOOPX = "loopx"


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """One goal's schedule as stored."""

    goal_id: str
    state: str
    rrule: str | None
    zone: str
    dtstart_local: str | None
    owner: str
    revision: int
    applied_revision: int
    applied_rrule: str | None
    acked_revision: int
    acked_rrule: str | None
    next_due_ms: int | None
    last_slot_key: str | None
    misses: int


class ScheduleReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What apply or ack left behind."""

    owner: str
    revision: int
    rrule: str | None
    next_due_ms: int | None = None


def from_row(row: Row) -> ScheduleRow:
    return ScheduleRow(
        goal_id=row["goal_id"],
        state=row["state"],
        rrule=row["rrule"],
        zone=row["zone"],
        dtstart_local=row["dtstart_local"],
        owner=row["owner"],
        revision=row["revision"],
        applied_revision=row["applied_revision"],
        applied_rrule=row["applied_rrule"],
        acked_revision=row["acked_revision"],
        acked_rrule=row["acked_rrule"],
        next_due_ms=row["next_due_ms"],
        last_slot_key=row["last_slot_key"],
        misses=row["misses"],
    )


def create(
    tx: Tx,
    goal_id: str,
    now_ms: int,
    *,
    rrule: str | None = None,
    zone: str = "UTC",
    dtstart_local: str | None = None,
    owner: str = OWNER_LOOPX,
) -> None:
    tx.run(
        "schedules.insert",
        goal_id=goal_id,
        rrule=rrule,
        zone=zone,
        dtstart_local=dtstart_local,
        owner=owner,
        now_ms=now_ms,
    )


def get(tx: Tx, goal_id: str) -> ScheduleRow:
    """Raises NotFoundError (`schedule_unknown`)."""
    row = tx.one("schedules.get", goal_id=goal_id)
    if row is None:
        raise NotFoundError("schedule_unknown", f"goal {goal_id} has no schedule", hint="loopx schedule set")
    return from_row(row)


def change(
    tx: Tx,
    goal_id: str,
    revision: int,
    now_ms: int,
    *,
    rrule: str | None,
    zone: str,
    dtstart_local: str | None,
    owner: str,
) -> int:
    """Want another cadence; the new revision. Raises ConflictError (`stale_revision`)."""
    changed = tx.run(
        "schedules.set",
        goal_id=goal_id,
        revision=revision,
        rrule=rrule,
        zone=zone,
        dtstart_local=dtstart_local,
        owner=owner,
        now_ms=now_ms,
    )
    if changed != 1:
        raise ConflictError("stale_revision", f"the schedule of {goal_id} moved", hint=f"loopx schedule show {goal_id}")
    body = {"rrule": rrule, "zone": zone, "owner": owner, "revision": revision + 1}
    events.append(tx, goal_id, "schedule_set", now_ms, body)
    return revision + 1


def apply(tx: Tx, goal_id: str, due: NextDue, now_ms: int) -> ScheduleReceipt:
    """Write the wanted revision as applied, and the next due instant."""
    tx.run(
        "schedules.apply",
        goal_id=goal_id,
        next_due_ms=due.at_ms,
        last_slot_key=due.slot_key,
        misses=due.misses,
        now_ms=now_ms,
    )
    row = get(tx, goal_id)
    return ScheduleReceipt(
        owner=row.owner, revision=row.applied_revision, rrule=row.applied_rrule, next_due_ms=row.next_due_ms
    )


def acknowledge_applied(tx: Tx, goal_id: str, now_ms: int) -> ScheduleReceipt:
    """Confirm that the owner has what was applied. Raises ConflictError (`ack_stale`) when nothing was."""
    row = get(tx, goal_id)
    if tx.run("schedules.ack", goal_id=goal_id, revision=row.applied_revision, now_ms=now_ms) != 1:
        raise ConflictError("ack_stale", f"the schedule of {goal_id} moved", hint=f"loopx schedule show {goal_id}")
    return ScheduleReceipt(owner=row.owner, revision=row.applied_revision, rrule=row.applied_rrule)
