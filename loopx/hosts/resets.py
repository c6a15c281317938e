"""When does a limit reset? Turns what providers and CLIs say (unix seconds, seconds from now, clock times with or
without a zone, dates) into an instant. It never guesses: what it cannot read is None, and the caller backs off.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo

MAX_WAIT_MS = 35 * 86_400_000
"""A reset further away than a monthly window is not believed."""
_GRACE_MS = 120_000
"""A clock time that passed less than this ago is the reset that just happened, not tomorrow's."""
_YEAR_2001_S = 10**9

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_ZONE = r"(?:\s*\(\s*([A-Za-z_]+(?:/[A-Za-z_+\-0-9]+)*)\s*\)|\s+(UTC|GMT)\b)?"
_TIME = r"(\d{1,2})(?::(\d{2}))?(?::\d{2})?\s*([ap]\.?m\.?)?"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_LEAD = r"\b(?:resets?|try again|retry|available again|renews?|back)\b[^\d\n]{0,40}?"

_STAMP = re.compile(r"(?:\||\bresets?[_ ]?(?:at|time)?\b\W{0,4})(\d{10}|\d{13})\b", re.I)
_ISO = re.compile(r"\b(\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?)\s*(Z|[+-]\d{2}:?\d{2})\b", re.I)
_SECONDS = re.compile(r"\b(?:resets?_in_seconds|retry[- ]?after(?:_seconds)?)\b\W{0,4}(\d{1,8})\b", re.I)
_SPAN = re.compile(
    r"\b(?:in|after|retrydelay\W{0,4})\s*"
    r"((?:\d+(?:\.\d+)?\s*(?:weeks?|days?|hours?|hrs?|minutes?|mins?|seconds?|secs?|[wdhms](?![a-z]))[\s,]*(?:and\s+)?)+)",
    re.I,
)
_SPAN_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([wdhms])", re.I)
_DATE = re.compile(
    _LEAD + r"(?:(" + "|".join(_MONTHS) + r")[a-z]*\.?\s+(\d{1,2})(?:st|nd|rd|th)?(?:,?\s+(\d{4}))?)"
    r"(?:,|\s+at|\s)*\s*(?:" + _TIME + _ZONE + ")?",
    re.I,
)
_CLOCK = re.compile(_LEAD + r"(?<![\d:])" + _TIME + r"(?![\d:/\-])" + _ZONE, re.I)


def from_unix(value: int | None, now_ms: int) -> int | None:
    """Unix seconds or milliseconds as milliseconds; None when absent or not believable."""
    if value is None or value < _YEAR_2001_S:
        return None
    return _believed(value if value > 10**12 else value * 1000, now_ms)


def from_seconds(value: int | None, now_ms: int) -> int | None:
    """`value` seconds from now; None when absent or not believable."""
    return None if value is None or value < 0 else _believed(now_ms + value * 1000, now_ms)


def parse_reset(text: str, now_ms: int, zone: str | None = None) -> int | None:
    """The reset instant that `text` (one final error line) names, in milliseconds UTC, or None.

    `zone` is the IANA name of the zone the CLI runs in, for times without one; None is this machine's own. A clock
    time in the past means the next day (field notes, B11).
    """
    flat = text.replace("’", "'").replace("\u202f", " ").replace("\xa0", " ").replace("∙", "·")
    readers: tuple[Callable[[str, int, str | None], int | None], ...] = (_stamp, _iso, _seconds, _span, _date, _clock)
    for reader in readers:
        found = reader(flat, now_ms, zone)
        if found is not None:
            return found
    return None


def _believed(instant_ms: int, now_ms: int) -> int | None:
    return instant_ms if now_ms - MAX_WAIT_MS < instant_ms < now_ms + MAX_WAIT_MS else None


def _stamp(text: str, now_ms: int, _: str | None) -> int | None:
    found = _STAMP.search(text)
    return from_unix(int(found[1]), now_ms) if found else None


def _iso(text: str, now_ms: int, _: str | None) -> int | None:
    found = _ISO.search(text)
    if not found:
        return None
    try:
        instant = datetime.fromisoformat(found[1].replace(" ", "T") + found[2].upper().replace("Z", "+00:00"))
    except ValueError:
        return None
    return _believed(_ms(instant), now_ms)


def _seconds(text: str, now_ms: int, _: str | None) -> int | None:
    found = _SECONDS.search(text)
    return from_seconds(int(found[1]), now_ms) if found else None


def _span(text: str, now_ms: int, _: str | None) -> int | None:
    found = _SPAN.search(text)
    if not found:
        return None
    seconds = sum(float(number) * _UNITS_S[unit.lower()] for number, unit in _SPAN_PART.findall(found[1]))
    return _believed(now_ms + int(seconds * 1000), now_ms)


def _date(text: str, now_ms: int, zone: str | None) -> int | None:
    found = _DATE.search(text)
    if not found:
        return None
    month, day, year, *clock = found.groups()
    place, ok = _zone(clock[3] or clock[4] or zone)
    time = _time(clock[0] or "0", clock[1], clock[2])
    if not ok or time is None:
        return None
    now = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(place)
    years = [int(year)] if year else [now.year, now.year + 1]
    for one in years:
        instant = _local(one, _MONTHS.index(month.lower()) + 1, int(day), *time, place)
        if instant is not None and (year or instant > now_ms - 86_400_000):
            return _believed(instant, now_ms)
    return None


def _clock(text: str, now_ms: int, zone: str | None) -> int | None:
    found = _CLOCK.search(text)
    if not found:
        return None
    hour, minute, half, named, utc = found.groups()
    if half is None and minute is None:
        return None
    place, ok = _zone(named or utc or zone)
    time = _time(hour, minute, half)
    if not ok or time is None:
        return None
    today = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(place)
    for days in (0, 1, 2):
        day = today + timedelta(days=days)
        instant = _local(day.year, day.month, day.day, *time, place)
        if instant is not None and instant > now_ms - _GRACE_MS:
            return instant
    return None


def _time(hour: str, minute: str | None, half: str | None) -> tuple[int, int] | None:
    hours, minutes = int(hour), int(minute or 0)
    if half is not None:
        if not 1 <= hours <= 12:
            return None
        hours = hours % 12 + (12 if half.lower().startswith("p") else 0)
    return (hours, minutes) if hours < 24 and minutes < 60 else None


def _zone(name: str | None) -> tuple[tzinfo | None, bool]:
    """The zone (None is this machine's own), and whether the name was understood."""
    if name is None:
        return None, True
    if name.upper() in ("UTC", "GMT", "Z"):
        return UTC, True
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name), True
    except (KeyError, ValueError, OSError):
        return None, False


def _local(year: int, month: int, day: int, hour: int, minute: int, place: tzinfo | None) -> int | None:
    try:
        naive = datetime(year, month, day, hour, minute)  # noqa: DTZ001 - the zone follows, or is the machine's own
        return _ms(naive.astimezone() if place is None else naive.replace(tzinfo=place))
    except (ValueError, OverflowError, OSError):
        return None


def _ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)
