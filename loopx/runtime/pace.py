"""The pace of a goal: how fast each budget is used, when it ends at that pace, and what stands out.

It reads meters and stops nothing: budgets stop. Unknown use is left out and never shown as zero.
"""

from __future__ import annotations

import msgspec

from loopx.control_plane.quota import alarms, amounts, budgets
from loopx.control_plane.quota.facts import BudgetUse
from loopx.control_plane.quota.policy import Budget, BudgetScope, BudgetUnit
from loopx.store import meters
from loopx.store.connection import Tx

HOUR_MS = 3_600_000
BURN_MS = 6 * HOUR_MS
"""The pace of a budget is read over this much recent time."""
SPIKE_FLOORS = {BudgetUnit.TOKENS: 1_000, BudgetUnit.MICROUSD: 10_000, BudgetUnit.WALL_MS: 60_000}
"""Units that are watched, and the least median that counts: who used next to nothing alarms at no first real run."""
HISTORY = 21


class BudgetLine(msgspec.Struct, frozen=True, kw_only=True):
    """One budget, its use, and its pace. None: unknown, or no end in sight."""

    budget: str
    """As a person writes it: `tokens=2000000/goal`."""
    unit: BudgetUnit
    scope: BudgetScope
    limit: int
    used: int
    reserved: int
    frees_at_ms: int | None
    estimated: int = 0
    """How much of `used` the engine did not report."""
    per_hour: int | None = None
    exhausts_at_ms: int | None = None


def machine_line(uses: tuple[BudgetUse, ...]) -> BudgetLine | None:
    """The machine-wide launch cap among the budgets of a decision; None where there is none."""
    for use in uses:
        if use.scope is BudgetScope.MACHINE:
            words = f"launches={use.limit}/{amounts.duration_words(use.window_ms or 0)}"
            return BudgetLine(
                budget=words,
                unit=use.unit,
                scope=use.scope,
                limit=use.limit,
                used=use.used,
                reserved=0,
                frees_at_ms=use.frees_at_ms,
            )
    return None


class Spike(msgspec.Struct, frozen=True, kw_only=True):
    """A run that used far more than this goal's own median."""

    unit: BudgetUnit
    run_id: str
    latest: int
    median: int
    factor: int


def budget_lines(
    tx: Tx, goal_id: str, written: tuple[Budget, ...], uses: tuple[BudgetUse, ...], now_ms: int
) -> tuple[BudgetLine, ...]:
    """Each budget with its use, and when it ends at the pace of the last hours."""
    lines: list[BudgetLine] = []
    for budget, use in zip(written, (use for use in uses if use.scope is not BudgetScope.MACHINE), strict=True):
        first = tx.one("meters.first_since", goal_id=goal_id, unit=budget.unit, start_ms=now_ms - BURN_MS)
        over = min(BURN_MS, max(now_ms - int(first["at_ms"]), HOUR_MS // 4)) if first is not None else 0
        pace = None
        if use.scope is not BudgetScope.TURN and over:
            recent = meters.used(tx, goal_id, budget.unit, now_ms - BURN_MS)
            pace = budgets.burn(use, recent=recent, over_ms=over, now_ms=now_ms)
        lines.append(
            BudgetLine(
                budget=budgets.budget_words(budget),
                unit=use.unit,
                scope=use.scope,
                limit=use.limit,
                used=use.used,
                reserved=use.reserved,
                frees_at_ms=use.frees_at_ms,
                estimated=use.estimated,
                per_hour=pace.per_hour if pace is not None else None,
                exhausts_at_ms=pace.exhausts_at_ms if pace is not None else None,
            )
        )
    return tuple(lines)


def spikes(tx: Tx, goal_id: str) -> tuple[Spike, ...]:
    """The units in which the last run stands out."""
    found: list[Spike] = []
    for unit, floor in SPIKE_FLOORS.items():
        rows = tx.all("meters.latest", goal_id=goal_id, unit=unit, limit=HISTORY)
        used = [int(row["amount"]) for row in rows]
        alarm = alarms.spike(used[1:], used[0], floor=floor) if used else None
        if alarm is not None:
            run_id = str(rows[0]["effect_ref"])
            found.append(Spike(unit=unit, run_id=run_id, latest=alarm.latest, median=alarm.median, factor=alarm.factor))
    return tuple(found)
