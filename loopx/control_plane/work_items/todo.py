"""A todo: one slice of a goal. Values and pure rules only; the store selects and claims."""

from __future__ import annotations

import enum

import msgspec

from loopx.control_plane.ids import AgentId, GoalId, TodoId, TurnKey


class TaskClass(enum.StrEnum):
    """What kind of work a todo is: an advancement of the goal, a monitor (a probe, no host), or a person's."""

    ADVANCEMENT = "advancement"
    MONITOR = "monitor"
    USER = "user"
    REVIEW = "review"
    """Can't be completed by the agent that did the work which it reviews."""


class TodoStatus(enum.StrEnum):
    OPEN = "open"
    CLAIMED = "claimed"
    DONE = "done"
    BLOCKED = "blocked"
    DEFERRED = "deferred"
    SUPERSEDED = "superseded"


ENDED_TODO_STATUSES = frozenset({TodoStatus.DONE, TodoStatus.SUPERSEDED})

GOAL_ITSELF = "goal_itself"
"""The reason of a todo that stands for the goal itself; it gives way to the first slice of work that is named."""


class ContinuationKind(enum.StrEnum):
    """What a completion says about what follows (contracts, section 3)."""

    SUCCESSOR = "successor"
    ACTIVE_GOAL = "active_goal"
    NO_FOLLOWUP = "no_followup"


class Continuation(msgspec.Struct, frozen=True, kw_only=True):
    """`successors` is filled exactly when the kind is `successor`."""

    kind: ContinuationKind
    successors: tuple[TodoId, ...] = ()


class WakeKind(enum.StrEnum):
    """What ends a deferral."""

    INSTANT = "instant"
    TODO_DONE = "todo_done"
    PROBE = "probe"


class Wake(msgspec.Struct, frozen=True, kw_only=True):
    """A wake condition: exactly the field of its kind is set."""

    kind: WakeKind
    at_ms: int | None = None
    todo_id: TodoId | None = None
    probe: tuple[str, ...] = ()


class Monitor(msgspec.Struct, frozen=True, kw_only=True):
    """A probe of a monitor todo: a command whose output's hash is watched."""

    argv: tuple[str, ...]
    every_ms: int = 300_000
    timeout_s: int = 60
    last_hash: str | None = None
    unchanged: int = 0
    """Probes in a row that saw the same."""
    changes: int = 0
    """Probes in a row that each saw something else."""
    failures: int = 0
    """Probes in a row that could not look."""


class Todo(msgspec.Struct, frozen=True, kw_only=True):
    """One todo as the store holds it. A higher `priority` goes first; then the older id."""

    todo_id: TodoId
    goal_id: GoalId
    title: str
    body: str = ""
    task_class: TaskClass = TaskClass.ADVANCEMENT
    status: TodoStatus = TodoStatus.OPEN
    priority: int = 0
    depends_on: tuple[TodoId, ...] = ()
    checks: msgspec.Raw = msgspec.Raw(b"[]")
    write_scope: tuple[str, ...] = ()
    reviews: TodoId | None = None
    wake: Wake | None = None
    monitor: Monitor | None = None
    continuation: Continuation | None = None
    claimed_by: AgentId | None = None
    done_by: AgentId | None = None
    last_turn: TurnKey | None = None
    reason: str = ""
    created_at_ms: int = 0
    updated_at_ms: int = 0
