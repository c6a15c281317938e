"""Effect identities, programs and typed failures (architecture, "Effects and exactly-once")."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopx.control_plane.effect_program import (
    EffectFailure,
    EffectReceipt,
    ProgramViolation,
    effect_ref,
    program_view,
    turn_key,
    turn_program,
)
from loopx.control_plane.ids import AgentId, EffectRef, GoalId, TurnKey
from loopx.control_plane.turn_driver.transaction import MATERIAL_RESULT_KINDS, STEPS, LoopXTurnResultKind, TurnStep

KEY = TurnKey("t-1")
Kind = LoopXTurnResultKind


def effect(step: TurnStep) -> EffectReceipt:
    return EffectReceipt(effect_ref=effect_ref(KEY, step), turn_key=KEY, step=step)


@given(st.text(), st.text(), st.text(), st.text(), st.text(), st.text())
def test_a_turn_key_is_the_same_for_the_same_inputs_only(a: str, b: str, c: str, d: str, e: str, f: str) -> None:
    first = turn_key(GoalId(a), AgentId(b), c)
    assert first == turn_key(GoalId(a), AgentId(b), c)
    assert (first == turn_key(GoalId(d), AgentId(e), f)) == ((a, b, c) == (d, e, f))


def test_effect_refs_are_stable_and_distinct() -> None:
    refs = {effect_ref(KEY, step) for step in STEPS} | {effect_ref(KEY, TurnStep.HOST_EXECUTE, "2")}
    assert len(refs) == len(STEPS) + 1
    assert effect_ref(KEY, TurnStep.QUOTA_SPEND) == "t-1/quota_spend"


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("closeout", [True, False])
def test_only_a_material_program_writes_and_spends_and_only_once(kind: Kind, closeout: bool) -> None:
    steps = [step.step for step in turn_program(KEY, kind, closeout=closeout)]
    spends = [step for step in turn_program(KEY, kind, closeout=closeout) if step.spends]
    assert len(spends) == (kind in MATERIAL_RESULT_KINDS)
    assert (TurnStep.DURABLE_WRITEBACK in steps) == (kind in MATERIAL_RESULT_KINDS)
    assert steps == [step for step in STEPS if step in steps], "in order: writeback, spend, apply, ack"
    assert (TurnStep.TERMINAL_CLOSEOUT in steps) == (closeout and kind in MATERIAL_RESULT_KINDS)


@pytest.mark.parametrize("done", range(8))
def test_what_is_left_of_a_program(done: int) -> None:
    program = turn_program(KEY, Kind.VALIDATED_COMPLETION, closeout=True)
    view = program_view(KEY, program, map(effect, STEPS[:done]))
    assert view.violation is None
    assert view.remaining == program[done:]


def test_a_closeout_may_precede_what_is_left_of_scheduling() -> None:
    program = turn_program(KEY, Kind.VALIDATED_COMPLETION, closeout=True)
    view = program_view(KEY, program, [*map(effect, STEPS[:6]), effect(TurnStep.TERMINAL_CLOSEOUT)])
    assert [step.step for step in view.remaining] == [TurnStep.SCHEDULER_ACK]


@pytest.mark.parametrize(
    ("receipts", "violation"),
    [
        ([msgspec.structs.replace(effect(STEPS[0]), turn_key=TurnKey("t-2"))], ProgramViolation.FOREIGN_TURN),
        ([msgspec.structs.replace(effect(STEPS[0]), effect_ref=EffectRef("x"))], ProgramViolation.FOREIGN_EFFECT_REF),
        ([effect(STEPS[0]), effect(STEPS[0])], ProgramViolation.DUPLICATE_STEP),
        ([effect(STEPS[0]), effect(TurnStep.TERMINAL_CLOSEOUT)], ProgramViolation.STEP_NOT_IN_PROGRAM),
        ([effect(STEPS[0]), effect(STEPS[2])], ProgramViolation.GAP),
    ],
)
def test_receipts_that_do_not_fit_are_named(receipts: list[EffectReceipt], violation: ProgramViolation) -> None:
    program = turn_program(KEY, Kind.VALIDATED_PROGRESS)
    assert program_view(KEY, program, receipts).violation is violation


def test_a_closeout_before_the_spend_is_a_gap() -> None:
    program = turn_program(KEY, Kind.VALIDATED_COMPLETION, closeout=True)
    receipts = [*map(effect, STEPS[:4]), effect(TurnStep.TERMINAL_CLOSEOUT)]
    assert program_view(KEY, program, receipts).violation is ProgramViolation.GAP


@pytest.mark.parametrize(
    ("failure", "read_back", "retry"),
    [
        (EffectFailure.CONFLICT, True, True),
        (EffectFailure.INDETERMINATE, True, True),
        (EffectFailure.UNAVAILABLE, False, True),
        (EffectFailure.FENCED, False, False),
        (EffectFailure.REFUSED, False, False),
    ],
)
def test_what_a_failure_allows(failure: EffectFailure, read_back: bool, retry: bool) -> None:
    assert (failure.read_back_first, failure.may_retry) == (read_back, retry)
