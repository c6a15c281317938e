"""The turn driver: one signed envelope in, one of eight routes out (contracts, section 2).

The route says what this turn may do, and `RouteReason` says why, so that each turn that did not run has an exact
reason. Pure: it starts nothing, and `contract_error` is a typed refusal, never an exception.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from loopx.control_plane.ids import AgentId, GoalId, TodoId
from loopx.control_plane.quota.turn_envelope import TURN_ENVELOPE_SCHEMA, TurnEnvelope, signature_holds


class LoopXTurnRoute(enum.StrEnum):
    """What a turn may do next."""

    READY_FOR_HOST = "ready_for_host"
    CAPABILITY_ACTION_REQUIRED = "capability_action_required"
    REPAIR_REQUIRED = "repair_required"
    REPLAN_REQUIRED = "replan_required"
    USER_ACTION_REQUIRED = "user_action_required"
    WAIT = "wait"
    BLOCKED = "blocked"
    CONTRACT_ERROR = "contract_error"


class RouteReason(enum.StrEnum):
    """Which condition of the table decided."""

    SCHEMA_UNSUPPORTED = "schema_unsupported"
    SIGNATURE_MISSING = "signature_missing"
    SIGNATURE_UNMATCHED = "signature_unmatched"
    HOST_BOUND_TO_OTHER_GOAL = "host_bound_to_other_goal"
    HOST_BOUND_TO_OTHER_AGENT = "host_bound_to_other_agent"
    HOST_BOUND_TO_OTHER_TODO = "host_bound_to_other_todo"
    SCHEDULER_OWNER_ILLEGAL = "scheduler_owner_illegal"
    DELIVERY_NOT_ALLOWED = "delivery_not_allowed"
    ATTEMPT_NOT_REQUIRED = "attempt_not_required"
    ACTION_EMPTY = "action_empty"
    CAPABILITY_INTENT_READY = "capability_intent_ready"
    CAPABILITY_INTENT_MISSING = "capability_intent_missing"
    CAPABILITY_INTENT_MALFORMED = "capability_intent_malformed"
    CAPABILITY_INTENT_FOREIGN = "capability_intent_foreign"
    REPLAN_ACTION = "replan_action"
    REPAIR_ACTION = "repair_action"
    DELIVERY_ACTION = "delivery_action"
    USER_ACTION = "user_action"
    QUIET_NOOP = "quiet_noop"
    NOTHING_ALLOWED = "nothing_allowed"


CAPABILITY_ACTION: Final = "governed_capability_intent"
REPLAN_ACTIONS: Final = frozenset({"autonomous_replan", "autonomous_replan_required", "successor_replan_required"})
REPAIR_ACTIONS: Final = frozenset(
    {
        "self_repair",
        "workspace_repair",
        "capability_repair",
        "projection_repair",
        "state_projection_repair",
        "control_plane_repair",
    }
)
_REPAIR_SUFFIXES: Final = ("_repair", "_repair_required")


class HostBinding(msgspec.Struct, frozen=True, kw_only=True):
    """What the host that would run the turn is bound to. None means "not bound"; a bound value must be the same.

    `scheduler_owner_legal`: whether the schedule's owner may drive this host (the scheduler's arbitration says so).
    """

    goal_id: GoalId | None = None
    agent_id: AgentId | None = None
    todo_id: TodoId | None = None
    scheduler_owner_legal: bool = True


class RouteDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The route and the condition that chose it."""

    route: LoopXTurnRoute
    reason: RouteReason


def route_turn(envelope: TurnEnvelope, binding: HostBinding | None = None) -> RouteDecision:
    """The route of one envelope; total, and the signature is recomputed here (contracts, section 2)."""
    violation = _envelope_violation(envelope) or _binding_violation(envelope, binding)
    if violation is not None:
        return RouteDecision(route=LoopXTurnRoute.CONTRACT_ERROR, reason=violation)
    return _run_route(envelope) if envelope.should_run else _idle_route(envelope)


