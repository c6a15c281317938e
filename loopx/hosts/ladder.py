"""The ladder of engines as data: who is tried, when the next one is, and what was asked for, resolved and really ran.

It steps down only when an engine was not available or a foreman declined the work. Cancelled, needs a sign-in and
budget exhausted stop it: another engine would hide what a person has to know. An explicit choice is a ladder of one
rung, so it is honoured or refused, and never silently replaced (loops, "Engines").
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import assert_never

import msgspec

from loopx.control_plane.errors import UsageError
from loopx.hosts import registry
from loopx.hosts.protocol import HostEnd, HostEndKind


class RungEnd(enum.StrEnum):
    """How one rung ended, as far as the ladder cares. The values that are loop failures are spelled like them."""

    RAN = "ran"
    """The task was handed over; whatever came of it, this engine did the work."""
    ENGINE_UNAVAILABLE = "engine_unavailable"
    DECLINED = "declined"
    """A foreman found the work unsuitable to split."""
    CANCELLED = "cancelled"
    NEEDS_AUTH = "needs_auth"
    BUDGET_EXHAUSTED = "budget_exhausted"


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """One engine that was tried."""

    engine: str
    end: RungEnd
    code: str = ""


class Climb(msgspec.Struct, frozen=True, kw_only=True):
    """Where the ladder stands. `asked` is what a person named, or the goal's first preference."""

    asked: str
    explicit: bool
    rungs: tuple[str, ...]
    tried: tuple[Rung, ...] = ()
    stopped: RungEnd | None = None

    @property
    def current(self) -> str | None:
        """The engine to try now; None when the ladder has ended."""
        return None if self.stopped is not None else self.rungs[len(self.tried)]

    @property
    def resolved(self) -> str:
        """The engine that was chosen last, whether or not it could run."""
        return self.current or self.tried[-1].engine

    @property
    def ran(self) -> str | None:
        """The engine that really got the task, or None."""
        return next((rung.engine for rung in self.tried if rung.end is RungEnd.RAN), None)

    @property
    def stepped_down(self) -> bool:
        """Whether another engine than the asked one is on or ran: never silent, the caller shows it."""
        return self.resolved != self.asked


def start(preference: Sequence[str], explicit: str | None = None) -> Climb:
    """The ladder of a goal. UsageError `unknown_engine` for a bad word, `no_engine` for an empty ladder."""
    rungs = (explicit,) if explicit is not None else tuple(dict.fromkeys(preference))
    if not rungs:
        raise UsageError("no_engine", "The goal names no engine.", hint="Name one with --engine.")
    for word in rungs:
        registry.kind_of(word)
    return Climb(asked=rungs[0], explicit=explicit is not None, rungs=rungs)


def after(climb: Climb, end: RungEnd, code: str = "") -> Climb:
    """The ladder after its current engine ended. UsageError `ladder_ended` when there is none."""
    engine = climb.current
    if engine is None:
        raise UsageError("ladder_ended", "The ladder has ended; no engine is being tried.")
    tried = (*climb.tried, Rung(engine=engine, end=end, code=code))
    steps = _steps_down(end, engine) and len(tried) < len(climb.rungs)
    return msgspec.structs.replace(climb, tried=tried, stopped=None if steps else end)


def _steps_down(end: RungEnd, engine: str) -> bool:
    match end:
        case RungEnd.ENGINE_UNAVAILABLE:
            return True
        case RungEnd.DECLINED:
            return registry.kind_of(engine) is registry.EngineKind.FOREMAN
        case RungEnd.RAN | RungEnd.CANCELLED | RungEnd.NEEDS_AUTH | RungEnd.BUDGET_EXHAUSTED:
            return False
        case _:
            assert_never(end)


def rung_end(end: HostEnd) -> RungEnd:
    """What a host's end means to the ladder. A limit or an outage of a host that started is not a step down."""
    if end.kind is HostEndKind.CANCELLED:
        return RungEnd.CANCELLED
    if end.auth_lapsed:
        return RungEnd.NEEDS_AUTH
    return RungEnd.ENGINE_UNAVAILABLE if end.kind is HostEndKind.NOT_STARTED else RungEnd.RAN
