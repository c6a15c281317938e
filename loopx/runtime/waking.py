"""When a goal wakes next: the arbitration table on fresh facts, written where workers look for what is due.

The instant is computed and stored, so that nobody polls. Any later event of the goal asks for another look, so that
no change is slept through. It decides nothing about turns and starts nothing.
"""

from __future__ import annotations

import msgspec

from loopx.control_plane.goal import GoalState
from loopx.control_plane.ids import AgentId
from loopx.control_plane.quota import decision as decisions
from loopx.control_plane.quota.facts import GoalFacts
from loopx.control_plane.scheduler.arbitration import (
    WakeDecision,
    WakeKind,
    arbitrate,
    jitter_for,
    wake_inputs,
)
from loopx.runtime.reading import facts_to_write, outside, read_facts
from loopx.store import goals
from loopx.store.connection import Row, Tx
from loopx.store.store import Store


class Wake(msgspec.Struct, frozen=True, kw_only=True):
    """What was computed. `due`: a run could do something now. `event_seq`: how far the goal's history was seen."""

    kind: WakeKind
    at_ms: int | None
    due: bool
    event_seq: int
    rule: str
    last_start_ms: int | None = None


def settle(
    store: Store, goal_id: str, agent_id: AgentId, *, held: bool = False, not_before_ms: int | None = None
) -> Wake:
    """Compute the goal's next wake and store it, in one transaction.

    `held`: a cancel of a person stands, so that nothing but another event wakes it. `not_before_ms` puts the wake off.
    Raises NotFoundError (`goal_unknown`).
    """
    around = outside(store, goal_id, agent_id)
    with store.write() as tx:
        wake = _look(tx, goal_id, facts_to_write(store, tx, goal_id, agent_id, around))
        at_ms = None if held else wake.at_ms
        if at_ms is not None and not_before_ms is not None:
            at_ms = max(at_ms, not_before_ms)
        tx.run("goals.schedule", goal_id=goal_id, due_at_ms=at_ms)
    return msgspec.structs.replace(wake, at_ms=at_ms, due=at_ms is not None and at_ms <= store.now_ms())


def look(store: Store, tx: Tx, goal_id: str, agent_id: AgentId) -> Wake:
    """The goal's next wake, from one snapshot; writes nothing."""
    return _look(tx, goal_id, read_facts(store, tx, goal_id, agent_id))


def _look(tx: Tx, goal_id: str, facts: GoalFacts) -> Wake:
    row = goals.row_of(tx, goal_id)
    decision = decisions.decide(facts)
    last = tx.one("goals.last_start", goal_id=goal_id, after=int(row["turn_count"]) - 2)
    last_start = last["started_at_ms"] if last is not None else None
    wake = _wake(tx, row, facts, decision, last_start)
    return Wake(
        kind=wake.kind,
        at_ms=wake.at_ms,
        due=wake.at_ms is not None and wake.at_ms <= facts.now_ms,
        event_seq=row["event_seq"],
        rule=decision.rule,
        last_start_ms=last_start,
    )


def _wake(
    tx: Tx, row: Row, facts: GoalFacts, decision: decisions.QuotaDecision, last_start_ms: int | None
) -> WakeDecision:
    if facts.state is not GoalState.ACTIVE:
        return WakeDecision(kind=WakeKind.NONE)
    return arbitrate(
        wake_inputs(
            facts,
            decision,
            # An engine that fails again and again made no progress either.
            idle_streak=max(int(row["idle_streak"]), int(row["host_failure_streak"])),
            last_turn_ms=_last_end(tx, row) or last_start_ms,
            next_monitor_ms=tx.number("todos.monitor_next", goal_id=facts.goal_id) or None,
            jitter_ms=jitter_for(facts.goal_id),
        )
    )


def _last_end(tx: Tx, row: Row) -> int | None:
    last = tx.one("turns.last_end", goal_id=row["goal_id"], after=int(row["turn_count"]) - 2)
    return last["ended_at_ms"] if last is not None else None
