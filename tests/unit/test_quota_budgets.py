from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopx.control_plane.errors import UsageError
from loopx.control_plane.quota import alarms, amounts, budgets
from loopx.control_plane.quota.budgets import BudgetChange, Metering
from loopx.control_plane.quota.policy import Budget, BudgetScope, BudgetUnit, QuotaPolicy
from tests.unit.quota_samples import NOW, use

DAY = 86_400_000


@pytest.mark.parametrize(
    ("text", "unit", "scope", "limit", "window_ms"),
    [
        ("tokens=2M/goal", BudgetUnit.TOKENS, BudgetScope.GOAL, 2_000_000, None),
        ("tokens=2M", BudgetUnit.TOKENS, BudgetScope.GOAL, 2_000_000, None),
        ("usd=5/day", BudgetUnit.MICROUSD, BudgetScope.WINDOW, 5_000_000, DAY),
        ("usd=$0.40/1d", BudgetUnit.MICROUSD, BudgetScope.WINDOW, 400_000, DAY),
        ("turns=24/5h", BudgetUnit.TURNS, BudgetScope.WINDOW, 24, 5 * 3_600_000),
        ("wall=2h/turn", BudgetUnit.WALL_MS, BudgetScope.TURN, 7_200_000, None),
        ("output_tokens=1.5k/turn", BudgetUnit.OUTPUT_TOKENS, BudgetScope.TURN, 1500, None),
        ("LAUNCHES=1_000/30m", BudgetUnit.LAUNCHES, BudgetScope.WINDOW, 1000, 1_800_000),
        ("tokens=unlimited", BudgetUnit.TOKENS, BudgetScope.GOAL, None, None),
        ("tokens=9/window", BudgetUnit.TOKENS, BudgetScope.WINDOW, 9, None),
    ],
)
def test_what_people_write(
    text: str, unit: BudgetUnit, scope: BudgetScope, limit: int | None, window_ms: int | None
) -> None:
    assert budgets.parse_budget(text) == BudgetChange(unit=unit, scope=scope, limit=limit, window_ms=window_ms)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("tokens", "budget"),
        ("", "budget"),
        ("coins=3", "unit"),
        ("tokens=0", "limit"),
        ("tokens=", "limit"),
        ("tokens=-5", "limit"),
        ("tokens=nan", "limit"),
        ("tokens=inf", "limit"),
        ("tokens=1e9", "limit"),
        ("tokens=2.5", "limit"),
        ("tokens=٣", "limit"),
        ("tokens=none", "limit"),
        ("tokens=" + "9" * 30, "limit"),
        ("usd=0.0000001", "limit"),
        ("wall=5", "limit"),
        ("wall=0h", "limit"),
        ("tokens=5/fortnight", "scope"),
        ("tokens=5/0h", "scope"),
        ("tokens=5/", "scope"),
    ],
)
def test_bad_budgets_are_refused_by_name(text: str, field: str) -> None:
    with pytest.raises(UsageError) as refused:
        budgets.parse_budget(text)
    assert refused.value.data["field"] == field


@given(st.sampled_from(BudgetUnit), st.integers(1, 10**15), st.sampled_from([None, 60_000, 5 * 3_600_000, DAY]))
def test_a_budget_reads_back_as_it_is_written(unit: BudgetUnit, limit: int, window_ms: int | None) -> None:
    scope = BudgetScope.GOAL if window_ms is None else BudgetScope.WINDOW
    budget = Budget(unit=unit, scope=scope, limit=limit, window_ms=window_ms)
    read = budgets.parse_budget(budgets.budget_words(budget))
    assert (read.unit, read.scope, read.limit, read.window_ms) == (unit, scope, limit, window_ms)


def change(text: str) -> BudgetChange:
    return budgets.parse_budget(text)


def test_changes_replace_their_own_and_unlimited_is_spelled_out() -> None:
    first = budgets.apply_changes((), [change("tokens=2M"), change("usd=5/1d"), change("usd=50")])
    raised = budgets.apply_changes(first, [change("usd=9/window"), change("tokens=unlimited")])
    assert [budgets.budget_words(budget) for budget in raised] == ["usd=9/1d", "usd=50/goal"]
    with pytest.raises(UsageError):
        budgets.apply_changes(raised, [change("turns=9/window")])


def test_a_unit_that_the_engine_never_reports_is_refused_when_set() -> None:
    blind = Metering(engine="opencode", reports_dollars=False)
    with pytest.raises(UsageError) as refused:
        budgets.apply_changes((), [change("usd=5")], meterings=[blind])
    assert refused.value.code == "budget_unit_unmetered"
    assert "opencode reports no dollars" in refused.value.message
    assert budgets.apply_changes((), [change("tokens=5")], meterings=[blind])
    with pytest.raises(UsageError):
        budgets.require_metered(
            BudgetUnit.CACHED_TOKENS, [Metering(engine="command", reports_dollars=False, reports_tokens=False)]
        )
    # Taking one away is always allowed.
    assert budgets.apply_changes((), [change("usd=unlimited")], meterings=[blind]) == ()


