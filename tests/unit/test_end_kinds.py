"""Every way in which an engine ends, through the failures of the loop to the result (contracts, sections 8, 10)."""

from __future__ import annotations

import msgspec
import pytest

from loopx.control_plane.turn_driver.transaction import LoopXTurnResultKind as Result
from loopx.control_plane.work_items.gate import GateKind
from loopx.hosts.ends import END_RULES
from loopx.hosts.protocol import HostEnd, HostEndKind
from loopx.loops.failure import ChecksVerdict, LoopFailure, classify_loop_end
from loopx.loops.turn_result import OutcomeFacts, TurnVerdict, turn_result
from loopx.runtime import results
from loopx.runtime.judge_port import end_facts

NOW_MS = 1_796_000_000_000
HOUR_MS = 3_600_000
Kind = HostEndKind


def end_of(kind: HostEndKind, **fields: object) -> HostEnd:
    """The end that the adapters make of this kind, unless a field says otherwise."""
    rule = END_RULES[kind]
    end = HostEnd(
        kind=kind,
        process=rule.process,
        retry=rule.retry,
        handed_over=kind is not Kind.NOT_STARTED,
        auth_lapsed=rule.auth_lapsed,
        bad_setup=rule.bad_setup,
    )
    return msgspec.structs.replace(end, **fields)


def judged(end: HostEnd, checks: ChecksVerdict, *, changed: bool = False) -> tuple[LoopFailure | None, TurnVerdict]:
    """What a turn comes to whose agent changed files or not, and whose checks said so-and-so."""
    failure = classify_loop_end(end_facts(end, checks))
    facts = OutcomeFacts(
        failure=failure,
        checks=checks,
        snapshot_green=checks is ChecksVerdict.GREEN,
        tree_changed=changed,
        retry=results.host_retry(end, 0, NOW_MS),
        window_reopens_at_ms=results.reopens_at(end, "g", 0, NOW_MS),
    )
    return failure, turn_result(facts)


RED = {
    Kind.SUCCESS: (LoopFailure.VERIFICATION, Result.VALIDATION_FAILED, None),
    Kind.NO_OP: (LoopFailure.VERIFICATION, Result.VALIDATION_FAILED, None),
    Kind.AUTH_FAILED: (LoopFailure.NEEDS_AUTH, Result.USER_ACTION_REQUIRED, GateKind.SIGN_IN),
    Kind.RATE_LIMITED: (LoopFailure.BUDGET_EXHAUSTED, Result.WAIT, None),
    Kind.QUOTA_EXHAUSTED: (LoopFailure.BUDGET_EXHAUSTED, Result.USER_ACTION_REQUIRED, GateKind.BUDGET),
    Kind.PROVIDER_OVERLOADED: (LoopFailure.INFRASTRUCTURE, Result.HOST_FAILURE, None),
    Kind.PROVIDER_CAPACITY: (LoopFailure.INFRASTRUCTURE, Result.HOST_FAILURE, None),
    Kind.TRANSPORT_LOST: (LoopFailure.INFRASTRUCTURE, Result.HOST_FAILURE, None),
    Kind.EXECUTOR_TIMEOUT: (LoopFailure.INFRASTRUCTURE, Result.HOST_FAILURE, None),
    Kind.OUTPUT_BUDGET_EXHAUSTED: (LoopFailure.EXECUTION, Result.VALIDATION_FAILED, None),
    Kind.SESSION_MISSING: (LoopFailure.INFRASTRUCTURE, Result.HOST_FAILURE, None),
    Kind.CONTRACT_REJECTED: (LoopFailure.EXECUTION, Result.VALIDATION_FAILED, None),
    Kind.PERMISSION_DENIED: (LoopFailure.CONFIGURATION, Result.USER_ACTION_REQUIRED, GateKind.CONFIGURATION),
    Kind.NOT_STARTED: (LoopFailure.ENGINE_UNAVAILABLE, Result.HOST_FAILURE, None),
    Kind.CANCELLED: (LoopFailure.CANCELLED, Result.ITERATION_FAILED, None),
    Kind.WORKER_ERROR: (LoopFailure.EXECUTION, Result.VALIDATION_FAILED, None),
    Kind.UNKNOWN: (LoopFailure.INFRASTRUCTURE, Result.HOST_FAILURE, None),
}


def test_every_kind_has_a_row() -> None:
    assert set(RED) == set(HostEndKind) == set(END_RULES)


@pytest.mark.parametrize("kind", list(HostEndKind))
def test_red_checks_and_an_untouched_tree(kind: HostEndKind) -> None:
    failure, verdict = judged(end_of(kind), ChecksVerdict.RED)
    assert (failure, verdict.kind, verdict.gate) == RED[kind]
    assert (verdict.retry is not None) is (verdict.kind is Result.HOST_FAILURE)
    assert (verdict.wake_at_ms is not None) is (verdict.kind is Result.WAIT)


