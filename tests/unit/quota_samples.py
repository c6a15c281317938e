"""Facts to test decisions with: one quiet goal that is ready to run, and a strategy over the whole input space."""

from __future__ import annotations

from hypothesis import strategies as st

from loopx.control_plane.goal import GoalState
from loopx.control_plane.ids import AgentId, GateId, GoalId, TodoId
from loopx.control_plane.quota.facts import (
    Breaker,
    BudgetUse,
    CapabilityIntent,
    ContractState,
    GoalFacts,
    Health,
    OpenGate,
    PendingWait,
    TodoRef,
    WaitKind,
)
from loopx.control_plane.quota.policy import BudgetScope, BudgetUnit, QuotaPolicy

NOW = 1_800_000_000_000
GOAL = GoalId("flaky-ci")
AGENT = AgentId("codex")
READY = TodoRef(todo_id=TodoId("t1"), title="quarantine test_upload")
CAPABILITY = CapabilityIntent(
    intent_id="i1", goal_id=GOAL, agent_id=AGENT, capability="network", command=("pip", "download", "x")
)


def facts(**changed: object) -> GoalFacts:
    """A goal with one ready todo and slots left, with some fields changed."""
    base: dict[str, object] = {
        "goal_id": GOAL,
        "agent_id": AGENT,
        "now_ms": NOW,
        "revision": 3,
        "state": GoalState.ACTIVE,
        "quota": QuotaPolicy(allowed_slots=5),
        "spent_slots": 3,
        "ready": READY,
        "open_todos": True,
        "contract": ContractState.RED,
    }
    return GoalFacts(**{**base, **changed})  # type: ignore[arg-type]  # tests change any field by name


def gate(gate_id: str = "g1", *, blocks_goal: bool = True) -> OpenGate:
    return OpenGate(
        gate_id=GateId(gate_id), question="Drop v1 webhooks?", blocks_goal=blocks_goal, options=("yes", "no")
    )


def use(
    unit: BudgetUnit = BudgetUnit.TOKENS,
    scope: BudgetScope = BudgetScope.GOAL,
    *,
    limit: int = 100,
    used: int = 0,
    reserved: int = 0,
    frees_at_ms: int | None = None,
) -> BudgetUse:
    return BudgetUse(unit=unit, scope=scope, limit=limit, used=used, reserved=reserved, frees_at_ms=frees_at_ms)


_instants = st.one_of(st.none(), st.integers(NOW - 90_000_000, NOW + 90_000_000))
_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=400)
_todos = st.builds(TodoRef, todo_id=st.sampled_from([TodoId("t1"), TodoId("t2")]), title=_text)
_gates = st.builds(
    OpenGate,
    gate_id=st.sampled_from([GateId("g1"), GateId("g2")]),
    question=_text,
    blocks_goal=st.booleans(),
    options=st.lists(_text, max_size=12).map(tuple),
)
_uses = st.builds(
    BudgetUse,
    unit=st.sampled_from(BudgetUnit),
    scope=st.sampled_from(BudgetScope),
    limit=st.integers(1, 10**15),
    used=st.integers(0, 10**15),
    reserved=st.integers(0, 10**15),
    frees_at_ms=_instants,
)
_policies = st.builds(
    QuotaPolicy,
    compute=st.sampled_from([0.0, 0.25, 1.0]),
    allowed_slots=st.sampled_from([None, 0, 1, 5]),
    outcome_floor=st.integers(1, 4),
)


def any_facts() -> st.SearchStrategy[GoalFacts]:
    """Every combination that a store could answer, and some that it should not."""
    mostly = st.one_of(st.just(()), st.lists(_gates, max_size=3).map(tuple))
    return st.builds(
        GoalFacts,
        goal_id=st.just(GOAL),
        agent_id=st.just(AGENT),
        now_ms=st.just(NOW),
        revision=st.integers(1, 9),
        state=st.one_of(st.just(GoalState.ACTIVE), st.sampled_from(GoalState)),
        quota=_policies,
        spent_slots=st.integers(0, 6),
        slot_frees_at_ms=_instants,
        health=st.one_of(st.just(Health.OK), st.sampled_from(Health)),
        health_detail=_text,
        budgets=st.one_of(st.just(()), st.lists(_uses, max_size=24).map(tuple)),
        gates=mostly,
        ready=st.one_of(st.none(), _todos),
        ready_gated=st.booleans(),
        open_todos=st.booleans(),
        blocked_wake_at_ms=_instants,
        blocked_without_wake=st.booleans(),
        granted_capability=st.one_of(st.none(), st.none(), st.just(CAPABILITY)),
        wait=st.one_of(
            st.none(), st.builds(PendingWait, kind=st.sampled_from(WaitKind), until_ms=_instants, detail=_text)
        ),
        breaker=st.one_of(st.just(Breaker.CLOSED), st.sampled_from(Breaker)),
        floor_streak=st.integers(0, 4),
        floor_replan_tried=st.booleans(),
        missing_successors=st.one_of(st.just(()), st.just((TodoId("t9"),))),
        monitor_due=st.one_of(st.none(), _todos),
        contract=st.sampled_from(ContractState),
        next_occurrence_ms=_instants,
    )
