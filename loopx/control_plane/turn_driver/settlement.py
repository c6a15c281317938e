"""Settlement: validation, durable writeback, quota spend, scheduling and terminal closeout, in that order.

It drives ports and resumes from any committed prefix: what the journal already has is never done again. Consecutive
phases whose effects are all inside the store share one commit; `boundaries` names the phases after which a commit is
made in any case (architecture, "Effects and exactly-once").
"""

from __future__ import annotations

from typing import Final

from loopx.control_plane.effect_program import effect_ref
from loopx.control_plane.errors import CancelledError, ConflictError, LoopXError, StoreError
from loopx.control_plane.ports import JournalPort, TurnPorts
from loopx.control_plane.turn_driver.journal import (
    ClosedOut,
    Closeout,
    Fence,
    Finished,
    JournalStep,
    ScheduleAcked,
    ScheduleApplied,
    SlotSpent,
    Stopped,
    Turn,
    TurnJournal,
    TurnState,
    WrittenBack,
)
from loopx.control_plane.turn_driver.transaction import (
    MATERIAL_RESULT_KINDS,
    PHASES,
    LoopXTurnPhase,
    LoopXTurnResultKind,
    TurnStep,
)
from loopx.control_plane.work_items.todo import ContinuationKind

DEFAULT_BOUNDARIES: Final = frozenset({LoopXTurnPhase.VALIDATION})
"""Phases that are followed by something outside the store, so that their commit can't wait."""

_VALIDATION_DONE: Final = PHASES.index(LoopXTurnPhase.VALIDATION) + 1
_WRITEBACK_DONE: Final = _VALIDATION_DONE + 1
_SPEND_DONE: Final = _WRITEBACK_DONE + 1
_APPLY_DONE: Final = _SPEND_DONE + 1
_ACK_DONE: Final = _APPLY_DONE + 1


class JournalWriter:
    """Collects steps and commits them together; after a failed commit it asks the store what is true."""

    def __init__(
        self, port: JournalPort, journal: TurnJournal, fence: Fence, boundaries: frozenset[LoopXTurnPhase]
    ) -> None:
        self._port = port
        self._fence = fence
        self._boundaries = boundaries
        self._pending: list[JournalStep] = []
        self._expected = journal.turn.completed
        self.journal = journal

    @property
    def turn(self) -> Turn:
        return self.journal.turn

    @property
    def completed(self) -> int:
        """Completed phases, the pending ones included."""
        return self._expected

    def phase(self, step: JournalStep) -> None:
        """Add the step of the next phase; commit when the phase is a boundary."""
        phase = PHASES[self._expected]
        self._pending.append(step)
        self._expected += 1
        if phase in self._boundaries:
            self.flush()

    def note(self, step: JournalStep) -> None:
        """Add a step that is no phase."""
        self._pending.append(step)

    def flush(self) -> None:
        """Commit what is pending. Raises ConflictError, StoreError."""
        if not self._pending:
            return
        steps, self._pending = tuple(self._pending), []
        before = self.journal
        try:
            self.journal = self._port.commit(self.turn.turn_key, self._fence, steps)
        except StoreError:
            # A commit whose answer was lost has an unknown outcome: the prefix tells, a blind retry would not.
            self.journal = self._port.load(self.turn.turn_key)
            if self.journal == before:
                raise
        except ConflictError as error:
            if error.code != "spend_conflict":
                raise
            self._settle_spend_conflict(steps)
        self._expected = self.turn.completed

    def _settle_spend_conflict(self, steps: tuple[JournalStep, ...]) -> None:
        """Commit what came before the spend, then read the ledger back through one more try of the spend alone."""
        at = next(index for index, step in enumerate(steps) if isinstance(step, SlotSpent))
        if at:
            self.journal = self._port.commit(self.turn.turn_key, self._fence, steps[:at])
        try:
            self.journal = self._port.commit(self.turn.turn_key, self._fence, steps[at:])
        except ConflictError as error:
            if error.code != "spend_conflict":
                raise
            failed = Stopped(LoopXTurnResultKind.QUOTA_SPEND_FAILED, TurnStep.QUOTA_SPEND)
            self.journal = self._port.commit(self.turn.turn_key, self._fence, (failed,))


def terminal_closeout_requirement(turn: Turn) -> bool:
    """Whether the turn's completion asks for a terminal closeout (contracts, section 5).

    Only a validated completion that declares `no_followup` closes the goal; nothing else ever does.
    """
    return (
        turn.intended_kind is LoopXTurnResultKind.VALIDATED_COMPLETION
        and turn.result is not None
        and turn.result.continuation is not None
        and turn.result.continuation.kind is ContinuationKind.NO_FOLLOWUP
    )


def execute_turn_driver_settlement(writer: JournalWriter, ports: TurnPorts) -> TurnJournal:
    """Settle a turn whose result is typed, from whatever prefix is committed, to its end.

    Promises: writeback before spend, spend before apply, apply before ack, closeout after spend; each at most once. A
    failure leaves the turn open with its failed phase named, and a later call goes on from there.
    Raises ConflictError (`lease_lost`, `prefix_moved`) and StoreError.
    """
    if writer.turn.intended_kind not in MATERIAL_RESULT_KINDS or writer.completed < _VALIDATION_DONE:
        writer.flush()
        return writer.journal
    if writer.completed < _WRITEBACK_DONE and not _write_back(writer, ports):
        return writer.journal
    if writer.completed < _SPEND_DONE:
        writer.phase(SlotSpent())
        # Not the journal's word: while the step is pending, that still names the failure which is being made good.
        if writer.completed < _SPEND_DONE:
            return writer.journal
    _schedule(writer, ports)
    if terminal_closeout_requirement(writer.turn) and writer.turn.closeout is not Closeout.DONE:
        # The spend is durable before anything outside is closed, so that a failing closeout costs nothing again.
        writer.flush()
        if writer.turn.failed_phase is TurnStep.QUOTA_SPEND or not _close_out(writer, ports):
            return writer.journal
    if writer.turn.state is TurnState.OPEN:
        writer.note(Finished())
    writer.flush()
    return writer.journal


def _write_back(writer: JournalWriter, ports: TurnPorts) -> bool:
    writer.flush()
    reference = effect_ref(writer.turn.turn_key, TurnStep.DURABLE_WRITEBACK)
    try:
        checkpoint = ports.tree.checkpoint(writer.journal, reference)
    except (StoreError, CancelledError):
        raise
    except LoopXError as error:
        writer.note(Stopped(LoopXTurnResultKind.WRITEBACK_FAILED, TurnStep.DURABLE_WRITEBACK, error.code))
        writer.flush()
        return False
    writer.phase(WrittenBack(checkpoint))
    return True


def _schedule(writer: JournalWriter, ports: TurnPorts) -> None:
    if writer.completed < _APPLY_DONE:
        try:
            due = ports.schedule.next_due(writer.journal)
        except Exception:
            # What is proved and paid for must not wait for a cadence that can't be computed.
            writer.flush()
            raise
        writer.phase(ScheduleApplied(due))
    if writer.completed < _ACK_DONE and ports.schedule.owner_has(writer.journal):
        writer.phase(ScheduleAcked())


def _close_out(writer: JournalWriter, ports: TurnPorts) -> bool:
    try:
        ports.closeout.close(writer.journal)
    except (StoreError, CancelledError):
        raise
    except LoopXError as error:
        writer.note(Stopped(LoopXTurnResultKind.TERMINAL_CLOSEOUT_FAILED, TurnStep.TERMINAL_CLOSEOUT, error.code))
        writer.flush()
        return False
    writer.note(ClosedOut())
    return True
