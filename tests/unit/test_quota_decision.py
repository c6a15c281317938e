from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from loopx.control_plane.goal import GoalState
from loopx.control_plane.ids import TodoId
from loopx.control_plane.quota import explain, states
from loopx.control_plane.quota.decision import (
    PACKET_BYTES,
    QuotaDecision,
    decide,
    encode_packet,
    exit_code,
    instant_words,
    packet,
    state_inputs,
)
from loopx.control_plane.quota.facts import (
    Breaker,
    ContractState,
    GoalFacts,
    Health,
    PendingWait,
    TodoRef,
    WaitKind,
)
from loopx.control_plane.quota.policy import BudgetScope, BudgetUnit, QuotaPolicy
from loopx.control_plane.quota.rules import TABLE, Rule
from loopx.control_plane.quota.states import QuotaState
from loopx.control_plane.quota.turn_envelope import envelope_from_decision
from loopx.control_plane.turn_driver.driver import LoopXTurnRoute, route_turn
from tests.unit.quota_samples import AGENT, CAPABILITY, GOAL, NOW, READY, any_facts, facts, gate, use

SOON = NOW + 3_600_000
MONITOR = TodoRef(todo_id=TodoId("m1"), title="watch the deploy")
IDLE = {"ready": None, "open_todos": False, "contract": ContractState.GREEN}

SCOPED = gate(blocks_goal=False)
FULL_WINDOW = use(scope=BudgetScope.WINDOW, used=100, frees_at_ms=SOON)

# Facts, and what the table says: rule, state, effective action, then `run`, `quiet` or `user`, and the exit code.
ROWS: list[tuple[GoalFacts, str]] = [
    (facts(state=GoalState.COMPLETED), "goal_closed paused terminal_no_followup quiet 10"),
    (facts(state=GoalState.PAUSED), "goal_paused paused paused quiet 10"),
    (facts(quota=QuotaPolicy(compute=0)), "goal_paused paused paused quiet 10"),
    (facts(health=Health.JOURNAL_BLOCKED), "store_unhealthy blocked_health control_plane_repair user 11"),
    (facts(health=Health.TREE_UNUSABLE), "tree_unusable blocked_health workspace_repair user 11"),
    (facts(budgets=(use(used=100),), gates=(gate(),)), "absolute_cap throttled throttled_skip user 12"),
    (facts(gates=(gate(),)), "gate_blocks operator_gate user_action user 11"),
    (facts(ready=None, ready_gated=True, gates=(SCOPED,)), "gate_blocks operator_gate user_action user 11"),
    (
        facts(granted_capability=CAPABILITY, spent_slots=5),
        "capability_granted eligible governed_capability_intent run 0",
    ),
    (facts(spent_slots=5, slot_frees_at_ms=SOON), "window_used_up throttled throttled_skip quiet 10"),
    (facts(budgets=(FULL_WINDOW,)), "window_used_up throttled throttled_skip quiet 10"),
    (
        facts(wait=PendingWait(kind=WaitKind.LIMIT, until_ms=SOON)),
        "wait_pending waiting external_evidence_wait quiet 10",
    ),
    (facts(floor_streak=3), "replan_untried focus_wait autonomous_replan_required run 0"),
    (facts(floor_streak=3, floor_replan_tried=True), "replan_in_vain focus_wait user_action user 11"),
    (facts(breaker=Breaker.REPLAN_DUE), "replan_untried focus_wait autonomous_replan_required run 0"),
    (facts(breaker=Breaker.PERSON_DUE), "replan_in_vain focus_wait user_action user 11"),
    (facts(missing_successors=(TodoId("t9"),)), "successor_missing eligible successor_replan_required run 0"),
    (facts(monitor_due=MONITOR), "monitor_due waiting monitor_due quiet 10"),
    (facts(ready_gated=True, gates=(SCOPED,)), "ready_some_gated eligible scoped_gate_fallback run 0"),
    (facts(), "ready eligible normal_run run 0"),
    (facts(ready=None, open_todos=False), "goal_is_the_work eligible normal_run run 0"),
    (
        facts(ready=None, open_todos=False, contract=ContractState.UNKNOWN),
        "goal_is_the_work eligible normal_run run 0",
    ),
    (
        facts(ready=None, blocked_wake_at_ms=SOON, blocked_without_wake=True),
        "blocked_with_wake waiting blocked_wait quiet 10",
    ),
    (
        facts(ready=None, blocked_without_wake=True, gates=(SCOPED,)),
        "gate_left operator_gate user_action user 11",
    ),
    (
        facts(ready=None, blocked_without_wake=True),
        "blocked_without_wake eligible autonomous_replan_required run 0",
    ),
    (facts(**IDLE), "nothing_left eligible terminal_no_followup quiet 10"),
]


