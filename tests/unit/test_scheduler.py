from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopx.control_plane.errors import ConflictError, UsageError
from loopx.control_plane.goal import GoalState
from loopx.control_plane.ids import AgentId, GoalId
from loopx.control_plane.quota.decision import decide
from loopx.control_plane.quota.facts import Breaker, ContractState, GoalFacts, PendingWait, WaitKind
from loopx.control_plane.scheduler import arbitration, execution_context, schedule
from loopx.control_plane.scheduler.arbitration import WakeDecision, WakeKind
from loopx.control_plane.scheduler.execution_context import ExecutionContext, HostAutomation, OwnerRefusal, RunMode
from loopx.control_plane.scheduler.heartbeat_commit import (
    Heartbeat,
    HeartbeatOutcome,
    HeartbeatReceipt,
    HeartbeatRefusal,
    HeartbeatVerdict,
    plan_heartbeat,
)
from loopx.control_plane.scheduler.schedule import Schedule, ScheduleOwner, ScheduleState, Wanted
from tests.unit.quota_samples import NOW, any_facts, facts, gate, use

GOAL = GoalId("nightly")
NIGHTLY = "FREQ=DAILY;BYHOUR=2;BYMINUTE=30"
SOON = NOW + 3_600_000


def wanted(owner: ScheduleOwner, rrule: str | None = NIGHTLY) -> Schedule:
    made = Wanted(rrule=rrule, zone="Europe/Berlin", dtstart_local="2026-01-01T02:30", owner=owner)
    return schedule.set_schedule(Schedule(goal_id=GOAL), made)


def applied(owner: ScheduleOwner) -> Schedule:
    return schedule.apply_schedule(wanted(owner), revision=1, next_due_ms=SOON)


def test_loopx_applies_and_acknowledges_in_one() -> None:
    made = applied(ScheduleOwner.LOOPX)
    assert (made.applied_revision, made.acked_revision, made.acked_rrule) == (1, 1, NIGHTLY)
    assert (made.state, made.next_due_ms) == (ScheduleState.IN_FORCE, SOON)


@pytest.mark.parametrize("owner", [ScheduleOwner.CRON, ScheduleOwner.SYSTEMD, ScheduleOwner.HOST])
def test_an_owner_outside_has_to_confirm(owner: ScheduleOwner) -> None:
    made = applied(owner)
    assert (made.applied_revision, made.acked_revision, made.state) == (1, 0, ScheduleState.PENDING_ACK)
    assert schedule.is_pending(made)
    # The same rule, written otherwise, is the same rule.
    confirmed = schedule.ack_schedule(made, revision=1, rrule="rrule:BYMINUTE=30;BYHOUR=2;FREQ=DAILY")
    assert (confirmed.acked_revision, confirmed.acked_rrule, confirmed.state) == (1, NIGHTLY, ScheduleState.IN_FORCE)
    assert schedule.ack_schedule(confirmed, revision=1, rrule=NIGHTLY) == confirmed


def test_an_ack_never_comes_before_its_apply() -> None:
    with pytest.raises(ConflictError) as refused:
        schedule.ack_schedule(wanted(ScheduleOwner.CRON), revision=1, rrule=NIGHTLY)
    assert refused.value.code == "ack_before_apply"


def test_an_ack_of_an_older_revision_or_another_rule_is_refused() -> None:
    made = applied(ScheduleOwner.CRON)
    with pytest.raises(ConflictError) as other_rule:
        schedule.ack_schedule(made, revision=1, rrule="FREQ=DAILY")
    assert other_rule.value.code == "ack_rrule_differs"
    with pytest.raises(ConflictError):
        schedule.ack_schedule(made, revision=1, rrule=None)
    newer = schedule.set_schedule(made, Wanted(rrule="FREQ=HOURLY", dtstart_local="2026-01-01T00:00"))
    with pytest.raises(ConflictError) as older:
        schedule.ack_schedule(newer, revision=1, rrule=NIGHTLY)
    assert older.value.code == "ack_revision_stale"
    with pytest.raises(ConflictError):
        schedule.apply_schedule(newer, revision=1, next_due_ms=None)


def test_setting_the_same_changes_nothing_and_another_starts_afresh() -> None:
    made = msgspec.structs.replace(applied(ScheduleOwner.LOOPX), last_slot_key="2026-05-01T02:30:00")
    same = Wanted(rrule=f"RRULE:{NIGHTLY}", zone="Europe/Berlin", dtstart_local="2026-01-01T02:30")
    assert schedule.set_schedule(made, same) == made
    moved = schedule.set_schedule(made, Wanted(rrule=NIGHTLY, zone="Asia/Kolkata", dtstart_local="2026-01-01T02:30"))
    assert (moved.revision, moved.state, moved.last_slot_key) == (2, ScheduleState.PENDING_APPLY, None)
    assert (moved.acked_revision, moved.acked_rrule) == (1, NIGHTLY)
    with pytest.raises(UsageError):
        schedule.set_schedule(made, Wanted(rrule=NIGHTLY))


