"""What stopped a loop from being green, on one axis: descriptive, and never what to do next (contracts, section 8).

The contract is evaluated before anything is classified: the work tree is the state, not the process. Pure values and
one pure function; every loop (external, native, foreman, scenario) ends in the same `LoopOutcome`.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from loopx.control_plane.errors import UsageError


class LoopFailure(enum.StrEnum):
    """What happened. Read no retry instruction out of any member."""

    ENGINE_UNAVAILABLE = "engine_unavailable"
    """The task was never handed over; nothing was attempted."""
    CANCELLED = "cancelled"
    """A person stopped it; never a trigger for another engine."""
    INFRASTRUCTURE = "infrastructure"
    """The machinery failed rather than the work: the process or its backbone died, or no check could be evaluated."""
    CONFIGURATION = "configuration"
    """The setup leaves nothing that could run."""
    NEEDS_AUTH = "needs_auth"
    """A person has to sign in, and nobody did within the window; the work tree is kept."""
    EXECUTION = "execution"
    """The worker ran, reported its own error, and the checks are red."""
    VERIFICATION = "verification"
    """The worker ended cleanly and the checks are red."""
    BUDGET_EXHAUSTED = "budget_exhausted"
    """The session's clock cut it off; not a task loss."""


UNSCORED_FAILURES: Final = frozenset(
    {
        LoopFailure.ENGINE_UNAVAILABLE,
        LoopFailure.INFRASTRUCTURE,
        LoopFailure.CONFIGURATION,
        LoopFailure.NEEDS_AUTH,
        LoopFailure.CANCELLED,
        LoopFailure.BUDGET_EXHAUSTED,
    }
)
"""Failures in which no check judged the work: a scorer leaves them out."""


class ChecksVerdict(enum.StrEnum):
    """What the contract's last evaluation said."""

    GREEN = "green"
    RED = "red"
    """At least one check judged the work and found it wanting."""
    RED_STARVED = "red_starved"
    """Every red check was killed by the session clock."""
    NOT_EVALUABLE = "not_evaluable"
    """No check could run, or none was asked to."""


class WorkerEnd(enum.StrEnum):
    """How the worker ended: by itself without an error, with its own error, or not by itself."""

    CLEAN = "clean"
    WORKER_ERROR = "worker_error"
    DIED = "died"


class LoopEndFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the classification may look at, after the contract was evaluated as far as it could be."""

    cancelled: bool = False
    handed_over: bool = True
    """The worker started and the whole task was delivered to it."""
    checks: ChecksVerdict
    admitted: bool = True
    """False when the deadline did not admit the next round."""
    auth_lapsed: bool = False
    """No credential, and the wait window for one ran out."""
    setup_ok: bool = True
    end: WorkerEnd = WorkerEnd.CLEAN


def classify_loop_end(facts: LoopEndFacts) -> LoopFailure | None:
    """The failure, or None when the loop is green; total, first match wins (contracts, section 8)."""
    if facts.cancelled and facts.checks is not ChecksVerdict.GREEN:
        return LoopFailure.CANCELLED
    if not facts.handed_over:
        return LoopFailure.ENGINE_UNAVAILABLE if facts.setup_ok else LoopFailure.CONFIGURATION
    if facts.checks is ChecksVerdict.GREEN:
        return None
    if facts.checks is ChecksVerdict.RED_STARVED or not facts.admitted:
        return LoopFailure.BUDGET_EXHAUSTED
    return _failure_of_the_attempt(facts)


def _failure_of_the_attempt(facts: LoopEndFacts) -> LoopFailure:
    if facts.auth_lapsed:
        return LoopFailure.NEEDS_AUTH
    if not facts.setup_ok:
        return LoopFailure.CONFIGURATION
    if facts.end is WorkerEnd.DIED or facts.checks is ChecksVerdict.NOT_EVALUABLE:
        return LoopFailure.INFRASTRUCTURE
    return LoopFailure.EXECUTION if facts.end is WorkerEnd.WORKER_ERROR else LoopFailure.VERIFICATION


class LoopOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a loop ended. It has a failure exactly when it did not pass; made only by `passed` and `failed`.

    `asked`, `resolved` and `ran` name the engine that was asked for, that was chosen, and that really did the work.
    `repairs` and `retries` are separate counters: fresh attempts after a red pass, and repeats after a death.
    """

    failure: LoopFailure | None
    checks: ChecksVerdict
    detail: str = ""
    """A short, redacted cause for people; nothing reads it."""
    asked: str | None = None
    resolved: str | None = None
    ran: str | None = None
    rounds: int = 0
    repairs: int = 0
    retries: int = 0

    def __post_init__(self) -> None:
        """Refuse an outcome that the two constructors could not have made."""
        if (self.failure is None) is not (self.checks is ChecksVerdict.GREEN):
            raise UsageError(
                "loop_outcome_contradictory",
                f"a loop outcome with checks {self.checks} cannot have failure {self.failure}",
                hint="a loop passes exactly when its checks are green",
            )

    @property
    def ok(self) -> bool:
        """Whether it passed."""
        return self.failure is None

    @classmethod
    def passed(
        cls,
        *,
        detail: str = "",
        asked: str | None = None,
        resolved: str | None = None,
        ran: str | None = None,
        rounds: int = 0,
        repairs: int = 0,
        retries: int = 0,
    ) -> LoopOutcome:
        """A loop whose checks are green, whatever the process said."""
        return cls(
            failure=None,
            checks=ChecksVerdict.GREEN,
            detail=detail,
            asked=asked,
            resolved=resolved,
            ran=ran,
            rounds=rounds,
            repairs=repairs,
            retries=retries,
        )

    @classmethod
    def failed(
        cls,
        failure: LoopFailure,
        *,
        checks: ChecksVerdict = ChecksVerdict.NOT_EVALUABLE,
        detail: str = "",
        asked: str | None = None,
        resolved: str | None = None,
        ran: str | None = None,
        rounds: int = 0,
        repairs: int = 0,
        retries: int = 0,
    ) -> LoopOutcome:
        """A loop that is not green, and what stopped it.

        Raises `UsageError` (`loop_outcome_contradictory`) when `checks` is green: a green loop has no failure.
        """
        return cls(
            failure=failure,
            checks=checks,
            detail=detail,
            asked=asked,
            resolved=resolved,
            ran=ran,
            rounds=rounds,
            repairs=repairs,
            retries=retries,
        )
