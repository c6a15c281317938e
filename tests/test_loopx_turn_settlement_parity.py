"""Result kind, phase and spend stay consistent over the store: each of the twelve kinds through the real executor.

The store, the executor and the settlement are the product's own; only what is outside (host, judge, work tree, cadence,
closeout) is a small port that does as it is told. Read with contracts, sections 3 to 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from loopx.control_plane.errors import ConflictError, LoopXError
from loopx.control_plane.ids import EffectRef, TurnKey
from loopx.control_plane.turn_driver.executor import TurnExecutor
from loopx.control_plane.turn_driver.journal import (
    Closeout,
    Fence,
    HostReport,
    JournalStep,
    NewTodo,
    NextDue,
    ReplanDelta,
    RestoreOrder,
    SlotSpent,
    TurnJournal,
    TurnResult,
    TurnState,
)
from loopx.control_plane.turn_driver.recovery import RecoveryAction, TurnIdentity, journal_view, recover
from loopx.control_plane.turn_driver.settlement import terminal_closeout_requirement
from loopx.control_plane.turn_driver.transaction import (
    FAILURE_PHASE,
    MATERIAL_RESULT_KINDS,
    NO_SPEND_RESULT_KINDS,
    PHASES,
    LoopXTurnResultKind,
    ReceiptStatus,
    TurnStep,
    validate_receipt,
)
from loopx.control_plane.work_items.todo import Continuation, ContinuationKind
from loopx.runtime.turn_runner import receipt_of
from loopx.store.store import Store
from tests.store import kit

Kind = LoopXTurnResultKind
NO_FOLLOWUP = Continuation(kind=ContinuationKind.NO_FOLLOWUP)
STUCK = (Kind.WRITEBACK_FAILED, Kind.QUOTA_SPEND_FAILED, Kind.TERMINAL_CLOSEOUT_FAILED)
"""Kinds that no judge returns: a settlement that could not commit declares them about another result."""

SPENT_NOTHING_DONE = {
    Kind.VALIDATION_FAILED: 2,
    Kind.WAIT: 2,
    Kind.USER_ACTION_REQUIRED: 2,
    Kind.ITERATION_FAILED: 2,
    Kind.HOST_FAILURE: 0,
}
"""No-spend kinds, and how many phases their journals keep."""


class Outside:
    """All ports beside the journal. `fails` names the step that can't be done now."""

    def __init__(self, store: Store, result: TurnResult, fails: TurnStep | None = None) -> None:
        self._store = store
        self.result = result
        self.fails = fails
        self.launches = 0
        self.judged = 0
        self.checkpoints: list[EffectRef] = []
        self.restored: list[RestoreOrder] = []
        self.closed = 0

    @property
    def journal(self) -> Outside:
        return self

    host = tree = schedule = closeout = journal

    @property
    def judge(self) -> Judge:
        return Judge(self)

    def load(self, turn_key: TurnKey) -> TurnJournal:
        return self._store.load(turn_key)

    def commit(self, turn_key: TurnKey, fence: Fence, steps: Sequence[JournalStep]) -> TurnJournal:
        if self.fails is TurnStep.QUOTA_SPEND and any(isinstance(step, SlotSpent) for step in steps):
            raise ConflictError("spend_conflict", "the ledger moved, and moved again")
        return self._store.commit(turn_key, fence, steps)

    def execute(self, journal: TurnJournal) -> HostReport:
        self.launches += 1
        return HostReport(
            run_id=f"{journal.turn.turn_key}.host", engine="command:true", end_kind="ok", handed_over=True
        )

    def checkpoint(self, journal: TurnJournal, effect_ref: EffectRef) -> str | None:
        if self.fails is TurnStep.DURABLE_WRITEBACK:
            raise LoopXError("tree_unwritable", "no checkpoint can be made")
        self.checkpoints.append(effect_ref)
        return "c" * 40

    def restore(self, journal: TurnJournal, order: RestoreOrder) -> None:
        self.restored.append(order)

    def next_due(self, journal: TurnJournal) -> NextDue:
        return NextDue()

    def owner_has(self, journal: TurnJournal) -> bool:
        return True

    def close(self, journal: TurnJournal) -> None:
        if self.fails is TurnStep.TERMINAL_CLOSEOUT:
            raise LoopXError("outside_stays_open", "what the goal holds can't be released")
        self.closed += 1


