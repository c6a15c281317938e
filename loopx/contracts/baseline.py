"""The red-green baseline: what the contract said of the untouched tree, and what later results are held against.

Pure. It decides whether the contract gates anything, whether a definition was changed, and whether "no change needed"
may be accepted (loops, "The contract: the only judge").
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from loopx.contracts.model import Capture, Check, CheckResult, Contract, ContractEvaluation, Verdict, definition_hash
from loopx.contracts.programs import ProgramSnapshot

_JUDGED = frozenset({Verdict.GREEN, Verdict.RED, Verdict.FLAKY})


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation of the untouched tree, with the pins taken then.

    `not_snapshotable` names the checks that say something else in a clean snapshot; None: that was not tried.
    """

    evaluation: ContractEvaluation
    tree_hash: str | None
    definition_hashes: dict[str, str]
    captures: dict[str, Capture] = {}
    programs: ProgramSnapshot = ProgramSnapshot()
    not_snapshotable: tuple[str, ...] | None = None

    @property
    def gates_nothing(self) -> bool:
        """Every check was green at the start: disclosed, not fatal."""
        return self.evaluation.all_green

    @property
    def complete(self) -> bool:
        """Every pinned check was judged: none starved, none that could not run, none missing."""
        judged = {result.name for result in self.evaluation.results if result.verdict in _JUDGED}
        return bool(judged) and judged == set(self.definition_hashes)


def take_baseline(
    contract: Contract, evaluation: ContractEvaluation, programs: ProgramSnapshot | None = None
) -> Baseline:
    """The baseline from an evaluation that was made with `take_baseline=True` on the untouched tree."""
    captures = {result.name: result.capture for result in evaluation.results if result.capture is not None}
    return Baseline(
        evaluation=evaluation,
        tree_hash=evaluation.tree_hash,
        definition_hashes={check.name: definition_hash(check) for check in contract.checks},
        captures=captures,
        programs=programs or ProgramSnapshot(),
    )


def with_snapshot(baseline: Baseline, in_snapshot: ContractEvaluation) -> Baseline:
    """The baseline after the clean snapshot was tried on the same tree: which checks can't be confirmed there."""
    differing = [
        result.name
        for result in baseline.evaluation.results
        if (other := in_snapshot.named(result.name)) is not None and not _say_the_same(result, other)
    ]
    return msgspec.structs.replace(baseline, not_snapshotable=tuple(differing))


def _say_the_same(in_place: CheckResult, in_copy: CheckResult) -> bool:
    """The same verdict, and for the same reason: two reds may be a failing test here and a missing file there."""
    if (in_place.verdict, in_place.signature) != (in_copy.verdict, in_copy.signature):
        return False
    here, there = in_place.parts, in_copy.parts
    if here is None or there is None:
        return here is there
    return (here.collected, here.failed, here.skipped) == (there.collected, there.failed, there.skipped)


def changed_definitions(baseline: Baseline, checks: Iterable[Check]) -> tuple[str, ...]:
    """The names of checks that are not what was pinned: edited, added or gone; sorted."""
    now = {check.name: definition_hash(check) for check in checks}
    names = now.keys() | baseline.definition_hashes.keys()
    return tuple(sorted(name for name in names if now.get(name) != baseline.definition_hashes.get(name)))


class NoChange(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a nomination "no change needed" is accepted; `reason` says why not, in one machine word."""

    accepted: bool
    reason: str = ""


def judge_no_change(
    *,
    baseline: Baseline | None,
    tree_hash_now: str | None,
    current: ContractEvaluation | None = None,
    checks: Iterable[str] | None = None,
) -> NoChange:
    """Accept "no change needed" only on LoopX's own record: an untouched tree and a complete baseline that is not red.

    `checks` names the checks that judge the nominated work (default: all); a todo without checks of its own passes
    none. `current` is a later evaluation of the same tree, where there is one.
    """
    if baseline is None or not baseline.complete:
        return NoChange(accepted=False, reason="baseline_incomplete")
    if tree_hash_now is None or baseline.tree_hash is None or tree_hash_now != baseline.tree_hash:
        return NoChange(accepted=False, reason="tree_changed")
    names = set(baseline.definition_hashes) if checks is None else set(checks)
    for evaluation in (baseline.evaluation, current):
        for result in evaluation.results if evaluation is not None else ():
            if result.name in names and result.verdict is not Verdict.GREEN:
                return NoChange(accepted=False, reason="checks_red")
    return NoChange(accepted=True)
