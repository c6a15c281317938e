"""The published coordinates: paths and names that documents outside name, and what they promise of each.

One table. A row that a later part of the work adds is marked; it is walked as soon as it is there.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from loopx.control_plane.effect_program import EffectReceipt, effect_ref
from loopx.control_plane.ids import AgentId, EffectRef, GoalId, TodoId, TurnKey
from loopx.control_plane.turn_driver.driver import REPAIR_ACTIONS, REPLAN_ACTIONS, LoopXTurnRoute
from loopx.control_plane.turn_driver.executor import _task_validation_stage
from loopx.control_plane.turn_driver.journal import TurnResult
from loopx.control_plane.turn_driver.loop_controller import LoopDisposition, TurnExecution, ValidatedTurnReceipt
from loopx.control_plane.turn_driver.recovery import JournalView, RecoveryAction, TurnIdentity, recover
from loopx.control_plane.turn_driver.transaction import (
    FAILURE_PHASE,
    MATERIAL_RESULT_KINDS,
    NO_SPEND_RESULT_KINDS,
    PHASES,
    LoopXTurnResultKind,
    ReceiptRoute,
    TurnReceipt,
    TurnStep,
)
from loopx.control_plane.work_items.delivery_outcome import DeliveryOutcome, DeliveryTurnKind, normalise_turn_kind
from loopx.loops.compare import ArmOutcome
from loopx.loops.failure import ChecksVerdict, LoopFailure, LoopOutcome
from loopx.quota import quota_status

ROOT = Path(__file__).resolve().parent.parent.parent
DRIVER = "loopx/control_plane/turn_driver"
KEY, GOAL, AGENT = TurnKey("t-1"), GoalId("g"), AgentId("a")


class Coordinate(msgspec.Struct, frozen=True):
    """A path from the root of the repository, the names in it, and whether a later part of the work adds it."""

    path: str
    names: tuple[str, ...] = ()
    later: bool = False


COORDINATES = (
    Coordinate(f"{DRIVER}/driver.py", ("LoopXTurnRoute", "REPLAN_ACTIONS", "REPAIR_ACTIONS", "route_turn")),
    Coordinate(f"{DRIVER}/transaction.py", ("LoopXTurnResultKind", "MATERIAL_RESULT_KINDS", "NO_SPEND_RESULT_KINDS")),
    Coordinate(f"{DRIVER}/loop_controller.py", ("LoopDisposition", "ValidatedTurnReceipt", "decide_loop_disposition")),
    Coordinate(f"{DRIVER}/executor.py", ("_task_validation_stage",)),
    Coordinate(f"{DRIVER}/settlement.py", ("execute_turn_driver_settlement", "terminal_closeout_requirement")),
    Coordinate("loopx/control_plane/turn_transaction_contract.json"),
    Coordinate("loopx/control_plane/effect_program.py", ("EffectStep", "EffectReceipt", "EffectFailure", "effect_ref")),
    Coordinate("loopx/control_plane/quota/spend_commit.py", ("plan_spend", "SpendReceipt")),
    Coordinate("loopx/control_plane/scheduler/arbitration.py", ("arbitrate",)),
    Coordinate("loopx/control_plane/scheduler/execution_context.py", ("owner_is_legal",)),
    Coordinate("loopx/control_plane/scheduler/heartbeat_commit.py", ("plan_heartbeat",)),
    Coordinate("loopx/control_plane/work_items/delivery_outcome.py", ("DeliveryOutcome", "DeliveryTurnKind")),
    Coordinate("loopx/loops/failure.py", ("LoopFailure", "LoopOutcome", "classify_loop_end")),
    Coordinate("loopx/loops/external_loop.py"),
    Coordinate("loopx/loops/compare.py", ("ArmOutcome",)),
    Coordinate(
        "loopx/quota.py",
        ("quota_status", "build_quota_plan", "_quota_plan_goal_quota", "quota_with_handoff_outcome_floor"),
    ),
    Coordinate("loopx/cli_commands/quota.py", ("COMMANDS",)),
    Coordinate("loopx/cli_commands/turn.py", ("COMMANDS",)),
    Coordinate("loopx/presentation/renderers/quota_markdown.py"),
    Coordinate("loopx/status.py", later=True),
    Coordinate("loopx/loops/native_loop.py", later=True),
    Coordinate("loopx/loops/foreman_loop.py", later=True),
    Coordinate("loopx/loops/scenario_loop.py", later=True),
    Coordinate("tests/test_loopx_turn_transaction.py"),
    Coordinate("tests/test_turn_envelope.py"),
    Coordinate("tests/test_loopx_turn_settlement_parity.py"),
    Coordinate("examples/delivery-turn-kind-enum-smoke.py"),
    Coordinate("regression/automation-loop-heartbeat-poll-contract.py"),
)


@pytest.mark.parametrize("coordinate", COORDINATES, ids=lambda coordinate: coordinate.path)
def test_each_coordinate_is_there(coordinate: Coordinate) -> None:
    path = ROOT / coordinate.path
    if coordinate.later and not path.exists():
        pytest.skip("a later part of the work adds it")
    assert path.is_file()
    if path.suffix != ".py" or not coordinate.path.startswith("loopx/"):
        return
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert [name for name in coordinate.names if not hasattr(module, name)] == []


@pytest.mark.parametrize(
    "coordinate", [one for one in COORDINATES if one.path.startswith(("examples/", "regression/"))]
)
def test_what_is_named_as_runnable_runs(coordinate: Coordinate, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / coordinate.path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_eight_routes_and_the_actions_behind_two_of_them() -> None:
    assert len(LoopXTurnRoute) == 8
    assert {"autonomous_replan", "autonomous_replan_required", "successor_replan_required"} == set(REPLAN_ACTIONS)
    assert {"self_repair", "workspace_repair", "capability_repair"} < set(REPAIR_ACTIONS)


def test_twelve_result_kinds_and_the_phase_of_each_failure() -> None:
    assert len(LoopXTurnResultKind) == 12
    assert not MATERIAL_RESULT_KINDS & NO_SPEND_RESULT_KINDS
    assert FAILURE_PHASE == {
        LoopXTurnResultKind.HOST_FAILURE: TurnStep.HOST_EXECUTE,
        LoopXTurnResultKind.VALIDATION_FAILED: TurnStep.VALIDATION,
        LoopXTurnResultKind.WRITEBACK_FAILED: TurnStep.DURABLE_WRITEBACK,
        LoopXTurnResultKind.QUOTA_SPEND_FAILED: TurnStep.QUOTA_SPEND,
        LoopXTurnResultKind.TERMINAL_CLOSEOUT_FAILED: TurnStep.TERMINAL_CLOSEOUT,
    }


def a_receipt(kind: LoopXTurnResultKind, completed: int) -> TurnReceipt:
    return TurnReceipt(
        turn_key=KEY,
        goal_id=GOAL,
        agent_id=AGENT,
        todo_id=TodoId("td"),
        route=ReceiptRoute(kind=LoopXTurnRoute.READY_FOR_HOST),
        result_kind=kind,
        completed_phases=PHASES[:completed],
        failed_phase=None,
        continuation=None,
    )


def test_a_validated_receipt_is_compared_by_type() -> None:
    receipt = a_receipt(LoopXTurnResultKind.VALIDATED_PROGRESS, 7)
    effects = tuple(
        EffectReceipt(
            effect_ref=effect_ref(KEY, TurnStep(phase)), turn_key=KEY, step=TurnStep(phase), committed_at_ms=1
        )
        for phase in PHASES
    )
    validated = ValidatedTurnReceipt.from_execution(TurnExecution(receipt=receipt, phase_receipts=effects))
    assert validated.result_kind == LoopXTurnResultKind.VALIDATED_PROGRESS


def test_a_receipts_json_has_the_published_fields() -> None:
    body = json.loads(msgspec.json.encode(a_receipt(LoopXTurnResultKind.VALIDATED_PROGRESS, 7)))
    assert body["route"]["kind"] == "ready_for_host"
    assert body["result_kind"] == "validated_progress"
    assert body["completed_phases"] == list(PHASES)
    assert "payload" in body


def test_eight_dispositions_with_their_three_costs() -> None:
    assert len(LoopDisposition) == 8
    costs = {one: (one.spends_quota, one.launches_host, one.writes_state) for one in LoopDisposition}
    assert costs[LoopDisposition.RUN_NOW] == costs[LoopDisposition.REPAIR] == costs[LoopDisposition.REPLAN]
    assert costs[LoopDisposition.RUN_NOW] == (True, True, True)
    assert costs[LoopDisposition.CAPABILITY_ACTION_REQUIRED] == (False, False, True)
    assert costs[LoopDisposition.TERMINAL] == (False, False, False)


def test_the_seven_phases_are_read_from_their_file() -> None:
    text = (ROOT / "loopx/control_plane/turn_transaction_contract.json").read_text(encoding="utf-8")
    assert json.loads(text)["phases"] == list(PHASES)


def test_the_validation_stage_decides_settlement_or_stop() -> None:
    progress = TurnResult(kind=LoopXTurnResultKind.VALIDATED_PROGRESS, tree_after="1" * 40)
    assert _task_validation_stage(progress).material
    unproved = TurnResult(kind=LoopXTurnResultKind.VALIDATED_COMPLETION, tree_after="1" * 40)
    stage = _task_validation_stage(unproved)
    assert (stage.material, stage.kind) == (False, LoopXTurnResultKind.VALIDATION_FAILED)


def test_a_recovery_decision_keeps_why_it_allowed_or_refused() -> None:
    identity = TurnIdentity(turn_key=KEY, goal_id=GOAL, agent_id=AGENT)
    effects = tuple(
        EffectReceipt(
            effect_ref=effect_ref(KEY, TurnStep(phase)), turn_key=KEY, step=TurnStep(phase), committed_at_ms=1
        )
        for phase in PHASES[:4]
    )
    kept = JournalView(
        identity=identity,
        expected=identity,
        completed=tuple(PHASES[:4]),
        receipts=effects,
        intended=LoopXTurnResultKind.VALIDATED_PROGRESS,
    )
    decision = recover(kept)
    assert decision.action is RecoveryAction.SPEND_ONLY
    assert decision.effect_ref == EffectRef(f"{KEY}/quota_spend")
    assert TurnStep.DURABLE_WRITEBACK in decision.never_again
    torn = msgspec.structs.replace(kept, completed=(PHASES[0], PHASES[2]))
    assert recover(torn).violation == "not_ordered_prefix"


def test_an_illegal_explicit_delivery_kind_is_unknown() -> None:
    assert (len(DeliveryOutcome), len(DeliveryTurnKind)) == (4, 6)
    derived = DeliveryTurnKind.PRODUCT_PATH_EXECUTION
    assert normalise_turn_kind("made_up", derived) is DeliveryTurnKind.UNKNOWN
    assert normalise_turn_kind(None, derived) is derived


def test_eight_failures_and_a_cut_of_the_harness_is_no_loss_of_the_task() -> None:
    assert len(LoopFailure) == 8
    cut = LoopOutcome.failed(LoopFailure.BUDGET_EXHAUSTED, checks=ChecksVerdict.RED_STARVED)
    lost = LoopOutcome.failed(LoopFailure.VERIFICATION, checks=ChecksVerdict.RED)
    assert not ArmOutcome(arm="a", task="t", outcome=cut).scorable
    assert ArmOutcome(arm="a", task="t", outcome=lost).scorable


def test_the_documented_quota_examples_hold_word_for_word() -> None:
    quota: dict[str, object] = {"compute": 1.0, "allowed_slots": 5, "spent_slots": 3}
    goal: dict[str, object] = {"id": "example-goal", "quota": quota}
    told = quota_status(goal)
    assert (told["state"], told["reason"]) == (
        "eligible",
        "1 compute quota; eligible for the next automatic agent turn",
    )
    quota["spent_slots"] = 5
    told = quota_status(goal)
    assert (told["state"], told["reason"]) == ("throttled", "1 compute quota spent 5/5 slots in this window")
    told = quota_status(goal, waiting_on="controller")
    assert (told["state"], told["reason"]) == (
        "operator_gate",
        "operator gate blocks gated delivery; safe non-gated steering may continue",
    )
