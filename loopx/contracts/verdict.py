"""Judging a turn's changes: which protected files it touched, and whether those changes bought the result.

Pure. The checks' second run (with the start's protected files put back) is made elsewhere and handed in; a policy makes
the judgement stricter or looser (loops, "The contract: the only judge").
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence

import msgspec

from loopx.contracts import globs, test_markers
from loopx.contracts.compare import Comparison, DeltaCode, compare
from loopx.contracts.findings import Finding, FindingCode
from loopx.contracts.model import CheckResult, ContractEvaluation, PartCounts, ProtectPolicy, Verdict
from loopx.contracts.ports import Change, ReadFile
from loopx.contracts.protect import ProtectedPaths, Role
from loopx.contracts.sections import protected_section_changed
from loopx.contracts.tool_files import MANIFESTS

_RED = frozenset({Verdict.RED, Verdict.FLAKY})
_UNJUDGED = frozenset({Verdict.STARVED, Verdict.NOT_EVALUABLE})


class Touch(enum.StrEnum):
    """How a protected path was touched."""

    ADDED = "added"
    EDITED = "edited"
    DELETED = "deleted"


class Touched(msgspec.Struct, frozen=True, kw_only=True):
    """One protected path that the tree has otherwise than the goal's start."""

    path: str
    role: Role
    touch: Touch
    codes: tuple[FindingCode, ...]

    @property
    def influential(self) -> bool:
        """An addition that changes how tests run which were there before, so it is judged as an edit is."""
        return self.touch is Touch.ADDED and self.role in {Role.RUNNER_CONFIG, Role.HOOK, Role.OWN}

    @property
    def is_data(self) -> bool:
        """A new file among the tests that no runner would load as code."""
        return self.touch is Touch.ADDED and self.role is Role.TEST and not is_code(self.path)


_CODE = re.compile(
    r"^[^.]*$|\.(?:py[ciwx]?|[cm]?[jt]sx?|go|rs|rb|sh|bash|pl|php|java|kt|kts|scala|cs|swift|exs?|lua|r|jl|t)$"
)


def is_code(path: str) -> bool:
    """Whether some runner or shell would load a file of this name as a program."""
    return _CODE.search(path.rpartition("/")[2]) is not None


def touched_paths(
    changes: Iterable[Change], protected: ProtectedPaths, read_start: ReadFile, read_now: ReadFile
) -> tuple[Touched, ...]:
    """The protected paths among the changes, sorted; a rename is a deletion and an addition."""
    found: dict[str, Touched] = {}
    for change in changes:
        if change.kind == "renamed" and change.old_path is not None:
            _touch(found, change.old_path, Touch.DELETED, protected, read_start, read_now)
            _touch(found, change.path, Touch.ADDED, protected, read_start, read_now)
            continue
        touch = {"added": Touch.ADDED, "deleted": Touch.DELETED}.get(change.kind, Touch.EDITED)
        _touch(found, change.path, touch, protected, read_start, read_now)
    return tuple(found[path] for path in sorted(found))


def _touch(
    found: dict[str, Touched],
    path: str,
    touch: Touch,
    protected: ProtectedPaths,
    read_start: ReadFile,
    read_now: ReadFile,
) -> None:
    role = protected.role_of(path)
    if role is None and touch is Touch.ADDED and _stands_before_a_test(path, protected, read_start):
        role = Role.HOOK
    if role is None and not protected.is_shared(path):
        return
    old = read_start(path) if touch is not Touch.ADDED else None
    new = read_now(path) if touch is not Touch.DELETED else None
    if role is None:
        if not protected_section_changed(path, old, new, protected.shared_tools):
            return
        role = Role.RUNNER_CONFIG
    found[path] = Touched(path=path, role=role, touch=touch, codes=_codes(role, touch, old, new))


def _stands_before_a_test(path: str, protected: ProtectedPaths, read_start: ReadFile) -> bool:
    """Whether Python would import this new file instead of a test module of the same name: a package, an extension."""
    parts = path.split("/")
    modules = ["/".join(parts[: count + 1]) for count in range(len(parts) - 1)]
    if _EXTENSION.search(parts[-1]):
        modules.append("/".join([*parts[:-1], parts[-1].partition(".")[0]]))
    return any(
        protected.role_of(f"{module}.py") is Role.TEST and read_start(f"{module}.py") is not None for module in modules
    )


_EXTENSION = re.compile(r"\.(?:so|pyd)$")

