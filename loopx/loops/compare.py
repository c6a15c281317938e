"""Scoring arms of a comparison: which outcomes judged the work, and who won where both did (contracts, section 8).

A cut that the harness imposed is not a task loss, so it leaves the denominator. Pure arithmetic over outcomes.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from loopx.loops.failure import UNSCORED_FAILURES, LoopOutcome


class ArmOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's outcome on one task."""

    arm: str
    task: str
    outcome: LoopOutcome

    @property
    def scorable(self) -> bool:
        """Whether a check judged the work."""
        return self.outcome.failure not in UNSCORED_FAILURES


class PairedScore(msgspec.Struct, frozen=True, kw_only=True):
    """Counts over the tasks that both arms ran. `left_out`: at least one side was not scorable."""

    both: int = 0
    only_left: int = 0
    only_right: int = 0
    neither: int = 0
    left_out: int = 0

    @property
    def scored(self) -> int:
        """The denominator."""
        return self.both + self.only_left + self.only_right + self.neither


def paired_score(pairs: Iterable[tuple[ArmOutcome, ArmOutcome]]) -> PairedScore:
    """The score of (left, right) pairs; a pair counts only when both sides are scorable."""
    counts = {"both": 0, "only_left": 0, "only_right": 0, "neither": 0, "left_out": 0}
    for left, right in pairs:
        counts[_cell(left, right)] += 1
    return PairedScore(**counts)


def _cell(left: ArmOutcome, right: ArmOutcome) -> str:
    if not (left.scorable and right.scorable):
        return "left_out"
    if left.outcome.ok:
        return "both" if right.outcome.ok else "only_left"
    return "only_right" if right.outcome.ok else "neither"
