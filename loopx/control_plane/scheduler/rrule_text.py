"""An RRULE's text: reading it, refusing what is malformed or hostile, and one normal form to compare by (RFC 5545).

Text only: when the rule fires is `cadence.py`'s business. Everything that a rule can make a calendar do is bounded
here first, so that no rule which a person or a host sends can keep a process busy.
"""

from __future__ import annotations

import enum

import msgspec

from loopx.control_plane.errors import UsageError

MAX_TEXT = 1024
MAX_COUNT = 10_000
MAX_INTERVAL = 10_000
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")


class Frequency(enum.StrEnum):
    """How often, from slow to fast. `SECONDLY` is refused: no goal is worth a turn a second."""

    YEARLY = "YEARLY"
    MONTHLY = "MONTHLY"
    WEEKLY = "WEEKLY"
    DAILY = "DAILY"
    HOURLY = "HOURLY"
    MINUTELY = "MINUTELY"


ELAPSED_FREQUENCIES = frozenset({Frequency.HOURLY, Frequency.MINUTELY})


class WeekdayRule(msgspec.Struct, frozen=True, order=True):
    """A weekday (0 is Monday), with its ordinal in the month or year, or 0 for every one."""

    weekday: int
    ordinal: int = 0


class Until(msgspec.Struct, frozen=True, kw_only=True):
    """The last moment, inclusive: local wall-clock `YYYYMMDDTHHMMSS`, or the same in UTC."""

    text: str
    utc: bool


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A well-formed, bounded rule."""

    freq: Frequency
    interval: int = 1
    count: int | None = None
    until: Until | None = None
    week_start: int = 0
    by_month: tuple[int, ...] = ()
    by_week: tuple[int, ...] = ()
    by_year_day: tuple[int, ...] = ()
    by_month_day: tuple[int, ...] = ()
    by_weekday: tuple[WeekdayRule, ...] = ()
    by_hour: tuple[int, ...] = ()
    by_minute: tuple[int, ...] = ()
    by_set_pos: tuple[int, ...] = ()

    @property
    def elapsed(self) -> bool:
        """Whether it steps in elapsed time rather than by local dates."""
        return self.freq in ELAPSED_FREQUENCIES


class _Part(msgspec.Struct, frozen=True):
    field: str
    least: int
    most: int
    signed: bool = False


_LISTS = {
    "BYMONTH": _Part("by_month", 1, 12),
    "BYWEEKNO": _Part("by_week", 1, 53, True),
    "BYYEARDAY": _Part("by_year_day", 1, 366, True),
    "BYMONTHDAY": _Part("by_month_day", 1, 31, True),
    "BYHOUR": _Part("by_hour", 0, 23),
    "BYMINUTE": _Part("by_minute", 0, 59),
    "BYSETPOS": _Part("by_set_pos", 1, 366, True),
}
_ORDER = ("FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", *_LISTS, "BYDAY")
_LONGEST_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def parse_rrule(text: str) -> Rule:
    """Read a rule; raises `UsageError` (`rrule_invalid`) naming the part."""
    parts = _split(text)
    rule = Rule(
        freq=_frequency(parts),
        interval=_number(parts, "INTERVAL", 1, MAX_INTERVAL) or 1,
        count=_number(parts, "COUNT", 1, MAX_COUNT),
        until=_until(parts.get("UNTIL")),
        week_start=_weekday("WKST", parts.get("WKST", "MO")),
        by_weekday=_weekdays(parts.get("BYDAY")),
        **{part.field: _numbers(name, parts.get(name), part) for name, part in _LISTS.items()},
    )
    _check(rule)
    return rule


def normal_rrule(text: str) -> str:
    """The rule in its one normal form: equal rules, however written, give equal text. Raises as `parse_rrule`."""
    return rrule_words(parse_rrule(text))


def rrule_words(rule: Rule) -> str:
    """The normal form of a rule, which `parse_rrule` reads back."""
    words = {"FREQ": str(rule.freq)}
    if rule.interval != 1:
        words["INTERVAL"] = str(rule.interval)
    if rule.count is not None:
        words["COUNT"] = str(rule.count)
    if rule.until is not None:
        words["UNTIL"] = rule.until.text + ("Z" if rule.until.utc else "")
    if rule.week_start != 0:
        words["WKST"] = WEEKDAYS[rule.week_start]
    for name, part in _LISTS.items():
        values: tuple[int, ...] = getattr(rule, part.field)
        if values:
            words[name] = ",".join(map(str, values))
    if rule.by_weekday:
        words["BYDAY"] = ",".join(f"{day.ordinal or ''}{WEEKDAYS[day.weekday]}" for day in rule.by_weekday)
    return ";".join(f"{name}={words[name]}" for name in _ORDER if name in words)


def _split(text: str) -> dict[str, str]:
    word = text.strip().upper().removeprefix("RRULE:").rstrip(";")
    if not word or len(word) > MAX_TEXT or not word.isascii() or "\n" in word:
        raise _invalid("RRULE", text[:80], "write one rule, such as FREQ=DAILY;BYHOUR=2;BYMINUTE=30")
    parts: dict[str, str] = {}
    for piece in word.split(";"):
        name, equals, value = piece.partition("=")
        if not equals or not value or name not in _ORDER:
            raise _invalid(name or "RRULE", piece, f"known parts: {', '.join(_ORDER)}")
        if name in parts:
            raise _invalid(name, value, "name each part once")
        parts[name] = value
    return parts


def _frequency(parts: dict[str, str]) -> Frequency:
    word = parts.get("FREQ", "")
    if word not in tuple(Frequency):
        raise _invalid("FREQ", word, f"use one of {', '.join(Frequency)}")
    return Frequency(word)


def _number(parts: dict[str, str], name: str, least: int, most: int) -> int | None:
    text = parts.get(name)
    if text is None:
        return None
    return _whole(name, text, least, most)


def _whole(name: str, text: str, least: int, most: int, *, signed: bool = False) -> int:
    digits = text.lstrip("+-") if signed else text
    if len(text) - len(digits) > 1 or not (digits.isdigit() and len(digits) <= 6 and least <= int(digits) <= most):
        raise _invalid(name, text, f"write a whole number from {least} to {most}")
    return -int(digits) if text.startswith("-") else int(digits)


def _numbers(name: str, text: str | None, part: _Part) -> tuple[int, ...]:
    if text is None:
        return ()
    values = {_whole(name, word, part.least, part.most, signed=part.signed) for word in text.split(",")}
    return tuple(sorted(values))


def _weekday(name: str, text: str) -> int:
    if text not in WEEKDAYS:
        raise _invalid(name, text, f"use one of {', '.join(WEEKDAYS)}")
    return WEEKDAYS.index(text)


def _weekdays(text: str | None) -> tuple[WeekdayRule, ...]:
    if text is None:
        return ()
    found = set()
    for word in text.split(","):
        ordinal = _whole("BYDAY", word[:-2], 1, 53, signed=True) if len(word) > 2 else 0
        found.add(WeekdayRule(_weekday("BYDAY", word[-2:]), ordinal))
    return tuple(sorted(found))


def _until(text: str | None) -> Until | None:
    if text is None:
        return None
    word = text.removesuffix("Z")
    date, _, clock = word.partition("T")
    clock = clock or "235959"
    if not (date.isdigit() and clock.isdigit() and len(date) == 8 and len(clock) == 6) or not _real(date, clock):
        raise _invalid("UNTIL", text, "write YYYYMMDD, YYYYMMDDTHHMMSS or YYYYMMDDTHHMMSSZ")
    return Until(text=f"{date}T{clock}", utc=text.endswith("Z"))


def _real(date: str, clock: str) -> bool:
    month, day = int(date[4:6]), int(date[6:])
    hour, minute, second = int(clock[:2]), int(clock[2:4]), int(clock[4:])
    fits = 1 <= month <= 12 and 1 <= day <= _LONGEST_MONTH[month - 1]
    leap_day = month != 2 or day <= 28 or _is_leap(int(date[:4]))
    return fits and leap_day and int(date[:4]) >= 1 and hour < 24 and minute < 60 and second < 60


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _check(rule: Rule) -> None:
    slow = rule.freq in (Frequency.YEARLY, Frequency.MONTHLY)
    if rule.count is not None and rule.until is not None:
        raise _invalid("COUNT", str(rule.count), "use COUNT or UNTIL, not both")
    if rule.by_week and rule.freq is not Frequency.YEARLY:
        raise _invalid("BYWEEKNO", "", "only with FREQ=YEARLY")
    if rule.by_year_day and rule.freq in (Frequency.DAILY, Frequency.WEEKLY, Frequency.MONTHLY):
        raise _invalid("BYYEARDAY", "", f"not with FREQ={rule.freq}")
    if rule.by_month_day and rule.freq is Frequency.WEEKLY:
        raise _invalid("BYMONTHDAY", "", "not with FREQ=WEEKLY")
    if any(day.ordinal for day in rule.by_weekday) and (not slow or rule.by_week):
        raise _invalid("BYDAY", "", "an ordinal such as 1MO needs FREQ=MONTHLY or FREQ=YEARLY without BYWEEKNO")
    _check_bounded(rule)


def _check_bounded(rule: Rule) -> None:
    if rule.by_set_pos and not _has_set(rule):
        raise _invalid("BYSETPOS", "", "needs another BY part to choose from, and FREQ=DAILY or slower")
    if rule.elapsed and rule.count is not None and has_filters(rule):
        raise _invalid("COUNT", str(rule.count), f"with FREQ={rule.freq} and BY parts use UNTIL")
    if rule.by_month and rule.by_month_day and not rule.by_year_day and not _some_day_exists(rule):
        raise _invalid("BYMONTHDAY", "", "none of these months has such a day, so the rule would never fire")


def has_filters(rule: Rule) -> bool:
    """Whether any BY part narrows or expands the plain steps of the rule."""
    dates = (rule.by_month, rule.by_week, rule.by_year_day, rule.by_month_day, rule.by_weekday)
    return any((*dates, rule.by_hour, rule.by_minute))


def _has_set(rule: Rule) -> bool:
    return not rule.elapsed and has_filters(rule)


def _some_day_exists(rule: Rule) -> bool:
    return any(abs(day) <= _LONGEST_MONTH[month - 1] for month in rule.by_month for day in rule.by_month_day)


def _invalid(part: str, value: str, hint: str) -> UsageError:
    shown = f" {value!r}" if value else ""
    return UsageError("rrule_invalid", f"{part}:{shown} is not usable in a rule", hint=hint, data={"field": part})
