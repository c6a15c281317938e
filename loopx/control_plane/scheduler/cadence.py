"""When a cadence fires: daylight-saving rules, slot keys, coalesced misses (quota, "The scheduler").

DAILY and slower go by local dates: a time in the gap runs at the first valid instant after it, a repeated time at its
first occurrence. HOURLY and faster step in elapsed time. The calendar's arithmetic comes through `Occurrences` and the
zone's rules through `Zone`; this room reads no clock and no time-zone data. Local times are integer milliseconds as if
they were UTC.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Protocol

import msgspec

from loopx.control_plane.errors import UsageError
from loopx.control_plane.scheduler.rrule_text import Frequency, Rule, has_filters

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
HORIZON_MS = 12 * 366 * DAY_MS
"""A filtered rule that steps in elapsed time is searched this far ahead: past the longest run without a leap day."""
MAX_STEPS = 50_000
MAX_YEAR = 2400
"""A later start is a slip of the hand, and a later UNTIL is none."""
MAX_MISSES = 1_000
"""Misses are counted up to here; a longer sleep is as long as anybody needs to know."""

_EPOCH = datetime.datetime.fromisoformat("1970-01-01")
"""Naive on purpose: local times have no offset of their own."""


class Zone(Protocol):
    """One time zone's rules."""

    def offset_ms(self, at_ms: int) -> int:
        """What to add to UTC for local time, at an instant."""


class Occurrences(Protocol):
    """A rule's occurrences on the local wall-clock, from its start on; zones and UNTIL do not concern it."""

    def after(self, local_ms: int) -> int | None:
        """The first occurrence strictly after a local time; None when there is none within its horizon."""


class Cadence(msgspec.Struct, frozen=True, kw_only=True):
    """A rule with all that it needs to fire."""

    rule: Rule
    zone: Zone
    start_local_ms: int
    occurrences: Occurrences


class Occurrence(msgspec.Struct, frozen=True, kw_only=True):
    """One firing: its instant, and the key by which it runs once. Keys of one cadence sort in time order."""

    at_ms: int
    slot_key: str


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """One run that stands for all occurrences up to now: the latest of them, and how many were missed."""

    occurrence: Occurrence
    missed: int
    following: Occurrence | None


def next_occurrence(cadence: Cadence, after_ms: int) -> Occurrence | None:
    """The first occurrence strictly after an instant; None when the rule has ended, or never fires again."""
    found = _elapsed_after(cadence, after_ms) if cadence.rule.elapsed else _wall_after(cadence, after_ms)
    if found is None or _ended(cadence, found):
        return None
    return found


def due(cadence: Cadence, *, next_due_ms: int, now_ms: int) -> Due | None:
    """What to run now, when `next_due_ms` is the instant that the schedule waits for; None when it is not due yet."""
    latest = next_occurrence(cadence, next_due_ms - 1)
    if latest is None or latest.at_ms > now_ms:
        return None
    missed = 0
    following = next_occurrence(cadence, latest.at_ms)
    while following is not None and following.at_ms <= now_ms:
        latest, missed = following, missed + 1
        following = next_occurrence(cadence, now_ms if missed >= MAX_MISSES else latest.at_ms)
    return Due(occurrence=latest, missed=missed, following=following)


def to_local(zone: Zone, at_ms: int) -> int:
    """The local wall-clock at an instant."""
    return at_ms + zone.offset_ms(at_ms)


def to_instant(zone: Zone, local_ms: int) -> int:
    """The instant of a local time: the first of two, and for a time in the gap the first valid instant after it.

    Never decreases as the local time grows.
    """
    offsets = {zone.offset_ms(local_ms - DAY_MS), zone.offset_ms(local_ms + DAY_MS)}
    valid = [local_ms - offset for offset in offsets if zone.offset_ms(local_ms - offset) == offset]
    if valid:
        return min(valid)
    return _change_between(zone, local_ms - max(offsets), local_ms - min(offsets))


def _change_between(zone: Zone, before_ms: int, after_ms: int) -> int:
    """The instant at which the offset changes, by bisection; `after_ms` has the new offset already."""
    old = zone.offset_ms(before_ms)
    while after_ms - before_ms > 1:
        middle = (before_ms + after_ms) // 2
        if zone.offset_ms(middle) == old:
            before_ms = middle
        else:
            after_ms = middle
    return after_ms


def parse_local(text: str) -> int:
    """Read a local time such as `2026-03-29T02:30`; raises `UsageError` naming the field `dtstart`."""
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is not None or not 1970 <= at.year <= MAX_YEAR:
        raise UsageError(
            "dtstart_invalid",
            f"dtstart: {text[:40]!r} is not a local time",
            hint="write YYYY-MM-DDTHH:MM without an offset; the zone is named apart",
            data={"field": "dtstart"},
        )
    return (at.replace(microsecond=0) - _EPOCH) // datetime.timedelta(milliseconds=1)


