"""A year of a 200-goal fleet on a simulated clock: no wake missed, no occurrence run twice, no goal starved."""

from __future__ import annotations

import datetime
import heapq

import msgspec

from loopx.control_plane.ids import GoalId
from loopx.control_plane.quota import plan
from loopx.control_plane.quota.decision import decide
from loopx.control_plane.quota.facts import GoalFacts
from loopx.control_plane.quota.plan import PlanEntry, WindowSpend
from loopx.control_plane.quota.policy import QuotaPolicy
from loopx.control_plane.scheduler import arbitration, cadence, schedule
from loopx.control_plane.scheduler.schedule import Schedule, Wanted
from loopx.runtime.rrule import open_cadence
from tests.unit.quota_samples import facts

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Kolkata")
START = 1_767_225_600_000
YEAR = 365 * cadence.DAY_MS
TURN = 4 * cadence.MINUTE_MS
AT_ONCE = 8
POLICY = QuotaPolicy(allowed_slots=3)


class SimulatedGoal:
    """One goal with a nightly cadence and a slot allocation; the facts that a store would answer for it."""

    def __init__(self, number: int) -> None:
        self.goal_id = GoalId(f"goal-{number:03d}")
        wanted = Wanted(
            rrule="FREQ=DAILY",
            zone=ZONES[number % len(ZONES)],
            dtstart_local=f"2025-12-01T{number % 4:02d}:{number * 7 % 60:02d}",
        )
        made = open_cadence(wanted)
        assert made is not None
        self.cadence = made
        first = cadence.next_occurrence(made, START)
        assert first is not None
        pending = schedule.set_schedule(Schedule(goal_id=self.goal_id), wanted)
        self.schedule = schedule.apply_schedule(pending, revision=1, next_due_ms=first.at_ms)
        self.spends: list[WindowSpend] = []
        self.slots_run: list[str] = []
        self.latest_start = 0
        self.started_at: int | None = None

    def facts(self, now: int) -> GoalFacts:
        window = plan.window_ms(POLICY)
        self.spends = [spend for spend in self.spends if spend.at_ms + window > now]
        return facts(
            goal_id=self.goal_id,
            now_ms=now,
            quota=POLICY,
            spent_slots=plan.spent_in_window(self.spends, now_ms=now, window_ms=window),
            slot_frees_at_ms=plan.frees_at(self.spends, now_ms=now, window_ms=window, allowed=3),
            next_occurrence_ms=self.schedule.next_due_ms,
        )

    def wake(self, now: int) -> int:
        snapshot = self.facts(now)
        made = arbitration.arbitrate(arbitration.wake_inputs(snapshot, decide(snapshot)))
        assert made.at_ms is not None
        return made.at_ms

    def start(self, now: int) -> None:
        assert decide(self.facts(now)).should_run
        assert self.schedule.next_due_ms is not None
        due = cadence.due(self.cadence, next_due_ms=self.schedule.next_due_ms, now_ms=now)
        assert due is not None
        following = None if due.following is None else due.following.at_ms
        key = due.occurrence.slot_key
        fired = schedule.fire(self.schedule, slot_key=key, missed=due.missed, next_due_ms=following)
        assert fired is not None, "an occurrence ran twice"
        self.latest_start = max(self.latest_start, now - due.occurrence.at_ms)
        self.schedule, self.started_at = fired, now
        self.slots_run.append(key)
        self.spends.append(WindowSpend(at_ms=now, amount=1))


def test_a_year_of_a_fleet_in_seconds() -> None:
    goals = {goal.goal_id: goal for goal in map(SimulatedGoal, range(200))}
    wakes = [(goal.wake(START), goal.goal_id) for goal in goals.values()]
    heapq.heapify(wakes)
    busy: list[int] = []
    now = START
    while wakes[0][0] < START + YEAR:
        now = max(now, wakes[0][0])
        busy = [until for until in busy if until > now]
        if len(busy) == AT_ONCE:
            now = min(busy)
            continue
        due: list[GoalId] = []
        while wakes and wakes[0][0] <= now:
            due.append(heapq.heappop(wakes)[1])
        order = plan.start_order(
            [PlanEntry(goal_id=name, at_ms=now, started_at_ms=goals[name].started_at) for name in due]
        )
        for place, entry in enumerate(order):
            goal = goals[entry.goal_id]
            if place < AT_ONCE - len(busy):
                goal.start(now)
            heapq.heappush(wakes, (goal.wake(now), goal.goal_id))
        busy += [now + TURN] * min(len(order), AT_ONCE - len(busy))
    for goal in goals.values():
        assert len(goal.slots_run) == len(set(goal.slots_run)), goal.goal_id
        assert goal.schedule.misses == 0
        days = {datetime.date.fromisoformat(key[:10]) for key in goal.slots_run}
        assert len(days) in (365, 366), goal.goal_id
        assert goal.latest_start <= 3 * cadence.HOUR_MS, "starved"


def test_a_machine_that_was_off_for_a_week_runs_each_goal_once_and_counts_the_misses() -> None:
    goal = SimulatedGoal(3)
    assert goal.schedule.next_due_ms is not None
    goal.start(goal.schedule.next_due_ms + 7 * cadence.DAY_MS)
    assert (len(goal.slots_run), goal.schedule.misses) == (1, 7)
    assert msgspec.json.encode(goal.schedule)
