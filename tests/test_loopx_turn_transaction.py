"""Result kinds, phases, receipts: kind, phase and spend stay consistent (contracts, sections 3 and 4)."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loopx.control_plane
from loopx.control_plane.effect_program import EffectReceipt, effect_ref
from loopx.control_plane.errors import UsageError
from loopx.control_plane.ids import AgentId, EffectRef, GoalId, TodoId, TurnKey
from loopx.control_plane.turn_driver.driver import LoopXTurnRoute
from loopx.control_plane.turn_driver.loop_controller import TurnExecution, ValidatedTurnReceipt
from loopx.control_plane.turn_driver.transaction import (
    FAILURE_PHASE,
    MATERIAL_RESULT_KINDS,
    NO_SPEND_RESULT_KINDS,
    PHASES,
    STEPS,
    STOP_RESULT_KINDS,
    LoopXTurnPhase,
    LoopXTurnResultKind,
    ReceiptError,
    ReceiptRoute,
    ReceiptStatus,
    TurnReceipt,
    TurnStep,
    decode_receipt,
    journal_report,
    validate_receipt,
    validate_receipt_json,
)
from loopx.control_plane.work_items.todo import Continuation, ContinuationKind

KEY = TurnKey("t-1")
Kind = LoopXTurnResultKind


def make_receipt(
    kind: Kind,
    completed: int,
    failed: TurnStep | None = None,
    *,
    continuation: Continuation | None = None,
) -> TurnReceipt:
    return TurnReceipt(
        turn_key=KEY,
        goal_id=GoalId("g"),
        agent_id=AgentId("a"),
        todo_id=TodoId("t"),
        route=ReceiptRoute(kind=LoopXTurnRoute.READY_FOR_HOST),
        result_kind=kind,
        completed_phases=PHASES[:completed],
        failed_phase=failed,
        continuation=continuation,
    )


def test_the_phases_are_the_files_and_in_its_order() -> None:
    root = Path(loopx.control_plane.__file__).parent
    contract = json.loads((root / "turn_transaction_contract.json").read_text(encoding="utf-8"))
    assert [str(phase) for phase in LoopXTurnPhase] == contract["phases"]
    assert [str(step) for step in TurnStep] == [*contract["phases"], contract["closeout"]]
    assert contract["phases"] == [
        "host_execute",
        "typed_result",
        "validation",
        "durable_writeback",
        "quota_spend",
        "scheduler_apply",
        "scheduler_ack",
    ]


def test_the_twelve_kinds_fall_into_their_groups() -> None:
    assert len(Kind) == 12
    assert MATERIAL_RESULT_KINDS.isdisjoint(NO_SPEND_RESULT_KINDS)
    assert set(Kind) == MATERIAL_RESULT_KINDS | NO_SPEND_RESULT_KINDS | {Kind.TERMINAL_CLOSEOUT_FAILED}
    assert {Kind.USER_ACTION_REQUIRED, Kind.WAIT, Kind.ITERATION_FAILED} == STOP_RESULT_KINDS
    assert set(FAILURE_PHASE) == set(Kind) - MATERIAL_RESULT_KINDS - STOP_RESULT_KINDS


def test_turn_receipt_validation() -> None:
    execution = {
        "schema_version": "loopx_turn_receipt_v0",
        "turn_key": "t-1",
        "goal_id": "g",
        "agent_id": "a",
        "route": {"kind": LoopXTurnRoute.READY_FOR_HOST.value},
        "result_kind": Kind.VALIDATED_PROGRESS.value,
        "completed_phases": [str(phase) for phase in PHASES],
        "payload": {"files": 2},
    }
    receipt = ValidatedTurnReceipt.from_execution(execution)
    assert receipt.result_kind == Kind.VALIDATED_PROGRESS
    assert receipt.result_kind is Kind.VALIDATED_PROGRESS
    assert receipt.report.status is ReceiptStatus.COMMITTED
    assert msgspec.json.decode(receipt.receipt.payload) == {"files": 2}


def test_a_receipt_reads_back_from_its_json() -> None:
    receipt = make_receipt(Kind.QUOTA_SPEND_FAILED, 4, TurnStep.QUOTA_SPEND)
    raw = msgspec.json.encode(receipt)
    assert decode_receipt(raw, expected_turn_key=KEY) == receipt
    assert json.loads(raw)["route"] == {"kind": "ready_for_host"}


NO_FOLLOWUP = Continuation(kind=ContinuationKind.NO_FOLLOWUP)


def _effects(count: int, *, key: TurnKey = KEY) -> tuple[EffectReceipt, ...]:
    return tuple(EffectReceipt(effect_ref=effect_ref(key, step), turn_key=key, step=step) for step in STEPS[:count])


@pytest.mark.parametrize("extra", range(len(STEPS) + 1))
def test_a_real_no_followup_completion_passes_with_however_many_receipts(extra: int) -> None:
    """The terminal closeout's receipt is one more than the phases have; nothing counts them."""
    execution = TurnExecution(
        receipt=make_receipt(Kind.VALIDATED_COMPLETION, 7, continuation=NO_FOLLOWUP), phase_receipts=_effects(extra)
    )
    receipt = ValidatedTurnReceipt.from_execution(execution, expected_turn_key=KEY)
    assert receipt.continuation == NO_FOLLOWUP


