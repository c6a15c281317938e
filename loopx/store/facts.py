"""The facts of one should-run decision, read in one snapshot. Each is an indexed look-up, however long the history."""

from __future__ import annotations

from loopx.control_plane.goal import GoalState
from loopx.control_plane.ids import AgentId, GateId, GoalId, TodoId
from loopx.control_plane.quota.facts import (
    Breaker,
    BudgetUse,
    CapabilityIntent,
    ContractState,
    GoalFacts,
    Health,
    OpenGate,
    PendingWait,
    TodoRef,
    WaitKind,
)
from loopx.control_plane.quota.policy import QuotaPolicy
from loopx.store import gates, goals, ledger, meters, selection
from loopx.store.codec import load
from loopx.store.connection import Row, Tx
from loopx.store.goals import HOUR_MS, MINUTE_MS

MAX_GATES = 8


def read(tx: Tx, goal_id: str, agent_id: AgentId, now_ms: int) -> GoalFacts:
    """Raises NotFoundError (`goal_unknown`)."""
    row = goals.row_of(tx, goal_id)
    state = GoalState(row["state"])
    spent = ledger.spent_in_window(tx, goal_id, row["window_ms"], now_ms)
    allowed = int(row["allowed_slots"])
    selected = selection.select(tx, goal_id, agent_id, now_ms)
    ready = selected.ready
    schedule = tx.one("schedules.get", goal_id=goal_id)
    return GoalFacts(
        goal_id=GoalId(goal_id),
        agent_id=agent_id,
        now_ms=now_ms,
        revision=row["revision"],
        state=state,
        quota=_quota(row),
        spent_slots=spent + tx.number("meters.reserved", goal_id=goal_id, unit=meters.SLOTS),
        slot_frees_at_ms=ledger.frees_at(tx, goal_id, row["window_ms"], allowed, now_ms) if spent >= allowed else None,
        health=_health(tx, row),
        health_detail=row["health_detail"],
        budgets=_budgets(tx, row, now_ms),
        gates=_gates(tx, goal_id, now_ms),
        ready=ready,
        held=selected.held,
        ready_gated=bool(tx.number("todos.any_ready_gated", goal_id=goal_id)),
        open_todos=bool(tx.number("todos.any_unended", goal_id=goal_id)),
        blocked_wake_at_ms=_blocked_wake(tx, goal_id, now_ms) if ready is None else None,
        blocked_without_wake=bool(tx.number("todos.any_without_wake", goal_id=goal_id)) if ready is None else False,
        granted_capability=_granted(tx, goal_id),
        wait=_wait(row, now_ms),
        breaker=_breaker(row),
        floor_streak=row["floor_streak"],
        floor_replan_tried=bool(row["replan_tried"]),
        missing_successors=tuple(
            TodoId(found["todo_id"]) for found in tx.all("todos.missing_successors", goal_id=goal_id)
        ),
        monitor_due=_ref(tx.one("todos.monitor_due", goal_id=goal_id, now_ms=now_ms)),
        contract=ContractState(row["contract_state"]),
        next_occurrence_ms=schedule["next_due_ms"] if schedule is not None else None,
    )


def _quota(row: Row) -> QuotaPolicy:
    return QuotaPolicy(
        compute=row["compute"],
        window_hours=row["window_ms"] / HOUR_MS,
        slot_minutes=row["slot_ms"] / MINUTE_MS,
        allowed_slots=row["allowed_slots"],
        outcome_floor=row["outcome_floor"],
    )


def _ref(row: Row | None) -> TodoRef | None:
    return TodoRef(todo_id=TodoId(row["todo_id"]), title=row["title"]) if row is not None else None


def _blocked_wake(tx: Tx, goal_id: str, now_ms: int) -> int | None:
    instants = [
        tx.number("todos.wake_at", goal_id=goal_id, now_ms=now_ms),
        tx.number("todos.claims_end_at", goal_id=goal_id, now_ms=now_ms),
        tx.number("todos.monitor_next", goal_id=goal_id),
    ]
    return min((instant for instant in instants if instant), default=None)


def _health(tx: Tx, row: Row) -> Health:
    open_turn = tx.one("turns.open_of_goal", goal_id=row["goal_id"])
    if open_turn is not None and open_turn["state"] == "blocked":
        return Health.JOURNAL_BLOCKED
    return Health(row["health"])


def _budgets(tx: Tx, row: Row, now_ms: int) -> tuple[BudgetUse, ...]:
    if not row["budget_count"]:
        return ()
    definition = goals.definition_of(tx, row["goal_id"], row["revision"])
    return tuple(meters.budget_use(tx, row["goal_id"], budget, now_ms) for budget in definition.budgets)


def _gates(tx: Tx, goal_id: str, now_ms: int) -> tuple[OpenGate, ...]:
    return tuple(
        OpenGate(
            gate_id=GateId(row["gate_id"]),
            question=row["question"],
            blocks_goal=bool(row["blocks_goal"]),
            options=load(row["options"], tuple[str, ...]),
        )
        for row in gates.open_rows(tx, goal_id, MAX_GATES)
        if row["expires_at_ms"] is None or row["expires_at_ms"] > now_ms
    )


def _granted(tx: Tx, goal_id: str) -> CapabilityIntent | None:
    """What LoopX has to run; what it has begun and not yet put on record comes first."""
    row = tx.one("capabilities.first_with_status", goal_id=goal_id, status="running")
    row = row or tx.one("capabilities.first_with_status", goal_id=goal_id, status="granted")
    if row is None:
        return None
    return CapabilityIntent(
        intent_id=row["intent_id"],
        goal_id=GoalId(row["goal_id"]),
        agent_id=AgentId(row["agent_id"]),
        capability=row["capability"],
        command=load(row["command"], tuple[str, ...]),
    )


def _wait(row: Row, now_ms: int) -> PendingWait | None:
    if row["wait_kind"] is None:
        return None
    until = row["wait_until_ms"]
    if until is not None and until <= now_ms:
        return None
    return PendingWait(kind=WaitKind(row["wait_kind"]), until_ms=until, detail=row["wait_detail"] or "")


def _breaker(row: Row) -> Breaker:
    """Open after too many turns in a row that changed nothing or failed; a replan comes first, then a person."""
    threshold = int(row["breaker_threshold"])
    if max(int(row["idle_streak"]), int(row["failure_streak"])) < threshold:
        return Breaker.CLOSED
    return Breaker.PERSON_DUE if row["replan_tried"] else Breaker.REPLAN_DUE
