#!/usr/bin/env python3
"""The heartbeat poll contract: what a host's own automation may rely on when it wakes and asks LoopX.

A host that owns a goal's cadence beats; each beat asks should-run. Run me: `python
regression/automation-loop-heartbeat-poll-contract.py`. I print one line per promise and end 0 when all hold.

1. A beat is recorded once; a repeat of it, even after the facts changed, gets the first answer.
2. A beat while nothing is to be done is a quiet no-op: no host starts, nothing is spent.
3. A beat spends nothing even when it may run: only a settled material turn spends, once per effect.
4. A beat by an older revision, before its time, or by somebody who does not own the cadence is refused.
5. A cadence change is applied before it is acknowledged, and never spends.
"""

from __future__ import annotations

import sys

from loopx.control_plane.goal import GoalState
from loopx.control_plane.ids import AgentId, EffectRef, GoalId, TodoId
from loopx.control_plane.quota.decision import QuotaDecision, decide, exit_code
from loopx.control_plane.quota.facts import ContractState, GoalFacts, TodoRef
from loopx.control_plane.quota.policy import QuotaPolicy
from loopx.control_plane.quota.spend_commit import LedgerEntry, SpendOutcome, SpendRequest, plan_spend
from loopx.control_plane.scheduler import schedule
from loopx.control_plane.scheduler.heartbeat_commit import (
    Heartbeat,
    HeartbeatOutcome,
    HeartbeatReceipt,
    HeartbeatRefusal,
    HeartbeatVerdict,
    plan_heartbeat,
)
from loopx.control_plane.scheduler.schedule import Schedule, ScheduleOwner, Wanted

GOAL, AGENT = GoalId("nightly-deps"), AgentId("codex")
QUARTER_HOUR_MS = 15 * 60_000
START_MS = 1_800_000_000_000


class Ledgered:
    """A goal with its receipts and its ledger, as a store would hold them."""

    def __init__(self) -> None:
        self.receipts: dict[str, HeartbeatReceipt] = {}
        self.ledger: dict[str, LedgerEntry] = {}
        self.host_starts = 0
        wanted = Wanted(rrule="FREQ=MINUTELY;INTERVAL=15", dtstart_local="2026-01-01T00:00", owner=ScheduleOwner.HOST)
        pending = schedule.set_schedule(Schedule(goal_id=GOAL), wanted)
        self.schedule = schedule.apply_schedule(pending, revision=1, next_due_ms=START_MS)

    def poll(self, key: str, now_ms: int, *, work: bool, revision: int = 1) -> tuple[HeartbeatVerdict, QuotaDecision]:
        decision = decide(self.facts(now_ms, work=work))
        beat = Heartbeat(goal_id=GOAL, agent_id=AGENT, beat_key=key, at_ms=now_ms, revision=revision)
        verdict = plan_heartbeat(
            beat,
            self.receipts.get(key),
            self.schedule,
            now_ms=now_ms,
            should_run=decision.should_run,
            effective_action=str(decision.effective_action),
        )
        if verdict.outcome is HeartbeatOutcome.COMMIT and verdict.receipt is not None:
            self.receipts[key] = verdict.receipt
            self.host_starts += verdict.receipt.should_run
        return verdict, decision

    def facts(self, now_ms: int, *, work: bool) -> GoalFacts:
        return GoalFacts(
            goal_id=GOAL,
            agent_id=AGENT,
            now_ms=now_ms,
            revision=1,
            state=GoalState.ACTIVE,
            quota=QuotaPolicy(allowed_slots=5),
            spent_slots=len(self.ledger),
            ready=TodoRef(todo_id=TodoId("t1"), title="update the lock file") if work else None,
            open_todos=True,
            blocked_wake_at_ms=None if work else now_ms + 4 * QUARTER_HOUR_MS,
            contract=ContractState.RED,
        )

    def settle(self, key: str) -> SpendOutcome:
        effect = EffectRef(f"{key}:quota_spend")
        request = SpendRequest(goal_id=GOAL, effect_ref=effect, expected_run_index=len(self.ledger), at_ms=START_MS)
        verdict = plan_spend(
            request, self.ledger.get(effect), current_run_index=len(self.ledger), allowed=5, spent=len(self.ledger)
        )
        if verdict.entry is not None:
            self.ledger[effect] = verdict.entry
        return verdict.outcome


def check(promise: str, *, holds: bool) -> bool:
    print(f"{'ok ' if holds else 'NOT'}  {promise}")
    return holds


def quiet_beats_cost_nothing() -> bool:
    goal = Ledgered()
    decisions = [goal.poll(f"b{n}", START_MS + n * QUARTER_HOUR_MS, work=False)[1] for n in range(48)]
    quiet = all(d.quiet_noop_allowed and not d.should_run and exit_code(d) == 10 for d in decisions)
    return check(
        "48 beats with nothing to do: quiet, no host started, nothing spent",
        holds=quiet and goal.host_starts == 0 and not goal.ledger and len(goal.receipts) == 48,
    )


def each_beat_once() -> bool:
    goal = Ledgered()
    first, _ = goal.poll("b1", START_MS, work=True)
    again, _ = goal.poll("b1", START_MS + 5, work=False)
    same = again.receipt is not None and first.receipt is not None and again.receipt.should_run
    return check(
        "a repeated beat gets the first answer and starts nothing again",
        holds=again.outcome is HeartbeatOutcome.REPLAY and same and goal.host_starts == 1,
    )


def only_settled_work_spends() -> bool:
    goal = Ledgered()
    goal.poll("b1", START_MS, work=True)
    before = len(goal.ledger)
    outcomes = [goal.settle("turn-1"), goal.settle("turn-1")]
    return check(
        "a beat that may run spends nothing; its settled turn spends once",
        holds=before == 0 and outcomes == [SpendOutcome.COMMIT, SpendOutcome.REPLAY] and len(goal.ledger) == 1,
    )


def foreign_beats_are_refused() -> bool:
    goal = Ledgered()
    unknown, _ = goal.poll("b1", START_MS, work=True, revision=2)
    goal.schedule = schedule.ack_schedule(goal.schedule, revision=1, rrule=goal.schedule.rrule)
    stale, _ = goal.poll("b2", START_MS, work=True, revision=0)
    loopx = Wanted(rrule=goal.schedule.rrule, dtstart_local=goal.schedule.dtstart_local)
    goal.schedule = schedule.set_schedule(goal.schedule, loopx)
    foreign, _ = goal.poll("b3", START_MS, work=True)
    refusals = [unknown.refusal, stale.refusal, foreign.refusal]
    return check(
        "beats by an unknown or older revision, or by another owner, are refused",
        holds=refusals
        == [HeartbeatRefusal.REVISION_UNKNOWN, HeartbeatRefusal.REVISION_STALE, HeartbeatRefusal.OWNER_NOT_HOST]
        and not goal.receipts,
    )


def cadence_changes_never_spend() -> bool:
    goal = Ledgered()
    applied_first = goal.schedule.applied_revision == 1 and goal.schedule.acked_revision == 0
    goal.schedule = schedule.ack_schedule(goal.schedule, revision=1, rrule=goal.schedule.rrule)
    return check(
        "a cadence is applied, then acknowledged, and that spends nothing",
        holds=applied_first and goal.schedule.acked_revision == 1 and not goal.ledger,
    )


def main() -> int:
    promises = (
        quiet_beats_cost_nothing,
        each_beat_once,
        only_settled_work_spends,
        foreign_beats_are_refused,
        cadence_changes_never_spend,
    )
    held = [promise() for promise in promises]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