def test_a_failed_apply_is_recorded_and_can_be_tried_again() -> None:
    made = applied(ScheduleOwner.SYSTEMD)
    failed = schedule.fail_schedule(made, revision=1, reason="no user bus")
    assert (failed.state, failed.failure, failed.acked_revision) == (ScheduleState.FAILED, "no user bus", 0)
    again = schedule.apply_schedule(failed, revision=1, next_due_ms=SOON)
    assert (again.state, again.failure) == (ScheduleState.PENDING_ACK, "")
    confirmed = schedule.ack_schedule(again, revision=1, rrule=NIGHTLY)
    for call in (
        lambda: schedule.fail_schedule(confirmed, revision=1, reason="late"),
        lambda: schedule.fail_schedule(made, revision=2, reason="x"),
    ):
        with pytest.raises(ConflictError):
            call()
    with pytest.raises(UsageError):
        schedule.fail_schedule(made, revision=1, reason=" ")


def test_applying_again_rolls_nothing_back() -> None:
    confirmed = schedule.ack_schedule(applied(ScheduleOwner.CRON), revision=1, rrule=NIGHTLY)
    again = schedule.apply_schedule(confirmed, revision=1, next_due_ms=SOON + 5)
    assert again == msgspec.structs.replace(confirmed, next_due_ms=SOON + 5)


def test_an_occurrence_is_taken_once_even_when_the_clock_is_set_back() -> None:
    made = applied(ScheduleOwner.LOOPX)
    first = schedule.fire(made, slot_key="2026-05-02T02:30:00", missed=3, next_due_ms=SOON)
    assert first is not None
    assert (first.misses, first.last_slot_key) == (3, "2026-05-02T02:30:00")
    assert schedule.fire(first, slot_key="2026-05-02T02:30:00", missed=0, next_due_ms=SOON) is None
    assert schedule.fire(first, slot_key="2026-05-01T02:30:00", missed=0, next_due_ms=SOON) is None


def test_a_closed_schedule_wakes_nobody_until_it_is_opened_again() -> None:
    closed = schedule.close_schedule(applied(ScheduleOwner.LOOPX))
    assert (closed.next_due_ms, schedule.close_schedule(closed)) == (None, closed)
    for call in (
        lambda: schedule.apply_schedule(closed, revision=1, next_due_ms=SOON),
        lambda: schedule.ack_schedule(closed, revision=1, rrule=NIGHTLY),
        lambda: schedule.fail_schedule(closed, revision=1, reason="x"),
    ):
        with pytest.raises(ConflictError):
            call()
    with pytest.raises(UsageError):
        schedule.set_schedule(closed, Wanted(rrule=None))
    opened = schedule.reopen_schedule(closed)
    assert (opened.revision, opened.rrule, opened.state) == (2, NIGHTLY, ScheduleState.PENDING_APPLY)
    assert schedule.reopen_schedule(opened) == opened


def wake(given_facts: GoalFacts, **more: int) -> WakeDecision:
    return arbitration.arbitrate(arbitration.wake_inputs(given_facts, decide(given_facts), **more))


LIMIT = PendingWait(kind=WaitKind.LIMIT, until_ms=SOON)
IDLE = {"ready": None, "open_todos": False, "contract": ContractState.GREEN}


