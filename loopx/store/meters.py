"""Meters: what host runs really used, with running totals, and what open turns reserved.

A unit that a host did not report is not metered: unknown is never zero. The empty goal id holds the store's own total.
"""

from __future__ import annotations

from collections.abc import Mapping

from loopx.control_plane.errors import BudgetError
from loopx.control_plane.quota.facts import BudgetUse
from loopx.control_plane.quota.policy import Budget, BudgetScope, BudgetUnit
from loopx.store.connection import Tx

SLOTS = "slots"
"""The reservation unit of the pacing quota itself."""


def record(tx: Tx, goal_id: str, effect_ref: str, amounts: Mapping[BudgetUnit, int], now_ms: int) -> None:
    """Meter one host run, once per effect and unit."""
    for unit, amount in amounts.items():
        tx.run("meters.record", goal_id=goal_id, unit=unit, effect_ref=effect_ref, amount=amount, now_ms=now_ms)


def used(tx: Tx, goal_id: str, unit: BudgetUnit, start_ms: int | None) -> int:
    """What was used since `start_ms` (exclusive), or ever."""
    total = tx.number("meters.total", goal_id=goal_id, unit=unit)
    if start_ms is None:
        return total
    return total - tx.number("meters.before", goal_id=goal_id, unit=unit, start_ms=start_ms)


def budget_use(tx: Tx, goal_id: str, budget: Budget, now_ms: int) -> BudgetUse:
    """One budget's use in its own window. A per-turn budget is used by no finished turn."""
    if budget.scope is BudgetScope.TURN:
        return BudgetUse(unit=budget.unit, scope=budget.scope, limit=budget.limit, used=0)
    start = None if budget.window_ms is None else now_ms - budget.window_ms
    spent = used(tx, goal_id, budget.unit, start)
    reserved = tx.number("meters.reserved", goal_id=goal_id, unit=budget.unit)
    frees = None
    if start is not None and budget.window_ms is not None and spent + reserved >= budget.limit:
        total = tx.number("meters.total", goal_id=goal_id, unit=budget.unit)
        row = tx.one(
            "meters.frees_at",
            goal_id=goal_id,
            unit=budget.unit,
            start_ms=start,
            threshold=total - budget.limit,
        )
        frees = int(row["at_ms"]) + budget.window_ms if row is not None else None
    return BudgetUse(
        unit=budget.unit,
        scope=budget.scope,
        limit=budget.limit,
        used=spent,
        reserved=reserved,
        frees_at_ms=frees,
        window_ms=budget.window_ms,
    )


def capped(tx: Tx, goal_id: str, budgets: tuple[Budget, ...]) -> bool:
    """Whether a goal-wide budget is used up by what is settled: an absolute cap."""
    return any(
        budget.scope is BudgetScope.GOAL and used(tx, goal_id, budget.unit, None) >= budget.limit for budget in budgets
    )


def reserve(tx: Tx, goal_id: str, turn_key: str, budgets: tuple[Budget, ...], now_ms: int) -> None:
    """Reserve what one turn may use, so that parallel starters can't overshoot together.

    Raises BudgetError (`budget_taken`) naming the first budget that has no room.
    """
    amounts: dict[BudgetUnit, int] = {}
    for budget in budgets:
        use = budget_use(tx, goal_id, budget, now_ms)
        room = use.limit - use.used - use.reserved
        if room <= 0:
            raise BudgetError(
                "budget_taken",
                f"the {budget.unit} budget of {goal_id} is used up",
                hint=f"loopx quota raise {goal_id}",
                data={"unit": budget.unit, "limit": budget.limit, "used": use.used, "reserved": use.reserved},
            )
        wanted = 1 if budget.unit in (BudgetUnit.TURNS, BudgetUnit.LAUNCHES) else room
        amounts[budget.unit] = min(wanted, amounts.get(budget.unit, wanted))
    for unit, amount in amounts.items():
        tx.run("meters.reserve", turn_key=turn_key, goal_id=goal_id, unit=unit, amount=amount)
