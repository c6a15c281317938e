from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopx.control_plane.ids import EffectRef, GoalId, TurnKey
from loopx.control_plane.quota.spend_commit import (
    LedgerEntry,
    SpendOutcome,
    SpendRefusal,
    SpendRequest,
    SpendVerdict,
    VoidRequest,
    plan_spend,
    plan_void,
    receipt_for,
)

GOAL = GoalId("g")
REQUEST = SpendRequest(
    goal_id=GOAL, effect_ref=EffectRef("turn1:quota_spend"), expected_run_index=4, at_ms=10, turn_key=TurnKey("turn1")
)


def plan(request: SpendRequest = REQUEST, existing: LedgerEntry | None = None, *, index: int = 4) -> SpendVerdict:
    return plan_spend(request, existing, current_run_index=index, allowed=5, spent=2)


def committed() -> LedgerEntry:
    entry = plan().entry
    assert entry is not None
    return entry


def test_a_spend_takes_the_next_run_index() -> None:
    entry = committed()
    assert (entry.run_index, entry.slots, entry.effect_ref) == (5, 1, REQUEST.effect_ref)


@given(st.integers(0, 99), st.integers(0, 99))
def test_a_replay_returns_the_first_receipt_whatever_changed_since(index: int, at_ms: int) -> None:
    again = msgspec.structs.replace(REQUEST, expected_run_index=index, at_ms=at_ms, reserved=False)
    verdict = plan_spend(again, committed(), current_run_index=index + 1, allowed=0, spent=9)
    assert verdict.outcome is SpendOutcome.REPLAY
    assert verdict.receipt == receipt_for(committed(), replayed=True)
    assert verdict.entry is None


def test_a_moved_run_index_is_a_conflict_to_read_back_first() -> None:
    assert plan(index=5) == SpendVerdict(outcome=SpendOutcome.CONFLICT)


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({"material": False}, SpendRefusal.NOT_MATERIAL),
        ({"written_back": False}, SpendRefusal.NOT_WRITTEN_BACK),
        ({"slots": 0}, SpendRefusal.SLOTS_NOT_POSITIVE),
        ({"slots": -1}, SpendRefusal.SLOTS_NOT_POSITIVE),
        ({"slots": 4, "reserved": False}, SpendRefusal.ALLOCATION_EXHAUSTED),
    ],
)
def test_what_is_never_charged(changed: dict[str, object], refusal: SpendRefusal) -> None:
    verdict = plan(msgspec.structs.replace(REQUEST, **changed))
    assert (verdict.outcome, verdict.refusal, verdict.entry) == (SpendOutcome.REFUSED, refusal, None)


def test_a_reserved_slot_is_charged_even_when_the_allocation_was_lowered() -> None:
    verdict = plan_spend(REQUEST, None, current_run_index=4, allowed=1, spent=2)
    assert verdict.outcome is SpendOutcome.COMMIT


@pytest.mark.parametrize("changed", [{"goal_id": "other"}, {"turn_key": "turn2"}, {"slots": 2}])
def test_an_effect_of_another_is_never_replayed(changed: dict[str, object]) -> None:
    verdict = plan(msgspec.structs.replace(REQUEST, **changed), committed())
    assert (verdict.outcome, verdict.refusal) == (SpendOutcome.REFUSED, SpendRefusal.EFFECT_BELONGS_TO_ANOTHER)


VOID = VoidRequest(
    goal_id=GOAL, effect_ref=EffectRef("void:5"), expected_run_index=5, at_ms=20, voids=5, reason=" double start "
)


def void(
    request: VoidRequest = VOID,
    existing: LedgerEntry | None = None,
    *,
    target: LedgerEntry | None = None,
    target_void: LedgerEntry | None = None,
) -> SpendVerdict:
    return plan_void(request, existing, target=target, target_void=target_void, current_run_index=5)


def test_a_void_is_an_entry_of_its_own_with_its_reason() -> None:
    entry = void(target=committed()).entry
    assert entry is not None
    assert (entry.run_index, entry.voids, entry.voided_at_ms, entry.reason) == (6, 5, 10, "double start")


def test_an_entry_is_voided_at_most_once() -> None:
    first = void(target=committed()).entry
    assert first is not None
    assert void(existing=first, target=committed()).outcome is SpendOutcome.REPLAY
    other = msgspec.structs.replace(VOID, effect_ref=EffectRef("void:again"))
    assert void(other, target=committed(), target_void=first).refusal is SpendRefusal.ALREADY_VOIDED
    of_void = msgspec.structs.replace(other, voids=first.run_index)
    assert void(of_void, target=first).refusal is SpendRefusal.NOT_A_SPEND
    reused = msgspec.structs.replace(VOID, voids=3)
    assert void(reused, existing=first).refusal is SpendRefusal.EFFECT_BELONGS_TO_ANOTHER


def test_a_void_needs_a_reason_a_target_and_the_right_index() -> None:
    assert void(msgspec.structs.replace(VOID, reason="  "), target=committed()).refusal is SpendRefusal.REASON_MISSING
    assert void().refusal is SpendRefusal.NO_SUCH_ENTRY
    foreign = msgspec.structs.replace(committed(), goal_id=GoalId("other"))
    assert void(target=foreign).refusal is SpendRefusal.NO_SUCH_ENTRY
    late = msgspec.structs.replace(VOID, expected_run_index=4)
    assert void(late, target=committed()).outcome is SpendOutcome.CONFLICT