@pytest.mark.parametrize(
    ("execution", "code"),
    [
        (make_receipt(Kind.VALIDATED_PROGRESS, 2), "receipt_invalid"),
        (make_receipt(Kind.WAIT, 5), "receipt_invalid"),
        (make_receipt(Kind.VALIDATED_COMPLETION, 7), "completion_without_continuation"),
        (
            make_receipt(Kind.VALIDATED_COMPLETION, 7, continuation=Continuation(kind=ContinuationKind.SUCCESSOR)),
            "completion_without_continuation",
        ),
        (
            TurnExecution(
                receipt=make_receipt(Kind.VALIDATED_PROGRESS, 7), phase_receipts=_effects(1, key=TurnKey("t-2"))
            ),
            "receipt_foreign_effect",
        ),
        (
            TurnExecution(
                receipt=make_receipt(Kind.VALIDATION_FAILED, 2, TurnStep.VALIDATION), phase_receipts=_effects(5)
            ),
            "receipt_foreign_effect",
        ),
        ({"result_kind": "made_up"}, "receipt_invalid"),
        ({"result_kind": 3}, "receipt_malformed"),
        ({}, "receipt_malformed"),
    ],
)
def test_an_illegal_execution_is_refused_with_its_code(execution: object, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        ValidatedTurnReceipt.from_execution(execution)  # type: ignore[arg-type]  # the bad shapes are the point
    assert caught.value.code == code


def test_a_receipt_of_another_turn_is_refused() -> None:
    with pytest.raises(UsageError, match="turn_key_mismatch"):
        ValidatedTurnReceipt.from_execution(make_receipt(Kind.VALIDATED_PROGRESS, 7), expected_turn_key=TurnKey("t-9"))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"schema_version": "loopx_turn_receipt_v9"}, ReceiptError.SCHEMA_UNSUPPORTED),
        ({"turn_key": ""}, ReceiptError.IDENTITY_INCOMPLETE),
        ({"goal_id": ""}, ReceiptError.IDENTITY_INCOMPLETE),
        ({"agent_id": ""}, ReceiptError.IDENTITY_INCOMPLETE),
    ],
)
def test_identity_and_schema_are_checked(changes: dict[str, str], error: ReceiptError) -> None:
    bad = msgspec.structs.replace(make_receipt(Kind.VALIDATED_PROGRESS, 7), **changes)
    report = validate_receipt(bad)
    assert not report.ok
    assert error in report.errors


