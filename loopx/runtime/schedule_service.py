"""Cadences as people and outside owners change them: set, apply, ack, fail, and read.

The transitions are pure and the store saves them by compare-and-set; this room gives them a calendar, wakes the goal
accordingly, and gives closed turns the acknowledgement that they were waiting for. No cadence change spends anything.
"""

from __future__ import annotations

import os

import msgspec

from loopx.control_plane.errors import UsageError
from loopx.control_plane.goal import CLOSED_GOAL_STATES
from loopx.control_plane.ids import AgentId
from loopx.control_plane.scheduler import cadence as cadences
from loopx.control_plane.scheduler.execution_context import ExecutionContext, RunMode, automation_of, owner_refusal
from loopx.control_plane.scheduler.schedule import (
    Schedule,
    ScheduleOwner,
    Wanted,
    ack_schedule,
    apply_schedule,
    fail_schedule,
    is_pending,
    set_schedule,
)
from loopx.runtime import rrule, waking
from loopx.runtime.schedule_port import next_due
from loopx.runtime.session import DEFAULT_AGENT
from loopx.store import goals, schedules, turns
from loopx.store.connection import Tx
from loopx.store.store import Store

AHEAD = 3
"""Occurrences that are shown."""


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A goal's cadence: what is wanted, what was applied, what its owner is known to have, and when it fires."""

    goal_id: str
    rrule: str | None
    zone: str
    dtstart_local: str | None
    owner: str
    state: str
    pending: bool
    revision: int
    applied_revision: int
    applied_rrule: str | None
    acked_revision: int
    acked_rrule: str | None
    next_due_ms: int | None
    upcoming_ms: tuple[int, ...]
    misses: int
    failure: str
    wakes_at_ms: int | None
    """When LoopX looks at the goal next."""
    acked_turns: tuple[str, ...] = ()
    """Closed turns whose acknowledgement came with this."""


def show(store: Store, goal_id: str) -> ScheduleView:
    """Raises NotFoundError (`goal_unknown`)."""
    with store.read() as tx:
        row = goals.row_of(tx, goal_id)
        return _view(schedules.get(tx, goal_id), store.now_ms(), row["due_at_ms"])


def _view(schedule: Schedule, now_ms: int, wakes_at_ms: int | None, acked: tuple[str, ...] = ()) -> ScheduleView:
    return ScheduleView(
        goal_id=schedule.goal_id,
        rrule=schedule.rrule,
        zone=schedule.zone,
        dtstart_local=schedule.dtstart_local,
        owner=schedule.owner,
        state=schedule.state,
        pending=is_pending(schedule),
        revision=schedule.revision,
        applied_revision=schedule.applied_revision,
        applied_rrule=schedule.applied_rrule,
        acked_revision=schedule.acked_revision,
        acked_rrule=schedule.acked_rrule,
        next_due_ms=schedule.next_due_ms,
        upcoming_ms=upcoming(schedule, now_ms),
        misses=schedule.misses,
        failure=schedule.failure,
        wakes_at_ms=wakes_at_ms,
        acked_turns=acked,
    )


def upcoming(schedule: Schedule, now_ms: int, count: int = AHEAD) -> tuple[int, ...]:
    """The next instants of a cadence; none without a rule."""
    cadence = rrule.open_cadence(schedule)
    found: list[int] = []
    after = now_ms
    while cadence is not None and len(found) < count:
        occurrence = cadences.next_occurrence(cadence, after)
        if occurrence is None:
            break
        found.append(occurrence.at_ms)
        after = occurrence.at_ms
    return tuple(found)


def set_cadence(store: Store, goal_id: str, wanted: Wanted) -> ScheduleView:
    """Want another cadence. With the owner `loopx` it is applied and acknowledged in the same commit.

    Raises UsageError (`rrule_invalid`, `rrule_never_fires`, `zone_unknown`, `dtstart_invalid`, `owner_not_legal`,
    `schedule_closed`), ConflictError (`stale_revision`).
    """
    rrule.open_cadence(wanted)
    now = store.now_ms()
    with store.write() as tx:
        row = goals.row_of(tx, goal_id)
        definition = goals.definition_of(tx, goal_id, row["revision"])
        _require_legal(wanted.owner, definition.engines)
        before = schedules.get(tx, goal_id)
        after = set_schedule(before, wanted)
        if wanted.owner is ScheduleOwner.LOOPX:
            after = apply_schedule(after, revision=after.revision, next_due_ms=next_due(after, now).at_ms)
        schedules.save(tx, before, after, now, "set")
    return _settled(store, goal_id, after)


