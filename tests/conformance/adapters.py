"""Builds the product's real objects from one conformance case, calls the product, and returns what the case expects.

No rule of any table is repeated here: a case's words become values, and the product's answer becomes words again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from loopx.control_plane.canonical import canonical_json
from loopx.control_plane.ids import AgentId, GoalId, TodoId, TurnKey
from loopx.control_plane.quota.facts import CapabilityIntent, TodoRef
from loopx.control_plane.quota.states import QuotaState
from loopx.control_plane.quota.turn_envelope import EnvelopeAction, TurnEnvelope, UserChannel, sign
from loopx.control_plane.turn_driver.driver import LoopXTurnRoute, route_turn
from loopx.control_plane.turn_driver.loop_controller import (
    DispositionInputs,
    LoopRefusal,
    TurnBudget,
    ValidatedTurnReceipt,
    decide_loop_disposition,
)
from loopx.control_plane.turn_driver.transaction import (
    FAILURE_PHASE,
    PHASES,
    STEPS,
    STOP_RESULT_KINDS,
    TURN_RECEIPT_SCHEMA,
    HostRetry,
    LoopXTurnResultKind,
    ReceiptRoute,
    TurnReceipt,
    TurnRecovery,
    validate_receipt_json,
)
from loopx.control_plane.work_items.todo import Continuation, ContinuationKind
from loopx.loops.failure import ChecksVerdict, LoopEndFacts, WorkerEnd, classify_loop_end

Facts = Mapping[str, Any]

GOAL = GoalId("goal-1")
AGENT = AgentId("agent-1")
KEY = TurnKey("t-last")
TODO = TodoId("todo-1")
TODO_BY_WORD = {
    "same": TODO,
    "successor": TodoId("todo-successor"),
    "other": TodoId("todo-other"),
    "none": None,
}


def route(facts: Facts) -> str:
    """The route word for the facts of one envelope, spoilt after signing as they say."""
    envelope = TurnEnvelope(
        schema_version="loopx_turn_envelope_v0" if facts["schema_ok"] else "loopx_turn_envelope_v999",
        goal_id=GOAL,
        agent_id=AGENT,
        should_run=facts["should_run"],
        state=QuotaState.ELIGIBLE,
        effective_action=facts["effective_action"],
        reason="case",
        action=EnvelopeAction(
            recommended_action=facts["effective_action"],
            delivery_allowed=facts["delivery_allowed"],
            must_attempt=facts["must_attempt"],
            quiet_noop_allowed=facts["quiet_noop_allowed"],
            selected_todo=TodoRef(todo_id=TODO, title="a todo"),
            capability_intent=_intent(facts["capability_intent"]),
        ),
        user=UserChannel(action_required=facts["user_action_required"]),
    )
    return str(route_turn(_spoil(sign(envelope), facts["signature"])).route)


def _intent(word: str | None) -> CapabilityIntent | None:
    if word is None:
        return None
    return CapabilityIntent(
        intent_id="intent-1",
        goal_id=GoalId("goal-2") if word == "foreign_goal" else GOAL,
        agent_id=AgentId("agent-2") if word == "foreign_agent" else AGENT,
        capability="" if word == "no_capability" else "deploy",
        command=() if word == "no_command" else ("deploy", "--now"),
    )


def _spoil(envelope: TurnEnvelope, word: str) -> TurnEnvelope:
    replace = msgspec.structs.replace
    signature = envelope.action_signature
    assert signature is not None
    if word == "missing":
        return replace(envelope, action_signature=None)
    if word == "marked_unmatched":
        return replace(envelope, action_signature=replace(signature, matches=False))
    if word == "tampered_after_signing":
        return replace(envelope, reason=f"{envelope.reason} (edited)")
    assert word == "valid", word
    return envelope


def receipt(case: Facts) -> dict[str, Any]:
    """The validation report of one receipt, as the case's `expect` object."""
    raw = canonical_json(
        {
            "schema_version": TURN_RECEIPT_SCHEMA,
            "turn_key": KEY,
            "goal_id": GOAL,
            "agent_id": AGENT,
            "route": {"kind": "ready_for_host"},
            "result_kind": case["result_kind"],
            "completed_phases": case["completed_phases"],
            "failed_phase": case["failed_phase"],
            "payload": {},
        }
    )
    report: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(validate_receipt_json(raw, expected_turn_key=KEY)))
    return report


def disposition(facts: Facts) -> str:
    """The disposition word, or `reject:CODE` for a typed refusal."""
    inputs = DispositionInputs(
        envelope=_envelope_for_route(facts["route"], facts["user_gate"], TODO_BY_WORD[facts["selected"]]),
        receipt=_receipt_for(facts),
        predecessor_turn_key={"match": KEY, "different": TurnKey("t-other"), "missing": None}[facts["predecessor"]],
        budget={
            "available": TurnBudget(limit=24, used=3),
            "exhausted": TurnBudget(limit=24, used=24),
            "absent": None,
        }[facts["budget"]],
        frontier_terminal=facts["terminal_frontier"],
    )
    decided = decide_loop_disposition(inputs)
    return f"reject:{decided.code}" if isinstance(decided, LoopRefusal) else str(decided.disposition)


