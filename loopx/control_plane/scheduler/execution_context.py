"""Which owner of a cadence is legal for which engine and way of running.

A goal has one owner at a time, so that no two clocks wake it. This room only says what is legal; the turn driver
refuses the rest (`contract_error`).
"""

from __future__ import annotations

import enum

import msgspec

from loopx.control_plane.scheduler.schedule import ScheduleOwner


class RunMode(enum.StrEnum):
    """How a turn comes to be run."""

    RUN = "run"
    """`loopx run`: a person's foreground loop."""
    WORKER = "worker"
    """`loopx worker`: a process that runs every due goal."""
    ONCE = "once"
    """`loopx turn run-once`: one governed turn, started by somebody else's clock or by hand."""
    EMBEDDED = "embedded"
    """A host's own automation wakes its agent, which asks LoopX and settles through it."""


class HostAutomation(enum.StrEnum):
    """Whether an engine can wake itself."""

    NONE = "none"
    OWN_AUTOMATION = "own_automation"


class OwnerRefusal(enum.StrEnum):
    """Why an owner is not legal."""

    OWNED_BY_OUTSIDE = "owned_by_outside"
    """The worker must not wake what another clock wakes."""
    OWNED_BY_LOOPX = "owned_by_loopx"
    """A host's automation must not wake what LoopX wakes."""
    HOST_HAS_NO_AUTOMATION = "host_has_no_automation"
    OWNED_BY_HOST = "owned_by_host"


class ExecutionContext(msgspec.Struct, frozen=True, kw_only=True):
    """Who owns the cadence, what the engine can do, how this turn is run."""

    owner: ScheduleOwner
    mode: RunMode
    automation: HostAutomation = HostAutomation.NONE


_SELF_WAKING = frozenset({"codex", "claude"})


def automation_of(engine: str) -> HostAutomation:
    """What an engine word says about waking itself; unknown words wake nothing."""
    family = engine.removeprefix("foreman:").removeprefix("external:")
    return HostAutomation.OWN_AUTOMATION if family in _SELF_WAKING else HostAutomation.NONE


def owner_refusal(context: ExecutionContext) -> OwnerRefusal | None:
    """Why this owner may not drive this turn; None when it is legal.

    A person's own `loopx run` and a turn run once are always legal but beside a host's automation: they are asked for
    by name, and the lease keeps them apart from whoever else is due.
    """
    if context.owner is ScheduleOwner.HOST:
        return _host_refusal(context)
    if context.mode is RunMode.EMBEDDED:
        return OwnerRefusal.OWNED_BY_LOOPX if context.owner is ScheduleOwner.LOOPX else OwnerRefusal.OWNED_BY_OUTSIDE
    if context.mode is RunMode.WORKER and context.owner is not ScheduleOwner.LOOPX:
        return OwnerRefusal.OWNED_BY_OUTSIDE
    return None


def _host_refusal(context: ExecutionContext) -> OwnerRefusal | None:
    if context.automation is HostAutomation.NONE:
        return OwnerRefusal.HOST_HAS_NO_AUTOMATION
    return OwnerRefusal.OWNED_BY_HOST if context.mode is RunMode.WORKER else None


def owner_is_legal(context: ExecutionContext) -> bool:
    """Whether this owner may drive this turn."""
    return owner_refusal(context) is None


def legal_owners(*, mode: RunMode, automation: HostAutomation) -> tuple[ScheduleOwner, ...]:
    """The owners that are legal for a way of running and an engine."""
    return tuple(
        owner
        for owner in ScheduleOwner
        if owner_is_legal(ExecutionContext(owner=owner, mode=mode, automation=automation))
    )
