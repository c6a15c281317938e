"""Budget amounts as people write and read them: `2M` tokens, `4.50` dollars, `2h` of wall-clock.

Words and integers only, in both directions. What an amount limits is decided elsewhere.
"""

from __future__ import annotations

from loopx.control_plane.errors import UsageError
from loopx.control_plane.quota.facts import BudgetUse
from loopx.control_plane.quota.policy import BudgetUnit

MAX_AMOUNT = 10**15
"""Larger amounts are a slip of the hand; it also keeps every sum inside 64 bits."""

_DURATIONS_MS = (("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000), ("w", 604_800_000))
_MULTIPLES = (("k", 1_000), ("m", 1_000_000), ("b", 1_000_000_000))
_WORDS = {BudgetUnit.MICROUSD: "usd", BudgetUnit.WALL_MS: "wall"}


def unit_word(unit: BudgetUnit) -> str:
    """The unit's name on the command line: dollars and wall-clock have their own."""
    return _WORDS.get(unit, str(unit))


def unit_from_word(word: str) -> BudgetUnit:
    """The unit that a person named; raises `UsageError` (`budget_unit_unknown`) naming the known ones."""
    known = {unit_word(unit): unit for unit in BudgetUnit}
    unit = known.get(word.strip().lower())
    if unit is None:
        raise UsageError(
            "budget_unit_unknown",
            f"unit: {word!r} is not a budget unit",
            hint=f"use one of {', '.join(known)}",
            data={"field": "unit"},
        )
    return unit


def amount_words(unit: BudgetUnit, amount: int) -> str:
    """An amount of the unit as `parse_amount` reads it back: dollars, a duration, or a plain count."""
    if unit is BudgetUnit.MICROUSD:
        return f"{amount // 1_000_000}.{amount % 1_000_000:06d}".rstrip("0").rstrip(".")
    if unit is BudgetUnit.WALL_MS:
        return duration_words(amount)
    return str(amount)


def duration_words(ms: int) -> str:
    """A duration in the largest unit that says it exactly."""
    for word, size in reversed(_DURATIONS_MS):
        if ms >= size and ms % size == 0:
            return f"{ms // size}{word}"
    return f"{ms}ms"


def raised_budget(use: BudgetUse) -> str:
    """A budget as people write it, at twice its limit or twice its use, whichever is more."""
    limit = 2 * max(use.limit, use.used)
    scope = duration_words(use.window_ms) if use.window_ms is not None else str(use.scope)
    return f"{unit_word(use.unit)}={amount_words(use.unit, limit)}/{scope}"


def parse_amount(unit: BudgetUnit, text: str, *, field: str = "limit") -> int:
    """The amount in the unit's integers (micro-dollars, milliseconds, counts): more than 0, else `UsageError`."""
    if unit is BudgetUnit.WALL_MS:
        return parse_duration_ms(text, field=field)
    word = text.strip().lower().replace("_", "")
    scale = 1_000_000 if unit is BudgetUnit.MICROUSD else 1
    if unit is BudgetUnit.MICROUSD:
        word = word.removeprefix("$")
    for suffix, multiple in _MULTIPLES:
        if word.endswith(suffix):
            word, scale = word[: -len(suffix)], scale * multiple
            break
    return _exact(word, scale, text, field)


def parse_duration_ms(text: str, *, field: str = "window") -> int:
    """A duration such as `90s`, `30m`, `5h`, `1d` in milliseconds: more than 0, else `UsageError`."""
    word = text.strip().lower()
    for suffix, size in _DURATIONS_MS:
        number = word.removesuffix(suffix)
        if number != word and number[-1:].isdigit():
            return _exact(number, size, text, field)
    raise bad_amount(text, field, "write a duration with its unit, such as 30m, 5h or 1d")


def _exact(number: str, scale: int, text: str, field: str) -> int:
    """`number * scale` in exact decimal arithmetic: money never passes through a float."""
    whole, _, fraction = number.partition(".")
    digits = whole + fraction
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 24:
        raise bad_amount(text, field, "write a number above 0, or `unlimited`")
    value, rest = divmod(int(digits) * scale, int(10 ** len(fraction)))
    if rest or not 0 < value <= MAX_AMOUNT:
        raise bad_amount(text, field, "write a number above 0, or `unlimited`; 0 does not mean without limit")
    return value


def bad_amount(text: object, field: str, hint: str) -> UsageError:
    """The refusal of one amount, naming its field."""
    return UsageError("budget_amount_invalid", f"{field}: {text!r} is not usable", hint=hint, data={"field": field})
