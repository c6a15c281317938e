"""Cadences over the two worst nights of the year, in five zones, and against hostile rules."""

from __future__ import annotations

import datetime
import itertools
import zoneinfo
from collections.abc import Iterator

import pytest
from dateutil.rrule import rrulestr
from hypothesis import given, settings
from hypothesis import strategies as st

from loopx.control_plane.errors import UsageError
from loopx.control_plane.scheduler import cadence
from loopx.control_plane.scheduler.cadence import Cadence, Occurrence
from loopx.control_plane.scheduler.rrule_text import normal_rrule, parse_rrule
from loopx.control_plane.scheduler.schedule import Wanted
from loopx.runtime.rrule import WallOccurrences, open_cadence, open_zone

HOUR = cadence.HOUR_MS
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Kolkata")
_zones = st.sampled_from(ZONES)
_minutes = st.integers(0, 24 * 60 - 1)


def utc(text: str) -> int:
    at = datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)
    return int(at.timestamp() * 1000)


def opened(rrule: str, zone: str, dtstart: str) -> Cadence:
    made = open_cadence(Wanted(rrule=rrule, zone=zone, dtstart_local=dtstart))
    assert made is not None
    return made


def run(made: Cadence, since: int, until: int) -> Iterator[Occurrence]:
    at = since
    while (found := cadence.next_occurrence(made, at)) is not None and found.at_ms <= until:
        yield found
        at = found.at_ms


def fires(rrule: str, zone: str, dtstart: str, since: str, count: int) -> list[str]:
    made = opened(rrule, zone, dtstart)
    at, found = utc(since), []
    for _ in range(count):
        occurrence = cadence.next_occurrence(made, at)
        if occurrence is None:
            break
        at = occurrence.at_ms
        found.append(datetime.datetime.fromtimestamp(at / 1000, datetime.UTC).strftime("%Y-%m-%dT%H:%M"))
    return found


@settings(deadline=None, max_examples=40)
@given(_zones, _minutes, st.integers(2015, 2035))
def test_each_local_day_runs_once_through_the_whole_year(zone: str, minute: int, year: int) -> None:
    made = opened("FREQ=DAILY", zone, f"2012-01-01T{minute // 60:02d}:{minute % 60:02d}")
    info = zoneinfo.ZoneInfo(zone)
    since = cadence.to_instant(made.zone, cadence.parse_local(f"{year}-01-01T00:00")) - 1
    until = cadence.to_instant(made.zone, cadence.parse_local(f"{year + 1}-01-01T00:00")) - 1
    found = list(run(made, since, until))
    days = (datetime.date(year + 1, 1, 1) - datetime.date(year, 1, 1)).days
    assert [occurrence.slot_key[:10] for occurrence in found] == [
        str(datetime.date(year, 1, 1) + datetime.timedelta(days=day)) for day in range(days)
    ]
    assert len({occurrence.slot_key for occurrence in found}) == days
    for occurrence in found:
        local = datetime.datetime.fromtimestamp(occurrence.at_ms / 1000, info)
        wanted = datetime.datetime.fromisoformat(occurrence.slot_key)
        exists = wanted.replace(tzinfo=info).astimezone(datetime.UTC).astimezone(info).replace(tzinfo=None) == wanted
        if exists:
            assert local.replace(tzinfo=None) == wanted
            assert local.fold == 0
        else:
            before = datetime.datetime.fromtimestamp(occurrence.at_ms / 1000 - 1, info)
            assert before.replace(tzinfo=None) < wanted < local.replace(tzinfo=None)


@settings(deadline=None, max_examples=60)
@given(_zones, st.integers(utc("2024-01-01"), utc("2030-01-01")), st.integers(1, 9), _minutes)
def test_hourly_steps_in_elapsed_time(zone: str, since: int, interval: int, minute: int) -> None:
    made = opened(f"FREQ=HOURLY;INTERVAL={interval}", zone, f"2020-03-01T{minute // 60:02d}:{minute % 60:02d}")
    found = list(run(made, since, since + 200 * HOUR))
    steps = {later.at_ms - earlier.at_ms for earlier, later in itertools.pairwise(found)}
    assert steps == {interval * HOUR}
    assert 0 < found[0].at_ms - since <= interval * HOUR


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(
        [
            "FREQ=DAILY;BYHOUR=1,2,3;BYMINUTE=0,30",
            "FREQ=WEEKLY;BYDAY=SA,SU;BYHOUR=2",
            "FREQ=HOURLY;BYMINUTE=0,20,40",
            "FREQ=MINUTELY;INTERVAL=7;BYHOUR=0,1,2,3",
            "FREQ=MONTHLY;BYDAY=-1SU;BYHOUR=2;BYMINUTE=30",
        ]
    ),
    _zones,
    st.integers(utc("2026-01-01"), utc("2027-01-01")),
    st.integers(utc("2026-01-01"), utc("2027-01-01")),
)
def test_from_wherever_one_asks_the_occurrences_are_the_same(rrule: str, zone: str, first: int, second: int) -> None:
    made = opened(rrule, zone, "2025-06-01T00:00")
    early, late = sorted((first, second))
    late = min(late, early + 40 * 24 * HOUR)
    following = cadence.next_occurrence(made, late)
    walked = [occurrence for occurrence in run(made, early, late + 62 * 24 * HOUR) if occurrence.at_ms > late]
    assert walked[:1] == ([] if following is None or following.at_ms > late + 62 * 24 * HOUR else [following])
    keys = [occurrence.slot_key for occurrence in walked]
    assert keys == sorted(set(keys))


