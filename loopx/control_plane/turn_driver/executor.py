"""The turn executor: one turn from its start, or from any committed prefix, to its end.

It drives ports in the order of the seven phases and decides nothing about the world itself: the host runs, the judge
types the result, the settlement commits it. A turn that was killed anywhere is handed in again and goes on.
"""

from __future__ import annotations

from typing import Final

import msgspec

from loopx.control_plane.errors import LoopXError, NeedsPersonError
from loopx.control_plane.ports import TurnPorts
from loopx.control_plane.turn_driver.journal import (
    Fence,
    HostEnded,
    HostExecuted,
    Restored,
    ResultTyped,
    Stopped,
    TurnJournal,
    TurnResult,
    TurnState,
    Validated,
)
from loopx.control_plane.turn_driver.settlement import (
    DEFAULT_BOUNDARIES,
    JournalWriter,
    execute_turn_driver_settlement,
)
from loopx.control_plane.turn_driver.transaction import (
    FAILURE_PHASE,
    MATERIAL_RESULT_KINDS,
    LoopXTurnPhase,
    LoopXTurnResultKind,
    TurnStep,
)
from loopx.control_plane.work_items.todo import ContinuationKind

_HOST_EXECUTED: Final = 1
_RESULT_TYPED: Final = 2


class ValidationStage(msgspec.Struct, frozen=True, kw_only=True):
    """What validation decided: settle the result as material, or stop with the kind and the failed phase named."""

    material: bool
    kind: LoopXTurnResultKind
    failed_phase: TurnStep | None = None


def _task_validation_stage(result: TurnResult) -> ValidationStage:
    """Check a typed result and its evidence; decide material settlement or stop (contracts, sections 3 and 5).

    A completion that does not state its continuation, or contradicts itself, is refused as `validation_failed` and is
    never downgraded to progress. A material result needs verified evidence about the tree that it left.
    """
    if result.kind not in MATERIAL_RESULT_KINDS:
        return ValidationStage(material=False, kind=result.kind, failed_phase=FAILURE_PHASE.get(result.kind))
    if _is_provable(result):
        return ValidationStage(material=True, kind=result.kind)
    return ValidationStage(material=False, kind=LoopXTurnResultKind.VALIDATION_FAILED, failed_phase=TurnStep.VALIDATION)


def _is_provable(result: TurnResult) -> bool:
    continuation = result.continuation
    if result.kind is LoopXTurnResultKind.VALIDATED_COMPLETION:
        if continuation is None:
            return False
        if (continuation.kind is ContinuationKind.SUCCESSOR) != bool(continuation.successors):
            return False
    elif continuation is not None:
        return False
    if result.kind is LoopXTurnResultKind.REPLAN_REQUIRED:
        return result.delta is not None
    return result.tree_after is not None


class TurnExecutor:
    """Runs and resumes turns over one set of ports.

    `boundaries`: the phases after which a commit is made even if nothing outside the store follows.
    """

    def __init__(self, ports: TurnPorts, boundaries: frozenset[LoopXTurnPhase] = DEFAULT_BOUNDARIES) -> None:
        self._ports = ports
        self._boundaries = boundaries

    def run(self, journal: TurnJournal, fence: Fence) -> TurnJournal:
        """Take the turn as far as it goes; the returned journal tells where that is.

        Raises NeedsPersonError (`journal_blocked`) for an inconsistent journal, ConflictError when another process
        has the turn, StoreError when the store can't be written, CancelledError when a person stopped it.
        """
        if journal.turn.state is TurnState.BLOCKED:
            raise NeedsPersonError(
                "journal_blocked",
                f"the journal of turn {journal.turn.turn_key} is inconsistent: {journal.turn.violation}",
                hint="loopx doctor",
                data={"turn_key": journal.turn.turn_key, "violation": journal.turn.violation},
            )
        writer = JournalWriter(self._ports.journal, journal, fence, self._boundaries)
        if writer.turn.state is TurnState.CLOSED:
            return journal
        result = writer.turn.result or self._execute_and_type(writer)
        self._validate(writer, result)
        self._restore(writer)
        return execute_turn_driver_settlement(writer, self._ports)

    def _execute_and_type(self, writer: JournalWriter) -> TurnResult:
        report = writer.journal.host
        if report is None:
            report = self._ports.host.execute(writer.journal)
            writer.note(HostEnded(report))
            writer.flush()
        result = self._ports.judge.judge(writer.journal, report)
        stage = _task_validation_stage(result)
        if stage.failed_phase is TurnStep.HOST_EXECUTE:
            # A host failure completes no phase; its result is kept all the same, for diagnosis and deduplication.
            writer.note(ResultTyped(result))
            writer.note(Stopped(stage.kind, stage.failed_phase))
            writer.flush()
            return result
        if writer.completed < _HOST_EXECUTED:
            writer.phase(HostExecuted(report))
        writer.phase(ResultTyped(result))
        return result

    def _validate(self, writer: JournalWriter, result: TurnResult) -> None:
        """Accept a typed result as material, or stop; one whose files must go back first stops after that."""
        if writer.completed != _RESULT_TYPED:
            return
        stage = _task_validation_stage(result)
        if stage.material:
            writer.phase(Validated())
        elif result.restore is None:
            writer.note(Stopped(stage.kind, stage.failed_phase))
        writer.flush()

    def _restore(self, writer: JournalWriter) -> None:
        """Finish a refused turn whose offending files must go back: the order is on record before the first file."""
        result = writer.turn.result
        if result is None or result.restore is None or writer.turn.state is not TurnState.OPEN:
            return
        if writer.completed > _RESULT_TYPED:
            return
        stage = _task_validation_stage(result)
        try:
            self._ports.tree.restore(writer.journal, result.restore)
        except LoopXError as error:
            raise NeedsPersonError(
                "restore_failed",
                f"the files of a refused turn could not be put back: {error.message}",
                hint=error.hint or "loopx turn resume, after the cause is mended",
                data={"turn_key": writer.turn.turn_key},
            ) from error
        writer.note(Restored())
        writer.note(Stopped(stage.kind, stage.failed_phase))
        writer.flush()
