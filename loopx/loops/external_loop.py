"""The external loop, for people who embed it: a worker is invoked in rounds until the contract is green (loops).

Two counters that are never mixed: `repair_invokes` fresh attempts after a clean but red round, and `transient_retries`
repeats of the same attempt after the worker died. One deadline is shared with whoever made it. Checks are evaluated
before a round is classified. It launches nothing itself: the worker and the evaluation are ports.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from loopx.loops.deadline import Deadline
from loopx.loops.failure import (
    ChecksVerdict,
    LoopEndFacts,
    LoopFailure,
    LoopOutcome,
    WorkerEnd,
    classify_loop_end,
)
from loopx.loops.recurrence import FailureSignature, Recurrence, recurrence


class Brief(msgspec.Struct, frozen=True, kw_only=True):
    """What one invocation is told beside the task: which round it is, what is red, and what came back."""

    round: int
    timeout_ms: int
    failures: tuple[FailureSignature, ...] = ()
    recurrence: Recurrence = Recurrence()
    retry: bool = False
    """The same hypothesis again, because the worker died."""


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """How one invocation ended."""

    handed_over: bool = True
    end: WorkerEnd = WorkerEnd.CLEAN
    setup_ok: bool = True
    auth_lapsed: bool = False
    detail: str = ""


class Evaluated(msgspec.Struct, frozen=True, kw_only=True):
    """The contract on the tree as it is now."""

    verdict: ChecksVerdict
    failures: frozenset[FailureSignature] = frozenset()


class Worker(Protocol):
    """Whatever does the work: an agent CLI, any command, a function in a test."""

    def invoke(self, brief: Brief) -> WorkerReport:
        """One attempt, no longer than `brief.timeout_ms`. It reports how it ended and raises nothing."""
        ...


class LoopBudgets(msgspec.Struct, frozen=True, kw_only=True):
    """How often to go on. Under `loopx run` each invocation is a turn of its own, and both are 0 there."""

    repair_invokes: int = 2
    transient_retries: int = 1
    round_timeout_ms: int = 3_600_000


class _State(msgspec.Struct):
    rounds: int = 0
    repairs: int = 0
    retries: int = 0
    retrying: bool = False
    seen: list[frozenset[FailureSignature]] = []


def run_external_loop(
    worker: Worker,
    evaluate: Callable[[], Evaluated],
    deadline: Deadline,
    *,
    budgets: LoopBudgets | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    engine: str | None = None,
) -> LoopOutcome:
    """Run rounds until green, or until something ends them; the typed outcome. Raises nothing of its own."""
    limits = budgets or LoopBudgets()
    state = _State()
    verdict = ChecksVerdict.NOT_EVALUABLE
    while True:
        if cancelled():
            return _ended(LoopFailure.CANCELLED, verdict, state, engine)
        if not deadline.admit():
            return _ended(LoopFailure.BUDGET_EXHAUSTED, verdict, state, engine)
        report = worker.invoke(_brief(state, limits, deadline))
        state.rounds += 1
        evaluated = evaluate() if report.handed_over else Evaluated(verdict=ChecksVerdict.NOT_EVALUABLE)
        verdict = evaluated.verdict
        state.seen.append(evaluated.failures)
        failure = classify_loop_end(
            LoopEndFacts(
                cancelled=cancelled(),
                handed_over=report.handed_over,
                checks=verdict,
                auth_lapsed=report.auth_lapsed,
                setup_ok=report.setup_ok,
                end=report.end,
            )
        )
        if failure is None:
            return LoopOutcome.passed(
                asked=engine,
                resolved=engine,
                ran=engine,
                rounds=state.rounds,
                repairs=state.repairs,
                retries=state.retries,
            )
        if not _goes_on(failure, report, state, limits):
            return _ended(failure, verdict, state, engine, report.detail)


def _brief(state: _State, limits: LoopBudgets, deadline: Deadline) -> Brief:
    last = state.seen[-1] if state.seen else frozenset()
    return Brief(
        round=state.rounds + 1,
        timeout_ms=deadline.clamp_ms(limits.round_timeout_ms),
        failures=tuple(sorted(last)),
        recurrence=recurrence(state.seen),
        retry=state.retrying,
    )


_REPAIRED = frozenset({LoopFailure.VERIFICATION, LoopFailure.EXECUTION})


def _goes_on(failure: LoopFailure, report: WorkerReport, state: _State, limits: LoopBudgets) -> bool:
    """Whether another round is due, and as what; counts it."""
    state.retrying = False
    if failure is LoopFailure.INFRASTRUCTURE and report.end is WorkerEnd.DIED:
        if state.retries >= limits.transient_retries:
            return False
        state.retries += 1
        state.retrying = True
        return True
    if failure in _REPAIRED and state.repairs < limits.repair_invokes:
        state.repairs += 1
        return True
    return False


def _ended(
    failure: LoopFailure, verdict: ChecksVerdict, state: _State, engine: str | None, detail: str = ""
) -> LoopOutcome:
    ran = engine if state.rounds and failure is not LoopFailure.ENGINE_UNAVAILABLE else None
    return LoopOutcome.failed(
        failure,
        checks=verdict,
        detail=detail,
        asked=engine,
        resolved=engine,
        ran=ran,
        rounds=state.rounds,
        repairs=state.repairs,
        retries=state.retries,
    )