class Judge:
    """Says what it was told to."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def judge(self, journal: TurnJournal, host: HostReport) -> TurnResult:
        self._outside.judged += 1
        return self._outside.result


class Bench:
    """A goal with one turn open, and the ports that its executor will meet."""

    def __init__(self, folder: Path, result: TurnResult, fails: TurnStep | None = None) -> None:
        self.store = kit.open_store(folder)
        self.goal_id = kit.make_goal(self.store, todo=False)
        todo_id = kit.add_todo(self.store, self.goal_id)
        self.opened, self.fence = kit.start_turn(self.store, self.goal_id, todo_id)
        self.outside = Outside(self.store, result, fails)

    @property
    def key(self) -> TurnKey:
        return self.opened.turn.turn_key

    def run(self) -> TurnJournal:
        return TurnExecutor(self.outside).run(self.store.load(self.key), self.fence)

    def ledger(self) -> list[str]:
        with self.store.read() as tx:
            return [str(row["effect_ref"]) for row in tx.all("ledger.page", goal_id=self.goal_id, after=0, limit=9)]


def a_result(kind: Kind) -> TurnResult:
    """The smallest result of a kind that validation accepts."""
    return TurnResult(
        kind=kind,
        continuation=NO_FOLLOWUP if kind is Kind.VALIDATED_COMPLETION else None,
        delta=ReplanDelta(add=(NewTodo(title="another way"),)) if kind is Kind.REPLAN_REQUIRED else None,
        tree_before="0" * 40,
        tree_after="1" * 40,
        changed=True,
    )


def assert_consistent(bench: Bench, journal: TurnJournal) -> None:
    """What must hold of every turn at every time: kind, prefix, slots, ledger and phase rows tell one story."""
    turn = journal.turn
    assert [record.phase for record in journal.phases] == list(PHASES[: turn.completed])
    spent = [f"{turn.turn_key}/quota_spend"] if turn.completed > PHASES.index(TurnStep.QUOTA_SPEND) else []
    assert bench.ledger() == spent
    assert turn.slots == len(spent)
    assert turn.checkpoint == ("c" * 40 if turn.completed > PHASES.index(TurnStep.DURABLE_WRITEBACK) else None)
    report = validate_receipt(receipt_of(turn), expected_turn_key=turn.turn_key)
    assert report.errors == ()
    identity = TurnIdentity(turn_key=turn.turn_key, goal_id=turn.goal_id, agent_id=turn.agent_id)
    view = journal_view(journal, expected=identity, closeout_required=terminal_closeout_requirement(turn))
    assert recover(view).action is not RecoveryAction.BLOCKED


def test_the_twelve_kinds_are_all_walked_here() -> None:
    assert {*MATERIAL_RESULT_KINDS, *SPENT_NOTHING_DONE, *STUCK} == set(Kind)
    assert set(SPENT_NOTHING_DONE) < NO_SPEND_RESULT_KINDS


@pytest.mark.parametrize("kind", sorted(MATERIAL_RESULT_KINDS))
def test_a_material_kind_is_settled_and_spends_one_slot(tmp_path: Path, kind: Kind) -> None:
    bench = Bench(tmp_path, a_result(kind))
    journal = bench.run()
    turn = journal.turn
    assert (turn.state, turn.result_kind, turn.failed_phase) == (TurnState.CLOSED, kind, None)
    assert (turn.completed, turn.slots) == (len(PHASES), 1)
    assert bench.outside.checkpoints == [f"{bench.key}/durable_writeback"]
    assert turn.closeout is (Closeout.DONE if kind is Kind.VALIDATED_COMPLETION else Closeout.NONE)
    assert validate_receipt(receipt_of(turn)).status is ReceiptStatus.COMMITTED
    assert_consistent(bench, journal)


@pytest.mark.parametrize("kind", sorted(SPENT_NOTHING_DONE))
def test_a_no_spend_kind_keeps_its_journal_and_spends_nothing(tmp_path: Path, kind: Kind) -> None:
    bench = Bench(tmp_path, a_result(kind))
    journal = bench.run()
    turn = journal.turn
    assert (turn.state, turn.result_kind) == (TurnState.CLOSED, kind)
    assert turn.failed_phase == FAILURE_PHASE.get(kind)
    assert (turn.completed, turn.slots) == (SPENT_NOTHING_DONE[kind], 0)
    assert bench.outside.checkpoints == []
    assert_consistent(bench, journal)


@pytest.mark.parametrize(
    ("intended", "fails", "kind", "completed"),
    [
        (Kind.VALIDATED_PROGRESS, TurnStep.DURABLE_WRITEBACK, Kind.WRITEBACK_FAILED, 3),
        (Kind.VALIDATED_COMPLETION, TurnStep.DURABLE_WRITEBACK, Kind.WRITEBACK_FAILED, 3),
        (Kind.VALIDATED_PROGRESS, TurnStep.QUOTA_SPEND, Kind.QUOTA_SPEND_FAILED, 4),
        (Kind.VALIDATED_COMPLETION, TurnStep.QUOTA_SPEND, Kind.QUOTA_SPEND_FAILED, 4),
        (Kind.VALIDATED_COMPLETION, TurnStep.TERMINAL_CLOSEOUT, Kind.TERMINAL_CLOSEOUT_FAILED, 7),
    ],
)
def test_a_stuck_settlement_names_its_phase_and_is_finished_later(
    tmp_path: Path, intended: Kind, fails: TurnStep, kind: Kind, completed: int
) -> None:
    """The intent survives the failure: later only what is missing is done, with the same effect, once."""
    bench = Bench(tmp_path, a_result(intended), fails)
    journal = bench.run()
    turn = journal.turn
    assert (turn.state, turn.result_kind, turn.intended_kind) == (TurnState.OPEN, kind, intended)
    assert (turn.failed_phase, turn.completed) == (fails, completed)
    assert FAILURE_PHASE[kind] is fails
    assert_consistent(bench, journal)

    bench.outside.fails = None
    journal = bench.run()
    turn = journal.turn
    assert (turn.state, turn.result_kind, turn.failed_phase) == (TurnState.CLOSED, intended, None)
    assert (turn.completed, turn.slots) == (len(PHASES), 1)
    assert (bench.outside.launches, bench.outside.judged) == (1, 1)
    assert bench.outside.checkpoints == [f"{bench.key}/durable_writeback"]
    assert_consistent(bench, journal)


@pytest.mark.parametrize("kind", sorted({*MATERIAL_RESULT_KINDS, *SPENT_NOTHING_DONE}))
def test_running_an_ended_turn_again_changes_nothing(tmp_path: Path, kind: Kind) -> None:
    bench = Bench(tmp_path, a_result(kind))
    bench.run()
    first = bench.store.load(bench.key)
    bench.run()
    assert bench.store.load(bench.key) == first
    assert bench.outside.launches == 1


def test_a_completion_that_does_not_say_what_follows_is_no_progress_either(tmp_path: Path) -> None:
    result = msgspec.structs.replace(a_result(Kind.VALIDATED_COMPLETION), continuation=None)
    bench = Bench(tmp_path, result)
    journal = bench.run()
    turn = journal.turn
    assert (turn.result_kind, turn.failed_phase) == (Kind.VALIDATION_FAILED, TurnStep.VALIDATION)
    assert turn.slots == 0
    assert bench.ledger() == []


def test_a_refused_turn_puts_the_files_back_before_it_closes(tmp_path: Path) -> None:
    order = RestoreOrder(paths=("tests/t.py",), base_tree="0" * 40, evidence_tree="1" * 40)
    bench = Bench(tmp_path, msgspec.structs.replace(a_result(Kind.VALIDATION_FAILED), restore=order))
    journal = bench.run()
    assert bench.outside.restored == [order]
    assert journal.turn.state is TurnState.CLOSED
    assert_consistent(bench, journal)