def test_the_machine_wide_launch_cap() -> None:
    cap = budgets.parse_machine_cap("launches=60/1h")
    assert (cap.unit, cap.limit, cap.window_ms) == (BudgetUnit.LAUNCHES, 60, 3_600_000)
    for text in ("turns=60/1h", "launches=60", "launches=unlimited/1h"):
        with pytest.raises(UsageError):
            budgets.parse_machine_cap(text)


@pytest.mark.parametrize(
    ("written", "field"),
    [
        ({"compute": -0.5}, "compute"),
        ({"compute": float("nan")}, "compute"),
        ({"compute": 10**400}, "compute"),
        ({"window_hours": 0}, "window_hours"),
        ({"window_hours": 10**9}, "window_hours"),
        ({"slot_minutes": -1}, "slot_minutes"),
        ({"allowed_slots": 1.0}, "allowed_slots"),
        ({"outcome_floor": 0}, "outcome_floor"),
        ({"outcome_floor": True}, "outcome_floor"),
        ({"window": 3}, "window"),
    ],
)
def test_bad_policies_are_refused_by_name(written: dict[str, object], field: str) -> None:
    with pytest.raises(UsageError) as refused:
        budgets.read_quota_policy(written)
    assert refused.value.data["field"] == field


def test_a_policy_keeps_what_is_not_written() -> None:
    base = QuotaPolicy(compute=0.5, allowed_slots=7)
    assert budgets.read_quota_policy({"outcome_floor": 5}, base=base) == QuotaPolicy(
        compute=0.5, allowed_slots=7, outcome_floor=5
    )
    assert budgets.read_quota_policy({"allowed_slots": None}, base=base).allowed_slots is None


def test_admission_counts_reservations_and_tells_absolute_from_passing() -> None:
    assert budgets.admits([use(used=60, reserved=39)]).admitted
    assert budgets.admits([use(scope=BudgetScope.TURN, used=999)]).admitted
    held = budgets.admits([use(used=60, reserved=40)])
    assert (held.admitted, held.absolute, held.retry_at_ms) == (False, False, None)
    windows = [use(scope=BudgetScope.WINDOW, used=100, frees_at_ms=NOW + at) for at in (5, 9)]
    assert budgets.admits(windows).retry_at_ms == NOW + 9
    capped = budgets.admits([*windows, use(used=100)])
    assert (capped.absolute, capped.retry_at_ms) == (True, None)


def test_a_turn_reserves_what_only_its_end_tells() -> None:
    per_turn = Budget(unit=BudgetUnit.TOKENS, scope=BudgetScope.TURN, limit=30)
    uses = [
        use(BudgetUnit.TURNS, limit=5, used=2),
        use(BudgetUnit.LAUNCHES, limit=5),
        use(used=40, reserved=10),
        use(BudgetUnit.MICROUSD, used=70),
    ]
    assert budgets.reservations_for([per_turn], uses) == {
        BudgetUnit.TURNS: 1,
        BudgetUnit.LAUNCHES: 1,
        BudgetUnit.TOKENS: 30,
        BudgetUnit.MICROUSD: 30,
    }
    nearly_out = budgets.reservations_for([per_turn], [use(used=95)])
    assert nearly_out == {BudgetUnit.TOKENS: 5}


def test_unknown_usage_is_charged_as_an_estimate_and_never_as_zero() -> None:
    assert budgets.settle(30, 12) == budgets.Settlement(amount=12, known=True)
    assert budgets.settle(30, 0) == budgets.Settlement(amount=0, known=True)
    assert budgets.settle(30, None) == budgets.Settlement(amount=30, known=False)
    assert budgets.settle(30, None, typical=9) == budgets.Settlement(amount=9, known=False)


def test_burn_rate_and_projected_exhaustion() -> None:
    pace = budgets.burn(use(limit=1000, used=400), recent=200, over_ms=7_200_000, now_ms=NOW)
    assert pace == budgets.Burn(per_hour=100, exhausts_at_ms=NOW + 6 * 3_600_000)
    assert budgets.burn(use(), recent=0, over_ms=7_200_000, now_ms=NOW) is None
    assert budgets.burn(use(), recent=5, over_ms=0, now_ms=NOW) is None
    over = budgets.burn(use(limit=10, used=40), recent=5, over_ms=1000, now_ms=NOW)
    assert over is not None
    assert over.exhausts_at_ms == NOW


def test_the_spike_alarm_compares_with_the_goals_own_median() -> None:
    calm = [81, 198, 120, 90, 150]
    assert alarms.spike(calm, 479) is None
    assert alarms.spike(calm, 480) == alarms.SpikeAlarm(latest=480, median=120, factor=4)
    assert alarms.spike(calm[:4], 4101) is None
    assert alarms.spike([0, 0, 0, 0, 0, 0], 90, floor=1000) is None
    assert alarms.median([4, 1, 3, 2]) == 2


@given(st.sampled_from(BudgetUnit), st.integers(1, 10**12), st.integers(0, 10**12))
def test_the_printed_raise_is_read_back_above_what_was_used(unit: BudgetUnit, limit: int, used: int) -> None:
    read = budgets.parse_budget(amounts.raised_budget(use(unit, limit=limit, used=used)))
    assert read.limit is not None
    assert read.limit > max(limit, used)