def test_spring_forward_runs_at_the_first_valid_instant() -> None:
    night = fires("FREQ=DAILY", "Europe/Berlin", "2020-01-01T02:30", "2026-03-28T12:00", 2)
    assert night == ["2026-03-29T01:00", "2026-03-30T00:30"]
    half_hour = fires("FREQ=DAILY", "Australia/Lord_Howe", "2020-01-01T02:15", "2026-10-03T00:00", 2)
    assert half_hour == ["2026-10-03T15:30", "2026-10-04T15:15"]


def test_fall_back_runs_at_the_first_of_two() -> None:
    night = fires("FREQ=DAILY", "Europe/Berlin", "2020-01-01T02:30", "2026-10-24T12:00", 2)
    assert night == ["2026-10-25T00:30", "2026-10-26T01:30"]
    new_york = fires("FREQ=DAILY", "America/New_York", "2020-01-01T01:30", "2026-10-31T12:00", 2)
    assert new_york == ["2026-11-01T05:30", "2026-11-02T06:30"]


def test_a_whole_day_that_a_zone_skips_runs_once() -> None:
    days = fires("FREQ=DAILY", "Pacific/Apia", "2011-12-25T10:00", "2011-12-29T12:00", 3)
    assert days == ["2011-12-29T20:00", "2011-12-30T10:00", "2011-12-30T20:00"]


def test_several_times_in_one_gap_are_one_run() -> None:
    made = opened("FREQ=DAILY;BYHOUR=2;BYMINUTE=10,20,30", "Europe/Berlin", "2026-01-01T00:00")
    found = list(run(made, utc("2026-03-28T12:00"), utc("2026-03-29T12:00")))
    assert [occurrence.at_ms for occurrence in found] == [utc("2026-03-29T01:00")]


def test_hourly_with_local_hours_runs_in_both_repeated_hours() -> None:
    found = fires("FREQ=HOURLY;BYHOUR=2", "Europe/Berlin", "2026-10-01T00:00", "2026-10-24T12:00", 3)
    assert found == ["2026-10-25T00:00", "2026-10-25T01:00", "2026-10-26T01:00"]


@pytest.mark.parametrize(
    ("rrule", "dtstart", "expected"),
    [
        ("FREQ=MONTHLY", "2026-01-31T09:00", ["2026-03-31T09:00", "2026-05-31T09:00"]),
        ("FREQ=MONTHLY;BYDAY=-1FR", "2026-01-01T09:00", ["2026-02-27T09:00", "2026-03-27T09:00"]),
        ("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1", "2026-01-01T09:00", ["2026-02-27T09:00", "2026-03-31T09:00"]),
        ("FREQ=YEARLY", "2024-02-29T09:00", ["2028-02-29T09:00", "2032-02-29T09:00"]),
        ("FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO", "2026-01-01T09:00", ["2026-05-11T09:00", "2027-05-17T09:00"]),
        ("FREQ=WEEKLY;INTERVAL=2", "2026-01-05T09:00", ["2026-02-02T09:00", "2026-02-16T09:00"]),
        ("FREQ=DAILY;INTERVAL=10", "2026-01-05T09:00", ["2026-02-04T09:00", "2026-02-14T09:00"]),
        ("FREQ=DAILY;COUNT=33", "2026-01-01T09:00", ["2026-02-01T09:00", "2026-02-02T09:00"]),
        ("FREQ=DAILY;UNTIL=20260201", "2026-01-01T09:00", ["2026-02-01T09:00"]),
        ("FREQ=DAILY;UNTIL=20260201T085959Z", "2026-01-01T09:00", []),
        ("FREQ=HOURLY;INTERVAL=5;COUNT=152", "2026-01-01T00:00", ["2026-02-01T11:00"]),
        ("FREQ=HOURLY;UNTIL=20260201T120000", "2026-01-01T11:30", ["2026-02-01T11:30"]),
    ],
)
def test_rules_of_every_kind(rrule: str, dtstart: str, expected: list[str]) -> None:
    since = "2026-02-01T08:00" if not rrule.startswith("FREQ=HOURLY") else "2026-02-01T10:45"
    assert fires(rrule, "UTC", dtstart, since, 2) == expected


