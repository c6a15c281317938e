"""Instants as people write them on a command line: `2h`, `yesterday`, `2026-11-03`, `2026-11-03 17:40`.

A local time is this machine's own. Nothing here formats one.
"""

from __future__ import annotations

import datetime

from loopx.control_plane.errors import UsageError
from loopx.control_plane.quota.amounts import parse_duration_ms


def parse_since(text: str, now_ms: int) -> int:
    """The instant that is meant, in milliseconds; never later than now. Raises UsageError (`since_invalid`)."""
    word = text.strip().lower()
    found = _named(word, now_ms)
    if found is None:
        found = _ago(word, now_ms)
    if found is None:
        found = _written(text.strip())
    if found is None:
        raise UsageError(
            "since_invalid",
            f"since: {text[:40]!r} is not an instant",
            hint="write 90m, 2h, 3d, yesterday, 2026-11-03, or 2026-11-03 17:40",
            data={"field": "since"},
        )
    return min(found, now_ms)


def _named(word: str, now_ms: int) -> int | None:
    today = (
        datetime.datetime.fromtimestamp(now_ms / 1000).astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    )
    days = {"today": 0, "yesterday": 1}.get(word)
    if days is None:
        return None
    return _ms(today - datetime.timedelta(days=days))


def _ago(word: str, now_ms: int) -> int | None:
    try:
        return now_ms - parse_duration_ms(word.removesuffix("ago").strip(), field="since")
    except UsageError:
        return None


def _written(text: str) -> int | None:
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return _ms(at if at.tzinfo is not None else at.astimezone())


def _ms(at: datetime.datetime) -> int:
    return round(at.timestamp() * 1000)
