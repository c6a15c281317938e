"""Two evaluations of the same contract, compared: what turned green, what got worse, and whether progress was measured.

Pure. A number that was not reported is never taken for zero: what can't be known is neither progress nor a finding
(contracts, section 10).
"""

from __future__ import annotations

import enum

import msgspec

from loopx.contracts.model import CheckResult, ContractEvaluation, Machine, PartCounts, Verdict

_RED = frozenset({Verdict.RED, Verdict.FLAKY})


class DeltaCode(enum.StrEnum):
    """One thing that differs between two evaluations of a check."""

    TURNED_GREEN = "turned_green"
    NEWLY_RED = "newly_red"
    NEWLY_FLAKY = "newly_flaky"
    FEWER_FAILING = "fewer_failing"
    COLLECTION_REPAIRED = "collection_repaired"
    NEWLY_FAILING = "newly_failing"
    FEWER_COLLECTED = "fewer_collected"
    TESTS_REPLACED = "tests_replaced"
    MORE_SKIPPED = "more_skipped"
    MORE_EXPECTED_FAILURES = "more_expected_failures"
    REPORT_LOST = "report_lost"


PROGRESS_CODES = frozenset({DeltaCode.TURNED_GREEN, DeltaCode.FEWER_FAILING, DeltaCode.COLLECTION_REPAIRED})
WORSE_CODES = frozenset(
    {
        DeltaCode.NEWLY_RED,
        DeltaCode.NEWLY_FAILING,
        DeltaCode.FEWER_COLLECTED,
        DeltaCode.MORE_SKIPPED,
        DeltaCode.MORE_EXPECTED_FAILURES,
        DeltaCode.REPORT_LOST,
    }
)


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """One difference in one check. `before` and `after` are counts; `tests` are ids where they are known (capped)."""

    check: str
    code: DeltaCode
    before: int | None = None
    after: int | None = None
    tests: tuple[str, ...] = ()
    primary: bool = False


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All differences, in the contract's order. Checks whose definition differs are not compared."""

    deltas: tuple[Delta, ...] = ()

    def of(self, *codes: DeltaCode) -> tuple[Delta, ...]:
        """The differences with one of these codes."""
        return tuple(delta for delta in self.deltas if delta.code in codes)

    @property
    def newly_red(self) -> tuple[str, ...]:
        """Checks that were green and are red."""
        return tuple(delta.check for delta in self.of(DeltaCode.NEWLY_RED))

    @property
    def turned_green(self) -> tuple[str, ...]:
        """Checks that were red and are green."""
        return tuple(delta.check for delta in self.of(DeltaCode.TURNED_GREEN))

    @property
    def measured_progress(self) -> bool:
        """Fewer red checks, or inside one check fewer failing tests; and no check newly red."""
        return bool(self.of(*PROGRESS_CODES)) and not self.newly_red

    @property
    def got_worse(self) -> bool:
        """Anything that an honest turn would not do to a check."""
        return bool(self.of(*WORSE_CODES))

    @property
    def primary_turned_green(self) -> bool:
        """A check marked `primary` turned green."""
        return any(delta.primary for delta in self.of(DeltaCode.TURNED_GREEN))


def compare(before: ContractEvaluation, after: ContractEvaluation) -> Comparison:
    """What differs, check by check; checks that are in one evaluation only are left out."""
    deltas: list[Delta] = []
    for now in after.results:
        then = before.named(now.name)
        if then is not None and then.definition_hash == now.definition_hash:
            deltas.extend(_compare_check(then, now))
    return Comparison(deltas=tuple(deltas))


