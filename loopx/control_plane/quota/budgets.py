"""Budgets beside the slots (quota, "Budgets"): reading and refusing what people write, admission, reservation, burn.

Written `UNIT=LIMIT[/SCOPE]`: `tokens=2M/goal`, `usd=5/1d`, `turns=24`, `wall=2h/turn`, `usd=unlimited`. The scope is
`turn`, `goal` (the default, an absolute cap) or a window's length; `window` means the length that is already set.
This room never meters anything: it compares what the store summed, and unknown usage stays unknown, never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from loopx.control_plane.errors import UsageError
from loopx.control_plane.quota import amounts
from loopx.control_plane.quota.facts import BudgetUse
from loopx.control_plane.quota.policy import Budget, BudgetScope, BudgetUnit, QuotaPolicy

UNLIMITED = "unlimited"
_WRITTEN_SCOPES = frozenset({BudgetScope.TURN, BudgetScope.WINDOW, BudgetScope.GOAL})
_COUNTED_ONCE = frozenset({BudgetUnit.TURNS, BudgetUnit.LAUNCHES})
TOKEN_UNITS = frozenset(
    {BudgetUnit.TOKENS, BudgetUnit.INPUT_TOKENS, BudgetUnit.CACHED_TOKENS, BudgetUnit.OUTPUT_TOKENS}
)


class Metering(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine reports of itself. A budget in a unit that it never reports could never stop it."""

    engine: str
    reports_dollars: bool
    reports_tokens: bool = True