@pytest.mark.parametrize("kind", [kind for kind in HostEndKind if kind is not Kind.NOT_STARTED])
def test_green_checks_are_the_verdict_however_the_engine_ended(kind: HostEndKind) -> None:
    """The work tree is the state, not the process: a worker that died after finishing has finished."""
    failure, verdict = judged(end_of(kind), ChecksVerdict.GREEN, changed=True)
    assert (failure, verdict.kind) == (None, Result.VALIDATED_COMPLETION)


@pytest.mark.parametrize("kind", list(HostEndKind))
def test_no_end_of_an_engine_makes_red_checks_green(kind: HostEndKind) -> None:
    _, verdict = judged(end_of(kind), ChecksVerdict.RED, changed=True)
    assert verdict.kind is not Result.VALIDATED_COMPLETION


@pytest.mark.parametrize(
    ("kind", "result"),
    [
        (Kind.AUTH_FAILED, Result.USER_ACTION_REQUIRED),
        (Kind.RATE_LIMITED, Result.WAIT),
        (Kind.QUOTA_EXHAUSTED, Result.USER_ACTION_REQUIRED),
    ],
)
def test_a_host_that_says_why_it_did_not_read_the_prompt_is_there(kind: HostEndKind, result: Result) -> None:
    """Gemini ends before its prompt when nobody is signed in: no other engine may hide that."""
    _, verdict = judged(end_of(kind, handed_over=False), ChecksVerdict.NOT_EVALUABLE)
    assert verdict.kind is result


def test_a_wrong_setup_waits_for_a_person_whatever_the_kind() -> None:
    failure, verdict = judged(end_of(Kind.WORKER_ERROR, bad_setup=True), ChecksVerdict.RED)
    assert (failure, verdict.gate) == (LoopFailure.CONFIGURATION, GateKind.CONFIGURATION)
    failure, verdict = judged(end_of(Kind.NOT_STARTED, bad_setup=True), ChecksVerdict.NOT_EVALUABLE)
    assert (failure, verdict.gate) == (LoopFailure.CONFIGURATION, GateKind.CONFIGURATION)


def test_a_limit_is_over_at_its_reset_plus_a_spread() -> None:
    end = end_of(Kind.RATE_LIMITED, reset_at_ms=NOW_MS + HOUR_MS)
    opens = results.reopens_at(end, "g", 0, NOW_MS)
    assert opens is not None
    assert NOW_MS + HOUR_MS < opens <= NOW_MS + HOUR_MS + 31_000
    others = {results.reopens_at(end, f"goal-{number}", 0, NOW_MS) for number in range(20)}
    assert len(others) > 10, "a fleet does not wake as one"


def test_a_reset_that_passed_while_the_checks_ran_is_believed_once() -> None:
    end = end_of(Kind.RATE_LIMITED, reset_at_ms=NOW_MS - 2000, code="usage_limit")
    first = results.reopens_at(end, "g", 0, NOW_MS)
    assert first is not None and NOW_MS < first <= NOW_MS + 31_000
    assert results.reopens_at(end, "g", 1, NOW_MS) == NOW_MS + HOUR_MS // 2


@pytest.mark.parametrize("told", [None, NOW_MS - 5 * HOUR_MS])
def test_a_reset_that_is_missing_or_past_is_a_guess_that_grows(told: int | None) -> None:
    end = end_of(Kind.RATE_LIMITED, reset_at_ms=told, code="usage_limit")
    waits = [(results.reopens_at(end, "g", streak, NOW_MS) or 0) - NOW_MS for streak in range(40)]
    assert waits[:3] == [HOUR_MS // 4, HOUR_MS // 2, HOUR_MS]
    assert set(waits[2:]) == {HOUR_MS}


def test_a_burst_limit_is_tried_sooner() -> None:
    end = end_of(Kind.RATE_LIMITED, code="rate_limit")
    waits = [(results.reopens_at(end, "g", streak, NOW_MS) or 0) - NOW_MS for streak in range(8)]
    assert waits == [60_000 << streak if streak < 6 else HOUR_MS for streak in range(8)]


def test_credit_waits_for_a_person_unless_a_reset_is_named() -> None:
    assert results.reopens_at(end_of(Kind.QUOTA_EXHAUSTED), "g", 0, NOW_MS) is None
    assert results.reopens_at(end_of(Kind.QUOTA_EXHAUSTED, reset_at_ms=NOW_MS + 1), "g", 0, NOW_MS) is not None
    assert results.reopens_at(end_of(Kind.TRANSPORT_LOST), "g", 0, NOW_MS) is None
