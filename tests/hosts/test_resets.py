"""When a limit resets: unix seconds, seconds from now, clock times with and without a zone, dates; in the past, across
midnight, across clock changes; and nothing where nothing is said.
"""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from loopx.hosts.resets import from_seconds, from_unix, parse_reset


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


NOW = at("2026-11-30T14:10:00+00:00")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("You've hit your session limit · resets 3:45pm", "2026-11-30T15:45:00+00:00"),
        ("You’ve hit your session limit ∙ resets 3:45pm", "2026-11-30T15:45:00+00:00"),
        ("resets 2pm (America/Toronto)", "2026-11-30T19:00:00+00:00"),
        ("You're out of extra usage · resets 11:30am (Asia/Colombo)", "2026-12-01T06:00:00+00:00"),
        ("Spending cap reached resets 6pm", "2026-11-30T18:00:00+00:00"),
        ("5-hour limit reached ∙ resets 2am", "2026-12-01T02:00:00+00:00"),
        ("resets 5pm (Europe/Vilnius)", "2026-11-30T15:00:00+00:00"),
        ("resets at 12am (UTC)", "2026-12-01T00:00:00+00:00"),
        ("resets 12pm UTC", "2026-12-01T12:00:00+00:00"),
        ("resets 09:00", "2026-12-01T09:00:00+00:00"),
        ("or try again at 8:16 PM.", "2026-11-30T20:16:00+00:00"),
        ("or try again at Dec 3rd, 2026 8:16 PM.", "2026-12-03T20:16:00+00:00"),
        ("weekly limit reached · resets Dec 5 at 3pm (UTC)", "2026-12-05T15:00:00+00:00"),
        ("try again in 3 days 2 hours 5 minutes.", "2026-12-03T16:15:00+00:00"),
        ("Please try again in 20s.", "2026-11-30T14:10:20+00:00"),
        ("Please retry in 3600s.", "2026-11-30T15:10:00+00:00"),
        ("try again in 1h30m", "2026-11-30T15:40:00+00:00"),
        ("try again in 7.5 minutes", "2026-11-30T14:17:30+00:00"),
        ("Please try again after 2 hours", "2026-11-30T16:10:00+00:00"),
        ('{"resets_in_seconds":90}', "2026-11-30T14:11:30+00:00"),
        ("retry-after: 120", "2026-11-30T14:12:00+00:00"),
        ("Limit reached, resets at 2026-12-01T00:30:00Z", "2026-12-01T00:30:00+00:00"),
        ("Limit reached, resets at 2026-12-01 00:30:00 +02:00", "2026-11-30T22:30:00+00:00"),
        ("usage limit reached|1796054400", "2026-11-30T16:00:00+00:00"),
        ('{"resets_at":1796054400}', "2026-11-30T16:00:00+00:00"),
    ],
)
def test_said(text: str, expected: str) -> None:
    assert parse_reset(text, NOW, "UTC") == at(expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "limit reached",
        "resets soon",
        "resets 25:99",
        "resets 13pm",
        "resets 0am",
        "resets 3",
        "resets 2pm (Mars/Olympus)",
        "resets Feb 31 at 3pm",
        "try again later",
        "resets at 9999999999999999",
        "the server at 127.0.0.1:8080 reset the connection",
        "failed after 3 attempts",
    ],
)
def test_unknown_is_none(text: str) -> None:
    assert parse_reset(text, NOW, "UTC") is None


def test_past_clock_time_is_tomorrow() -> None:
    assert parse_reset("resets 2:00pm", NOW, "UTC") == at("2026-12-01T14:00:00+00:00")


def test_clock_time_that_just_passed_is_now() -> None:
    """The text is rounded to the minute: one that passed a minute ago is the reset itself, not tomorrow's."""
    assert parse_reset("resets 2:09pm", NOW, "UTC") == at("2026-11-30T14:09:00+00:00")


def test_across_midnight_in_the_named_zone() -> None:
    """It is still yesterday in Toronto when it is past midnight in UTC."""
    now = at("2026-12-01T03:30:00+00:00")
    assert parse_reset("resets 11pm (America/Toronto)", now, "UTC") == at("2026-12-01T04:00:00+00:00")


def test_without_a_zone_the_machines_own_counts() -> None:
    ours = parse_reset("resets 3:45pm", NOW)
    local = datetime.fromtimestamp((ours or 0) / 1000).astimezone()
    assert (local.hour, local.minute) == (15, 45)
    assert NOW - 120_000 <= (ours or 0) <= NOW + 86_400_000


@pytest.mark.parametrize(
    ("now", "text", "expected"),
    [
        # 2:30 does not exist on the day the clocks go forward; 1:30 happens twice when they go back.
        ("2026-03-08T05:00:00+00:00", "resets 2:30am (America/New_York)", "2026-03-08T07:30:00+00:00"),
        ("2026-11-01T04:00:00+00:00", "resets 1:30am (America/New_York)", "2026-11-01T05:30:00+00:00"),
        ("2026-11-01T02:00:00+00:00", "resets 3am (America/New_York)", "2026-11-01T08:00:00+00:00"),
    ],
)
def test_clock_changes(now: str, text: str, expected: str) -> None:
    assert parse_reset(text, at(now), "UTC") == at(expected)


def test_every_reset_named_by_a_clock_is_within_a_day() -> None:
    for hour in range(24):
        now = NOW + hour * 3_600_000
        found = parse_reset("resets 6:20pm (Europe/Berlin)", now, "UTC")
        assert found is not None
        assert now - 120_000 <= found <= now + 86_400_000
        assert datetime.fromtimestamp(found / 1000, ZoneInfo("Europe/Berlin")).hour == 18


def test_unix() -> None:
    assert from_unix(NOW // 1000 + 60, NOW) == NOW + 60_000
    assert from_unix(NOW + 60_000, NOW) == NOW + 60_000, "some count in milliseconds"
    assert from_unix(None, NOW) is None
    assert from_unix(0, NOW) is None
    assert from_unix(NOW // 1000 + 90 * 86_400, NOW) is None, "further than any limit's window"


def test_seconds() -> None:
    assert from_seconds(90, NOW) == NOW + 90_000
    assert from_seconds(0, NOW) == NOW
    assert from_seconds(None, NOW) is None
    assert from_seconds(-1, NOW) is None


def test_utc_is_not_assumed() -> None:
    assert datetime.fromtimestamp(NOW / 1000, UTC).hour == 14
    tokyo = parse_reset("resets 3:45pm", NOW, "Asia/Tokyo")
    assert tokyo == at("2026-12-01T06:45:00+00:00")