def test_nothing_fires_before_its_start() -> None:
    assert fires("FREQ=DAILY", "UTC", "2030-05-01T09:00", "2026-01-01", 1) == ["2030-05-01T09:00"]
    assert fires("FREQ=MINUTELY", "UTC", "2030-05-01T09:00", "2026-01-01", 1) == ["2030-05-01T09:00"]


def test_missed_occurrences_are_one_run_and_the_misses_are_counted() -> None:
    made = opened("FREQ=DAILY", "Europe/Berlin", "2026-01-01T02:30")
    first = cadence.next_occurrence(made, utc("2026-03-01"))
    assert first is not None
    assert cadence.due(made, next_due_ms=first.at_ms, now_ms=first.at_ms - 1) is None
    on_time = cadence.due(made, next_due_ms=first.at_ms, now_ms=first.at_ms)
    assert on_time is not None
    assert (on_time.occurrence, on_time.missed) == (first, 0)
    slept = cadence.due(made, next_due_ms=first.at_ms, now_ms=first.at_ms + 9 * 24 * HOUR + 1)
    assert slept is not None
    assert (slept.occurrence.slot_key[:10], slept.missed) == ("2026-03-10", 9)
    assert slept.following is not None
    assert slept.following.slot_key[:10] == "2026-03-11"


def test_a_very_long_sleep_is_counted_only_so_far() -> None:
    made = opened("FREQ=MINUTELY", "UTC", "2020-01-01T00:00")
    now = utc("2026-01-01T00:00") + 30_000
    slept = cadence.due(made, next_due_ms=utc("2020-01-01"), now_ms=now)
    assert slept is not None
    assert slept.missed == cadence.MAX_MISSES
    assert slept.following is not None
    assert slept.following.at_ms == now + 30_000


@pytest.mark.parametrize(
    "rrule",
    [
        "FREQ=DAILY;INTERVAL=7;BYDAY=MO",
        "FREQ=MINUTELY;INTERVAL=1440;BYHOUR=5",
        "FREQ=HOURLY;BYYEARDAY=366;BYMONTH=3",
        "FREQ=YEARLY;BYWEEKNO=53;BYDAY=MO;BYMONTH=6",
        "FREQ=DAILY;UNTIL=20250101",
        "FREQ=MONTHLY;BYDAY=5MO;BYMONTHDAY=1",
    ],
)
def test_a_rule_that_never_fires_is_refused_and_soon(rrule: str) -> None:
    with pytest.raises(UsageError) as refused:
        opened(rrule, "Europe/Berlin", "2026-01-06T02:30")
    assert refused.value.code == "rrule_never_fires"


@pytest.mark.parametrize(
    "rrule",
    [
        "",
        "FREQ=SECONDLY",
        "FREQ=OFTEN",
        "BYHOUR=2",
        "FREQ=DAILY;FREQ=HOURLY",
        "FREQ=DAILY;INTERVAL=0",
        "FREQ=DAILY;INTERVAL=-1",
        "FREQ=DAILY;INTERVAL=99999999999",
        "FREQ=DAILY;COUNT=0",
        "FREQ=DAILY;COUNT=1000000",
        "FREQ=DAILY;COUNT=3;UNTIL=20300101",
        "FREQ=DAILY;BYHOUR=24",
        "FREQ=DAILY;BYHOUR=",
        "FREQ=DAILY;BYSECOND=0,1,2",
        "FREQ=DAILY;BYEASTER=1",
        "FREQ=DAILY;BYDAY=1MO",
        "FREQ=DAILY;BYDAY=XX",
        "FREQ=WEEKLY;BYMONTHDAY=3",
        "FREQ=DAILY;BYWEEKNO=3",
        "FREQ=DAILY;BYMONTHDAY=--3",
        "FREQ=DAILY;BYMONTHDAY=0",
        "FREQ=DAILY;BYMONTH=2,4;BYMONTHDAY=31",
        "FREQ=DAILY;BYSETPOS=1",
        "FREQ=HOURLY;BYMINUTE=0,1;BYSETPOS=1",
        "FREQ=HOURLY;BYHOUR=3;COUNT=5",
        "FREQ=DAILY;UNTIL=20260230",
        "FREQ=DAILY;UNTIL=tomorrow",
        "FREQ=DAILY\nRDATE:20260101",
        "DTSTART:20260101T000000\nRRULE:FREQ=DAILY",
        "FREQ=DAILY;" + "BYHOUR=1," * 400,
    ],
)
def test_bad_rules_are_refused(rrule: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_rrule(rrule)
    assert refused.value.code == "rrule_invalid"


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("rrule:freq=daily;byminute=30;byhour=2;", "FREQ=DAILY;BYHOUR=2;BYMINUTE=30"),
        ("FREQ=WEEKLY;INTERVAL=1;BYDAY=SU,MO;WKST=MO", "FREQ=WEEKLY;BYDAY=MO,SU"),
        ("FREQ=MONTHLY;BYDAY=+1MO,-1FR", "FREQ=MONTHLY;BYDAY=1MO,-1FR"),
        ("FREQ=DAILY;UNTIL=20260101", "FREQ=DAILY;UNTIL=20260101T235959"),
    ],
)
def test_a_rule_has_one_normal_form(written: str, normal: str) -> None:
    assert normal_rrule(written) == normal == normal_rrule(normal)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../../etc/passwd", "", "Europe", "a\x00b"])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(UsageError) as refused:
        open_zone(zone)
    assert refused.value.code == "zone_unknown"


