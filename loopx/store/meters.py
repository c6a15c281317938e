"""Meters: what host runs really used, with running totals, and what open turns reserved.

A unit that a host did not report is not metered: unknown is never zero. Where there is a budget in it, the turn is
charged with an estimate, which is kept apart and never shown as use. The empty goal id holds the store's own total.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping

from loopx.control_plane.errors import BudgetError, LoopXError, NotNowError
from loopx.control_plane.quota.facts import BudgetUse
from loopx.control_plane.quota.policy import Budget, BudgetScope, BudgetUnit
from loopx.store.connection import Tx

SLOTS = "slots"
"""The reservation unit of the pacing quota itself."""


_TOLD_BY_HOSTS = frozenset(
    {
        BudgetUnit.TOKENS,
        BudgetUnit.INPUT_TOKENS,
        BudgetUnit.CACHED_TOKENS,
        BudgetUnit.OUTPUT_TOKENS,
        BudgetUnit.MICROUSD,
    }
)
_HISTORY = 21
_MOST_STEPS = 1000


def record(tx: Tx, goal_id: str, effect_ref: str, amounts: Mapping[BudgetUnit, int], now_ms: int) -> None:
    """Meter one host run, once per effect and unit."""
    for unit, amount in amounts.items():
        tx.run("meters.record", goal_id=goal_id, unit=unit, effect_ref=effect_ref, amount=amount, now_ms=now_ms)


class Silence(enum.Enum):
    """What a turn's hosts told of a unit: all, not before they were cut off, or nothing although they ended well."""

    NONE = enum.auto()
    CUT_OFF = enum.auto()
    UNREPORTED = enum.auto()


def settle(tx: Tx, goal_id: str, turn_key: str, silence: Callable[[BudgetUnit], Silence], now_ms: int) -> None:
    """Settle what a closing turn reserved: it counts as one turn, and the rest is what its hosts reported.

    What they did not report is charged as the goal's usual turn. Where there is none yet, an engine that ended well
    and told nothing is charged with all that was reserved: a budget that it never fills would never stop it.
    """
    held = tx.all("meters.reserved_by", turn_key=turn_key)
    tx.run("meters.unreserve", turn_key=turn_key)
    record(tx, goal_id, f"{turn_key}:turn", {BudgetUnit.TURNS: 1}, now_ms)
    for row in held:
        unit = BudgetUnit(row["unit"])
        told = silence(unit) if unit in _TOLD_BY_HOSTS else Silence.NONE
        amount = _estimate(tx, goal_id, unit, int(row["amount"]), told)
        if amount:
            reference = f"{turn_key}:estimated"
            name = _estimated(unit)
            tx.run("meters.record", goal_id=goal_id, unit=name, effect_ref=reference, amount=amount, now_ms=now_ms)


def _estimate(tx: Tx, goal_id: str, unit: BudgetUnit, reserved: int, told: Silence) -> int:
    if told is Silence.NONE:
        return 0
    # A decision only sums; what a closing turn needs is loaded by it alone.
    from loopx.control_plane.quota import alarms, budgets

    known = [int(row["amount"]) for row in tx.all("meters.recent", goal_id=goal_id, unit=unit, limit=_HISTORY)]
    if not known and told is Silence.CUT_OFF:
        return 0
    return budgets.settle(reserved, None, typical=alarms.median(known) if known else None).amount


def _estimated(unit: BudgetUnit) -> str:
    """The name under which estimates of a unit are summed."""
    return f"{unit}:estimated"


def used(tx: Tx, goal_id: str, unit: str, start_ms: int | None) -> int:
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
    estimated = _charged_blindly(tx, goal_id, budget.unit, start)
    spent = used(tx, goal_id, budget.unit, start) + estimated
    reserved = tx.number("meters.reserved", goal_id=goal_id, unit=budget.unit)
    frees = None
    full = spent + reserved >= budget.limit
    if full and budget.window_ms is not None and estimated:
        frees = _frees_at(tx, goal_id, budget, now_ms)
    elif full and budget.window_ms is not None and start is not None:
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
        estimated=estimated,
    )


def _charged_blindly(tx: Tx, goal_id: str, unit: BudgetUnit, start_ms: int | None) -> int:
    return used(tx, goal_id, _estimated(unit), start_ms) if unit in _TOLD_BY_HOSTS else 0


def _frees_at(tx: Tx, goal_id: str, budget: Budget, now_ms: int) -> int | None:
    """The instant at which enough of both sums, what was told and what was estimated, has left the window."""
    window, instant = budget.window_ms or 0, now_ms
    for _ in range(_MOST_STEPS):
        start = instant - window
        units = (str(budget.unit), _estimated(budget.unit))
        if sum(used(tx, goal_id, unit, start) for unit in units) < budget.limit:
            break
        rows = [tx.one("meters.first_since", goal_id=goal_id, unit=unit, start_ms=start) for unit in units]
        instant = min((int(row["at_ms"]) for row in rows if row is not None), default=start + 1) + window
    return instant if instant > now_ms else None


def capped(tx: Tx, goal_id: str, budgets: tuple[Budget, ...]) -> bool:
    """Whether a goal-wide budget is used up by what is settled: an absolute cap."""
    return any(
        budget.scope is BudgetScope.GOAL
        and used(tx, goal_id, budget.unit, None) + _charged_blindly(tx, goal_id, budget.unit, None) >= budget.limit
        for budget in budgets
    )


def reserve(tx: Tx, goal_id: str, turn_key: str, budgets: tuple[Budget, ...], now_ms: int) -> None:
    """Reserve what one turn may use, so that parallel starters can't overshoot together.

    Raises BudgetError (`budget_taken`) naming the first budget that is used up, NotNowError (`budget_reserved`) for one
    that only has no room now: in a window, or beside what other turns hold.
    """
    amounts: dict[BudgetUnit, int] = {}
    for budget in budgets:
        use = budget_use(tx, goal_id, budget, now_ms)
        room = use.limit - use.used - use.reserved
        if room <= 0:
            raise _no_room(goal_id, use)
        wanted = 1 if budget.unit in (BudgetUnit.TURNS, BudgetUnit.LAUNCHES) else room
        amounts[budget.unit] = min(wanted, amounts.get(budget.unit, wanted))
    for unit, amount in amounts.items():
        tx.run("meters.reserve", turn_key=turn_key, goal_id=goal_id, unit=unit, amount=amount)


def _no_room(goal_id: str, use: BudgetUse) -> LoopXError:
    data: dict[str, str | int | float | bool | None] = {
        "unit": use.unit,
        "limit": use.limit,
        "used": use.used,
        "reserved": use.reserved,
    }
    if use.scope is BudgetScope.GOAL and use.used >= use.limit:
        return BudgetError(
            "budget_taken", f"the {use.unit} budget of {goal_id} is used up", hint=f"loopx why {goal_id}", data=data
        )
    return NotNowError(
        "budget_reserved",
        f"the {use.unit} budget of {goal_id} has no room now: {use.used} and {use.reserved} reserved of {use.limit}",
        hint=f"loopx why {goal_id}",
        data=data,
    )
