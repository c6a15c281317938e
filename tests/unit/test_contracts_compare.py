"""What two evaluations of one contract say of the work between them."""

from __future__ import annotations

import msgspec
import pytest

from loopx.contracts.baseline import changed_definitions, judge_no_change, take_baseline, with_snapshot
from loopx.contracts.compare import DeltaCode, compare
from loopx.contracts.delivery import delivery_evidence, derive_turn_kind, judge_delivery
from loopx.contracts.model import (
    Capture,
    Check,
    CheckResult,
    ChecksState,
    Contract,
    ContractEvaluation,
    Machine,
    PartCounts,
    Verdict,
    definition_hash,
    visible_checks,
    visible_results,
)
from loopx.contracts.protect import derive_protected
from loopx.contracts.tally import Outcome, Tally
from loopx.control_plane.work_items.delivery_outcome import DeliveryOutcome, DeliveryTurnKind


def _parts(passed: str = "", failed: str = "", skipped: str = "", expected: str = "", errors: str = "") -> PartCounts:
    tally = Tally("pytest")
    for names, outcome in (
        (passed, Outcome.PASSED),
        (failed, Outcome.FAILED),
        (skipped, Outcome.SKIPPED),
        (expected, Outcome.EXPECTED_FAILURE),
        (errors, Outcome.COLLECTION_ERROR),
    ):
        for name in names.split():
            tally.add(name, outcome)
    parts = tally.counts()
    assert parts is not None
    return parts


def _result(
    verdict: Verdict, parts: PartCounts | None = None, name: str = "unit", *, primary: bool = False
) -> CheckResult:
    machine = Machine.READ if parts is not None else Machine.MISSING
    return CheckResult(
        name=name,
        verdict=verdict,
        definition_hash=name,
        tree_hash="t",
        parts=parts,
        machine=machine,
        primary=primary,
        signature=f"{name}: X" if verdict is Verdict.RED else None,
    )


def _evaluation(*results: CheckResult) -> ContractEvaluation:
    return ContractEvaluation(results=results, tree_hash="t")


def _codes(then: PartCounts | None, now: PartCounts | None, before: Verdict, after: Verdict) -> set[DeltaCode]:
    found = compare(_evaluation(_result(before, then)), _evaluation(_result(after, now)))
    return {delta.code for delta in found.deltas}


@pytest.mark.parametrize(
    ("verdicts", "state"),
    [
        ((), ChecksState.NOT_EVALUABLE),
        (("green", "green"), ChecksState.GREEN),
        (("green", "red", "starved", "not_evaluable"), ChecksState.RED),
        (("green", "flaky"), ChecksState.RED),
        (("green", "starved"), ChecksState.RED_STARVED),
        (("starved", "not_evaluable"), ChecksState.RED_STARVED),
        (("green", "not_evaluable"), ChecksState.NOT_EVALUABLE),
        (("not_evaluable",), ChecksState.NOT_EVALUABLE),
    ],
)
def test_state_of_a_contract(verdicts: tuple[str, ...], state: ChecksState) -> None:
    evaluation = _evaluation(*(_result(Verdict(word), name=str(n)) for n, word in enumerate(verdicts)))
    assert evaluation.state is state
    assert evaluation.all_green is (state is ChecksState.GREEN)


def test_evaluations_survive_encoding() -> None:
    evaluation = _evaluation(_result(Verdict.RED, _parts("a", "b")))
    again = msgspec.json.decode(msgspec.json.encode(evaluation), type=ContractEvaluation)
    assert again == evaluation
    assert again.signatures == ("unit: X",)


def test_every_field_of_a_definition_is_pinned() -> None:
    check = Check(name="a", command=("x",))
    other = {
        "name": "b",
        "command": "x",
        "timeout_s": 1,
        "primary": True,
        "held_out": True,
        "flaky_retries": 1,
        "cwd": "s",
        "junit": "j",
        "tolerance_percent": 1,
        "pointer": "/a",
        "against": "z",
    }
    pins = {definition_hash(msgspec.structs.replace(check, **{key: value})) for key, value in other.items()}
    assert len(pins | {definition_hash(check)}) == len(other) + 1


def test_held_out_checks_are_not_visible() -> None:
    contract = Contract(checks=(Check(name="a", command=("x",)), Check(name="b", command=("y",), held_out=True)))
    assert [check.name for check in visible_checks(contract)] == ["a"]
    results = _evaluation(_result(Verdict.RED), msgspec.structs.replace(_result(Verdict.RED), held_out=True))
    assert len(visible_results(results)) == 1