_ADDED = {
    Role.TEST: FindingCode.TEST_ADDED,
    Role.SCRIPT: FindingCode.PROTECTED_ADDED,
    Role.RUNNER_CONFIG: FindingCode.RUNNER_CONFIG_ADDED,
    Role.HOOK: FindingCode.STARTUP_HOOK_ADDED,
    Role.CI: FindingCode.CI_ADDED,
    Role.LOCK: FindingCode.PROTECTED_ADDED,
    Role.OWN: FindingCode.CHECK_DEFINITION_CHANGED,
    Role.PERSON: FindingCode.PROTECTED_ADDED,
}
_CHANGED = {
    Role.TEST: FindingCode.TEST_EDITED,
    Role.SCRIPT: FindingCode.CHECK_SCRIPT_CHANGED,
    Role.RUNNER_CONFIG: FindingCode.RUNNER_CONFIG_CHANGED,
    Role.HOOK: FindingCode.STARTUP_HOOK_CHANGED,
    Role.CI: FindingCode.CI_CHANGED,
    Role.LOCK: FindingCode.LOCK_CHANGED,
    Role.OWN: FindingCode.CHECK_DEFINITION_CHANGED,
    Role.PERSON: FindingCode.PROTECTED_CHANGED,
}


def _codes(role: Role, touch: Touch, old: bytes | None, new: bytes | None) -> tuple[FindingCode, ...]:
    first = _ADDED[role] if touch is Touch.ADDED else _CHANGED[role]
    if role is Role.TEST and touch is Touch.DELETED:
        first = FindingCode.TEST_DELETED
    codes = [first]
    if touch is Touch.EDITED and role in {Role.TEST, Role.RUNNER_CONFIG}:
        if test_markers.more_skips(old, new):
            codes.append(FindingCode.TEST_SKIPPED)
        if test_markers.more_expected_failures(old, new):
            codes.append(FindingCode.XFAIL_ADDED)
    if role in {Role.RUNNER_CONFIG, Role.HOOK, Role.SCRIPT} and test_markers.fakes_surroundings(old, new):
        codes.append(FindingCode.CLOCK_OR_NETWORK_FAKED)
    return tuple(codes)


def out_of_scope(changes: Iterable[Change], scope: Sequence[str]) -> tuple[str, ...]:
    """The changed paths outside the write scope, sorted; an empty scope is the whole tree."""
    patterns = tuple(scope)
    if not patterns:
        return ()
    touched = {path for change in changes for path in (change.path, change.old_path) if path is not None}
    return tuple(sorted(path for path in touched if not globs.matches_any(patterns, path)))


def dependencies_changed(changes: Iterable[Change], protected: ProtectedPaths) -> bool:
    """Whether the turn changed what the project depends on: a manifest, a requirements file or a lock."""
    for change in changes:
        name = change.path.rpartition("/")[2]
        if name in MANIFESTS or name.startswith("requirements") or protected.role_of(change.path) is Role.LOCK:
            return True
    return False


class SecondRun(msgspec.Struct, frozen=True, kw_only=True):
    """What to put back for the second evaluation. Nothing to do: both empty."""

    restore: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.restore or self.remove)


def plan_second_run(
    touched: Sequence[Touched], policy: ProtectPolicy, current: ContractEvaluation, baseline: ContractEvaluation
) -> SecondRun:
    """Whether the checks must also run with the start's protected files, and with which paths put back.

    Edits, deletions and influential additions need it. Plain additions of tests need it only when everything is green
    and the baseline names tests that they could mask. Added data is left where it is: it changes no test, and the tests
    may have waited for it.
    """
    judged = [item for item in touched if _is_judged(item, policy)]
    if policy is ProtectPolicy.BOTH_WAYS and not judged and current.all_green and _names_tests(baseline):
        judged = [item for item in touched if item.role is Role.TEST and not item.is_data]
    if not judged:
        return SecondRun()
    put_back = [
        item
        for item in touched
        if (policy is not ProtectPolicy.DISCLOSE or item.role is Role.HOOK) and not item.is_data
    ]
    return SecondRun(
        restore=tuple(item.path for item in put_back if item.touch is not Touch.ADDED),
        remove=tuple(item.path for item in put_back if item.touch is Touch.ADDED),
    )


def _names_tests(evaluation: ContractEvaluation) -> bool:
    """Whether the runner's report tells which tests fail, so that one which only additions turn green can be seen."""
    return any(result.parts is not None and result.parts.failing_keys is not None for result in evaluation.results)


