"""What each engine reports of itself, so that a budget which could never stop it is refused when it is set.

Facts about the agent CLIs (hosts, "C0"): who tells tokens, who tells dollars. It meters nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from loopx.control_plane.quota.budgets import Metering

_TELLS_DOLLARS = frozenset({"claude", "opencode"})
"""Codex and Gemini tell tokens only. A command tells what it likes, unchecked: no sum of money is held by that."""


def metering_of(engine: str) -> Metering:
    """What one engine word reports; a foreman reports what its inner engine does."""
    inner = engine.removeprefix("foreman:").removeprefix("external:")
    return Metering(engine=inner.partition(":")[0], reports_dollars=inner in _TELLS_DOLLARS)


def meterings(engines: Iterable[str]) -> tuple[Metering, ...]:
    """What the engines of a goal report, in order."""
    return tuple(metering_of(engine) for engine in engines)