@pytest.mark.parametrize(
    ("given_facts", "more", "expected"),
    [
        (facts(state=GoalState.CANCELLED), {}, WakeDecision(kind=WakeKind.STOP)),
        (facts(state=GoalState.PAUSED), {}, WakeDecision(kind=WakeKind.NONE)),
        (facts(gates=(gate(),)), {}, WakeDecision(kind=WakeKind.ON_ANSWER, at_ms=NOW + 3_600_000, recheck=True)),
        (facts(wait=LIMIT), {"jitter_ms": 70}, WakeDecision(kind=WakeKind.LIMIT_RESET, at_ms=SOON + 70)),
        (facts(spent_slots=5, slot_frees_at_ms=SOON), {}, WakeDecision(kind=WakeKind.SLOT_FREES, at_ms=SOON)),
        (
            facts(wait=PendingWait(kind=WaitKind.EXTERNAL_EVIDENCE)),
            {},
            WakeDecision(kind=WakeKind.OUTSIDE, at_ms=NOW + 3_600_000, recheck=True),
        ),
        (
            facts(wait=PendingWait(kind=WaitKind.BACKOFF, until_ms=SOON)),
            {"jitter_ms": 70},
            WakeDecision(kind=WakeKind.OUTSIDE, at_ms=SOON),
        ),
        (facts(monitor_due=facts().ready), {}, WakeDecision(kind=WakeKind.MONITOR, at_ms=NOW)),
        (
            facts(ready=None, blocked_wake_at_ms=SOON),
            {},
            WakeDecision(kind=WakeKind.TODO_WAKE, at_ms=SOON),
        ),
        (
            facts(ready=None, blocked_wake_at_ms=SOON),
            {"next_monitor_ms": NOW + 9},
            WakeDecision(kind=WakeKind.MONITOR, at_ms=NOW + 9),
        ),
        (facts(**IDLE, next_occurrence_ms=SOON), {"idle_streak": 2}, WakeDecision(kind=WakeKind.NOW, at_ms=NOW)),
        (
            facts(),
            {"idle_streak": 2, "last_turn_ms": NOW - 1000},
            WakeDecision(kind=WakeKind.BACKOFF, at_ms=NOW + 119_000),
        ),
        (facts(), {"idle_streak": 2, "last_turn_ms": NOW - 120_000}, WakeDecision(kind=WakeKind.NOW, at_ms=NOW)),
        (facts(breaker=Breaker.REPLAN_DUE), {"idle_streak": 3}, WakeDecision(kind=WakeKind.NOW, at_ms=NOW)),
        (facts(), {}, WakeDecision(kind=WakeKind.NOW, at_ms=NOW)),
        (facts(next_occurrence_ms=SOON), {}, WakeDecision(kind=WakeKind.OCCURRENCE, at_ms=SOON)),
        (facts(next_occurrence_ms=NOW), {}, WakeDecision(kind=WakeKind.NOW, at_ms=NOW)),
        (
            facts(next_occurrence_ms=SOON),
            {"next_monitor_ms": NOW + 5},
            WakeDecision(kind=WakeKind.MONITOR, at_ms=NOW + 5),
        ),
        (
            facts(budgets=(use(used=100),)),
            {},
            WakeDecision(kind=WakeKind.ON_ANSWER, at_ms=NOW + 3_600_000, recheck=True),
        ),
    ],
)
def test_the_arbitration_table(given_facts: GoalFacts, more: dict[str, int], expected: WakeDecision) -> None:
    assert wake(given_facts, **more) == expected


@settings(deadline=None, max_examples=300)
@given(any_facts(), st.integers(0, 9), st.one_of(st.none(), st.integers(NOW, NOW + 10_000)))
def test_no_goal_sleeps_for_ever_unless_it_ended_or_is_paused(
    given_facts: GoalFacts, idle: int, monitor: int | None
) -> None:
    decision = decide(given_facts)
    inputs = arbitration.wake_inputs(given_facts, decision, idle_streak=idle, next_monitor_ms=monitor)
    made = arbitration.arbitrate(inputs)
    silent = made.kind in (WakeKind.STOP, WakeKind.NONE)
    assert silent == (decision.state == "paused")
    assert silent or (made.at_ms is not None and made.at_ms >= NOW)