RED, GREEN = Verdict.RED, Verdict.GREEN


@pytest.mark.parametrize(
    ("then", "now", "before", "after", "codes"),
    [
        (None, None, RED, GREEN, {DeltaCode.TURNED_GREEN}),
        (None, None, GREEN, RED, {DeltaCode.NEWLY_RED}),
        (None, None, GREEN, Verdict.FLAKY, {DeltaCode.NEWLY_FLAKY}),
        (None, None, Verdict.STARVED, GREEN, set()),
        (None, None, RED, RED, set()),
        (_parts("a", "b c"), _parts("a b", "c"), RED, RED, {DeltaCode.FEWER_FAILING}),
        (_parts("a", "b c"), _parts("a", "b c"), RED, RED, set()),
        (_parts("a", "b c"), _parts("b c", "a"), RED, RED, {DeltaCode.NEWLY_FAILING}),
        (_parts("a", "b c"), _parts("a", "b"), RED, RED, {DeltaCode.FEWER_COLLECTED}),
        (_parts("a", "b c"), _parts("a x", "b"), RED, RED, {DeltaCode.TESTS_REPLACED, DeltaCode.FEWER_FAILING}),
        (_parts("a", "b c"), _parts("a", "b", skipped="c"), RED, RED, {DeltaCode.MORE_SKIPPED}),
        (_parts("a", "b c"), _parts("a", "b", expected="c"), RED, RED, {DeltaCode.MORE_EXPECTED_FAILURES}),
        (_parts("a", "b c"), _parts("a c", "b", skipped="new"), RED, RED, {DeltaCode.FEWER_FAILING}),
        (_parts("a", "b c"), _parts("a c", "new b"), RED, RED, set()),
        (_parts("a", errors="m"), _parts("a", "m1 m2 m3"), RED, RED, {DeltaCode.COLLECTION_REPAIRED}),
        (_parts("a", errors="m"), _parts("m1 m2", "a"), RED, RED, {DeltaCode.NEWLY_FAILING}),
        (_parts("a", "b"), None, RED, RED, set()),
        (_parts("a", "b"), None, RED, GREEN, {DeltaCode.TURNED_GREEN, DeltaCode.REPORT_LOST}),
    ],
)
def test_one_check(
    then: PartCounts | None, now: PartCounts | None, before: Verdict, after: Verdict, codes: set[DeltaCode]
) -> None:
    assert _codes(then, now, before, after) == codes


def test_counts_without_names() -> None:
    """unittest names only what fails: growth that new tests explain is none."""
    then = PartCounts(source="unittest", total=10, passed=7, failed=2, skipped=1, failing_keys=("a", "b"))
    grown = msgspec.structs.replace(then, total=12, skipped=3)
    hidden = msgspec.structs.replace(then, skipped=2, failed=1, failing_keys=("a",))
    assert _codes(then, grown, RED, RED) == set()
    assert _codes(then, hidden, RED, RED) == {DeltaCode.MORE_SKIPPED}
    unnamed = msgspec.structs.replace(then, failed=1, failing_keys=None)
    assert _codes(then, unnamed, RED, RED) == set()


def test_progress_is_none_when_another_check_turned_red() -> None:
    before = _evaluation(_result(RED, name="a"), _result(GREEN, name="b"))
    after = _evaluation(_result(GREEN, name="a"), _result(RED, name="b"))
    found = compare(before, after)
    assert found.newly_red == ("b",)
    assert found.turned_green == ("a",)
    assert found.got_worse
    assert not found.measured_progress


def test_a_redefined_check_is_not_compared() -> None:
    now = msgspec.structs.replace(_result(GREEN), definition_hash="other")
    assert compare(_evaluation(_result(RED)), _evaluation(now)).deltas == ()


# -- baseline and the nomination of no change


def _contract() -> Contract:
    return Contract(checks=(Check(name="unit", command=("x",)),))


def test_baseline_discloses_that_it_gates_nothing() -> None:
    assert take_baseline(_contract(), _evaluation(_result(GREEN))).gates_nothing
    red = take_baseline(_contract(), _evaluation(_result(RED)))
    assert not red.gates_nothing
    assert red.complete
    assert not take_baseline(_contract(), _evaluation(_result(Verdict.STARVED))).complete
    assert not take_baseline(_contract(), _evaluation()).complete


