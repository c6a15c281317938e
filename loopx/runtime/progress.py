"""What a run tells while it goes: typed events, told to an observer as they happen.

The live view, the JSON lines of `loopx run --json` and the page are observers. Telling never fails a run, and nothing
here is a fact to decide on: the store is.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class GoalOpened(msgspec.Struct, frozen=True, kw_only=True, tag="goal"):
    """The goal that this run works on, and what bounds the run."""

    goal_id: str
    objective: str
    checks: int
    engine: str
    engine_version: str | None
    signed_in: str
    max_turns: int
    max_minutes: int
    created: bool
    model: str | None = None
    permission: str = "workspace"
    root: str = ""
    asked: str = ""
    """The engine that was asked for, where `engine` had to take its place."""


class CheckSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One check in a few numbers; `failed` and `total` count its parts where the runner told them."""

    name: str
    verdict: str
    failed: int | None = None
    total: int | None = None
    before_failed: int | None = None
    duration_ms: int = 0
    reason: str | None = None


class BaselineTaken(msgspec.Struct, frozen=True, kw_only=True, tag="baseline"):
    """The contract on the untouched tree. `gates_nothing`: all green already."""

    goal_id: str
    checks: tuple[CheckSummary, ...]
    gates_nothing: bool
    not_snapshotable: bool = False


class TurnOpened(msgspec.Struct, frozen=True, kw_only=True, tag="turn_started"):
    goal_id: str
    turn_key: str
    number: int
    purpose: str
    engine: str
    todo_id: str | None
    resumed_after: str | None = None
    """The last committed phase of a turn that was interrupted; None for a fresh turn."""
    completed: int = 0
    adopted: bool = False
    asked: str = ""
    """The engine that was asked for, where `engine` had to take its place."""


class AgentDid(msgspec.Struct, frozen=True, kw_only=True, tag="agent"):
    """One step of the agent's stream, in the common vocabulary. `text` is untrusted."""

    goal_id: str
    turn_key: str
    kind: str
    text: str = ""
    tool: str | None = None
    paths: tuple[str, ...] = ()


class CheckRuns(msgspec.Struct, frozen=True, kw_only=True, tag="check_started"):
    goal_id: str
    turn_key: str
    name: str


class CheckDone(msgspec.Struct, frozen=True, kw_only=True, tag="check"):
    goal_id: str
    turn_key: str
    check: CheckSummary
    snapshot: bool = False


class PhaseDone(msgspec.Struct, frozen=True, kw_only=True, tag="phase"):
    goal_id: str
    turn_key: str
    phase: str
    completed: int


class TurnEnded(msgspec.Struct, frozen=True, kw_only=True, tag="turn"):
    """A turn that closed, or that stays open with a failed phase."""

    goal_id: str
    turn_key: str
    number: int
    result_kind: str
    disposition: str | None
    slots: int
    checks: tuple[CheckSummary, ...]
    reason: str
    failure: str | None
    checkpoint: str | None
    wall_ms: int
    tokens: int | None
    cost_microusd: int | None
    edited: int
    tool_calls: int
    message: str
    findings: tuple[str, ...] = ()
    recurring: bool = False
    restored: tuple[str, ...] = ()
    failed_phase: str | None = None
    continuation: str | None = None
    confirmed_in_snapshot: bool = False
    gate_id: str | None = None


class Waiting(msgspec.Struct, frozen=True, kw_only=True, tag="waiting"):
    """The run sleeps; `until_ms` None: until a person or an event."""

    goal_id: str
    state: str
    action: str
    reason: str
    until_ms: int | None


class Disposed(msgspec.Struct, frozen=True, kw_only=True, tag="disposition"):
    """What the loop does next, and the rule that chose it."""

    goal_id: str
    disposition: str
    route: str
    reason: str


class Slept(msgspec.Struct, frozen=True, kw_only=True, tag="slept"):
    """The machine slept, or its clock jumped; leases and deadlines are read again."""

    goal_id: str
    jump_ms: int


class RunEnded(msgspec.Struct, frozen=True, kw_only=True, tag="result"):
    """The last word of a run."""

    goal_id: str
    disposition: str
    result_kind: str | None
    turns: int
    spent_slots: int
    checks: tuple[CheckSummary, ...]
    failure: str | None
    exit_code: int
    goal_state: str = "active"
    reason: str = ""
    total_turns: int = 0
    tokens: int | None = None
    cost_microusd: int | None = None
    wall_ms: int = 0
    branch: str | None = None
    next_command: tuple[str, ...] = ()
    gate_id: str | None = None
    question: str | None = None
    fix: str = ""
    """What a person runs to mend what is asked about, where that is known."""


ProgressEvent = (
    GoalOpened
    | BaselineTaken
    | TurnOpened
    | AgentDid
    | CheckRuns
    | CheckDone
    | PhaseDone
    | TurnEnded
    | Waiting
    | Disposed
    | Slept
    | RunEnded
)


class Observer(Protocol):
    """Hears what happens. It must return fast and must not raise."""

    def __call__(self, event: ProgressEvent, /) -> None: ...


def silent(event: ProgressEvent, /) -> None:
    """Hears nothing."""
