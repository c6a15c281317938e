"""The scheduling side of a turn: the next occurrence of the goal's cadence, and what its owner is known to have."""

from __future__ import annotations

from loopx.control_plane.scheduler.schedule import Schedule, ScheduleOwner
from loopx.control_plane.turn_driver.journal import NextDue, TurnJournal
from loopx.store import schedules
from loopx.store.store import Store


def next_due(schedule: Schedule, now_ms: int) -> NextDue:
    """The occurrence that a turn ending now has served, and the next one; all None without a cadence."""
    if schedule.rrule is None:
        return NextDue()
    # dateutil and zoneinfo are needed by goals with a cadence only.
    from loopx.control_plane.scheduler import cadence as cadences
    from loopx.runtime import rrule

    cadence = rrule.open_cadence(schedule)
    if cadence is None:
        return NextDue()
    served = None
    if schedule.next_due_ms is not None:
        served = cadences.due(cadence, next_due_ms=schedule.next_due_ms, now_ms=now_ms)
    if served is not None:
        following = served.following
        return NextDue(
            at_ms=following.at_ms if following is not None else None,
            slot_key=served.occurrence.slot_key,
            misses=served.missed,
        )
    following = cadences.next_occurrence(cadence, now_ms)
    return NextDue(at_ms=following.at_ms if following is not None else None)


class GoalSchedule:
    """Implements `SchedulePort`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def next_due(self, journal: TurnJournal) -> NextDue:
        with self._store.read() as tx:
            schedule = schedules.get(tx, journal.turn.goal_id)
        return next_due(schedule, self._store.now_ms())

    def owner_has(self, journal: TurnJournal) -> bool:
        """LoopX has what it applied; an owner outside has it once it said so for this very revision."""
        with self._store.read() as tx:
            schedule = schedules.get(tx, journal.turn.goal_id)
        return schedule.owner is ScheduleOwner.LOOPX or schedule.acked_revision == schedule.revision