def test_backoff_doubles_from_a_minute_to_an_hour() -> None:
    minutes = [arbitration.backoff_ms(streak) // 60_000 for streak in range(10)]
    assert minutes == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert arbitration.backoff_ms(10**9) == 3_600_000


def test_jitter_is_the_same_for_the_same_key_and_bounded() -> None:
    spread = {arbitration.jitter_for(f"goal-{number}") for number in range(50)}
    assert arbitration.jitter_for("goal-1") == arbitration.jitter_for("goal-1")
    assert len(spread) > 40
    assert all(0 <= jitter <= arbitration.JITTER_MS for jitter in spread)


@pytest.mark.parametrize(
    ("owner", "mode", "engine", "refusal"),
    [
        (ScheduleOwner.LOOPX, RunMode.RUN, "codex", None),
        (ScheduleOwner.LOOPX, RunMode.WORKER, "command:make", None),
        (ScheduleOwner.LOOPX, RunMode.EMBEDDED, "codex", OwnerRefusal.OWNED_BY_LOOPX),
        (ScheduleOwner.CRON, RunMode.ONCE, "command:make", None),
        (ScheduleOwner.SYSTEMD, RunMode.ONCE, "gemini", None),
        (ScheduleOwner.CRON, RunMode.RUN, "gemini", None),
        (ScheduleOwner.CRON, RunMode.WORKER, "gemini", OwnerRefusal.OWNED_BY_OUTSIDE),
        (ScheduleOwner.SYSTEMD, RunMode.EMBEDDED, "codex", OwnerRefusal.OWNED_BY_OUTSIDE),
        (ScheduleOwner.HOST, RunMode.EMBEDDED, "codex", None),
        (ScheduleOwner.HOST, RunMode.ONCE, "foreman:claude", None),
        (ScheduleOwner.HOST, RunMode.WORKER, "codex", OwnerRefusal.OWNED_BY_HOST),
        (ScheduleOwner.HOST, RunMode.EMBEDDED, "command:make", OwnerRefusal.HOST_HAS_NO_AUTOMATION),
        (ScheduleOwner.HOST, RunMode.RUN, "native", OwnerRefusal.HOST_HAS_NO_AUTOMATION),
    ],
)
def test_which_owner_is_legal(owner: ScheduleOwner, mode: RunMode, engine: str, refusal: OwnerRefusal | None) -> None:
    context = ExecutionContext(owner=owner, mode=mode, automation=execution_context.automation_of(engine))
    assert execution_context.owner_refusal(context) is refusal
    assert execution_context.owner_is_legal(context) == (refusal is None)


@pytest.mark.parametrize("automation", list(HostAutomation))
def test_no_two_clocks_ever_wake_one_goal(automation: HostAutomation) -> None:
    for_worker = execution_context.legal_owners(mode=RunMode.WORKER, automation=automation)
    for_host = execution_context.legal_owners(mode=RunMode.EMBEDDED, automation=automation)
    assert for_worker == (ScheduleOwner.LOOPX,)
    assert not set(for_worker) & set(for_host)


BEAT = Heartbeat(goal_id=GOAL, agent_id=AgentId("codex"), beat_key="beat-1", at_ms=NOW, revision=1)


def beat(
    made: Heartbeat = BEAT,
    existing: HeartbeatReceipt | None = None,
    *,
    by: Schedule | None = None,
    should_run: bool = True,
) -> HeartbeatVerdict:
    owned = by or applied(ScheduleOwner.HOST)
    return plan_heartbeat(made, existing, owned, now_ms=NOW, should_run=should_run, effective_action="normal_run")


def test_each_beat_is_taken_once_with_its_first_answer() -> None:
    first = beat()
    assert first.outcome is HeartbeatOutcome.COMMIT
    assert first.receipt is not None
    closed = schedule.close_schedule(applied(ScheduleOwner.HOST))
    again = beat(existing=first.receipt, by=closed, should_run=False)
    assert again.outcome is HeartbeatOutcome.REPLAY
    assert again.receipt == msgspec.structs.replace(first.receipt, replayed=True)
    other = msgspec.structs.replace(BEAT, agent_id=AgentId("claude"))
    assert beat(other, first.receipt).refusal is HeartbeatRefusal.BEAT_OF_ANOTHER


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({"beat_key": " "}, HeartbeatRefusal.BEAT_KEY_INVALID),
        ({"beat_key": "x" * 200}, HeartbeatRefusal.BEAT_KEY_INVALID),
        ({"revision": 2}, HeartbeatRefusal.REVISION_UNKNOWN),
        ({"at_ms": NOW + 600_000}, HeartbeatRefusal.BEAT_IN_FUTURE),
        ({"slot_key": "2026-05-01T02:30:00"}, HeartbeatRefusal.SLOT_ALREADY_RUN),
    ],
)
def test_beats_that_are_refused(changed: dict[str, object], refusal: HeartbeatRefusal) -> None:
    by = msgspec.structs.replace(applied(ScheduleOwner.HOST), last_slot_key="2026-05-01T02:30:00")
    assert beat(msgspec.structs.replace(BEAT, **changed), by=by).refusal is refusal


def test_a_beat_needs_a_host_that_owns_an_open_schedule_at_its_revision() -> None:
    assert beat(by=applied(ScheduleOwner.LOOPX)).refusal is HeartbeatRefusal.OWNER_NOT_HOST
    assert beat(by=schedule.close_schedule(applied(ScheduleOwner.HOST))).refusal is HeartbeatRefusal.SCHEDULE_CLOSED
    newer = msgspec.structs.replace(applied(ScheduleOwner.HOST), revision=2, applied_revision=2, acked_revision=2)
    assert beat(by=newer).refusal is HeartbeatRefusal.REVISION_STALE
    assert beat(msgspec.structs.replace(BEAT, slot_key="2026-05-01T02:30:00")).outcome is HeartbeatOutcome.COMMIT