_RUNNING_ACTION = {
    LoopXTurnRoute.READY_FOR_HOST: "normal_run",
    LoopXTurnRoute.CAPABILITY_ACTION_REQUIRED: "governed_capability_intent",
    LoopXTurnRoute.REPAIR_REQUIRED: "self_repair",
    LoopXTurnRoute.REPLAN_REQUIRED: "autonomous_replan_required",
    LoopXTurnRoute.CONTRACT_ERROR: "",
}


def _envelope_for_route(word: str, user_gate: bool, selected: TodoId | None) -> TurnEnvelope:
    """A signed envelope that the driver sends down the named route (proved here by asking the driver)."""
    wanted = LoopXTurnRoute(word)
    should_run = wanted in _RUNNING_ACTION
    asks = user_gate or wanted is LoopXTurnRoute.USER_ACTION_REQUIRED
    envelope = sign(
        TurnEnvelope(
            goal_id=GOAL,
            agent_id=AGENT,
            should_run=should_run or wanted is LoopXTurnRoute.BLOCKED,
            state=QuotaState.ELIGIBLE,
            effective_action=_RUNNING_ACTION.get(wanted, "normal_run"),
            reason="case",
            action=EnvelopeAction(
                recommended_action="case",
                delivery_allowed=should_run,
                must_attempt=should_run,
                quiet_noop_allowed=wanted is LoopXTurnRoute.WAIT,
                selected_todo=None if selected is None else TodoRef(todo_id=selected, title="a todo"),
                capability_intent=_intent("valid"),
            ),
            user=UserChannel(action_required=asks),
        )
    )
    if not (user_gate and wanted is LoopXTurnRoute.WAIT):
        assert route_turn(envelope).route is wanted
    return envelope


def _receipt_for(facts: Facts) -> ValidatedTurnReceipt | None:
    if facts["receipt"] is None:
        return None
    kind = LoopXTurnResultKind(facts["receipt"])
    failed = FAILURE_PHASE.get(kind)
    if failed is not None:
        completed = PHASES[: STEPS.index(failed)]
    else:
        completed = PHASES[:2] if kind in STOP_RESULT_KINDS else PHASES
    return ValidatedTurnReceipt.from_execution(
        TurnReceipt(
            turn_key=KEY,
            goal_id=GOAL,
            agent_id=AGENT,
            todo_id=TODO,
            route=ReceiptRoute(kind=LoopXTurnRoute.READY_FOR_HOST),
            result_kind=kind,
            completed_phases=completed,
            failed_phase=failed,
            continuation=_continuation(facts),
            recovery=None if facts["recovery"] is None else TurnRecovery(facts["recovery"]),
            retry={
                "none": None,
                "available": HostRetry(retryable=True, attempts_left=1),
                "exhausted": HostRetry(retryable=True, attempts_left=0),
                "not_retryable": HostRetry(retryable=False, attempts_left=1),
            }[facts["host_retry"]],
        ),
        expected_turn_key=KEY,
    )


def _continuation(facts: Facts) -> Continuation | None:
    if facts["continuation"] is None:
        return None
    kind = ContinuationKind(facts["continuation"])
    declared = kind is ContinuationKind.SUCCESSOR or facts["selected"] == "successor"
    return Continuation(kind=kind, successors=(TodoId("todo-successor"),) if declared else ())


def quota(facts: Facts) -> str:
    """The quota state word of one goal."""
    from loopx.quota import quota_status

    goal = {
        "id": GOAL,
        "state": "stopped" if facts["goal_stopped"] else "active",
        "quota": {
            "compute": facts["compute"],
            "allowed_slots": facts["allowed_slots"],
            "spent_slots": facts["spent_slots"],
        },
    }
    status = quota_status(goal, facts["waiting_on"], severity=facts["severity"], focus_wait=facts["focus_wait"])
    return str(status["state"])


def loop_failure(facts: Facts) -> str | None:
    """The failure word of one ended loop, or None when it is green."""
    failure = classify_loop_end(
        LoopEndFacts(
            cancelled=facts["cancelled"],
            handed_over=facts["handed_over"],
            checks=ChecksVerdict(facts["checks"]),
            admitted=facts["admission"] == "ok",
            auth_lapsed=facts["auth"] == "lapsed",
            setup_ok=facts["setup"] == "ok",
            end=WorkerEnd(facts["end"]),
        )
    )
    return None if failure is None else str(failure)