def local_datetime(local_ms: int) -> datetime.datetime:
    """A local time as a naive datetime."""
    return _EPOCH + datetime.timedelta(milliseconds=local_ms)


def _ended(cadence: Cadence, found: Occurrence) -> bool:
    until = cadence.rule.until
    if until is None or int(until.text[:4]) > MAX_YEAR:
        return False
    limit = (datetime.datetime.fromisoformat(until.text) - _EPOCH) // datetime.timedelta(milliseconds=1)
    if until.utc:
        return found.at_ms > limit
    return found.at_ms > to_instant(cadence.zone, limit)


def _wall_after(cadence: Cadence, after_ms: int) -> Occurrence | None:
    # Local times map to instants without ever going back, so nothing at or before local `after_ms` is still to come;
    # what lies in the repeated hour has run already at its first occurrence and is stepped over.
    local: int | None = to_local(cadence.zone, after_ms)
    for _ in range(MAX_STEPS):
        local = cadence.occurrences.after(local) if local is not None else None
        if local is None:
            return None
        at_ms = to_instant(cadence.zone, local)
        if at_ms > after_ms:
            return Occurrence(at_ms=at_ms, slot_key=f"{local_datetime(local):%Y-%m-%dT%H:%M:%S}")
    return None


def _elapsed_after(cadence: Cadence, after_ms: int) -> Occurrence | None:
    rule = cadence.rule
    start = to_instant(cadence.zone, cadence.start_local_ms)
    step = rule.interval * (HOUR_MS if rule.freq is Frequency.HOURLY else MINUTE_MS)
    if has_filters(rule):
        at_ms = next(_filtered(cadence, start, step, after_ms), None)
        return None if at_ms is None else _elapsed_occurrence(at_ms)
    index = max(0, (after_ms - start) // step + 1)
    if rule.count is not None and index >= rule.count:
        return None
    return _elapsed_occurrence(start + index * step)


def _elapsed_occurrence(at_ms: int) -> Occurrence:
    return Occurrence(at_ms=at_ms, slot_key=f"{local_datetime(at_ms):%Y-%m-%dT%H:%M:%S}Z")


def _filtered(cadence: Cadence, start: int, step: int, after_ms: int) -> Iterator[int]:
    """The occurrences after an instant of a rule that steps in elapsed time and is narrowed by local times."""
    index = max(0, (after_ms - HOUR_MS - start) // step)
    for _ in range(MAX_STEPS):
        base = start + index * step
        if base > max(after_ms, start) + HORIZON_MS:
            return
        local = to_local(cadence.zone, base)
        if not _date_matches(cadence.rule, local_datetime(local)):
            midnight = to_instant(cadence.zone, local - local % DAY_MS + DAY_MS)
            index = max(index + 1, -((start - midnight) // step))
            continue
        yield from (at for at in _expand(cadence, base, local) if at > after_ms and at >= start)
        index += 1


def _expand(cadence: Cadence, base: int, local: int) -> Iterator[int]:
    rule = cadence.rule
    if rule.by_hour and local % DAY_MS // HOUR_MS not in rule.by_hour:
        return
    minute = local % HOUR_MS // MINUTE_MS
    if rule.freq is Frequency.MINUTELY or not rule.by_minute:
        if not rule.by_minute or minute in rule.by_minute:
            yield base
        return
    for wanted in rule.by_minute:
        at_ms = base + (wanted - minute) * MINUTE_MS
        if to_local(cadence.zone, at_ms) % HOUR_MS // MINUTE_MS == wanted:
            yield at_ms


def _date_matches(rule: Rule, at: datetime.datetime) -> bool:
    return (
        (not rule.by_month or at.month in rule.by_month)
        and (not rule.by_weekday or any(day.weekday == at.weekday() for day in rule.by_weekday))
        and (not rule.by_month_day or _counted(at.day, _month_days(at), rule.by_month_day))
        and (not rule.by_year_day or _counted(at.timetuple().tm_yday, _year_days(at.year), rule.by_year_day))
    )


def _counted(day: int, total: int, wanted: tuple[int, ...]) -> bool:
    return day in wanted or day - total - 1 in wanted


def _year_days(year: int) -> int:
    return (datetime.date(year + 1, 1, 1) - datetime.date(year, 1, 1)).days


def _month_days(at: datetime.datetime) -> int:
    following = at.replace(day=28) + datetime.timedelta(days=4)
    return (following - datetime.timedelta(days=following.day)).day
