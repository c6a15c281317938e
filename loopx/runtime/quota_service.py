"""What people and scripts ask of a goal's quota beside the decision itself: what was spent, at which pace, and (people
only) raising it. No rule of the quota is in this room: it reads, asks the pure rules, and writes what they say.
"""

from __future__ import annotations

import msgspec

from loopx.control_plane.effect_program import effect_ref
from loopx.control_plane.errors import UsageError
from loopx.control_plane.goal import GoalDefinition
from loopx.control_plane.ids import AgentId, EffectRef, GoalId
from loopx.control_plane.quota import budgets
from loopx.control_plane.quota import decision as decisions
from loopx.control_plane.quota.plan import PlanEntry, start_order
from loopx.control_plane.quota.policy import BudgetUnit
from loopx.control_plane.quota.spend_commit import LedgerEntry
from loopx.control_plane.turn_driver.journal import TurnState
from loopx.control_plane.turn_driver.transaction import TurnStep
from loopx.runtime import goal_service, spending
from loopx.runtime.goal_draft import meterings
from loopx.runtime.pace import BudgetLine, Spike, budget_lines, machine_line, spikes
from loopx.runtime.project import Project
from loopx.runtime.reading import read_facts
from loopx.runtime.spending import SpendAsked, SpendDone
from loopx.store import goals, ledger
from loopx.store.connection import Tx
from loopx.store.store import Store


class Used(msgspec.Struct, frozen=True, kw_only=True):
    """What was metered in one unit since the goal began."""

    unit: BudgetUnit
    amount: int


class QuotaReport(msgspec.Struct, frozen=True, kw_only=True):
    """One goal's quota with its reason, its budgets and its pace."""

    goal_id: str
    should_run: bool
    state: str
    effective_action: str
    rule: str
    reason: str
    wake_after_ms: int | None
    compute: float
    window_hours: float
    slot_minutes: float
    allowed_slots: int
    spent_slots: int
    frees_at_ms: int | None
    total_slots: int
    run_index: int
    budgets: tuple[BudgetLine, ...]
    machine: BudgetLine | None
    """The machine-wide launch cap, where there is one."""
    used: tuple[Used, ...]
    spikes: tuple[Spike, ...]
    next_command: tuple[str, ...]


def report(store: Store, goal_id: str, agent_id: AgentId) -> QuotaReport:
    """What `quota status` shows of one goal. Raises NotFoundError (`goal_unknown`)."""
    with store.read() as tx:
        facts = read_facts(store, tx, goal_id, agent_id)
        row = goals.row_of(tx, goal_id)
        written = goals.definition_of(tx, goal_id, row["revision"]).budgets
        made = decisions.decide(facts)
        numbers = made.quota
        return QuotaReport(
            goal_id=goal_id,
            should_run=made.should_run,
            state=made.state,
            effective_action=made.effective_action,
            rule=made.rule,
            reason=made.reason,
            wake_after_ms=made.wake_after_ms,
            compute=numbers.compute,
            window_hours=numbers.window_hours,
            slot_minutes=numbers.slot_minutes,
            allowed_slots=numbers.allowed_slots,
            spent_slots=numbers.spent_slots,
            frees_at_ms=numbers.frees_at_ms,
            total_slots=tx.number("ledger.total", goal_id=goal_id),
            run_index=row["run_index"],
            budgets=budget_lines(tx, goal_id, written, facts.budgets, facts.now_ms),
            machine=machine_line(facts.budgets),
            used=_used(tx, goal_id),
            spikes=spikes(tx, goal_id),
            next_command=made.next_command,
        )


def _used(tx: Tx, goal_id: str) -> tuple[Used, ...]:
    totals = ((unit, tx.one("meters.total", goal_id=goal_id, unit=unit)) for unit in BudgetUnit)
    return tuple(Used(unit=unit, amount=row["cumulative"]) for unit, row in totals if row is not None)


class PlanLine(msgspec.Struct, frozen=True, kw_only=True):
    """One goal of the plan: its decision in short, and when it may start."""

    goal_id: str
    should_run: bool
    state: str
    effective_action: str
    reason: str
    at_ms: int | None
    spent_slots: int
    allowed_slots: int
    next_command: tuple[str, ...]


def plan(store: Store, agent_id: AgentId, *, after: str = "", limit: int = 200) -> tuple[PlanLine, ...]:
    """The decision of every active goal, in the order in which a worker would start them; a page at a time."""
    with store.read() as tx:
        rows = tx.all("goals.active_page", after=after, limit=limit)
        made = {row["goal_id"]: decisions.decide(read_facts(store, tx, row["goal_id"], agent_id)) for row in rows}
        started = {goal_id: tx.number("turns.last_start", goal_id=goal_id) or None for goal_id in made}
    entries = [
        PlanEntry(goal_id=GoalId(goal_id), at_ms=_start_at(one), started_at_ms=started[goal_id])
        for goal_id, one in made.items()
    ]
    ordered = [entry.goal_id for entry in start_order(entries)]
    rest = [goal_id for goal_id in made if goal_id not in set(ordered)]
    return tuple(_plan_line(made[goal_id]) for goal_id in (*ordered, *rest))


