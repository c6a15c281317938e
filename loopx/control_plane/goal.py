"""A goal as values: objective, policies, boundary and state. Decides nothing about turns and reads no store."""

from __future__ import annotations

import enum

import msgspec

from loopx.control_plane.ids import GoalId
from loopx.control_plane.quota.policy import Budget, QuotaPolicy


class GoalState(enum.StrEnum):
    """Where a goal is in its life; `completed` and `cancelled` are one-way until an explicit `goal reopen`."""

    ACTIVE = "active"
    PAUSED = "paused"
    STOPPED = "stopped"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


CLOSED_GOAL_STATES = frozenset({GoalState.COMPLETED, GoalState.CANCELLED})


class TreeMode(enum.StrEnum):
    """Where the agent works (loops, "Where the agent works")."""

    IN_PLACE = "in_place"
    WORKTREE = "worktree"


class Permission(enum.StrEnum):
    """What an engine may do without asking; `bypass` is shown in `status`."""

    READ_ONLY = "read_only"
    WORKSPACE = "workspace"
    BYPASS = "bypass"


class Boundary(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn may touch: globs relative to the work tree. An empty write scope is the whole tree."""

    write_scope: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()


class GoalDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """What a person wrote. Every edit makes a new revision; a turn records the revision that it ran under.

    `contract` is the encoded outcome contract (its own room owns its meaning). `engines` are in order of preference;
    only the first is used unless `fallback` allows the others.
    """

    objective: str
    contract: msgspec.Raw = msgspec.Raw(b"{}")
    engines: tuple[str, ...] = ()
    fallback: bool = False
    model: str | None = None
    permission: Permission = Permission.WORKSPACE
    quota: QuotaPolicy = QuotaPolicy()
    budgets: tuple[Budget, ...] = ()
    boundary: Boundary = Boundary()
    tree_mode: TreeMode = TreeMode.IN_PLACE
    setup: tuple[str, ...] = ()
    """A command that prepares a fresh worktree."""
    replan_preview: bool = False
    """A person confirms each replan delta."""
    breaker_threshold: int = 3
    """Turns in a row without any change of tree, checks or evidence before the breaker opens."""
    turn_timeout_s: int = 3600


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """One goal as the store holds it. `run_index` counts ledger entries; `event_head` heads the hash chain."""

    goal_id: GoalId
    state: GoalState
    revision: int
    definition: GoalDefinition
    root: str
    """Absolute path of the work tree that the goal belongs to."""
    run_index: int
    created_at_ms: int
    updated_at_ms: int