def _is_judged(item: Touched, policy: ProtectPolicy) -> bool:
    """Whether acceptance of this touch depends on a second run; `refuse` needs none, it refuses."""
    if item.role is Role.OWN or policy is ProtectPolicy.REFUSE:
        return False
    if policy is ProtectPolicy.DISCLOSE and item.role is not Role.HOOK:
        return False
    return item.touch is not Touch.ADDED or item.influential


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """Findings about the protected paths, and which of these paths are to be put back."""

    findings: tuple[Finding, ...] = ()
    offending: tuple[str, ...] = ()
    undecided: bool = False
    explained: bool = False
    """The second run shows that the protected changes hide nothing, so counts that fell are only disclosed."""


def judge_touched(
    touched: Sequence[Touched],
    policy: ProtectPolicy,
    baseline: ContractEvaluation,
    current: ContractEvaluation,
    restored: ContractEvaluation | None,
) -> Judgement:
    """Judge every touched path. `restored` is the second evaluation, None when `plan_second_run` asked for none."""
    if restored is not None and any(result.verdict in _UNJUDGED for result in restored.results):
        return Judgement(findings=_disclosed(touched), undecided=True)
    ways = _both_ways(baseline, current, restored)
    offending = {item.path for item in touched if _offends(item, policy, ways)}
    findings = [
        Finding(code=code, refused=item.path in offending, path=item.path, detail=item.touch)
        for item in touched
        for code in item.codes
    ]
    findings += [
        Finding(code=FindingCode.TEST_MASKED, refused=True, path=item.path)
        for item in touched
        if item.path in offending and item.role is Role.TEST and item.touch is Touch.ADDED
    ]
    clean = restored is not None and not _fallen(compare(baseline, restored))
    return Judgement(findings=tuple(findings), offending=tuple(sorted(offending)), explained=ways.green and clean)


def _disclosed(touched: Sequence[Touched]) -> tuple[Finding, ...]:
    return tuple(
        Finding(code=code, refused=False, path=item.path, detail=item.touch) for item in touched for code in item.codes
    )


class _Ways(msgspec.Struct, frozen=True, kw_only=True):
    """The two evaluations, as one judgement. All false where there was only one.

    `green`: everything is green both ways. `bought`: something passes only with the changes. `masked`: some test of the
    start does. `harmless`: no test of the start says anything else with the changes than without; `silent`: the same,
    where the reports tell no more than verdicts.
    """

    green: bool = False
    bought: bool = False
    masked: bool = False
    harmless: bool = False
    silent: bool = False


def _both_ways(baseline: ContractEvaluation, current: ContractEvaluation, restored: ContractEvaluation | None) -> _Ways:
    if restored is None:
        return _Ways()
    pairs = [(now, restored.named(now.name)) for now in current.results]
    return _Ways(
        green=current.all_green and restored.all_green,
        bought=buys(baseline, current, restored),
        masked=masks(baseline, current, restored),
        harmless=all(_says_the_same(now, without, blind=False) for now, without in pairs),
        silent=all(_says_the_same(now, without, blind=True) for now, without in pairs),
    )


def _offends(item: Touched, policy: ProtectPolicy, ways: _Ways) -> bool:
    if item.role is Role.OWN:
        return True
    if policy is ProtectPolicy.REFUSE:
        return item.touch is not Touch.ADDED or item.influential
    if policy is ProtectPolicy.DISCLOSE and item.role is not Role.HOOK:
        return False
    if item.touch is not Touch.ADDED:
        return not (ways.green or _tolerated(item, ways))
    return ways.bought if item.influential else ways.masked and item.role is Role.TEST and not item.is_data


def _tolerated(item: Touched, ways: _Ways) -> bool:
    """Whether an edit may stand although not everything is green yet: it bought nothing so far, and is judged again.

    Every turn is compared with the goal's start, so what such an edit buys later comes to light then. CI and lock files
    decide no verdict by themselves; of all others the runner's report must tell that no test was touched. What is gone
    tells nothing, so that it stays gone only when everything is green.
    """
    if item.touch is Touch.DELETED:
        return False
    if item.role in {Role.CI, Role.LOCK}:
        return ways.silent
    return ways.harmless and item.role in {Role.TEST, Role.RUNNER_CONFIG, Role.SCRIPT}


def _says_the_same(now: CheckResult, without: CheckResult | None, *, blind: bool) -> bool:
    """Whether no test of the start passes, is skipped, is excused or is gone only because of the changes."""
    if without is None or (now.verdict is Verdict.GREEN) != (without.verdict is Verdict.GREEN):
        return False
    here, there = now.parts, without.parts
    if here is None or there is None:
        return blind and here is there
    # What the start's files can't be asked for is not known to be the same.
    if there.collection_errors or here.collected < there.collected:
        return False
    known = _keys(there.collected_keys)
    if known is not None and not known <= (_keys(here.collected_keys) or frozenset()):
        return False
    failing = (_keys(there.failing_keys), _keys(here.failing_keys))
    if failing[0] is None or failing[1] is None:
        return False
    return not failing[0] - failing[1] and not _newly_excused(here, there, known)