def _envelope_violation(envelope: TurnEnvelope) -> RouteReason | None:
    if envelope.schema_version != TURN_ENVELOPE_SCHEMA:
        return RouteReason.SCHEMA_UNSUPPORTED
    if envelope.action_signature is None:
        return RouteReason.SIGNATURE_MISSING
    return None if signature_holds(envelope) else RouteReason.SIGNATURE_UNMATCHED


def _binding_violation(envelope: TurnEnvelope, binding: HostBinding | None) -> RouteReason | None:
    if binding is None:
        return None
    if binding.goal_id is not None and binding.goal_id != envelope.goal_id:
        return RouteReason.HOST_BOUND_TO_OTHER_GOAL
    if binding.agent_id is not None and binding.agent_id != envelope.agent_id:
        return RouteReason.HOST_BOUND_TO_OTHER_AGENT
    selected = envelope.action.selected_todo
    if binding.todo_id is not None and selected is not None and selected.todo_id != binding.todo_id:
        return RouteReason.HOST_BOUND_TO_OTHER_TODO
    return None if binding.scheduler_owner_legal else RouteReason.SCHEDULER_OWNER_ILLEGAL


def _run_route(envelope: TurnEnvelope) -> RouteDecision:
    action = envelope.effective_action
    if not envelope.action.delivery_allowed:
        return RouteDecision(route=LoopXTurnRoute.BLOCKED, reason=RouteReason.DELIVERY_NOT_ALLOWED)
    if not envelope.action.must_attempt:
        return RouteDecision(route=LoopXTurnRoute.BLOCKED, reason=RouteReason.ATTEMPT_NOT_REQUIRED)
    if not action.strip():
        return RouteDecision(route=LoopXTurnRoute.CONTRACT_ERROR, reason=RouteReason.ACTION_EMPTY)
    if action == CAPABILITY_ACTION:
        return _capability_route(envelope)
    if action in REPLAN_ACTIONS:
        return RouteDecision(route=LoopXTurnRoute.REPLAN_REQUIRED, reason=RouteReason.REPLAN_ACTION)
    if action in REPAIR_ACTIONS or action.endswith(_REPAIR_SUFFIXES):
        return RouteDecision(route=LoopXTurnRoute.REPAIR_REQUIRED, reason=RouteReason.REPAIR_ACTION)
    return RouteDecision(route=LoopXTurnRoute.READY_FOR_HOST, reason=RouteReason.DELIVERY_ACTION)


def _capability_route(envelope: TurnEnvelope) -> RouteDecision:
    intent = envelope.action.capability_intent
    if intent is None:
        reason = RouteReason.CAPABILITY_INTENT_MISSING
    elif not (intent.intent_id and intent.capability and intent.command and intent.command[0]):
        reason = RouteReason.CAPABILITY_INTENT_MALFORMED
    elif intent.goal_id != envelope.goal_id or intent.agent_id != envelope.agent_id:
        reason = RouteReason.CAPABILITY_INTENT_FOREIGN
    else:
        return RouteDecision(
            route=LoopXTurnRoute.CAPABILITY_ACTION_REQUIRED, reason=RouteReason.CAPABILITY_INTENT_READY
        )
    return RouteDecision(route=LoopXTurnRoute.CONTRACT_ERROR, reason=reason)


def _idle_route(envelope: TurnEnvelope) -> RouteDecision:
    if envelope.user.action_required:
        return RouteDecision(route=LoopXTurnRoute.USER_ACTION_REQUIRED, reason=RouteReason.USER_ACTION)
    if envelope.action.quiet_noop_allowed:
        return RouteDecision(route=LoopXTurnRoute.WAIT, reason=RouteReason.QUIET_NOOP)
    return RouteDecision(route=LoopXTurnRoute.BLOCKED, reason=RouteReason.NOTHING_ALLOWED)