@pytest.mark.parametrize("done", [5, 6, 7])
def test_a_closeout_may_fail_after_five_six_or_seven_phases(done: int) -> None:
    report = validate_receipt(make_receipt(Kind.TERMINAL_CLOSEOUT_FAILED, done, TurnStep.TERMINAL_CLOSEOUT))
    assert report.ok
    assert report.status is ReceiptStatus.FAILED
    assert report.next_phase is TurnStep.TERMINAL_CLOSEOUT


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b'{"result_kind": []}', b'{"result_kind": "x", "completed_phases": 1}']
)
def test_a_malformed_receipt_is_a_usage_error(raw: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        validate_receipt_json(raw)
    assert caught.value.code == "receipt_malformed"


phase_words = st.sampled_from([*map(str, STEPS), "made_up"])
kind_words = st.sampled_from([*map(str, Kind), "made_up"])


@given(kind=kind_words, completed=st.lists(phase_words, max_size=9), failed=st.none() | phase_words)
def test_whatever_a_good_receipt_says_is_consistent(kind: str, completed: list[str], failed: str | None) -> None:
    raw = json.dumps(
        {
            "schema_version": "loopx_turn_receipt_v0",
            "turn_key": "t-1",
            "goal_id": "g",
            "agent_id": "a",
            "result_kind": kind,
            "completed_phases": completed,
            "failed_phase": failed,
        }
    )
    report = validate_receipt_json(raw)
    assert report.ok == (not report.errors) == (report.status is not ReceiptStatus.INVALID)
    assert list(report.errors) == sorted(set(report.errors))
    if not report.ok:
        assert report.next_phase is None
        assert report.eligible == type(report.eligible)()
        return
    assert completed == [str(phase) for phase in PHASES[: len(completed)]], "an ordered prefix"
    typed = Kind(kind)
    assert not (typed in NO_SPEND_RESULT_KINDS and "quota_spend" in completed), "no-spend never spends"
    assert typed in MATERIAL_RESULT_KINDS or not (report.eligible.durable_writeback or report.eligible.quota_spend)
    assert not report.eligible.quota_spend or "durable_writeback" in completed, "spend only after writeback"
    assert not report.eligible.scheduler_ack or "scheduler_apply" in completed, "ack never before apply"
    assert (failed is not None) == (typed in FAILURE_PHASE), "a failure names its phase, and nothing else does"
    assert report.status is not ReceiptStatus.IN_PROGRESS, "that is a journal's"


@given(
    intended=st.none() | st.sampled_from(Kind),
    completed=st.lists(phase_words, max_size=8) | st.integers(0, 7).map(lambda n: [str(p) for p in PHASES[:n]]),
)
def test_a_journal_is_judged_by_its_intended_kind(intended: Kind | None, completed: list[str]) -> None:
    report = journal_report(intended, completed)
    assert report.ok == (not report.errors)
    if report.ok and intended in MATERIAL_RESULT_KINDS:
        assert report.eligible.quota_spend == ("durable_writeback" in completed)
        assert (report.next_phase is None) == (len(completed) == 7)


def test_a_journal_whose_spend_failed_is_still_about_its_progress() -> None:
    completed = [str(phase) for phase in PHASES[:4]]
    report = journal_report(Kind.VALIDATED_PROGRESS, completed, failed=TurnStep.QUOTA_SPEND)
    assert report.status is ReceiptStatus.FAILED
    assert report.next_phase is TurnStep.QUOTA_SPEND
    assert report.eligible.quota_spend
    receipt = validate_receipt(make_receipt(Kind.QUOTA_SPEND_FAILED, 4, TurnStep.QUOTA_SPEND))
    assert not receipt.eligible.quota_spend, "the failure's own receipt allows nothing"


def test_a_journal_without_a_result_is_in_progress() -> None:
    assert journal_report(None, []).status is ReceiptStatus.IN_PROGRESS
    assert journal_report(Kind.VALIDATED_PROGRESS, ["host_execute"]).status is ReceiptStatus.IN_PROGRESS
    bad = journal_report(None, ["host_execute"], failed=TurnStep.QUOTA_SPEND)
    assert bad.errors == (ReceiptError.FAILED_PHASE_NOT_NEXT,)
    spent = journal_report(Kind.WAIT, [str(phase) for phase in PHASES[:5]])
    assert spent.errors == (ReceiptError.NO_SPEND_KIND_SPENT,)


def test_effect_refs_are_carried_as_given() -> None:
    receipt = msgspec.structs.replace(make_receipt(Kind.WAIT, 2), effect_ref=EffectRef("t-1/typed_result"))
    assert decode_receipt(msgspec.json.encode(receipt)).effect_ref == "t-1/typed_result"