class BudgetChange(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a person wrote. `limit` None: spelled `unlimited`, so the budget is taken away.

    `window_ms` None with the scope `window`: the window that this unit already has.
    """

    unit: BudgetUnit
    scope: BudgetScope
    limit: int | None
    window_ms: int | None = None


def parse_budget(text: str) -> BudgetChange:
    """Read `UNIT=LIMIT[/SCOPE]`; raises `UsageError` naming the field (`unit`, `limit` or `scope`)."""
    word, equals, rest = text.partition("=")
    if not equals:
        raise _invalid("budget", text, "write UNIT=LIMIT[/SCOPE], such as tokens=2M/goal or usd=5/1d")
    unit = amounts.unit_from_word(word)
    limit_text, slash, scope_text = rest.partition("/")
    scope, window_ms = _parse_scope(scope_text) if slash else (BudgetScope.GOAL, None)
    limit = None if limit_text.strip().lower() == UNLIMITED else amounts.parse_amount(unit, limit_text)
    return BudgetChange(unit=unit, scope=scope, limit=limit, window_ms=window_ms)


def _parse_scope(text: str) -> tuple[BudgetScope, int | None]:
    word = text.strip().lower()
    if word in _WRITTEN_SCOPES:
        return BudgetScope(word), None
    if word in ("hour", "day", "week"):
        return BudgetScope.WINDOW, amounts.parse_duration_ms(f"1{word[0]}")
    try:
        return BudgetScope.WINDOW, amounts.parse_duration_ms(word, field="scope")
    except UsageError as error:
        raise _invalid("scope", text, "use turn, goal, or a window's length such as 5h or 1d") from error


def apply_changes(
    budgets: Iterable[Budget], changes: Iterable[BudgetChange], *, meterings: Iterable[Metering] = ()
) -> tuple[Budget, ...]:
    """The budgets after the changes: same unit, scope and window replaced, `unlimited` removed, the rest kept.

    Raises `UsageError` for a unit that one of the engines never reports, and for `window` where none is set.
    """
    kept = {(budget.unit, budget.scope, budget.window_ms): budget for budget in budgets}
    engines = tuple(meterings)
    for change in changes:
        window_ms = _window_of(change, kept.values())
        key = (change.unit, change.scope, window_ms)
        if change.limit is None:
            kept.pop(key, None)
            continue
        require_metered(change.unit, engines)
        kept[key] = Budget(unit=change.unit, scope=change.scope, limit=change.limit, window_ms=window_ms)
    return tuple(kept.values())


def _window_of(change: BudgetChange, budgets: Iterable[Budget]) -> int | None:
    if change.scope is not BudgetScope.WINDOW or change.window_ms is not None:
        return change.window_ms
    windows = [b.window_ms for b in budgets if b.unit is change.unit and b.scope is BudgetScope.WINDOW]
    if len(windows) != 1:
        raise _invalid("scope", "window", f"say how long the {amounts.unit_word(change.unit)} window is, such as /5h")
    return windows[0]


def require_metered(unit: BudgetUnit, meterings: Iterable[Metering]) -> None:
    """Refuse a budget in a unit that one of the engines never reports (`budget_unit_unmetered`)."""
    for engine in meterings:
        dollars = unit is BudgetUnit.MICROUSD and not engine.reports_dollars
        tokens = unit in TOKEN_UNITS and not engine.reports_tokens
        if dollars or tokens:
            what = "dollars" if dollars else "tokens"
            raise UsageError(
                "budget_unit_unmetered",
                f"unit: {engine.engine} reports no {what}, so this budget could not stop it",
                hint="set the budget in turns, launches or wall-clock",
                data={"field": "unit", "engine": engine.engine},
            )


def parse_machine_cap(text: str) -> Budget:
    """The machine-wide launch cap: `launches=N/WINDOW` and nothing else. Raises `UsageError` (field `machine_cap`)."""
    try:
        change = parse_budget(text)
    except UsageError as error:
        raise _invalid("machine_cap", text, error.hint or "write launches=N/WINDOW, such as launches=60/1h") from error
    if change.unit is not BudgetUnit.LAUNCHES or change.window_ms is None or change.limit is None:
        raise _invalid("machine_cap", text, "write launches=N/WINDOW, such as launches=60/1h")
    return Budget(unit=change.unit, scope=change.scope, limit=change.limit, window_ms=change.window_ms)


def budget_words(budget: Budget) -> str:
    """The budget as `parse_budget` reads it back."""
    scope = amounts.duration_words(budget.window_ms) if budget.window_ms is not None else str(budget.scope)
    return f"{amounts.unit_word(budget.unit)}={amounts.amount_words(budget.unit, budget.limit)}/{scope}"


_INFINITE = (float("inf"), float("-inf"))
_POLICY_FIELDS = ("compute", "window_hours", "slot_minutes", "allowed_slots", "outcome_floor")
MAX_WINDOW_HOURS = 24 * 366
MAX_SLOTS = 1_000_000


def read_quota_policy(written: Mapping[str, object], *, base: QuotaPolicy | None = None) -> QuotaPolicy:
    """A quota policy from what a person wrote, over `base`; raises `UsageError` naming the field.

    `compute` may be 0 (the goal is paused); windows, slots and the floor must be above 0.
    """
    unknown = sorted(set(written) - set(_POLICY_FIELDS))
    if unknown:
        raise _invalid(unknown[0], written[unknown[0]], f"known fields: {', '.join(_POLICY_FIELDS)}", unknown=True)
    old = base or QuotaPolicy()
    allowed = written.get("allowed_slots", old.allowed_slots)
    return QuotaPolicy(
        compute=read_number("compute", written.get("compute", old.compute), least=0, most=1000),
        window_hours=_above_zero("window_hours", written.get("window_hours", old.window_hours), MAX_WINDOW_HOURS),
        slot_minutes=_above_zero("slot_minutes", written.get("slot_minutes", old.slot_minutes), MAX_WINDOW_HOURS * 60),
        allowed_slots=None if allowed is None else read_count("allowed_slots", allowed, least=0),
        outcome_floor=read_count("outcome_floor", written.get("outcome_floor", old.outcome_floor), least=1),
    )


def read_number(field: str, value: object, *, least: float, most: float) -> float:
    """A finite number between the bounds (a whole one stays an int), else `UsageError` naming the field."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value in _INFINITE:
        raise _invalid(field, value, "write a finite number")
    if not least <= value <= most:
        raise _invalid(field, value, f"write a number from {least:g} to {most:g}")
    return value


def read_count(field: str, value: object, *, least: int, most: int = MAX_SLOTS) -> int:
    """A whole number between the bounds, else `UsageError` naming the field."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise _invalid(field, value, "write a whole number")
    if not least <= value <= most:
        raise _invalid(field, value, f"write a whole number from {least} to {most}")
    return value


def _above_zero(field: str, value: object, most: float) -> float:
    number = read_number(field, value, least=0, most=most)
    if number <= 0:
        raise _invalid(field, value, "write a number above 0")
    return number


def _invalid(field: str, value: object, hint: str, *, unknown: bool = False) -> UsageError:
    code = "policy_field_unknown" if unknown else "policy_field_invalid"
    what = "is not a known field" if unknown else f"{value!r} is not usable"
    return UsageError(code, f"{field}: {what}", hint=hint, data={"field": field})


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a turn may start beside those that are open. `absolute`: a goal cap is reached by settled use alone.

    `retry_at_ms` None while not admitted: no known instant (a person, or another turn's settling).
    """

    admitted: bool
    full: tuple[BudgetUse, ...] = ()
    absolute: bool = False
    retry_at_ms: int | None = None


def admits(uses: Iterable[BudgetUse]) -> Admission:
    """Whether every budget has room beyond what is used and reserved; to be asked in the starting transaction."""
    full = tuple(use for use in uses if use.scope is not BudgetScope.TURN and remainder(use) <= 0)
    if not full:
        return Admission(admitted=True)
    absolute = any(use.scope is BudgetScope.GOAL and use.used >= use.limit for use in full)
    instants = [use.frees_at_ms for use in full]
    known = [at for at in instants if at is not None]
    retry = max(known) if len(known) == len(instants) and not absolute else None
    return Admission(admitted=False, full=full, absolute=absolute, retry_at_ms=retry)


def admits_slot(*, allowed: int, spent: int, reserved: int) -> bool:
    """Whether one more slot fits beside those spent and those that open turns hold."""
    return spent + reserved < allowed


def remainder(use: BudgetUse) -> int:
    """What is left of a budget; negative when it is overdrawn."""
    return use.limit - use.used - use.reserved


def reservations_for(budgets: Iterable[Budget], uses: Iterable[BudgetUse]) -> Mapping[BudgetUnit, int]:
    """What a starting turn reserves, for each budgeted unit.

    Turns and launches: 1. Amounts that only the end tells: the per-turn limit where there is one, else all that is
    left, and never more than is left. The turn is held to what it reserved.
    """
    reserved: dict[BudgetUnit, int] = {}
    for budget in budgets:
        amount = 1 if budget.unit in _COUNTED_ONCE else budget.limit
        if budget.scope is BudgetScope.TURN:
            reserved[budget.unit] = min(amount, reserved.get(budget.unit, amount))
    for use in uses:
        if use.scope is not BudgetScope.TURN:
            left = 1 if use.unit in _COUNTED_ONCE else max(0, remainder(use))
            reserved[use.unit] = min(left, reserved.get(use.unit, left))
    return reserved


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn is charged in one unit. `known` False: the engine told nothing, so this is an estimate."""

    amount: int
    known: bool


def settle(reserved: int, used: int | None, *, typical: int | None = None) -> Settlement:
    """Settle a reservation to real use. Unknown use is charged as the goal's `typical` turn, else as reserved."""
    if used is not None:
        return Settlement(amount=used, known=True)
    return Settlement(amount=reserved if typical is None else min(typical, reserved), known=False)


class Burn(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a budget is used, and when it ends at that pace. None: no use yet, or no end in sight."""

    per_hour: int
    exhausts_at_ms: int | None


def burn(use: BudgetUse, *, recent: int, over_ms: int, now_ms: int) -> Burn | None:
    """The pace of the last `over_ms`, in which `recent` was used; None when that says nothing (no time, no use)."""
    if over_ms <= 0 or recent <= 0:
        return None
    left = max(0, remainder(use))
    return Burn(per_hour=recent * 3_600_000 // over_ms, exhausts_at_ms=now_ms + left * over_ms // recent)
