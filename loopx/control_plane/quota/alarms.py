"""The spike alarm: a run that used far more than this goal's own median.

It compares numbers that it is given and stops nothing: budgets stop. An alarm is a fact to show and to notify about.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

SPIKE_FACTOR = 4
LEAST_HISTORY = 5
"""With fewer samples there is no norm to compare with."""


class SpikeAlarm(msgspec.Struct, frozen=True, kw_only=True):
    """`latest` is at least `factor` times the `median` of the goal's own history."""

    latest: int
    median: int
    factor: int


def spike(history: Sequence[int], latest: int, *, factor: int = SPIKE_FACTOR, floor: int = 1) -> SpikeAlarm | None:
    """An alarm when `latest` reaches `factor` times the median of `history` (without `latest`); else None.

    `floor` is the least median that counts, so that a goal which used next to nothing does not alarm at its first
    real turn. Amounts that are unknown must be left out, not passed as 0.
    """
    if len(history) < LEAST_HISTORY:
        return None
    middle = max(floor, median(history))
    return SpikeAlarm(latest=latest, median=middle, factor=factor) if latest >= factor * middle else None


def median(values: Sequence[int]) -> int:
    """The median of integers; of an even number, the lower mean. Raises nothing but on an empty sequence."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) // 2
