"""What pages show of a goal: its state, its turns, its work graph, what it cost, and why it runs or does not.

Typed read models for the page, the live terminal view and the report. Every query is bounded, whatever the history;
nothing is written, decided or put into words here.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from loopx.contracts.model import Check
from loopx.control_plane.goal import Goal
from loopx.control_plane.ids import AgentId
from loopx.control_plane.quota import decision as decisions
from loopx.control_plane.quota import explain
from loopx.control_plane.quota.policy import BudgetUnit
from loopx.control_plane.scheduler.schedule import Schedule
from loopx.control_plane.work_items.gate import Gate
from loopx.control_plane.work_items.todo import Todo
from loopx.runtime import agent_stream, quota_service, turn_views
from loopx.runtime.goal_work import contract_of
from loopx.runtime.quota_service import QuotaReport
from loopx.runtime.reading import read_facts
from loopx.runtime.session import DEFAULT_AGENT
from loopx.runtime.turn_views import RunLine, TurnLine
from loopx.store import events as event_rows
from loopx.store import evidence, gates, goals, hosts, schedules, todos, turns
from loopx.store.connection import Row, Tx
from loopx.store.events import Event
from loopx.store.evidence import Evidence
from loopx.store.hosts import HostRun
from loopx.store.store import Store

TURNS = 30
TODOS = 120
GATES = 50
EVIDENCE = 60
EVENTS = 40
POINTS = 400
FINGERPRINT = 24


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One metered amount, and the running total with it."""

    at_ms: int
    amount: int
    total: int


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """What was used in one unit, oldest first; the newest `POINTS` of it. `limit`: of the budget over the goal."""

    unit: BudgetUnit
    points: tuple[Point, ...]
    total: int
    limit: int | None = None


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """The turn that is open, and the launch that works for it."""

    turn: TurnLine
    run: RunLine | None
    moved_at_ms: int


class GoalView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a goal's page shows, from one snapshot."""

    now_ms: int
    goal: Goal
    event_seq: int
    turn_count: int
    contract: str
    checks: tuple[Check, ...]
    health: str
    health_detail: str
    decision: decisions.QuotaDecision
    explanation: explain.Explanation
    quota: QuotaReport
    running: Running | None
    turns: tuple[TurnLine, ...]
    older_turns: bool
    todos: tuple[Todo, ...]
    more_todos: bool
    open_gates: tuple[Gate, ...]
    past_gates: tuple[Gate, ...]
    schedule: Schedule
    evidence: tuple[Evidence, ...]
    events: tuple[Event, ...]
    spend: tuple[Series, ...]
    numbers: Mapping[str, int]
    """The numbers of the turns that are shown, by their keys."""
    branch: str | None


def goal_view(store: Store, goal_id: str, *, before: int = 1 << 62, turn_limit: int = TURNS) -> GoalView:
    """The goal as it is now. Raises NotFoundError (`goal_unknown`)."""
    report = quota_service.report(store, goal_id, AgentId(DEFAULT_AGENT))
    now = store.now_ms()
    with store.read() as tx:
        row = goals.row_of(tx, goal_id)
        goal = goals.from_row(row, goals.definition_of(tx, goal_id, row["revision"]))
        facts = read_facts(store, tx, goal_id, AgentId(DEFAULT_AGENT))
        decision = decisions.decide(facts)
        lines = turn_views.timeline(tx, goal_id, now, before=before, limit=turn_limit + 1)
        work = todos.page(tx, goal_id, limit=TODOS + 1)
        asked = gates.open_gates(tx, goal_id, GATES)
        return GoalView(
            now_ms=now,
            goal=goal,
            event_seq=row["event_seq"],
            turn_count=row["turn_count"],
            contract=row["contract_state"],
            checks=contract_of(goal).checks,
            health=row["health"],
            health_detail=row["health_detail"],
            decision=decision,
            explanation=explain.explain(facts, decision),
            quota=report,
            running=running(tx, goal_id, now),
            turns=lines[:turn_limit],
            older_turns=len(lines) > turn_limit,
            todos=work[:TODOS],
            more_todos=len(work) > TODOS,
            open_gates=asked,
            past_gates=_past_gates(tx, goal_id),
            schedule=schedules.get(tx, goal_id),
            evidence=evidence.latest(tx, goal_id, EVIDENCE),
            events=tuple(
                event_rows.from_row(found) for found in tx.all("events.latest", goal_id=goal_id, limit=EVENTS)
            ),
            spend=_spend(tx, goal_id, goal),
            numbers={line.turn_key: line.number for line in lines},
            branch=f"loopx/{goal_id}" if row["last_checkpoint"] else None,
        )