@pytest.mark.parametrize(("given_facts", "says"), ROWS, ids=[f"{index}-{row[1]}" for index, row in enumerate(ROWS)])
def test_each_row_emits_what_the_table_says(given_facts: GoalFacts, says: str) -> None:
    rule, state, action, flag, code = says.split()
    decision = decide(given_facts)
    assert (decision.rule, decision.state, decision.effective_action) == (rule, state, action)
    runs = flag == "run"
    assert (decision.should_run, decision.delivery_allowed, decision.must_attempt) == (runs, runs, runs)
    assert (decision.quiet_noop_allowed, decision.user_action_required) == (flag == "quiet", flag == "user")
    assert exit_code(decision) == int(code)
    assert decision.revision == given_facts.revision


def test_every_row_of_the_table_is_exercised() -> None:
    assert {row.rule for row in TABLE} == {says.split()[0] for _, says in ROWS} == set(Rule)


def test_earlier_rows_win() -> None:
    everything = {
        "health": Health.STORE_UNHEALTHY,
        "budgets": (use(used=100),),
        "gates": (gate(),),
        "granted_capability": CAPABILITY,
        "spent_slots": 5,
        "wait": PendingWait(kind=WaitKind.LIMIT, until_ms=SOON),
        "breaker": Breaker.REPLAN_DUE,
        "missing_successors": (TodoId("t9"),),
        "monitor_due": MONITOR,
    }
    order = [
        ("state", GoalState.CANCELLED, Rule.GOAL_CLOSED),
        ("state", GoalState.STOPPED, Rule.GOAL_PAUSED),
        ("state", GoalState.ACTIVE, Rule.STORE_UNHEALTHY),
        ("health", Health.TREE_UNUSABLE, Rule.TREE_UNUSABLE),
        ("health", Health.OK, Rule.ABSOLUTE_CAP),
        ("budgets", (), Rule.GATE_BLOCKS),
        ("gates", (), Rule.CAPABILITY_GRANTED),
        ("granted_capability", None, Rule.WINDOW_USED_UP),
        ("spent_slots", 0, Rule.WAIT_PENDING),
        ("wait", None, Rule.REPLAN_UNTRIED),
        ("breaker", Breaker.CLOSED, Rule.SUCCESSOR_MISSING),
        ("missing_successors", (), Rule.MONITOR_DUE),
        ("monitor_due", None, Rule.READY),
    ]
    for name, value, rule in order:
        everything[name] = value
        assert decide(facts(**everything)).rule is rule


def test_a_gate_does_not_hide_an_exhausted_allocation() -> None:
    made = packet(decide(facts(gates=(gate(),), spent_slots=5, slot_frees_at_ms=SOON)))
    assert made.state == "operator_gate"
    assert (made.quota.state, made.quota.spent_slots, made.quota.frees_at) == ("throttled", 5, instant_words(SOON))


def test_a_scoped_gate_never_decides_while_another_todo_is_ready() -> None:
    assert decide(facts(gates=(gate(blocks_goal=False),))).should_run


def test_throttling_waits_for_all_that_is_full() -> None:
    full = use(scope=BudgetScope.WINDOW, used=100, frees_at_ms=SOON + 5)
    assert decide(facts(spent_slots=5, slot_frees_at_ms=SOON, budgets=(full,))).wake_after_ms == SOON + 5
    assert decide(facts(spent_slots=5, slot_frees_at_ms=SOON)).wake_after_ms == SOON


