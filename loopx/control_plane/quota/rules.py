"""The should-run table as data (quota, "Should-run in five steps"): conditions over the facts, and what each row emits.

The order is the specification: the first row whose condition holds decides. This room says which row; `decision.py`
makes the answer of it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec

from loopx.control_plane.goal import CLOSED_GOAL_STATES, GoalState
from loopx.control_plane.quota import plan
from loopx.control_plane.quota.facts import Breaker, BudgetUse, ContractState, GoalFacts, Health
from loopx.control_plane.quota.policy import BudgetScope
from loopx.control_plane.quota.states import QuotaState, WaitingOn


class EffectiveAction(enum.StrEnum):
    """What LoopX itself emits; closed."""

    TERMINAL_NO_FOLLOWUP = "terminal_no_followup"
    PAUSED = "paused"
    CONTROL_PLANE_REPAIR = "control_plane_repair"
    WORKSPACE_REPAIR = "workspace_repair"
    THROTTLED_SKIP = "throttled_skip"
    USER_ACTION = "user_action"
    GOVERNED_CAPABILITY_INTENT = "governed_capability_intent"
    EXTERNAL_EVIDENCE_WAIT = "external_evidence_wait"
    AUTONOMOUS_REPLAN_REQUIRED = "autonomous_replan_required"
    SUCCESSOR_REPLAN_REQUIRED = "successor_replan_required"
    MONITOR_DUE = "monitor_due"
    SCOPED_GATE_FALLBACK = "scoped_gate_fallback"
    NORMAL_RUN = "normal_run"
    BLOCKED_WAIT = "blocked_wait"


class Rule(enum.StrEnum):
    """Which row of the table decided; in the table's order."""

    GOAL_CLOSED = "goal_closed"
    GOAL_PAUSED = "goal_paused"
    STORE_UNHEALTHY = "store_unhealthy"
    TREE_UNUSABLE = "tree_unusable"
    ABSOLUTE_CAP = "absolute_cap"
    GATE_BLOCKS = "gate_blocks"
    CAPABILITY_GRANTED = "capability_granted"
    WINDOW_USED_UP = "window_used_up"
    WAIT_PENDING = "wait_pending"
    REPLAN_UNTRIED = "replan_untried"
    REPLAN_IN_VAIN = "replan_in_vain"
    SUCCESSOR_MISSING = "successor_missing"
    MONITOR_DUE = "monitor_due"
    READY_SOME_GATED = "ready_some_gated"
    READY = "ready"
    GOAL_IS_THE_WORK = "goal_is_the_work"
    BLOCKED_WITH_WAKE = "blocked_with_wake"
    GATE_LEFT = "gate_left"
    BLOCKED_WITHOUT_WAKE = "blocked_without_wake"
    NOTHING_LEFT = "nothing_left"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table: a condition and what it emits. `run` stands for should_run, deliver and must alike."""

    rule: Rule
    when: Callable[[GoalFacts], bool]
    state: QuotaState
    action: EffectiveAction
    run: bool = False
    quiet: bool = False
    user: bool = False
    waiting_on: WaitingOn | None = None


def first_match(facts: GoalFacts) -> Row:
    """The row that decides. Total: the last row matches whatever no other did."""
    return next(row for row in TABLE if row.when(facts))


def caps_reached(facts: GoalFacts) -> tuple[BudgetUse, ...]:
    """The goal budgets whose settled use is at their limit: absolute, only a person raises them."""
    return tuple(use for use in facts.budgets if use.scope is BudgetScope.GOAL and use.used >= use.limit)


def budgets_full(facts: GoalFacts) -> tuple[BudgetUse, ...]:
    """The budgets that admit nothing now but will by themselves: a full window, or reserved by open turns."""
    return tuple(
        use for use in facts.budgets if use.scope is not BudgetScope.TURN and use.used + use.reserved >= use.limit
    )


def floor_unmet(facts: GoalFacts) -> bool:
    """The hand-off outcome floor is not met, and it is the agent's move (work that it could start now)."""
    return facts.floor_streak >= facts.quota.outcome_floor and _agent_to_move(facts)