def running(tx: Tx, goal_id: str, now_ms: int) -> Running | None:
    """The goal's open turn, with when it last moved: a commit, or a word of its agent."""
    key = turns.open_turn(tx, goal_id)
    if key is None:
        return None
    journal = turns.load_journal(tx, key)
    run = hosts.last_of_turn(tx, key)
    committed = [record.committed_at_ms for record in journal.phases]
    spoke = agent_stream.moved_at_ms(run.spool_dir) if run is not None else None
    started = run.started_at_ms if run is not None else journal.turn.started_at_ms
    return Running(
        turn=turn_views.turn_line(tx, journal.turn, now_ms),
        run=turn_views.run_line(run) if run is not None else None,
        moved_at_ms=max([journal.turn.started_at_ms, started, *committed, *([spoke] if spoke else [])]),
    )


def live_run(store: Store, goal_id: str) -> HostRun | None:
    """The launch that works for the goal now, or did last."""
    with store.read() as tx:
        key = turns.open_turn(tx, goal_id)
        if key is None:
            row = tx.one("turns.last_of_goal", goal_id=goal_id)
            key = row["turn_key"] if row is not None else None
        return hosts.last_of_turn(tx, key) if key is not None else None


def run_of(store: Store, goal_id: str, number: int) -> HostRun | None:
    """The last launch of a turn by its number; with 0, of the turn that is open or was last."""
    if not number:
        return live_run(store, goal_id)
    with store.read() as tx:
        row = tx.one("turns.by_number", goal_id=goal_id, number=number)
        return hosts.last_of_turn(tx, row["turn_key"]) if row is not None else None


def live_turn(store: Store, goal_id: str) -> bool:
    """Whether a turn of the goal is open."""
    with store.read() as tx:
        return turns.open_turn(tx, goal_id) is not None


def goal_mark(store: Store, goal_id: str) -> int:
    """A number that moves with every change of the goal. Raises NotFoundError (`goal_unknown`)."""
    with store.read() as tx:
        return int(goals.row_of(tx, goal_id)["event_seq"])


def store_mark(store: Store) -> str:
    """A text that changes with every change of any goal; one short indexed look-up, whatever the history."""
    with store.read() as tx:
        rows = tx.all("events.newest", limit=FINGERPRINT)
    return ";".join(f"{row['goal_id']}:{row['seq']}" for row in rows)


def _past_gates(tx: Tx, goal_id: str) -> tuple[Gate, ...]:
    rows = tx.all("gates.last_answered", goal_id=goal_id, limit=10)
    return tuple(gates.from_row(row) for row in rows)


def _spend(tx: Tx, goal_id: str, goal: Goal) -> tuple[Series, ...]:
    limits = {budget.unit: budget.limit for budget in goal.definition.budgets if budget.scope == "goal"}
    found: list[Series] = []
    for unit in (BudgetUnit.TOKENS, BudgetUnit.MICROUSD, BudgetUnit.WALL_MS, BudgetUnit.TURNS):
        rows = tx.all("meters.recent", goal_id=goal_id, unit=unit, limit=POINTS)
        if rows:
            total = tx.number("meters.total", goal_id=goal_id, unit=unit)
            points = _points(rows, total)
            found.append(Series(unit=unit, points=points, total=total, limit=limits.get(unit)))
    return tuple(found)


def _points(rows: list[Row], total: int) -> tuple[Point, ...]:
    points: list[Point] = []
    left = total
    for row in rows:
        points.append(Point(at_ms=row["at_ms"], amount=row["amount"], total=left))
        left -= row["amount"]
    return tuple(reversed(points))
