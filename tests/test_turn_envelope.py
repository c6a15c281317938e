"""The turn envelope: every field is signed, the hash is recomputed, and reading is strict (contracts, section 1)."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopx.control_plane.errors import UsageError
from loopx.control_plane.goal import Boundary, GoalState
from loopx.control_plane.ids import AgentId, GateId, GoalId, TodoId
from loopx.control_plane.quota.decision import decide
from loopx.control_plane.quota.facts import (
    Breaker,
    CapabilityIntent,
    GoalFacts,
    OpenGate,
    TodoRef,
)
from loopx.control_plane.quota.policy import QuotaPolicy
from loopx.control_plane.quota.states import QuotaState
from loopx.control_plane.quota.turn_envelope import (
    EnvelopeAction,
    EnvelopeScheduler,
    TurnEnvelope,
    UserAction,
    UserChannel,
    decode_envelope,
    encode_envelope,
    envelope_from_decision,
    envelope_hash,
    sign,
    signature_holds,
)
from loopx.control_plane.turn_driver.driver import LoopXTurnRoute, route_turn

GOAL, AGENT = GoalId("goal-1"), AgentId("agent-1")

FULL = sign(
    TurnEnvelope(
        goal_id=GOAL,
        agent_id=AGENT,
        should_run=True,
        state=QuotaState.ELIGIBLE,
        effective_action="governed_capability_intent",
        reason="1 compute quota",
        action=EnvelopeAction(
            recommended_action="governed_capability_intent",
            delivery_allowed=True,
            must_attempt=True,
            quiet_noop_allowed=False,
            selected_todo=TodoRef(todo_id=TodoId("todo-1"), title="fix the parser"),
            capability_intent=CapabilityIntent(
                intent_id="i-1", goal_id=GOAL, agent_id=AGENT, capability="deploy", command=("deploy", "--now")
            ),
        ),
        user=UserChannel(
            action_required=False,
            notify=True,
            actions=(UserAction(question="Drop v1?", gate_id="g-1", options=("yes", "no")),),
        ),
        boundary=Boundary(write_scope=("src/**",), protected=("tests/**",)),
        scheduler=EnvelopeScheduler(owner="loopx", revision=3, wake_after_ms=1_000),
    )
)


def _leaves(node: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    if isinstance(node, dict):
        return [leaf for key, value in node.items() for leaf in _leaves(value, (*path, key))]
    if isinstance(node, list):
        return [leaf for index, value in enumerate(node) for leaf in _leaves(value, (*path, index))]
    return [path]


def _edited(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return f"{value}x"
    raise AssertionError(value)


def _edit(document: Any, path: tuple[str | int, ...], value: Any) -> bytes:
    document = copy.deepcopy(document)
    node = document
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    return json.dumps(document).encode()


def _refused(raw: bytes) -> bool:
    """Refused by the strict reader, or by the driver."""
    try:
        envelope = decode_envelope(raw)
    except UsageError:
        return True
    return route_turn(envelope).route is LoopXTurnRoute.CONTRACT_ERROR


DOCUMENT = json.loads(encode_envelope(FULL))


def test_a_signed_envelope_survives_the_wire_and_holds() -> None:
    again = decode_envelope(encode_envelope(FULL))
    assert again == FULL
    assert signature_holds(again)
    assert route_turn(again).route is LoopXTurnRoute.CAPABILITY_ACTION_REQUIRED


@pytest.mark.parametrize("path", _leaves(DOCUMENT), ids=lambda path: ".".join(map(str, path)))
def test_an_edit_of_any_field_is_refused(path: tuple[str | int, ...]) -> None:
    node = DOCUMENT
    for step in path:
        node = node[step]
    assert _refused(_edit(DOCUMENT, path, _edited(node)))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("action", "selected_todo"), None),
        (("action", "capability_intent"), None),
        (("action", "capability_intent", "command"), ["deploy", "--now", "--force"]),
        (("boundary", "write_scope"), []),
        (("boundary", "protected"), []),
        (("user", "actions"), []),
        (("user", "actions", 0, "options"), ["yes"]),
        (("scheduler", "wake_after_ms"), None),
        (("action_signature",), None),
    ],
)
def test_a_field_that_is_emptied_or_widened_is_refused(path: tuple[str | int, ...], value: Any) -> None:
    assert _refused(_edit(DOCUMENT, path, value))


def test_a_forged_pair_of_equal_hashes_is_recomputed_not_compared_with_itself() -> None:
    signature = FULL.action_signature
    assert signature is not None
    forged = msgspec.structs.replace(
        msgspec.structs.replace(FULL, boundary=Boundary()),
        action_signature=msgspec.structs.replace(signature, source_hash="f" * 64, envelope_hash="f" * 64),
    )
    assert not signature_holds(forged)
    assert route_turn(forged).route is LoopXTurnRoute.CONTRACT_ERROR


words = st.text(max_size=12)
todos = st.none() | st.builds(TodoRef, todo_id=words.map(TodoId), title=words)
envelopes = st.builds(
    TurnEnvelope,
    goal_id=words.map(GoalId),
    agent_id=words.map(AgentId),
    should_run=st.booleans(),
    state=st.sampled_from(QuotaState),
    effective_action=words,
    reason=words,
    action=st.builds(
        EnvelopeAction,
        recommended_action=words,
        delivery_allowed=st.booleans(),
        must_attempt=st.booleans(),
        quiet_noop_allowed=st.booleans(),
        selected_todo=todos,
    ),
    user=st.builds(UserChannel, action_required=st.booleans(), notify=st.booleans()),
    boundary=st.builds(Boundary, write_scope=st.lists(words, max_size=2).map(tuple)),
    scheduler=st.builds(EnvelopeScheduler, revision=st.integers(0, 9), wake_after_ms=st.none() | st.integers(0, 9)),
)


@given(first=envelopes, second=envelopes)
def test_a_signature_fits_one_envelope_only(first: TurnEnvelope, second: TurnEnvelope) -> None:
    signed = sign(first)
    assert signature_holds(signed)
    assert sign(signed) == signed
    moved = msgspec.structs.replace(second, action_signature=signed.action_signature)
    assert signature_holds(moved) == (first == second)
    assert (envelope_hash(first) == envelope_hash(second)) == (first == second)


@given(envelopes)
def test_the_wire_form_reads_back_unchanged(envelope: TurnEnvelope) -> None:
    assert decode_envelope(encode_envelope(sign(envelope))) == sign(envelope)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"not json",
        b"[]",
        b"{}",
        b"\xff\xfe",
        json.dumps({**DOCUMENT, "extra": 1}).encode(),
        json.dumps({**DOCUMENT, "should_run": "yes"}).encode(),
        json.dumps({**DOCUMENT, "state": "made_up"}).encode(),
        json.dumps({key: value for key, value in DOCUMENT.items() if key != "goal_id"}).encode(),
    ],
)
def test_a_malformed_envelope_is_a_usage_error(raw: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        decode_envelope(raw)
    assert caught.value.code == "envelope_malformed"
    assert caught.value.hint


def test_an_envelope_of_another_schema_is_named_as_such() -> None:
    with pytest.raises(UsageError) as caught:
        decode_envelope(json.dumps({**DOCUMENT, "schema_version": "loopx_turn_envelope_v9", "new": 1}))
    assert caught.value.code == "envelope_schema_unsupported"
    assert "loopx_turn_envelope_v9" in caught.value.message


def _facts(**changes: Any) -> GoalFacts:
    base = GoalFacts(
        goal_id=GOAL,
        agent_id=AGENT,
        now_ms=1_000_000,
        revision=1,
        state=GoalState.ACTIVE,
        quota=QuotaPolicy(),
        spent_slots=0,
        ready=TodoRef(todo_id=TodoId("todo-1"), title="fix"),
        open_todos=True,
    )
    return msgspec.structs.replace(base, **changes)


@pytest.mark.parametrize(
    ("changes", "route"),
    [
        ({}, LoopXTurnRoute.READY_FOR_HOST),
        ({"state": GoalState.PAUSED}, LoopXTurnRoute.WAIT),
        ({"spent_slots": 5_000}, LoopXTurnRoute.WAIT),
        ({"breaker": Breaker.REPLAN_DUE}, LoopXTurnRoute.REPLAN_REQUIRED),
        (
            {"gates": (OpenGate(gate_id=GateId("g-1"), question="Drop v1?", blocks_goal=True),)},
            LoopXTurnRoute.USER_ACTION_REQUIRED,
        ),
        (
            {
                "granted_capability": CapabilityIntent(
                    intent_id="i-1", goal_id=GOAL, agent_id=AGENT, capability="deploy", command=("deploy",)
                )
            },
            LoopXTurnRoute.CAPABILITY_ACTION_REQUIRED,
        ),
    ],
)
def test_a_decision_becomes_a_signed_envelope_with_its_route(changes: dict[str, Any], route: LoopXTurnRoute) -> None:
    decision = decide(_facts(**changes))
    envelope = envelope_from_decision(decision, boundary=Boundary(protected=("tests/**",)))
    assert signature_holds(envelope)
    assert route_turn(envelope).route is route
    assert (envelope.goal_id, envelope.agent_id) == (GOAL, AGENT)
    assert envelope.scheduler.wake_after_ms == decision.wake_after_ms
    assert envelope.user.actions == decision.user_actions
