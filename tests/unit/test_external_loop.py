"""The embedded external loop: its two counters, its one deadline, and checks before classification."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from loopx.loops.deadline import Deadline
from loopx.loops.external_loop import Brief, Evaluated, LoopBudgets, WorkerReport, run_external_loop
from loopx.loops.failure import ChecksVerdict, LoopFailure, WorkerEnd
from loopx.loops.recurrence import FailureSignature

RED = Evaluated(
    verdict=ChecksVerdict.RED, failures=frozenset({FailureSignature(check="tests", error_class="AssertionError")})
)
GREEN = Evaluated(verdict=ChecksVerdict.GREEN)
DIED = WorkerReport(end=WorkerEnd.DIED)
CLEAN = WorkerReport()


class Script:
    """A worker that ends each round as scripted, the last entry for ever."""

    def __init__(self, reports: Sequence[WorkerReport]) -> None:
        self.reports = reports
        self.briefs: list[Brief] = []

    def invoke(self, brief: Brief) -> WorkerReport:
        self.briefs.append(brief)
        return self.reports[min(len(self.briefs), len(self.reports)) - 1]


def _evaluations(*results: Evaluated) -> Callable[[], Evaluated]:
    left = list(results)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def _unlimited() -> Deadline:
    return Deadline.after(lambda: 0, None)


def test_a_green_round_passes() -> None:
    worker = Script([CLEAN])
    outcome = run_external_loop(worker, _evaluations(GREEN), _unlimited(), engine="codex")
    assert (outcome.ok, outcome.rounds, outcome.ran) == (True, 1, "codex")


def test_a_worker_that_died_after_finishing_passes() -> None:
    assert run_external_loop(Script([DIED]), _evaluations(GREEN), _unlimited()).ok


def test_a_clean_red_round_is_repaired_twice_and_told_what_came_back() -> None:
    worker = Script([CLEAN])
    outcome = run_external_loop(worker, _evaluations(RED), _unlimited())
    assert outcome.failure is LoopFailure.VERIFICATION
    assert (outcome.rounds, outcome.repairs, outcome.retries) == (3, 2, 0)
    assert worker.briefs[1].failures == tuple(RED.failures)
    assert not worker.briefs[1].recurrence.recurred
    assert worker.briefs[2].recurrence.recurred


def test_a_death_is_retried_once_with_the_same_hypothesis_and_is_no_repair() -> None:
    worker = Script([DIED])
    outcome = run_external_loop(worker, _evaluations(RED), _unlimited())
    assert outcome.failure is LoopFailure.INFRASTRUCTURE
    assert (outcome.rounds, outcome.repairs, outcome.retries) == (2, 0, 1)
    assert [brief.retry for brief in worker.briefs] == [False, True]


def test_a_task_that_was_never_handed_over_runs_no_check() -> None:
    def never() -> Evaluated:
        raise AssertionError("no check may run")

    outcome = run_external_loop(Script([WorkerReport(handed_over=False)]), never, _unlimited(), engine="codex")
    assert outcome.failure is LoopFailure.ENGINE_UNAVAILABLE
    assert outcome.ran is None


def test_the_deadline_admits_rounds_and_clamps_them_and_nothing_restarts_it() -> None:
    now = [0]

    class Slow(Script):
        def invoke(self, brief: Brief) -> WorkerReport:
            now[0] += 700
            return super().invoke(brief)

    worker = Slow([CLEAN])
    deadline = Deadline.after(lambda: now[0], 1000)
    budgets = LoopBudgets(round_timeout_ms=900, repair_invokes=9)
    outcome = run_external_loop(worker, _evaluations(RED), deadline, budgets=budgets)
    assert outcome.failure is LoopFailure.BUDGET_EXHAUSTED
    assert [brief.timeout_ms for brief in worker.briefs] == [900, 300]


@pytest.mark.parametrize(
    ("report", "failure"),
    [
        (WorkerReport(auth_lapsed=True), LoopFailure.NEEDS_AUTH),
        (WorkerReport(setup_ok=False), LoopFailure.CONFIGURATION),
    ],
)
def test_what_only_a_person_can_mend_ends_the_loop(report: WorkerReport, failure: LoopFailure) -> None:
    outcome = run_external_loop(Script([report]), _evaluations(RED), _unlimited())
    assert (outcome.failure, outcome.rounds) == (failure, 1)


def test_a_cancel_ends_it_but_a_finished_green_evaluation_stays_a_pass() -> None:
    stop = [False]

    class Stops(Script):
        def invoke(self, brief: Brief) -> WorkerReport:
            stop[0] = True
            return super().invoke(brief)

    red = run_external_loop(Stops([CLEAN]), _evaluations(RED), _unlimited(), cancelled=lambda: stop[0])
    assert red.failure is LoopFailure.CANCELLED
    stop[0] = False
    assert run_external_loop(Stops([CLEAN]), _evaluations(GREEN), _unlimited(), cancelled=lambda: stop[0]).ok