def nothing_left(facts: GoalFacts) -> bool:
    """No work of any kind, and the contract is green: what is left is the closeout."""
    return not (
        facts.open_todos
        or facts.ready is not None
        or facts.gates
        or facts.missing_successors
        or facts.monitor_due is not None
        or facts.contract is not ContractState.GREEN
    )


def _agent_to_move(facts: GoalFacts) -> bool:
    return facts.ready is not None or bool(facts.missing_successors) or _goal_is_the_work(facts)


def _goal_is_the_work(facts: GoalFacts) -> bool:
    # A contract that was never evaluated gates like a red one: LoopX does not call a goal done on no evidence.
    return facts.ready is None and not facts.open_todos and facts.contract is not ContractState.GREEN


def _gate_blocks(facts: GoalFacts) -> bool:
    return any(gate.blocks_goal for gate in facts.gates) or (facts.ready is None and facts.ready_gated)


def _paused(facts: GoalFacts) -> bool:
    return facts.state in (GoalState.PAUSED, GoalState.STOPPED) or facts.quota.compute <= 0


def _store_unhealthy(facts: GoalFacts) -> bool:
    return facts.health in (Health.JOURNAL_BLOCKED, Health.STORE_UNHEALTHY)


def _window_used_up(facts: GoalFacts) -> bool:
    return facts.spent_slots >= plan.allowed_slots(facts.quota) or bool(budgets_full(facts))


def _wait_pending(facts: GoalFacts) -> bool:
    return facts.wait is not None and (facts.wait.until_ms is None or facts.wait.until_ms > facts.now_ms)


def stuck(facts: GoalFacts) -> bool:
    return floor_unmet(facts) or (facts.breaker is not Breaker.CLOSED and not nothing_left(facts))


def _replan_in_vain(facts: GoalFacts) -> bool:
    return stuck(facts) and (facts.breaker is Breaker.PERSON_DUE or (floor_unmet(facts) and facts.floor_replan_tried))


def _replan_untried(facts: GoalFacts) -> bool:
    return stuck(facts) and not _replan_in_vain(facts)


def _blocked_with_wake(facts: GoalFacts) -> bool:
    return facts.blocked_wake_at_ms is not None and facts.ready is None


