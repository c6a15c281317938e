"""A goal's schedule as a value, and its transitions: set, apply, ack, fail, fire (quota, "The scheduler").

Apply, then ack: `apply` writes the wanted revision, `ack` confirms what the owner really has. A pending ack blocks
nothing. Pure: who wakes the goal, and the calendar itself, are other rooms; no transition here spends quota.
"""

from __future__ import annotations

import enum

import msgspec

from loopx.control_plane.errors import ConflictError, UsageError
from loopx.control_plane.ids import GoalId
from loopx.control_plane.scheduler.rrule_text import normal_rrule


class ScheduleOwner(enum.StrEnum):
    """Who wakes the goal: LoopX's own worker or run, or somebody outside."""

    LOOPX = "loopx"
    CRON = "cron"
    SYSTEMD = "systemd"
    HOST = "host"


class ScheduleState(enum.StrEnum):
    """How far the wanted revision has come."""

    PENDING_APPLY = "pending_apply"
    PENDING_ACK = "pending_ack"
    IN_FORCE = "in_force"
    FAILED = "failed"
    CLOSED = "closed"
    """The goal ended; nothing wakes it any more."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """One goal's cadence. `rrule` None: run as soon as eligible. `dtstart_local` is ISO local time in `zone`."""

    goal_id: GoalId
    rrule: str | None = None
    zone: str = "UTC"
    dtstart_local: str | None = None
    owner: ScheduleOwner = ScheduleOwner.LOOPX
    revision: int = 0
    applied_revision: int = 0
    applied_rrule: str | None = None
    acked_revision: int = 0
    acked_rrule: str | None = None
    next_due_ms: int | None = None
    last_slot_key: str | None = None
    misses: int = 0
    state: ScheduleState = ScheduleState.IN_FORCE
    failure: str = ""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a person wants the cadence to be."""

    rrule: str | None
    zone: str = "UTC"
    dtstart_local: str | None = None
    owner: ScheduleOwner = ScheduleOwner.LOOPX


def set_schedule(schedule: Schedule, wanted: Wanted) -> Schedule:
    """A new revision of the cadence, to be applied. Setting what is already wanted changes nothing.

    Raises `UsageError` for a rule without a start, and for a closed schedule.
    """
    if schedule.state is ScheduleState.CLOSED:
        raise UsageError("schedule_closed", "the goal has ended", hint="open it again first: loopx goal reopen GOAL")
    rrule = None if wanted.rrule is None else normal_rrule(wanted.rrule)
    if rrule is not None and wanted.dtstart_local is None:
        raise UsageError("dtstart_missing", "dtstart: a rule needs its first local time", data={"field": "dtstart"})
    same = (schedule.rrule, schedule.zone, schedule.dtstart_local, schedule.owner) == (
        rrule,
        wanted.zone,
        wanted.dtstart_local,
        wanted.owner,
    )
    if same and schedule.revision > 0:
        return schedule
    return msgspec.structs.replace(
        schedule,
        rrule=rrule,
        zone=wanted.zone,
        dtstart_local=wanted.dtstart_local,
        owner=wanted.owner,
        revision=schedule.revision + 1,
        next_due_ms=None,
        # Keys of another rule or zone do not compare with the new one's.
        last_slot_key=None,
        state=ScheduleState.PENDING_APPLY,
        failure="",
    )


def apply_schedule(schedule: Schedule, *, revision: int, next_due_ms: int | None) -> Schedule:
    """Write the wanted revision; for the owner `loopx` it is acknowledged in the same commit.

    Applying again what is applied only refreshes the next due instant. Raises `ConflictError` for another revision
    than the wanted one, and for a closed schedule.
    """
    _require_open(schedule)
    if revision != schedule.revision:
        raise _stale("schedule_revision_stale", "apply", revision, schedule.revision)
    if schedule.applied_revision == revision and schedule.state is not ScheduleState.FAILED:
        return msgspec.structs.replace(schedule, next_due_ms=next_due_ms)
    applied = msgspec.structs.replace(
        schedule,
        applied_revision=revision,
        applied_rrule=schedule.rrule,
        next_due_ms=next_due_ms,
        state=ScheduleState.PENDING_ACK,
        failure="",
    )
    if schedule.owner is ScheduleOwner.LOOPX:
        return ack_schedule(applied, revision=revision, rrule=schedule.rrule)
    return applied


def ack_schedule(schedule: Schedule, *, revision: int, rrule: str | None) -> Schedule:
    """Confirm what the owner really has. Confirming again changes nothing.

    Raises `ConflictError`: `ack_before_apply`, `ack_revision_stale` (an older revision), `ack_rrule_differs`.
    """
    _require_open(schedule)
    if revision > schedule.applied_revision:
        raise ConflictError(
            "ack_before_apply",
            f"revision {revision} is not applied yet (applied: {schedule.applied_revision})",
            hint="apply it first: loopx schedule apply GOAL",
        )
    if revision < schedule.revision:
        raise _stale("ack_revision_stale", "ack", revision, schedule.revision)
    heard = None if rrule is None else normal_rrule(rrule)
    if heard != schedule.applied_rrule:
        raise ConflictError(
            "ack_rrule_differs",
            f"the owner has {heard or 'no rule'}, wanted is {schedule.applied_rrule or 'no rule'}",
            hint="set the owner's rule as `loopx schedule show GOAL` prints it, then ack again",
        )
    return msgspec.structs.replace(
        schedule, acked_revision=revision, acked_rrule=heard, state=ScheduleState.IN_FORCE, failure=""
    )


def fail_schedule(schedule: Schedule, *, revision: int, reason: str) -> Schedule:
    """Record that the owner could not take the applied revision. What was in force before stays acknowledged.

    Raises `ConflictError` for another revision than the wanted one or one that is already confirmed, and `UsageError`
    for an empty reason.
    """
    _require_open(schedule)
    if not reason.strip():
        raise UsageError("reason_missing", "reason: say what went wrong", data={"field": "reason"})
    if revision != schedule.revision:
        raise _stale("schedule_revision_stale", "fail", revision, schedule.revision)
    if schedule.acked_revision == revision:
        raise ConflictError("schedule_already_acked", f"revision {revision} is already confirmed by its owner")
    return msgspec.structs.replace(schedule, state=ScheduleState.FAILED, failure=reason.strip())


def close_schedule(schedule: Schedule) -> Schedule:
    """The goal ended: nothing is due any more. Closing again changes nothing."""
    return msgspec.structs.replace(schedule, state=ScheduleState.CLOSED, next_due_ms=None)


def reopen_schedule(schedule: Schedule) -> Schedule:
    """The goal is open again: the same cadence as a new revision, to be applied."""
    if schedule.state is not ScheduleState.CLOSED:
        return schedule
    return msgspec.structs.replace(schedule, state=ScheduleState.PENDING_APPLY, revision=schedule.revision + 1)


def fire(schedule: Schedule, *, slot_key: str, missed: int, next_due_ms: int | None) -> Schedule | None:
    """Take one occurrence: its key, the misses that it stands for, and the next due instant.

    None when that occurrence, or a later one, has run already: a clock set back runs nothing twice.
    """
    if schedule.last_slot_key is not None and slot_key <= schedule.last_slot_key:
        return None
    return msgspec.structs.replace(
        schedule, last_slot_key=slot_key, misses=schedule.misses + missed, next_due_ms=next_due_ms
    )


def is_pending(schedule: Schedule) -> bool:
    """Whether the owner is not yet known to have the wanted revision; shown in `status`, blocks nothing."""
    return schedule.state in (ScheduleState.PENDING_APPLY, ScheduleState.PENDING_ACK, ScheduleState.FAILED)


def _require_open(schedule: Schedule) -> None:
    if schedule.state is ScheduleState.CLOSED:
        raise ConflictError("schedule_closed", "the goal has ended, and its schedule with it")


def _stale(code: str, verb: str, revision: int, current: int) -> ConflictError:
    return ConflictError(
        code,
        f"{verb}: revision {revision} is not the wanted one ({current})",
        hint="read it again: loopx schedule show GOAL",
        data={"revision": revision, "wanted": current},
    )