def _compare_check(then: CheckResult, now: CheckResult) -> list[Delta]:
    found: list[Delta] = []

    def add(code: DeltaCode, before: int | None = None, after: int | None = None, tests: tuple[str, ...] = ()) -> None:
        found.append(
            Delta(check=now.name, code=code, before=before, after=after, tests=tests[:20], primary=now.primary)
        )

    if then.verdict in _RED and now.verdict is Verdict.GREEN:
        add(DeltaCode.TURNED_GREEN)
    elif then.verdict is Verdict.GREEN and now.verdict in _RED:
        add(DeltaCode.NEWLY_RED if now.verdict is Verdict.RED else DeltaCode.NEWLY_FLAKY)
    if then.machine is Machine.READ and now.verdict is Verdict.GREEN and now.machine is not Machine.READ:
        add(DeltaCode.REPORT_LOST, then.parts.total if then.parts else None)
    if then.parts is not None and now.parts is not None:
        for delta in _compare_parts(then.parts, now.parts, both_red={then.verdict, now.verdict} <= _RED):
            add(delta[0], delta[1], delta[2], delta[3])
    return found


_PartDelta = tuple[DeltaCode, int | None, int | None, tuple[str, ...]]


def _compare_parts(then: PartCounts, now: PartCounts, *, both_red: bool) -> list[_PartDelta]:
    found: list[_PartDelta] = []
    new = _new_keys(then.failing_keys, now.failing_keys)
    regressed = _within(new, then.collected_keys)
    if regressed:
        found.append((DeltaCode.NEWLY_FAILING, then.failed, now.failed, _names_new_in(then, now)))
    if now.collected < then.collected:
        found.append((DeltaCode.FEWER_COLLECTED, then.collected, now.collected, ()))
    elif gone := _gone(then, now):
        found.append((DeltaCode.TESTS_REPLACED, then.collected, gone, ()))
    for code, before, after in (
        (DeltaCode.MORE_SKIPPED, (then.skipped, then.skipped_keys), (now.skipped, now.skipped_keys)),
        (
            DeltaCode.MORE_EXPECTED_FAILURES,
            (then.expected_failures, then.expected_keys),
            (now.expected_failures, now.expected_keys),
        ),
    ):
        if _more_excused(then, now, before, after):
            found.append((code, before[0], after[0], ()))
    if both_red and not any(delta[0] in WORSE_CODES for delta in found):
        found.extend(_progress(then, now, new))
    return found


def _progress(then: PartCounts, now: PartCounts, new: frozenset[str] | None) -> list[_PartDelta]:
    """Fewer failing and none newly failing; or files that could not be collected at all now are."""
    if now.failed < then.failed and new is not None and not new:
        return [(DeltaCode.FEWER_FAILING, then.failed, now.failed, ())]
    if now.collection_errors < then.collection_errors and now.collected > then.collected and new is not None:
        return [(DeltaCode.COLLECTION_REPAIRED, then.collection_errors, now.collection_errors, ())]
    return []


def _new_keys(then: tuple[str, ...] | None, now: tuple[str, ...] | None) -> frozenset[str] | None:
    """What is in the second and not in the first; None when either is not known."""
    return None if then is None or now is None else frozenset(now) - frozenset(then)


def _within(keys: frozenset[str] | None, known: tuple[str, ...] | None) -> frozenset[str] | None:
    """Those keys that were known before; all of them where the runner names only failing tests."""
    return keys if keys is None or known is None else keys & frozenset(known)


def _names_new_in(then: PartCounts, now: PartCounts) -> tuple[str, ...]:
    return tuple(name for name in now.failing if name not in then.failing)


def _gone(then: PartCounts, now: PartCounts) -> int | None:
    """How many tests were found before and are not now, leaving out files that could not be collected."""
    gone = _new_keys(now.collected_keys, then.collected_keys)
    return None if gone is None else max(0, len(gone) - then.collection_errors)


_Excused = tuple[int, tuple[str, ...] | None]


def _more_excused(then: PartCounts, now: PartCounts, before: _Excused, after: _Excused) -> bool:
    """Whether a test that ran before is now skipped (or expected to fail). New tests may be born skipped."""
    fresh = _within(_new_keys(before[1], after[1]), then.collected_keys)
    if fresh is not None and then.collected_keys is not None:
        return bool(fresh)
    return after[0] - before[0] > max(0, now.collected - then.collected)
