"""Schedules: the wanted cadence, what was applied, and what its owner acknowledged. Apply comes first, then ack.

The transitions are pure (`control_plane/scheduler/schedule.py`); this module reads, saves by compare-and-set, and
records the event.
"""

from __future__ import annotations

import msgspec

from loopx.control_plane.errors import ConflictError, NotFoundError
from loopx.control_plane.ids import GoalId
from loopx.control_plane.scheduler.schedule import (
    Schedule,
    ScheduleOwner,
    ScheduleState,
    ack_schedule,
    apply_schedule,
    close_schedule,
    fire,
)
from loopx.control_plane.turn_driver.journal import NextDue
from loopx.store import events
from loopx.store.connection import Param, Row, Tx


class ScheduleReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What apply or ack left behind."""

    owner: ScheduleOwner
    revision: int
    rrule: str | None
    next_due_ms: int | None = None


def _params(schedule: Schedule) -> dict[str, Param]:
    return {name: getattr(schedule, name) for name in Schedule.__struct_fields__}


def from_row(row: Row) -> Schedule:
    return Schedule(
        goal_id=GoalId(row["goal_id"]),
        rrule=row["rrule"],
        zone=row["zone"],
        dtstart_local=row["dtstart_local"],
        owner=ScheduleOwner(row["owner"]),
        revision=row["revision"],
        applied_revision=row["applied_revision"],
        applied_rrule=row["applied_rrule"],
        acked_revision=row["acked_revision"],
        acked_rrule=row["acked_rrule"],
        next_due_ms=row["next_due_ms"],
        last_slot_key=row["last_slot_key"],
        misses=row["misses"],
        state=ScheduleState(row["state"]),
        failure=row["failure"],
    )


def create(tx: Tx, schedule: Schedule, now_ms: int) -> None:
    """Insert a goal's schedule; every goal has one."""
    tx.run("schedules.insert", now_ms=now_ms, **_params(schedule))


def get(tx: Tx, goal_id: str) -> Schedule:
    """Raises NotFoundError (`schedule_unknown`)."""
    row = tx.one("schedules.get", goal_id=goal_id)
    if row is None:
        raise NotFoundError("schedule_unknown", f"goal {goal_id} has no schedule", hint="loopx goal list")
    return from_row(row)


def save(tx: Tx, before: Schedule, after: Schedule, now_ms: int, what: str) -> None:
    """Write a transition and its event. Raises ConflictError (`stale_revision`) when another came first."""
    if after == before:
        return
    if tx.run("schedules.save", expected=before.revision, now_ms=now_ms, **_params(after)) != 1:
        raise ConflictError(
            "stale_revision",
            f"the schedule of {before.goal_id} moved",
            hint=f"loopx schedule show {before.goal_id}",
        )
    body = {
        "rrule": after.rrule,
        "owner": after.owner,
        "revision": after.revision,
        "applied": after.applied_revision,
        "acked": after.acked_revision,
        "state": after.state,
        "next_due_ms": after.next_due_ms,
    }
    events.append(tx, before.goal_id, f"schedule_{what}", now_ms, body)


def apply(tx: Tx, before: Schedule, due: NextDue, now_ms: int) -> tuple[Schedule, ScheduleReceipt]:
    """Write the wanted revision as applied, the occurrence that was served, and the next due instant.

    A goal that a person closed while its turn was being settled has no cadence to move any more; its turn still ends.
    """
    if before.state is ScheduleState.CLOSED:
        return before, ScheduleReceipt(owner=before.owner, revision=before.applied_revision, rrule=before.applied_rrule)
    after = apply_schedule(before, revision=before.revision, next_due_ms=due.at_ms)
    if due.slot_key is not None:
        after = fire(after, slot_key=due.slot_key, missed=due.misses, next_due_ms=due.at_ms) or after
    save(tx, before, after, now_ms, "applied")
    receipt = ScheduleReceipt(
        owner=after.owner, revision=after.applied_revision, rrule=after.applied_rrule, next_due_ms=after.next_due_ms
    )
    return after, receipt


def acknowledge_applied(tx: Tx, before: Schedule, now_ms: int) -> tuple[Schedule, ScheduleReceipt]:
    """Confirm that the owner has what was applied. Raises ConflictError."""
    if before.state is ScheduleState.CLOSED:
        return before, ScheduleReceipt(owner=before.owner, revision=before.acked_revision, rrule=before.acked_rrule)
    after = ack_schedule(before, revision=before.applied_revision, rrule=before.applied_rrule)
    save(tx, before, after, now_ms, "acked")
    return after, ScheduleReceipt(owner=after.owner, revision=after.acked_revision, rrule=after.acked_rrule)


def close(tx: Tx, goal_id: str, now_ms: int) -> None:
    """Nothing is due any more."""
    before = get(tx, goal_id)
    save(tx, before, close_schedule(before), now_ms, "closed")
