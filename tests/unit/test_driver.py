"""The route table, over its whole space (contracts, section 2)."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopx.control_plane.ids import AgentId, GoalId, TodoId
from loopx.control_plane.quota.facts import CapabilityIntent, TodoRef
from loopx.control_plane.quota.states import QuotaState
from loopx.control_plane.quota.turn_envelope import EnvelopeAction, TurnEnvelope, UserChannel, sign
from loopx.control_plane.turn_driver.driver import (
    REPAIR_ACTIONS,
    REPLAN_ACTIONS,
    HostBinding,
    LoopXTurnRoute,
    RouteReason,
    route_turn,
)

GOAL, AGENT, TODO = GoalId("g"), AgentId("a"), TodoId("t")
INTENT = CapabilityIntent(intent_id="i", goal_id=GOAL, agent_id=AGENT, capability="deploy", command=("deploy",))


def envelope(
    *,
    should_run: bool = True,
    deliver: bool = True,
    must: bool = True,
    quiet: bool = False,
    user: bool = False,
    action: str = "normal_run",
    todo: TodoId | None = TODO,
    intent: CapabilityIntent | None = None,
) -> TurnEnvelope:
    return sign(
        TurnEnvelope(
            goal_id=GOAL,
            agent_id=AGENT,
            should_run=should_run,
            state=QuotaState.ELIGIBLE,
            effective_action=action,
            reason="",
            action=EnvelopeAction(
                recommended_action=action,
                delivery_allowed=deliver,
                must_attempt=must,
                quiet_noop_allowed=quiet,
                selected_todo=None if todo is None else TodoRef(todo_id=todo, title=""),
                capability_intent=intent,
            ),
            user=UserChannel(action_required=user),
        )
    )


def test_there_are_eight_routes() -> None:
    assert len(LoopXTurnRoute) == 8


@pytest.mark.parametrize("action", sorted(REPLAN_ACTIONS))
def test_replan_actions(action: str) -> None:
    assert route_turn(envelope(action=action, todo=None)).route is LoopXTurnRoute.REPLAN_REQUIRED


@pytest.mark.parametrize("action", [*sorted(REPAIR_ACTIONS), "new_thing_repair", "new_thing_repair_required"])
def test_repair_actions(action: str) -> None:
    assert route_turn(envelope(action=action)).route is LoopXTurnRoute.REPAIR_REQUIRED


def test_every_repair_action_is_covered_by_the_suffix_rule() -> None:
    assert all(action.endswith(("_repair", "_repair_required")) for action in REPAIR_ACTIONS)


@pytest.mark.parametrize("action", ["normal_run", "scoped_gate_fallback", "something_newer"])
def test_any_other_action_goes_to_the_host(action: str) -> None:
    assert route_turn(envelope(action=action)).route is LoopXTurnRoute.READY_FOR_HOST


@pytest.mark.parametrize("action", ["", "   "])
def test_an_empty_action_is_a_contract_error(action: str) -> None:
    decision = route_turn(envelope(action=action))
    assert (decision.route, decision.reason) == (LoopXTurnRoute.CONTRACT_ERROR, RouteReason.ACTION_EMPTY)


replace = msgspec.structs.replace


@pytest.mark.parametrize(
    ("intent", "reason"),
    [
        (None, RouteReason.CAPABILITY_INTENT_MISSING),
        (replace(INTENT, command=()), RouteReason.CAPABILITY_INTENT_MALFORMED),
        (replace(INTENT, command=("",)), RouteReason.CAPABILITY_INTENT_MALFORMED),
        (replace(INTENT, capability=""), RouteReason.CAPABILITY_INTENT_MALFORMED),
        (replace(INTENT, goal_id=GoalId("other")), RouteReason.CAPABILITY_INTENT_FOREIGN),
        (replace(INTENT, agent_id=AgentId("other")), RouteReason.CAPABILITY_INTENT_FOREIGN),
    ],
)
def test_a_capability_intent_that_is_not_this_goals_is_refused(
    intent: CapabilityIntent | None, reason: RouteReason
) -> None:
    decision = route_turn(envelope(action="governed_capability_intent", intent=intent))
    assert (decision.route, decision.reason) == (LoopXTurnRoute.CONTRACT_ERROR, reason)


def test_a_good_capability_intent_is_acted_on() -> None:
    decision = route_turn(envelope(action="governed_capability_intent", intent=INTENT))
    assert decision.route is LoopXTurnRoute.CAPABILITY_ACTION_REQUIRED


@pytest.mark.parametrize(
    ("binding", "reason"),
    [
        (HostBinding(goal_id=GoalId("other")), RouteReason.HOST_BOUND_TO_OTHER_GOAL),
        (HostBinding(agent_id=AgentId("other")), RouteReason.HOST_BOUND_TO_OTHER_AGENT),
        (HostBinding(todo_id=TodoId("other")), RouteReason.HOST_BOUND_TO_OTHER_TODO),
        (HostBinding(scheduler_owner_legal=False), RouteReason.SCHEDULER_OWNER_ILLEGAL),
    ],
)
def test_a_host_bound_elsewhere_is_a_contract_error(binding: HostBinding, reason: RouteReason) -> None:
    decision = route_turn(envelope(), binding)
    assert (decision.route, decision.reason) == (LoopXTurnRoute.CONTRACT_ERROR, reason)


def test_a_host_bound_to_the_same_is_fine_and_a_replan_needs_no_todo() -> None:
    bound = HostBinding(goal_id=GOAL, agent_id=AGENT, todo_id=TODO)
    assert route_turn(envelope(), bound).route is LoopXTurnRoute.READY_FOR_HOST
    replan = envelope(action="autonomous_replan", todo=None)
    assert route_turn(replan, bound).route is LoopXTurnRoute.REPLAN_REQUIRED


def test_a_spoilt_envelope_is_refused_with_its_reason_before_anything_else() -> None:
    good = envelope()
    signature = good.action_signature
    assert signature is not None
    spoilt = {
        RouteReason.SCHEMA_UNSUPPORTED: sign(replace(good, schema_version="loopx_turn_envelope_v1")),
        RouteReason.SIGNATURE_MISSING: replace(good, action_signature=None),
        RouteReason.SIGNATURE_UNMATCHED: replace(good, reason="edited"),
    }
    for reason, bad in spoilt.items():
        decision = route_turn(bad, HostBinding(goal_id=GoalId("other")))
        assert (decision.route, decision.reason) == (LoopXTurnRoute.CONTRACT_ERROR, reason)


def _expected(run: bool, deliver: bool, must: bool, quiet: bool, user: bool) -> LoopXTurnRoute:
    if run:
        return LoopXTurnRoute.READY_FOR_HOST if deliver and must else LoopXTurnRoute.BLOCKED
    if user:
        return LoopXTurnRoute.USER_ACTION_REQUIRED
    return LoopXTurnRoute.WAIT if quiet else LoopXTurnRoute.BLOCKED


@pytest.mark.parametrize("flags", list(itertools.product([True, False], repeat=5)))
def test_every_combination_of_flags(flags: tuple[bool, bool, bool, bool, bool]) -> None:
    run, deliver, must, quiet, user = flags
    made = envelope(should_run=run, deliver=deliver, must=must, quiet=quiet, user=user)
    assert route_turn(made).route is _expected(*flags)


@given(st.text(), st.booleans(), st.booleans(), st.booleans())
def test_only_should_run_can_reach_a_host(action: str, deliver: bool, must: bool, user: bool) -> None:
    idle = route_turn(envelope(should_run=False, action=action, deliver=deliver, must=must, user=user))
    assert idle.route in {LoopXTurnRoute.USER_ACTION_REQUIRED, LoopXTurnRoute.BLOCKED}
