"""The rolling window over a simulated clock: exact to the millisecond, and never exceeded by parallel starters."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from loopx.control_plane.ids import GoalId
from loopx.control_plane.quota import budgets, plan
from loopx.control_plane.quota.plan import PlanEntry, WindowSpend
from loopx.control_plane.quota.policy import Budget, BudgetScope, BudgetUnit, QuotaPolicy
from tests.unit.quota_samples import use

WINDOW = 1000

_spends = st.lists(st.builds(WindowSpend, at_ms=st.integers(0, 3 * WINDOW), amount=st.integers(1, 3)), max_size=30)


def test_the_window_frees_exactly_when_the_oldest_spend_leaves_it() -> None:
    spends = [WindowSpend(at_ms=at, amount=1) for at in (100, 200, 300)]
    assert plan.spent_in_window(spends, now_ms=1099, window_ms=WINDOW) == 3
    assert plan.spent_in_window(spends, now_ms=1100, window_ms=WINDOW) == 2
    assert plan.frees_at(spends, now_ms=500, window_ms=WINDOW, allowed=3) == 1100
    assert plan.frees_at(spends, now_ms=500, window_ms=WINDOW, allowed=4) == 500


def test_a_lowered_allowance_waits_for_as_many_as_needed() -> None:
    spends = [WindowSpend(at_ms=at, amount=1) for at in (100, 200, 300)]
    assert plan.frees_at(spends, now_ms=500, window_ms=WINDOW, allowed=1) == 1300
    assert plan.frees_at(spends, now_ms=500, window_ms=WINDOW, allowed=0) is None
    assert plan.frees_at(spends, now_ms=500, window_ms=WINDOW, allowed=3, need=2) == 1200


@settings(deadline=None)
@given(_spends, st.integers(0, 4 * WINDOW), st.integers(1, 8))
def test_frees_at_is_the_first_instant_with_room(spends: list[WindowSpend], now: int, allowed: int) -> None:
    at = plan.frees_at(spends, now_ms=now, window_ms=WINDOW, allowed=allowed)
    assert at is not None

    def room(instant: int) -> bool:
        live = [spend for spend in spends if spend.at_ms + WINDOW > now]
        return plan.spent_in_window(live, now_ms=instant, window_ms=WINDOW) < allowed

    assert at >= now
    assert room(at)
    assert at == now or not room(at - 1)


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.integers(0, 5)),
        st.tuples(st.just("settle"), st.integers(0, 5)),
        st.tuples(st.just("drop"), st.integers(0, 5)),
        st.tuples(st.just("pass"), st.integers(1, WINDOW)),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(_steps, st.integers(1, 4))
def test_parallel_starters_never_exceed_the_allocation(steps: list[tuple[str, int]], allowed: int) -> None:
    """Each start asks and reserves in one step, as the store does in one transaction."""
    now = 0
    spends: list[WindowSpend] = []
    open_turns: set[int] = set()
    for verb, number in steps:
        spent = plan.spent_in_window(spends, now_ms=now, window_ms=WINDOW)
        if verb == "pass":
            now += number
        elif verb == "start" and number not in open_turns:
            if budgets.admits_slot(allowed=allowed, spent=spent, reserved=len(open_turns)):
                open_turns.add(number)
        elif verb in ("settle", "drop") and number in open_turns:
            open_turns.remove(number)
            if verb == "settle":
                spends.append(WindowSpend(at_ms=now, amount=1))
        in_window = plan.spent_in_window(spends, now_ms=now, window_ms=WINDOW)
        assert in_window + len(open_turns) <= allowed


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=40),
    st.one_of(st.none(), st.integers(1, 40)),
)
def test_parallel_starters_never_overdraw_a_budget(turns: list[tuple[bool, int]], per_turn: int | None) -> None:
    """A turn is held to what it reserved, so the goal's budget is never overdrawn, however many run together."""
    limit = 100
    policy = [] if per_turn is None else [Budget(unit=BudgetUnit.TOKENS, scope=BudgetScope.TURN, limit=per_turn)]
    used = 0
    open_turns: list[tuple[int, int]] = []
    for settle_first, wanted in turns:
        if settle_first and open_turns:
            reserved, spent = open_turns.pop(0)
            used += budgets.settle(reserved, min(reserved, spent)).amount
        now = use(limit=limit, used=used, reserved=sum(reserved for reserved, _ in open_turns))
        if budgets.admits([now]).admitted:
            reserved = budgets.reservations_for(policy, [now])[BudgetUnit.TOKENS]
            assert reserved > 0
            open_turns.append((reserved, wanted))
        assert used + sum(reserved for reserved, _ in open_turns) <= limit


def test_allocation_by_formula() -> None:
    assert plan.allowed_slots(QuotaPolicy()) == 1440
    assert plan.allowed_slots(QuotaPolicy(compute=0.25)) == 360
    assert plan.allowed_slots(QuotaPolicy(window_hours=5, slot_minutes=60)) == 5
    assert plan.allowed_slots(QuotaPolicy(allowed_slots=0)) == 0
    assert plan.window_ms(QuotaPolicy(window_hours=0.5)) == 1_800_000


def test_an_allocation_that_is_not_used_up_names_no_instant() -> None:
    assert plan.quota_numbers(QuotaPolicy(allowed_slots=2), spent_slots=1, frees_at_ms=9).frees_at_ms is None
    assert plan.quota_numbers(QuotaPolicy(allowed_slots=2), spent_slots=2, frees_at_ms=9).frees_at_ms == 9


def test_starts_are_fair_between_goals() -> None:
    entries = [
        PlanEntry(goal_id=GoalId("busy"), at_ms=0, started_at_ms=900),
        PlanEntry(goal_id=GoalId("asks"), at_ms=None),
        PlanEntry(goal_id=GoalId("new"), at_ms=50),
        PlanEntry(goal_id=GoalId("old"), at_ms=40, started_at_ms=100),
    ]
    assert [entry.goal_id for entry in plan.start_order(entries)] == ["new", "old", "busy"]
    assert plan.next_start_ms(entries) == 0
    assert plan.next_start_ms(entries[1:2]) is None
