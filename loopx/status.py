"""One projection of typed results for people: every goal at a glance, and one goal in full.

`status`, the page and the terminal view read the same decisions, so that no two can differ. It writes nothing, and
says nothing in words: codes and numbers, which renderers turn into sentences.
"""

from __future__ import annotations

import msgspec

from loopx.control_plane.ids import AgentId
from loopx.control_plane.quota import decision as decisions
from loopx.control_plane.quota.policy import BudgetUnit
from loopx.runtime import pace
from loopx.runtime.glance import EndLine, GateLine, GoalLine, Look, Overview, RunningTurn, Section, overview
from loopx.runtime.pace import BudgetLine, Spike
from loopx.runtime.session import DEFAULT_AGENT
from loopx.store import goals
from loopx.store.codec import load
from loopx.store.connection import Tx
from loopx.store.store import Store

__all__ = [
    "CheckLine",
    "EndLine",
    "GateLine",
    "GoalDetail",
    "GoalLine",
    "Overview",
    "RecentTurn",
    "RunningTurn",
    "Section",
    "TodoLine",
    "overview",
    "status_of",
]


class CheckLine(msgspec.Struct, frozen=True, kw_only=True):
    """One check as it was last accepted; `failed` of `total` parts where its runner told them."""

    name: str
    verdict: str
    failed: int | None = None
    total: int | None = None


class TodoLine(msgspec.Struct, frozen=True, kw_only=True):
    todo_id: str
    title: str
    status: str


class RecentTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One of the last turns."""

    number: int
    turn_key: str
    result_kind: str | None
    reason: str
    slots: int
    ended_at_ms: int | None


class GoalDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One goal in full, at most 8 KB of JSON."""

    goal_id: str
    objective: str
    engines: tuple[str, ...]
    permission: str
    revision: int
    root: str
    branch: str | None
    contract: str
    goals: tuple[GoalLine, ...]
    """The goal's line, as the overview has it."""
    checks: tuple[CheckLine, ...]
    todos: tuple[TodoLine, ...]
    todo_counts: dict[str, int]
    turns: tuple[RecentTurn, ...]
    budgets: tuple[BudgetLine, ...]
    """Each budget with its use, its pace, and when it ends at that pace."""
    spikes: tuple[Spike, ...]
    """Units in which the last run used far more than this goal's own median."""
    total_slots: int
    cost_microusd: int | None


class _Parts(msgspec.Struct, frozen=True, kw_only=True):
    failed: int | None = None
    total: int | None = None


class _StoredCheck(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    verdict: str
    parts: _Parts | None = None
    held_out: bool = False


class _StoredEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """What a screen shows of a stored evaluation; its own room knows the rest."""

    results: tuple[_StoredCheck, ...] = ()


class _StoredResult(msgspec.Struct, frozen=True, kw_only=True):
    reason: str = ""


def status_of(store: Store, goal_id: str, agent_id: AgentId | None = None) -> GoalDetail:
    """One goal in full. Raises NotFoundError (`goal_unknown`)."""
    with store.read() as tx:
        row = goals.row_of(tx, goal_id)
        definition = goals.definition_of(tx, goal_id, row["revision"])
        look = Look(store, tx, agent_id or AgentId(DEFAULT_AGENT))
        line = look.line(goal_id)
        cost = tx.one("meters.total", goal_id=goal_id, unit=BudgetUnit.MICROUSD)
        return GoalDetail(
            goal_id=goal_id,
            objective=decisions.cut(row["objective"], 400),
            engines=tuple(decisions.cut(engine, 120) for engine in definition.engines[:6]),
            permission=definition.permission,
            revision=row["revision"],
            root=decisions.cut(row["root"], 300),
            branch=f"loopx/{goal_id}" if row["last_checkpoint"] else None,
            contract=row["contract_state"],
            goals=(line,),
            checks=_checks(row["evaluation"]),
            todos=_todos(tx, goal_id),
            todo_counts={str(one["status"]): int(one["n"]) for one in tx.all("todos.count_by_status", goal_id=goal_id)},
            turns=_recent(tx, goal_id),
            budgets=look.budget_lines(goal_id, definition.budgets)[:6],
            spikes=pace.spikes(tx, goal_id),
            total_slots=tx.number("ledger.total", goal_id=goal_id),
            cost_microusd=cost["cumulative"] if cost is not None else None,
        )


def _checks(encoded: str | None) -> tuple[CheckLine, ...]:
    if encoded is None:
        return ()
    found = load(encoded, _StoredEvaluation).results
    return tuple(
        CheckLine(
            name=decisions.cut(one.name, 80),
            verdict=one.verdict,
            failed=one.parts.failed if one.parts is not None else None,
            total=one.parts.total if one.parts is not None else None,
        )
        for one in found[:10]
    )


def _todos(tx: Tx, goal_id: str) -> tuple[TodoLine, ...]:
    return tuple(
        TodoLine(todo_id=row["todo_id"], title=decisions.cut(row["title"], 80), status=row["status"])
        for row in tx.all("todos.unended_page", goal_id=goal_id, limit=6)
    )


def _recent(tx: Tx, goal_id: str) -> tuple[RecentTurn, ...]:
    return tuple(
        RecentTurn(
            number=row["number"],
            turn_key=row["turn_key"],
            result_kind=row["result_kind"] or row["intended_kind"],
            reason=load(row["result"], _StoredResult).reason if row["result"] else "",
            slots=row["slots"],
            ended_at_ms=row["ended_at_ms"],
        )
        for row in tx.all("turns.lines", goal_id=goal_id, before=1 << 62, limit=5)
    )