def _require_legal(owner: ScheduleOwner, engines: tuple[str, ...]) -> None:
    """Raises UsageError (`owner_not_legal`) for an owner that no way of running this goal's engine allows."""
    automation = automation_of(engines[0]) if engines else automation_of("")
    mode = RunMode.EMBEDDED if owner is ScheduleOwner.HOST else RunMode.ONCE
    refusal = owner_refusal(ExecutionContext(owner=owner, mode=mode, automation=automation))
    if refusal is not None:
        raise UsageError(
            "owner_not_legal",
            f"owner: {owner} can't own this goal's cadence ({refusal})",
            hint=f"use one of {', '.join(one for one in ScheduleOwner if one is not ScheduleOwner.HOST)}",
            data={"field": "owner", "refusal": str(refusal)},
        )


def apply(store: Store, goal_id: str, revision: int | None = None) -> ScheduleView:
    """Write the wanted revision as applied. Applying again refreshes the next due instant.

    Raises ConflictError (`schedule_revision_stale`, `schedule_closed`).
    """
    now = store.now_ms()
    with store.write() as tx:
        goals.row_of(tx, goal_id)
        before = schedules.get(tx, goal_id)
        wanted = before.revision if revision is None else revision
        after = apply_schedule(before, revision=wanted, next_due_ms=next_due(before, now).at_ms)
        schedules.save(tx, before, after, now, "applied")
    return _settled(store, goal_id, after)


def ack(store: Store, goal_id: str, revision: int, text: str | None) -> ScheduleView:
    """Confirm what the owner really has. A repeat changes nothing.

    Raises ConflictError: `ack_before_apply`, `ack_revision_stale`, `ack_rrule_differs`, `schedule_closed`.
    """
    now = store.now_ms()
    with store.write() as tx:
        goals.row_of(tx, goal_id)
        before = schedules.get(tx, goal_id)
        after = ack_schedule(before, revision=revision, rrule=text)
        schedules.save(tx, before, after, now, "acked")
        acked = _ack_turns(tx, goal_id, after, now)
    return _settled(store, goal_id, after, acked)


def _ack_turns(tx: Tx, goal_id: str, schedule: Schedule, now_ms: int) -> tuple[str, ...]:
    """Give the last phase to closed turns that only an outside owner's word was missing from."""
    found: list[str] = []
    while (row := tx.one("turns.ack_closed", goal_id=goal_id)) is not None:
        receipt = schedules.ScheduleReceipt(
            owner=schedule.owner, revision=schedule.acked_revision, rrule=schedule.acked_rrule
        )
        turns.acknowledge_closed(tx, row["turn_key"], receipt, now_ms)
        found.append(row["turn_key"])
    return tuple(found)


def fail(store: Store, goal_id: str, revision: int, reason: str) -> ScheduleView:
    """Record that the owner could not take the applied revision; what was in force stays acknowledged.

    Raises ConflictError (`schedule_revision_stale`, `schedule_already_acked`), UsageError (`reason_missing`).
    """
    now = store.now_ms()
    with store.write() as tx:
        goals.row_of(tx, goal_id)
        before = schedules.get(tx, goal_id)
        after = fail_schedule(before, revision=revision, reason=reason)
        schedules.save(tx, before, after, now, "failed")
    return _settled(store, goal_id, after)


def _settled(store: Store, goal_id: str, schedule: Schedule, acked: tuple[str, ...] = ()) -> ScheduleView:
    """The view after a change, with the wake that follows from it."""
    with store.read() as tx:
        row = goals.row_of(tx, goal_id)
    wakes = row["due_at_ms"]
    if row["state"] not in CLOSED_GOAL_STATES:
        wakes = waking.settle(store, goal_id, AgentId(DEFAULT_AGENT)).at_ms
    return _view(schedule, store.now_ms(), wakes, acked)


def local_zone() -> str:
    """This machine's zone by its IANA name; UTC where it does not say."""
    named = os.environ.get("TZ", "").lstrip(":")
    if named and not named.startswith("/"):
        return named
    try:
        target = os.path.realpath("/etc/localtime")
    except OSError:
        return "UTC"
    _, found, name = target.partition("/zoneinfo/")
    return name if found and name not in ("", "Etc/UTC", "UCT", "Universal", "Zulu") else "UTC"


def starting_now(zone: str, now_ms: int) -> str:
    """The local time of a cadence that starts now, to the minute."""
    local = cadences.to_local(rrule.open_zone(zone), now_ms)
    return f"{cadences.local_datetime(local - local % 60_000):%Y-%m-%dT%H:%M}"


_EVERY = ((86_400_000, "DAILY"), (3_600_000, "HOURLY"), (60_000, "MINUTELY"))


def every(duration_ms: int) -> str:
    """The rule of a plain interval. Raises UsageError for one that is no whole number of minutes."""
    for size, word in _EVERY:
        if duration_ms % size == 0:
            return f"FREQ={word};INTERVAL={duration_ms // size}"
    raise UsageError(
        "every_invalid", "every: write whole minutes, hours or days", hint="30m, 6h, 1d", data={"field": "every"}
    )