TABLE: tuple[Row, ...] = (
    Row(
        rule=Rule.GOAL_CLOSED,
        when=lambda facts: facts.state in CLOSED_GOAL_STATES,
        state=QuotaState.PAUSED,
        action=EffectiveAction.TERMINAL_NO_FOLLOWUP,
        quiet=True,
    ),
    Row(
        rule=Rule.GOAL_PAUSED,
        when=_paused,
        state=QuotaState.PAUSED,
        action=EffectiveAction.PAUSED,
        quiet=True,
    ),
    Row(
        rule=Rule.STORE_UNHEALTHY,
        when=_store_unhealthy,
        state=QuotaState.BLOCKED_HEALTH,
        action=EffectiveAction.CONTROL_PLANE_REPAIR,
        user=True,
        waiting_on=WaitingOn.USER_OR_CONTROLLER,
    ),
    Row(
        rule=Rule.TREE_UNUSABLE,
        when=lambda facts: facts.health is Health.TREE_UNUSABLE,
        state=QuotaState.BLOCKED_HEALTH,
        action=EffectiveAction.WORKSPACE_REPAIR,
        user=True,
        waiting_on=WaitingOn.USER_OR_CONTROLLER,
    ),
    Row(
        rule=Rule.ABSOLUTE_CAP,
        when=lambda facts: bool(caps_reached(facts)),
        state=QuotaState.THROTTLED,
        action=EffectiveAction.THROTTLED_SKIP,
        user=True,
        waiting_on=WaitingOn.USER_OR_CONTROLLER,
    ),
    Row(
        rule=Rule.GATE_BLOCKS,
        when=_gate_blocks,
        state=QuotaState.OPERATOR_GATE,
        action=EffectiveAction.USER_ACTION,
        user=True,
        waiting_on=WaitingOn.USER_OR_CONTROLLER,
    ),
    Row(
        rule=Rule.CAPABILITY_GRANTED,
        when=lambda facts: facts.granted_capability is not None,
        state=QuotaState.ELIGIBLE,
        action=EffectiveAction.GOVERNED_CAPABILITY_INTENT,
        run=True,
        waiting_on=WaitingOn.AGENT,
    ),
    Row(
        rule=Rule.WINDOW_USED_UP,
        when=_window_used_up,
        state=QuotaState.THROTTLED,
        action=EffectiveAction.THROTTLED_SKIP,
        quiet=True,
        waiting_on=WaitingOn.AGENT,
    ),
    Row(
        rule=Rule.WAIT_PENDING,
        when=_wait_pending,
        state=QuotaState.WAITING,
        action=EffectiveAction.EXTERNAL_EVIDENCE_WAIT,
        quiet=True,
        waiting_on=WaitingOn.EXTERNAL_EVIDENCE,
    ),
    Row(
        rule=Rule.REPLAN_UNTRIED,
        when=_replan_untried,
        state=QuotaState.FOCUS_WAIT,
        action=EffectiveAction.AUTONOMOUS_REPLAN_REQUIRED,
        run=True,
        waiting_on=WaitingOn.AGENT,
    ),
    Row(
        rule=Rule.REPLAN_IN_VAIN,
        when=_replan_in_vain,
        state=QuotaState.FOCUS_WAIT,
        action=EffectiveAction.USER_ACTION,
        user=True,
        waiting_on=WaitingOn.AGENT,
    ),
    Row(
        rule=Rule.SUCCESSOR_MISSING,
        when=lambda facts: bool(facts.missing_successors),
        state=QuotaState.ELIGIBLE,
        action=EffectiveAction.SUCCESSOR_REPLAN_REQUIRED,
        run=True,
        waiting_on=WaitingOn.AGENT,
    ),
    Row(
        rule=Rule.MONITOR_DUE,
        when=lambda facts: facts.monitor_due is not None,
        state=QuotaState.WAITING,
        action=EffectiveAction.MONITOR_DUE,
        quiet=True,
        waiting_on=WaitingOn.MONITOR,
    ),
    Row(
        rule=Rule.READY_SOME_GATED,
        when=lambda facts: facts.ready is not None and facts.ready_gated,
        state=QuotaState.ELIGIBLE,
        action=EffectiveAction.SCOPED_GATE_FALLBACK,
        run=True,
        waiting_on=WaitingOn.AGENT,
    ),
    Row(
        rule=Rule.READY,
        when=lambda facts: facts.ready is not None,
        state=QuotaState.ELIGIBLE,
        action=EffectiveAction.NORMAL_RUN,
        run=True,
        waiting_on=WaitingOn.AGENT,
    ),
    Row(
        rule=Rule.GOAL_IS_THE_WORK,
        when=_goal_is_the_work,
        state=QuotaState.ELIGIBLE,
        action=EffectiveAction.NORMAL_RUN,
        run=True,
        waiting_on=WaitingOn.AGENT,
    ),
    Row(
        rule=Rule.BLOCKED_WITH_WAKE,
        when=_blocked_with_wake,
        state=QuotaState.WAITING,
        action=EffectiveAction.BLOCKED_WAIT,
        quiet=True,
    ),
    # From here on the facts would leave the goal silent for ever; each row names who can still move it.
    Row(
        rule=Rule.GATE_LEFT,
        when=lambda facts: bool(facts.gates),
        state=QuotaState.OPERATOR_GATE,
        action=EffectiveAction.USER_ACTION,
        user=True,
        waiting_on=WaitingOn.USER_OR_CONTROLLER,
    ),
    Row(
        rule=Rule.BLOCKED_WITHOUT_WAKE,
        when=lambda facts: facts.open_todos or facts.blocked_without_wake,
        state=QuotaState.ELIGIBLE,
        action=EffectiveAction.AUTONOMOUS_REPLAN_REQUIRED,
        run=True,
        waiting_on=WaitingOn.AGENT,
    ),
    Row(
        rule=Rule.NOTHING_LEFT,
        when=lambda facts: True,
        state=QuotaState.ELIGIBLE,
        action=EffectiveAction.TERMINAL_NO_FOLLOWUP,
        quiet=True,
        waiting_on=WaitingOn.AGENT,
    ),
)
