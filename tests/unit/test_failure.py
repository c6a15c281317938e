"""Loop failures: evaluate before classifying, and a failure exactly when it did not pass (contracts, section 8)."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopx.control_plane.errors import UsageError
from loopx.loops.compare import ArmOutcome, PairedScore, paired_score
from loopx.loops.failure import (
    ChecksVerdict,
    LoopEndFacts,
    LoopFailure,
    LoopOutcome,
    WorkerEnd,
    classify_loop_end,
)

ALL_FACTS = [
    LoopEndFacts(
        cancelled=cancelled,
        handed_over=handed_over,
        checks=checks,
        admitted=admitted,
        auth_lapsed=lapsed,
        setup_ok=setup_ok,
        end=end,
    )
    for cancelled, handed_over, checks, admitted, lapsed, setup_ok, end in itertools.product(
        [False, True], [False, True], ChecksVerdict, [False, True], [False, True], [False, True], WorkerEnd
    )
]


def test_every_failure_and_success_is_reachable() -> None:
    assert {classify_loop_end(facts) for facts in ALL_FACTS} == {None, *LoopFailure}


def test_green_is_never_a_failure_once_the_task_was_handed_over() -> None:
    for facts in ALL_FACTS:
        if facts.checks is ChecksVerdict.GREEN and facts.handed_over:
            assert classify_loop_end(facts) is None
        if classify_loop_end(facts) is None:
            assert facts.checks is ChecksVerdict.GREEN


def test_what_was_never_handed_over_is_never_blamed_on_the_work() -> None:
    blamed = {LoopFailure.EXECUTION, LoopFailure.VERIFICATION, LoopFailure.INFRASTRUCTURE, None}
    for facts in ALL_FACTS:
        if not facts.handed_over and facts.checks is ChecksVerdict.NOT_EVALUABLE:
            assert classify_loop_end(facts) not in blamed


def test_a_cancel_is_always_a_cancel_unless_it_came_after_green() -> None:
    for facts in ALL_FACTS:
        if facts.cancelled and facts.checks is not ChecksVerdict.GREEN:
            assert classify_loop_end(facts) is LoopFailure.CANCELLED


@given(failure=st.none() | st.sampled_from(LoopFailure), checks=st.sampled_from(ChecksVerdict))
def test_an_outcome_has_a_failure_exactly_when_it_did_not_pass(
    failure: LoopFailure | None, checks: ChecksVerdict
) -> None:
    legal = (failure is None) == (checks is ChecksVerdict.GREEN)
    raw = msgspec.json.encode({"failure": failure, "checks": checks})
    if legal:
        outcome = msgspec.json.decode(raw, type=LoopOutcome)
        assert outcome.ok == (outcome.failure is None)
        return
    with pytest.raises(UsageError, match="cannot have failure"):
        LoopOutcome(failure=failure, checks=checks)
    with pytest.raises((UsageError, msgspec.ValidationError)):
        msgspec.json.decode(raw, type=LoopOutcome)


def test_the_two_constructors() -> None:
    passed = LoopOutcome.passed(ran="codex", rounds=2, repairs=1)
    assert passed.ok
    assert passed.failure is None
    failed = LoopOutcome.failed(LoopFailure.VERIFICATION, checks=ChecksVerdict.RED, retries=1, detail="red")
    assert not failed.ok
    assert (failed.repairs, failed.retries) == (0, 1), "availability retries and repairs are counted apart"
    with pytest.raises(UsageError) as caught:
        LoopOutcome.failed(LoopFailure.EXECUTION, checks=ChecksVerdict.GREEN)
    assert caught.value.code == "loop_outcome_contradictory"


def _arm(arm: str, failure: LoopFailure | None) -> ArmOutcome:
    outcome = LoopOutcome.passed() if failure is None else LoopOutcome.failed(failure)
    return ArmOutcome(arm=arm, task="task", outcome=outcome)


@pytest.mark.parametrize("failure", [None, *LoopFailure])
def test_only_outcomes_that_a_check_judged_are_scorable(failure: LoopFailure | None) -> None:
    judged = {None, LoopFailure.EXECUTION, LoopFailure.VERIFICATION}
    assert _arm("a", failure).scorable == (failure in judged)


def test_a_pair_is_scored_only_when_both_sides_are() -> None:
    red, cut = LoopFailure.VERIFICATION, LoopFailure.BUDGET_EXHAUSTED
    pairs = [(None, None), (None, red), (red, None), (red, red), (None, cut), (cut, cut)]
    score = paired_score((_arm("left", left), _arm("right", right)) for left, right in pairs)
    assert score == PairedScore(both=1, only_left=1, only_right=1, neither=1, left_out=2)
    assert score.scored == 4
