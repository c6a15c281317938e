"""The facts that one should-run decision reads, gathered in one snapshot of the store (quota, "Should-run").

Values only, and small on purpose: the store answers each with an indexed query, so that a decision costs the same
with ten todos as with ten thousand.
"""

from __future__ import annotations

import enum

import msgspec

from loopx.control_plane.goal import GoalState
from loopx.control_plane.ids import AgentId, GateId, GoalId, TodoId
from loopx.control_plane.quota.policy import BudgetScope, BudgetUnit, QuotaPolicy


class Health(enum.StrEnum):
    OK = "ok"
    JOURNAL_BLOCKED = "journal_blocked"
    STORE_UNHEALTHY = "store_unhealthy"
    TREE_UNUSABLE = "tree_unusable"


class WaitKind(enum.StrEnum):
    """Why nothing may run before an instant; never counted as a failed attempt."""

    LIMIT = "limit"
    BACKOFF = "backoff"
    EXTERNAL_EVIDENCE = "external_evidence"


class PendingWait(msgspec.Struct, frozen=True, kw_only=True):
    """`until_ms` None: until outside evidence arrives."""

    kind: WaitKind
    until_ms: int | None = None
    detail: str = ""


class Breaker(enum.StrEnum):
    """The no-progress breaker or the hand-off floor: closed, open with a replan still to try, or tried in vain."""

    CLOSED = "closed"
    REPLAN_DUE = "replan_due"
    PERSON_DUE = "person_due"


class ContractState(enum.StrEnum):
    """The last evaluation of the goal's contract on the tree as it is."""

    GREEN = "green"
    RED = "red"
    UNKNOWN = "unknown"


class OpenGate(msgspec.Struct, frozen=True, kw_only=True):
    gate_id: GateId
    question: str
    blocks_goal: bool
    options: tuple[str, ...] = ()


class TodoRef(msgspec.Struct, frozen=True, kw_only=True):
    todo_id: TodoId
    title: str


class HeldTodo(msgspec.Struct, frozen=True, kw_only=True):
    """An otherwise ready todo whose write scope meets that of a todo which another agent works on."""

    todo_id: TodoId
    by_todo: TodoId
    by_agent: AgentId


class BudgetUse(msgspec.Struct, frozen=True, kw_only=True):
    """One budget's use in its own window: settled `used` plus what open turns `reserved`."""

    unit: BudgetUnit
    scope: BudgetScope
    limit: int
    used: int
    reserved: int = 0
    frees_at_ms: int | None = None
    window_ms: int | None = None
    estimated: int = 0
    """How much of `used` no engine reported: charged as a usual turn, or as all that the turn reserved."""


class CapabilityIntent(msgspec.Struct, frozen=True, kw_only=True):
    """A governed capability that an agent asked for. Well formed: a name and a command of its own."""

    intent_id: str
    goal_id: GoalId
    agent_id: AgentId
    capability: str
    command: tuple[str, ...]


class GoalFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the should-run decision may look at."""

    goal_id: GoalId
    agent_id: AgentId
    now_ms: int
    revision: int
    state: GoalState
    quota: QuotaPolicy
    spent_slots: int
    slot_frees_at_ms: int | None = None
    """The instant at which the rolling window frees a slot, when it is used up."""
    health: Health = Health.OK
    health_detail: str = ""
    budgets: tuple[BudgetUse, ...] = ()
    gates: tuple[OpenGate, ...] = ()
    """Open gates, at most a few; goal-wide ones first."""
    ready: TodoRef | None = None
    """The todo that would be selected: ready, not gated, no live lease of another agent."""
    held: HeldTodo | None = None
    """The most urgent todo that is not selected because it may write what another agent is writing."""
    ready_gated: bool = False
    """Some otherwise ready todo is hidden by a gate that is scoped to it."""
    open_todos: bool = False
    """Any todo that has not ended."""
    blocked_wake_at_ms: int | None = None
    """The earliest instant at which a blocked, deferred or leased todo can become ready."""
    blocked_without_wake: bool = False
    """Some todo is blocked or deferred and nothing that is known will ever wake it."""
    granted_capability: CapabilityIntent | None = None
    wait: PendingWait | None = None
    breaker: Breaker = Breaker.CLOSED
    floor_streak: int = 0
    """Delivered turns in a row that were `surface_only` or `outcome_gap`."""
    floor_replan_tried: bool = False
    missing_successors: tuple[TodoId, ...] = ()
    monitor_due: TodoRef | None = None
    contract: ContractState = ContractState.UNKNOWN
    next_occurrence_ms: int | None = None
    """The next instant of the goal's own cadence, when it has one."""