def test_baseline_keeps_captures_and_pins() -> None:
    capture = Capture(name="unit", output_hash="h", number=1.0, definition_hash="d", tree_hash="t")
    baseline = take_baseline(_contract(), _evaluation(msgspec.structs.replace(_result(GREEN), capture=capture)))
    assert baseline.captures == {"unit": capture}
    assert changed_definitions(baseline, _contract().checks) == ()
    edited = (Check(name="unit", command=("true",)), Check(name="new", command=("x",)))
    assert changed_definitions(baseline, edited) == ("new", "unit")
    assert changed_definitions(baseline, ()) == ("unit",)
    assert with_snapshot(baseline, _evaluation(_result(GREEN))).not_snapshotable == ()
    assert with_snapshot(baseline, _evaluation(_result(RED))).not_snapshotable == ("unit",)


def test_no_change_needs_an_untouched_tree_and_a_complete_green_baseline() -> None:
    green = take_baseline(_contract(), _evaluation(_result(GREEN)))
    red = take_baseline(_contract(), _evaluation(_result(RED)))
    starved = take_baseline(_contract(), _evaluation(_result(Verdict.STARVED)))
    assert judge_no_change(baseline=green, tree_hash_now="t").accepted
    assert judge_no_change(baseline=green, tree_hash_now="u").reason == "tree_changed"
    assert judge_no_change(baseline=green, tree_hash_now=None).reason == "tree_changed"
    assert judge_no_change(baseline=None, tree_hash_now="t").reason == "baseline_incomplete"
    assert judge_no_change(baseline=starved, tree_hash_now="t").reason == "baseline_incomplete"
    assert judge_no_change(baseline=red, tree_hash_now="t").reason == "checks_red"
    assert judge_no_change(baseline=red, tree_hash_now="t", checks=()).accepted
    later = _evaluation(_result(RED))
    assert judge_no_change(baseline=green, tree_hash_now="t", current=later).reason == "checks_red"


# -- delivery


class _Changed(msgspec.Struct, frozen=True):
    path: str
    kind: str = "modified"
    old_path: str | None = None


@pytest.mark.parametrize(
    ("before", "after", "touched", "claim", "outcome"),
    [
        (RED, GREEN, True, None, DeliveryOutcome.PRIMARY_GOAL_OUTCOME),
        (RED, GREEN, True, "surface_only", DeliveryOutcome.SURFACE_ONLY),
        (RED, RED, True, "primary_goal_outcome", DeliveryOutcome.SURFACE_ONLY),
        (RED, RED, False, "outcome_progress", DeliveryOutcome.OUTCOME_GAP),
        (GREEN, GREEN, True, None, DeliveryOutcome.SURFACE_ONLY),
        (RED, GREEN, True, "splendid", DeliveryOutcome.PRIMARY_GOAL_OUTCOME),
    ],
)
def test_a_claim_lowers_and_never_raises(
    before: Verdict, after: Verdict, touched: bool, claim: str | None, outcome: DeliveryOutcome
) -> None:
    now = _evaluation(_result(after))
    evidence = delivery_evidence(compare(_evaluation(_result(before)), now), now, [_Changed("a")] if touched else [])
    assert judge_delivery(evidence, claim) is outcome


def test_a_primary_check_is_the_goals_own_outcome() -> None:
    before = _evaluation(_result(RED, name="a"), _result(RED, name="b", primary=True))
    some = _evaluation(_result(GREEN, name="a"), _result(RED, name="b", primary=True))
    main = _evaluation(_result(RED, name="a"), _result(GREEN, name="b", primary=True))
    for after, outcome in (
        (some, DeliveryOutcome.OUTCOME_PROGRESS),
        (main, DeliveryOutcome.PRIMARY_GOAL_OUTCOME),
    ):
        assert judge_delivery(delivery_evidence(compare(before, after), after, [])) is outcome


def test_turn_kinds() -> None:
    protected = derive_protected([Check(name="t", command=("pytest",))], ["src/a.py", "tests/test_a.py"])
    product, test = _Changed("src/a.py"), _Changed("tests/test_a.py")
    assert derive_turn_kind([product, test], protected) is DeliveryTurnKind.PRODUCT_PATH_EXECUTION
    assert derive_turn_kind([test], protected) is DeliveryTurnKind.CONTRACT_ONLY_PREPARATION
    assert derive_turn_kind([], protected, blocker_reported=True) is DeliveryTurnKind.BLOCKER_WRITEBACK
    assert derive_turn_kind([], protected, evidence_added=True) is DeliveryTurnKind.COMPACT_EVIDENCE
    assert derive_turn_kind([], protected) is DeliveryTurnKind.OUTCOME_GAP
