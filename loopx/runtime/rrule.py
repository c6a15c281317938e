"""The calendar and the zones behind a cadence: python-dateutil for occurrences, zoneinfo for offsets.

An adapter only: the daylight-saving rules are the control plane's. Both libraries load on first use, and neither is
ever given a rule that could keep it busy: `rrule_text` bounds the rule, and this module bounds the search.
"""

from __future__ import annotations

import bisect
import datetime
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from loopx.control_plane.errors import UsageError
from loopx.control_plane.scheduler import cadence, schedule
from loopx.control_plane.scheduler.rrule_text import Frequency, Rule, parse_rrule

if TYPE_CHECKING:
    import zoneinfo

    from dateutil.rrule import rrule as DateutilRule

_CYCLE_YEARS = 400
_LEAST_HORIZON_YEARS = 50
_BATCH = 64
_BATCH_SPAN_MS = 60 * cadence.DAY_MS
_DAY = datetime.timedelta(days=1)


class IanaZone:
    """One zone of the IANA database."""

    def __init__(self, info: zoneinfo.ZoneInfo) -> None:
        self._info = info

    def offset_ms(self, at_ms: int) -> int:
        at = datetime.datetime.fromtimestamp(at_ms // 1000, datetime.UTC).astimezone(self._info)
        offset = at.utcoffset() or datetime.timedelta()
        return offset // datetime.timedelta(milliseconds=1)


@functools.lru_cache(maxsize=64)
def open_zone(name: str) -> IanaZone:
    """The zone of that IANA name; raises `UsageError` (`zone_unknown`)."""
    import zoneinfo

    try:
        return IanaZone(zoneinfo.ZoneInfo(name))
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UsageError(
            "zone_unknown",
            f"zone: {name[:60]!r} is not a time zone",
            hint="use an IANA name such as Europe/Berlin or UTC",
            data={"field": "zone"},
        ) from error


def open_cadence(wanted: schedule.Schedule | schedule.Wanted) -> cadence.Cadence | None:
    """The cadence of a schedule, ready to fire; None when it has no rule (run as soon as eligible).

    Raises `UsageError` for a bad rule, zone or start, and for a rule that never fires (`rrule_never_fires`).
    """
    if wanted.rrule is None:
        return None
    return _cadence(wanted.rrule, wanted.zone, wanted.dtstart_local or "")


@functools.lru_cache(maxsize=512)
def _cadence(rrule: str, zone_name: str, dtstart: str) -> cadence.Cadence:
    rule = parse_rrule(rrule)
    start = cadence.parse_local(dtstart)
    zone = open_zone(zone_name)
    made = cadence.Cadence(rule=rule, zone=zone, start_local_ms=start, occurrences=WallOccurrences(rule, start))
    if cadence.next_occurrence(made, cadence.to_instant(zone, start) - 1) is None:
        raise UsageError("rrule_never_fires", "RRULE: this rule never fires", data={"field": "RRULE"})
    return made


class WallOccurrences:
    """A rule's occurrences on the local wall-clock. Keeps the last few that it found, to answer the next question."""

    def __init__(self, rule: Rule, start_local_ms: int) -> None:
        self._rule = rule
        self._start = cadence.local_datetime(start_local_ms)
        # One reference, replaced as a whole: threads that share a cadence never see half of an answer.
        self._known: tuple[int, list[int]] = (0, [])

    def after(self, local_ms: int) -> int | None:
        """The first occurrence strictly after a local time; None when none comes within some decades."""
        since, found = self._known
        if not found or not since <= local_ms < found[-1]:
            found = self._batch(local_ms)
            self._known = (local_ms, found)
        index = bisect.bisect_right(found, local_ms)
        return found[index] if index < len(found) else None

    def _batch(self, local_ms: int) -> list[int]:
        found: list[int] = []
        for occurrence in self._search(local_ms):
            found.append(occurrence)
            if len(found) == _BATCH or occurrence > local_ms + _BATCH_SPAN_MS:
                break
        return found

    def _search(self, local_ms: int) -> Iterator[int]:
        after = cadence.local_datetime(local_ms)
        base = self._start if self._rule.count is not None else _forwarded(self._rule, self._start, after)
        # dateutil looks for a next occurrence until the year 9999. The calendar repeats itself every 400 years,
        # weekdays included, so the question is asked in the last cycle: a rule that never fires soon gives up.
        years = (datetime.MAXYEAR - _LEAST_HORIZON_YEARS - base.year) // _CYCLE_YEARS * _CYCLE_YEARS
        if years < 0:
            return
        moved = datetime.timedelta(days=years // _CYCLE_YEARS * 146_097)
        floor = max(after + datetime.timedelta(microseconds=1), self._start) + moved
        for found in _dateutil_rule(self._rule, base + moved, self._start).xafter(floor, inc=True):
            yield (found - moved - _EPOCH) // datetime.timedelta(milliseconds=1)


_EPOCH = cadence.local_datetime(0)


def _forwarded(rule: Rule, start: datetime.datetime, after: datetime.datetime) -> datetime.datetime:
    """A later start with the same phase, at least one whole period before `after`, so that few steps are needed."""
    if rule.freq in (Frequency.DAILY, Frequency.WEEKLY):
        period = _DAY * rule.interval * (7 if rule.freq is Frequency.WEEKLY else 1)
        return start + max(0, (after - start) // period - 1) * period
    months = rule.interval * (12 if rule.freq is Frequency.YEARLY else 1)
    whole = ((after.year - start.year) * 12 + after.month - start.month) // months - 1
    if whole <= 0:
        return start
    month = start.year * 12 + (0 if rule.freq is Frequency.YEARLY else start.month - 1) + whole * months
    return start.replace(year=month // 12, month=month % 12 + 1, day=1, hour=0, minute=0, second=0)


def _dateutil_rule(rule: Rule, base: datetime.datetime, start: datetime.datetime) -> DateutilRule:
    """The rule for dateutil, with all that it would take from its start spelled out: `base` is another date."""
    from dateutil import rrule

    frequencies: dict[Frequency, Literal[0, 1, 2, 3, 4, 5, 6]] = {
        Frequency.YEARLY: rrule.YEARLY,
        Frequency.MONTHLY: rrule.MONTHLY,
        Frequency.WEEKLY: rrule.WEEKLY,
        Frequency.DAILY: rrule.DAILY,
        Frequency.HOURLY: rrule.HOURLY,
        Frequency.MINUTELY: rrule.MINUTELY,
    }
    days = _Days(rule, start)
    return rrule.rrule(
        frequencies[rule.freq],
        dtstart=base,
        interval=rule.interval,
        count=rule.count,
        wkst=rule.week_start,
        bysetpos=rule.by_set_pos or None,
        bymonth=days.months or None,
        bymonthday=days.month_days or None,
        byyearday=rule.by_year_day or None,
        byweekno=rule.by_week or None,
        byweekday=[rrule.weekday(day, ordinal or None) for day, ordinal in days.weekdays] or None,
        byhour=rule.by_hour or start.hour,
        byminute=rule.by_minute or start.minute,
        bysecond=start.second,
    )


class _Days:
    """The date parts of a rule; where it has none, those that its start implies (RFC 5545)."""

    def __init__(self, rule: Rule, start: datetime.datetime) -> None:
        self.months = rule.by_month
        self.month_days = rule.by_month_day
        self.weekdays = tuple((day.weekday, day.ordinal) for day in rule.by_weekday)
        if rule.by_week or rule.by_year_day or rule.by_month_day or rule.by_weekday:
            return
        if rule.freq is Frequency.YEARLY:
            self.months = self.months or (start.month,)
        if rule.freq in (Frequency.YEARLY, Frequency.MONTHLY):
            self.month_days = (start.day,)
        if rule.freq is Frequency.WEEKLY:
            self.weekdays = ((start.weekday(), 0),)