def _start_at(decision: decisions.QuotaDecision) -> int | None:
    return decision.decided_at_ms if decision.should_run else decision.wake_after_ms


def _plan_line(decision: decisions.QuotaDecision) -> PlanLine:
    return PlanLine(
        goal_id=decision.goal_id,
        should_run=decision.should_run,
        state=decision.state,
        effective_action=decision.effective_action,
        reason=decision.reason,
        at_ms=_start_at(decision),
        spent_slots=decision.quota.spent_slots,
        allowed_slots=decision.quota.allowed_slots,
        next_command=decision.next_command,
    )


def spend(store: Store, project: Project, asked: SpendAsked, env: dict[str, str]) -> SpendDone:
    """Charge what a committed writeback proves, once (quota, "Spending").

    A turn's own spend is its journal's: an open turn that is written back is taken to its end; a finished one is a
    replay. Another entry for the same turn is appended only after the first was voided, and must fit the window.

    Raises UsageError (`spend_refused`, `evidence_missing`), ConflictError (`spend_conflict`, `turn_already_spent`,
    `effect_of_another`), NotNowError (`allocation_exhausted`), NotFoundError.
    """
    first = spending.known(store, asked)
    if first is not None:
        return SpendDone(entry=first, replayed=True)
    turn = spending.proved_turn(store, asked)
    own = effect_ref(turn.turn_key, TurnStep.QUOTA_SPEND)
    if turn.state is TurnState.OPEN and turn.slots == 0 and asked.effect_ref in (None, own):
        spending.require_index(store, asked)
        turn = spending.finish(store, project, turn, env)
    return spending.append(store, asked, turn, EffectRef(asked.effect_ref or own))


def void(
    store: Store, goal_id: str, run_index: int, reason: str, effect_ref: str | None, expected: int | None
) -> SpendDone:
    """Take one spend off, at most once; the goal may run again at once. Raises as `ledger.void`."""
    now = store.now_ms()
    with store.write() as tx:
        done = ledger.void(
            tx,
            goal_id,
            run_index,
            effect_ref or f"void/{goal_id}/{run_index}",
            reason,
            now,
            expected_index=expected,
        )
        if not done.replayed:
            tx.run("goals.wake_active", goal_id=goal_id, now_ms=now)
    return SpendDone(entry=done.entry, replayed=done.replayed)


class LedgerPage(msgspec.Struct, frozen=True, kw_only=True):
    """Entries, the newest first, and the proof that the running totals equal their recount."""

    goal_id: str
    run_index: int
    spent_in_window: int
    recounted: int
    total_slots: int
    entries: tuple[LedgerEntry, ...]


def ledger_page(store: Store, goal_id: str, limit: int) -> LedgerPage:
    """Raises NotFoundError (`goal_unknown`)."""
    now = store.now_ms()
    with store.read() as tx:
        row = goals.row_of(tx, goal_id)
        return LedgerPage(
            goal_id=goal_id,
            run_index=row["run_index"],
            spent_in_window=ledger.spent_in_window(tx, goal_id, row["window_ms"], now),
            recounted=ledger.recount(tx, goal_id, row["window_ms"], now),
            total_slots=tx.number("ledger.total", goal_id=goal_id),
            entries=ledger.latest(tx, goal_id, limit),
        )


class Raise(msgspec.Struct, frozen=True, kw_only=True):
    """What a person wants raised (or lowered); None leaves it as it is."""

    slots: int | None = None
    compute: float | None = None
    window_hours: float | None = None
    slot_minutes: float | None = None
    outcome_floor: int | None = None
    budgets: tuple[str, ...] = ()


def raise_quota(store: Store, goal_id: str, wanted: Raise) -> int:
    """Write a new revision of the goal with these limits, and let it wake; the revision.

    Nothing else of the goal changes: spends, turns and streaks stay. Raises UsageError naming the field that is not
    usable (`nothing_to_raise` for none), ConflictError (`goal_closed`, `stale_revision`).
    """
    if wanted == Raise():
        raise UsageError(
            "nothing_to_raise", "say what to raise", hint="--slots N, --compute X, or --budget UNIT=LIMIT/SCOPE"
        )
    with store.read() as tx:
        definition = goals.get(tx, goal_id).definition
    revision = goal_service.edit(store, goal_id, raised(definition, wanted), ("quota",))
    with store.write() as tx:
        tx.run("goals.wake_active", goal_id=goal_id, now_ms=store.now_ms())
    return revision


def raised(definition: GoalDefinition, wanted: Raise) -> GoalDefinition:
    """The definition with the wanted limits. Raises UsageError naming the field."""
    written = {
        "allowed_slots": wanted.slots,
        "compute": wanted.compute,
        "window_hours": wanted.window_hours,
        "slot_minutes": wanted.slot_minutes,
        "outcome_floor": wanted.outcome_floor,
    }
    named = {field: value for field, value in written.items() if value is not None}
    quota = budgets.read_quota_policy(named, base=definition.quota)
    changes = tuple(budgets.parse_budget(text) for text in wanted.budgets)
    limits = budgets.apply_changes(definition.budgets, changes, meterings=meterings(definition.engines))
    return msgspec.structs.replace(definition, quota=quota, budgets=limits)