def test_another_turns_reservation_is_no_absolute_cap() -> None:
    decision = decide(facts(budgets=(use(used=60, reserved=40),)))
    assert (decision.rule, exit_code(decision)) == (Rule.WINDOW_USED_UP, 10)
    assert decision.wake_after_ms == NOW + 60_000
    assert decision.reason == "tokens per goal: 60 used and 40 reserved of 100"


def test_a_per_turn_limit_never_stops_the_next_turn() -> None:
    assert decide(facts(budgets=(use(scope=BudgetScope.TURN, used=100),))).should_run


def test_a_wait_that_has_passed_holds_nothing_back() -> None:
    assert decide(facts(wait=PendingWait(kind=WaitKind.BACKOFF, until_ms=NOW))).should_run
    waits = decide(facts(wait=PendingWait(kind=WaitKind.EXTERNAL_EVIDENCE)))
    assert (waits.rule, waits.wake_after_ms) == (Rule.WAIT_PENDING, None)


def test_the_floor_holds_only_what_the_agent_could_do_now() -> None:
    blocked = {"ready": None, "blocked_wake_at_ms": SOON}
    assert decide(facts(floor_streak=9, **blocked)).rule is Rule.BLOCKED_WITH_WAKE
    assert decide(facts(floor_streak=9, **IDLE)).rule is Rule.NOTHING_LEFT
    assert decide(facts(floor_streak=4, quota=QuotaPolicy(allowed_slots=5, outcome_floor=5))).rule is Rule.READY
    assert decide(facts(floor_streak=1, quota=QuotaPolicy(outcome_floor=1))).rule is Rule.REPLAN_UNTRIED


def test_the_floor_names_its_streak_and_threshold() -> None:
    reason = decide(facts(floor_streak=4)).reason
    assert "4 turns in a row" in reason
    assert "floor 3" in reason


def test_the_quota_reasons_are_the_documented_ones() -> None:
    assert decide(facts()).reason == "1 compute quota; eligible for the next automatic agent turn"
    assert decide(facts(spent_slots=5)).reason == "1 compute quota spent 5/5 slots in this window"
    gated = decide(facts(gates=(gate(),))).reason
    assert gated == "operator gate blocks gated delivery; safe non-gated steering may continue"


@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(any_facts())
def test_any_facts_have_one_lawful_answer(given_facts: GoalFacts) -> None:
    decision = decide(given_facts)
    assert decide(given_facts) == decision
    assert decision.should_run == decision.must_attempt == decision.delivery_allowed
    assert not (decision.should_run and (decision.quiet_noop_allowed or decision.user_action_required))
    assert decision.should_run or decision.quiet_noop_allowed or decision.user_action_required
    assert bool(decision.user_actions) == decision.user_action_required
    assert exit_code(decision) in (0, 10, 11, 12)
    assert decision.wake_after_ms is None or decision.wake_after_ms >= NOW
    assert len(encode_packet(decision)) <= PACKET_BYTES
    assert _accepted(decision, given_facts)


@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(any_facts())
def test_the_decision_and_the_seven_states_agree(given_facts: GoalFacts) -> None:
    decision = decide(given_facts)
    budget_rules = {Rule.ABSOLUTE_CAP, Rule.WINDOW_USED_UP}
    if decision.rule in budget_rules | {Rule.CAPABILITY_GRANTED}:
        return
    derived = states.quota_state(state_inputs(given_facts, decision.waiting_on))
    held = decision.rule in (Rule.REPLAN_UNTRIED, Rule.REPLAN_IN_VAIN)
    assert decision.state == (QuotaState.FOCUS_WAIT if held and derived is QuotaState.ELIGIBLE else derived)


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(any_facts())
def test_the_driver_routes_as_the_decision_says(given_facts: GoalFacts) -> None:
    decision = decide(given_facts)
    route = route_turn(envelope_from_decision(decision)).route
    assert route is not LoopXTurnRoute.CONTRACT_ERROR
    runs = {
        LoopXTurnRoute.READY_FOR_HOST,
        LoopXTurnRoute.REPLAN_REQUIRED,
        LoopXTurnRoute.REPAIR_REQUIRED,
        LoopXTurnRoute.CAPABILITY_ACTION_REQUIRED,
    }
    assert (route in runs) == decision.should_run
    assert (route is LoopXTurnRoute.USER_ACTION_REQUIRED) == decision.user_action_required


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(any_facts())
def test_a_decision_replays_from_its_logged_facts(given_facts: GoalFacts) -> None:
    assert explain.replay(explain.encode_facts(given_facts)) == decide(given_facts)


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(any_facts())
def test_every_answer_names_what_would_change_it(given_facts: GoalFacts) -> None:
    decision = decide(given_facts)
    found = explain.explain(given_facts, decision)
    assert TABLE[found.row - 1].rule is found.rule is decision.rule
    assert found.changes
    instants = [change.at_ms for change in found.changes if change.kind is explain.ChangeKind.INSTANT]
    assert all(at is not None and at > NOW for at in instants)
    msgspec.json.encode(found)