def _newly_excused(here: PartCounts, there: PartCounts, known: frozenset[str] | None) -> bool:
    """Whether a test of the start is skipped or expected to fail with the changes only. New tests may be born so."""
    for now, then, count in (
        (here.skipped_keys, there.skipped_keys, here.skipped - there.skipped),
        (here.expected_keys, there.expected_keys, here.expected_failures - there.expected_failures),
    ):
        if known is not None and now is not None and then is not None:
            if (frozenset(now) - frozenset(then)) & known:
                return True
        elif count > max(0, here.collected - there.collected):
            return True
    return False


def buys(baseline: ContractEvaluation, current: ContractEvaluation, restored: ContractEvaluation) -> bool:
    """Whether some check or known test passes only with the changed protected files."""
    return any(_bought(baseline.named(now.name), now, restored.named(now.name)) for now in current.results)


def _bought(then: CheckResult | None, now: CheckResult, without: CheckResult | None) -> bool:
    if without is None:
        return False
    known = _newly_failing(then, now, without)
    if known is not None:
        return bool(known)
    return now.verdict is Verdict.GREEN and without.verdict in _RED


def masks(baseline: ContractEvaluation, current: ContractEvaluation, restored: ContractEvaluation) -> bool:
    """Whether a test that the baseline knows passes only with the added files there."""
    for now in current.results:
        without = restored.named(now.name)
        if without is not None and _newly_failing(baseline.named(now.name), now, without):
            return True
    return False


def _newly_failing(then: CheckResult | None, now: CheckResult, without: CheckResult) -> frozenset[str] | None:
    """Tests known at the start that fail only without the changes; None where the reports can't tell.

    Without the changes only tests of the start run, so that all of them are known where the report names no ids.
    """
    before, here, there = (None if result is None else result.parts for result in (then, now, without))
    if before is None or here is None or there is None:
        return None
    failing = (_keys(here.failing_keys), _keys(there.failing_keys))
    if failing[0] is None or failing[1] is None or _uncollected(there, here):
        return None
    known = _keys(before.collected_keys)
    return (failing[1] if known is None else failing[1] & known) - failing[0]


def _uncollected(without: PartCounts, now: PartCounts) -> bool:
    """Files that can't be collected without the changes name none of their tests."""
    return without.collection_errors > now.collection_errors


def _keys(keys: tuple[str, ...] | None) -> frozenset[str] | None:
    return None if keys is None else frozenset(keys)


_COUNTS = {
    DeltaCode.FEWER_COLLECTED: FindingCode.FEWER_COLLECTED,
    DeltaCode.MORE_SKIPPED: FindingCode.TEST_SKIPPED,
    DeltaCode.MORE_EXPECTED_FAILURES: FindingCode.XFAIL_ADDED,
    DeltaCode.REPORT_LOST: FindingCode.REPORT_LOST,
    DeltaCode.TESTS_REPLACED: FindingCode.TESTS_REPLACED,
}


def _fallen(comparison: Comparison) -> bool:
    return bool(
        comparison.of(
            DeltaCode.FEWER_COLLECTED,
            DeltaCode.MORE_SKIPPED,
            DeltaCode.MORE_EXPECTED_FAILURES,
            DeltaCode.REPORT_LOST,
        )
    )


def count_findings(
    baseline: ContractEvaluation, current: ContractEvaluation, policy: ProtectPolicy, *, explained: bool
) -> tuple[Finding, ...]:
    """Tests that were collected or run at the baseline and are not now.

    A lost report is always refused. The rest is refused unless the policy only discloses, or a second run explains it.
    Fewer collected tests in a check that is not green are no finding: the check already says so.
    """
    found: list[Finding] = []
    for delta in compare(baseline, current).of(*_COUNTS):
        now = current.named(delta.check)
        if delta.code is DeltaCode.FEWER_COLLECTED and (now is None or now.verdict is not Verdict.GREEN):
            continue
        refused = delta.code is DeltaCode.REPORT_LOST or (
            delta.code is not DeltaCode.TESTS_REPLACED and not explained and policy is not ProtectPolicy.DISCLOSE
        )
        found.append(
            Finding(
                code=_COUNTS[delta.code],
                refused=refused,
                check=delta.check,
                before=delta.before,
                after=delta.after,
                detail="counted",
            )
        )
    return tuple(found)