@pytest.mark.parametrize("start", ["", "soon", "2026-01-01T00:00+02:00", "0001-01-01T00:00", "9999-12-31T23:59"])
def test_a_bad_start_is_refused(start: str) -> None:
    with pytest.raises(UsageError) as refused:
        opened("FREQ=DAILY", "UTC", start)
    assert refused.value.code == "dtstart_invalid"


def test_no_rule_is_no_cadence() -> None:
    assert open_cadence(Wanted(rrule=None)) is None


@settings(deadline=None, max_examples=200)
@given(_zones, st.integers(utc("2000-01-01"), utc("2040-01-01")), st.integers(0, 3 * HOUR))
def test_local_times_never_map_backwards(zone: str, at_ms: int, step: int) -> None:
    made = open_zone(zone)
    local = cadence.to_local(made, at_ms)
    assert cadence.to_instant(made, local) <= at_ms
    assert cadence.to_instant(made, local) <= cadence.to_instant(made, local + step)


def test_a_year_of_two_hundred_goals_misses_no_night_and_runs_none_twice() -> None:
    cadences = [
        opened("FREQ=DAILY", ZONES[goal % 5], f"2026-01-01T{goal % 24:02d}:{goal * 7 % 60:02d}") for goal in range(200)
    ]
    since, until = utc("2026-01-02T12:00"), utc("2027-01-02T12:00")
    for made in cadences:
        found = list(run(made, since, until))
        assert len(found) == len({occurrence.slot_key for occurrence in found}) == 365


_wall_rules = st.builds(
    lambda *parts: ";".join(part for part in parts if part),
    st.sampled_from(
        [
            "FREQ=DAILY",
            "FREQ=DAILY;BYDAY=MO,WE",
            "FREQ=WEEKLY",
            "FREQ=WEEKLY;BYDAY=TU,SU",
            "FREQ=WEEKLY;WKST=SU;BYDAY=SU,MO",
            "FREQ=MONTHLY",
            "FREQ=MONTHLY;BYDAY=2TU,-1FR",
            "FREQ=MONTHLY;BYDAY=MO,TU;BYSETPOS=-2",
            "FREQ=YEARLY",
            "FREQ=YEARLY;BYMONTH=3,11",
            "FREQ=YEARLY;BYYEARDAY=1,-1",
            "FREQ=YEARLY;BYWEEKNO=1,53;BYDAY=TH",
        ]
    ),
    st.integers(1, 5).map(lambda interval: f"INTERVAL={interval}"),
    st.sampled_from(["", "COUNT=40"]),
    st.sampled_from(["", "BYHOUR=6,18", "BYHOUR=3;BYMINUTE=15,45"]),
)


@settings(deadline=None, max_examples=150)
@given(
    _wall_rules,
    st.integers(utc("2019-01-01"), utc("2024-12-31")).map(cadence.local_datetime),
    st.integers(utc("2018-01-01"), utc("2040-01-01")).map(cadence.local_datetime),
)
def test_skipping_ahead_changes_no_answer(rrule: str, start: datetime.datetime, after: datetime.datetime) -> None:
    start, after = start.replace(microsecond=0), after.replace(microsecond=0)
    plain = rrulestr(rrule, dtstart=start).after(after)
    found = WallOccurrences(parse_rrule(rrule), cadence.parse_local(start.isoformat())).after(
        cadence.parse_local(after.isoformat())
    )
    assert found == (None if plain is None else cadence.parse_local(plain.isoformat()))