def _accepted(decision: QuotaDecision, given_facts: GoalFacts) -> bool:
    """Whether the printed command is one that the command line takes in that state."""
    words = decision.next_command[1:]
    halted = given_facts.state in (GoalState.PAUSED, GoalState.STOPPED)
    closed = given_facts.state in (GoalState.COMPLETED, GoalState.CANCELLED)
    shapes = {
        ("run", GOAL): not halted and not closed,
        ("why", GOAL): True,
        ("doctor",): True,
        ("goal", "show", GOAL): True,
        ("goal", "resume", GOAL): halted,
        ("gate", "list", GOAL): True,
        ("gate", "show"): bool(given_facts.gates) and words[-1] in {g.gate_id for g in given_facts.gates},
        ("quota", "raise", GOAL, "--slots"): True,
        ("quota", "raise", GOAL, "--compute"): True,
        ("quota", "raise", GOAL, "--budget"): True,
    }
    return decision.next_command[0] == "loopx" and (shapes.get(words) or shapes.get(words[:-1], False))


def test_commands_that_would_take_a_persons_choice_are_only_shown() -> None:
    assert decide(facts(gates=(gate("g7"),))).next_command == ("loopx", "gate", "show", "g7")
    assert decide(facts(state=GoalState.COMPLETED)).next_command == ("loopx", "goal", "show", GOAL)
    assert decide(facts(state=GoalState.STOPPED)).next_command == ("loopx", "goal", "resume", GOAL)
    cap = decide(facts(budgets=(use(BudgetUnit.MICROUSD, limit=4_500_000, used=4_600_000),)))
    assert cap.next_command == ("loopx", "quota", "raise", GOAL, "--budget", "usd=9.2/goal")


def test_the_explanation_of_a_throttled_goal_names_instant_and_command() -> None:
    throttled = facts(spent_slots=5, slot_frees_at_ms=SOON)
    found = explain.explain(throttled, decide(throttled))
    assert found.changes == (
        explain.Change(kind=explain.ChangeKind.INSTANT, at_ms=SOON),
        explain.Change(kind=explain.ChangeKind.COMMAND, command=("loopx", "quota", "raise", GOAL, "--slots", "6")),
    )
    values = {fact.name: fact.value for fact in found.facts}
    assert (values["spent_slots"], values["allowed_slots"], values["ready_todo"]) == (5, 5, "t1")


def test_the_packet_carries_the_promised_fields() -> None:
    made = msgspec.json.decode(encode_packet(decide(facts())))
    promised = (
        "schema_version goal_id agent_id should_run state reason effective_action selected_todo waiting_on "
        "user_action wake_after quota budget next_command"
    )
    assert set(promised.split()) <= set(made)
    assert made["ok"] is True
    assert made["selected_todo"] == {"todo_id": READY.todo_id, "title": READY.title}
    assert (made["agent_id"], made["waiting_on"], made["wake_after"]) == (AGENT, "codex", None)


def test_a_huge_gate_question_is_cut_but_the_gate_stays_named() -> None:
    asks = msgspec.structs.replace(gate(), question="\x00ü" * 5_000, options=("x" * 900,) * 50)
    made = msgspec.json.decode(encode_packet(decide(facts(gates=(asks,), budgets=(use(),) * 30))))
    assert made["user_action"]["gate_id"] == "g1"
    assert made["user_action"]["question"].endswith("…")


def test_instants_are_written_in_utc() -> None:
    assert instant_words(1_800_000_000_123) == "2027-01-15T08:00:00.123Z"
