"""What to do with an open turn that a crash or a failure left behind (contracts, section 5).

One pure, total function from what the journal and the world show to one recovery decision. It never guesses: a journal
that contradicts itself is blocked with the violation named, and a person repairs it.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from loopx.control_plane.effect_program import EffectReceipt, effect_ref
from loopx.control_plane.ids import AgentId, EffectRef, GoalId, TurnKey
from loopx.control_plane.turn_driver.journal import Closeout, TurnJournal
from loopx.control_plane.turn_driver.transaction import (
    FAILURE_PHASE,
    MATERIAL_RESULT_KINDS,
    PHASES,
    PHASES_BEFORE_CLOSEOUT,
    STEPS,
    STOP_RESULT_KINDS,
    LoopXTurnPhase,
    LoopXTurnResultKind,
    TurnStep,
    is_ordered_prefix,
)


class HostRunState(enum.StrEnum):
    """What the world shows of the turn's host run, boot id, pid and start time compared."""

    NEVER_STARTED = "never_started"
    RUNNING = "running"
    ENDED = "ended"
    """It left its exit record."""
    LOST_WITH_SESSION = "lost_with_session"
    """Gone without an exit record, but its session can be resumed."""
    LOST = "lost"


class CloseoutState(enum.StrEnum):
    NOT_REQUIRED = "not_required"
    REQUIRED = "required"
    DONE = "done"


class TurnIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Whose turn it is."""

    turn_key: TurnKey
    goal_id: GoalId
    agent_id: AgentId


class JournalView(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about an open turn, read in one snapshot.

    `completed` is as stored, so that a spoilt journal can be shown too. `effects` are the `effect_ref`s of this turn
    that the world itself shows (ledger rows, writebacks, checkpoints), whether or not the journal has a receipt for
    them. `failure` is the last failure kind that is not discharged; `intended` is what the turn was about.
    `external_owner`: the cadence's owner is outside LoopX, so that only it can acknowledge.
    """

    identity: TurnIdentity
    expected: TurnIdentity
    completed: tuple[str, ...] = ()
    receipts: tuple[EffectReceipt, ...] = ()
    effects: tuple[EffectRef, ...] = ()
    intended: LoopXTurnResultKind | None = None
    failure: LoopXTurnResultKind | None = None
    host: HostRunState = HostRunState.NEVER_STARTED
    closeout: CloseoutState = CloseoutState.NOT_REQUIRED
    external_owner: bool = False


class RecoveryAction(enum.StrEnum):
    """The one thing to do next with an open turn."""

    ADOPT_HOST = "adopt_host"
    """Take over the supervised process that still runs, or read the exit record that it left."""
    RESUME_SESSION = "resume_session"
    RUN_HOST = "run_host"
    EVALUATE = "evaluate"
    """The host is done: evaluate the contract, type the result, validate it."""
    RETRY_WRITEBACK = "retry_writeback"
    SPEND_ONLY = "spend_only"
    APPLY = "apply"
    ACK_ONLY = "ack_only"
    CLOSEOUT_ONLY = "closeout_only"
    NOTHING = "nothing"
    """The turn is at its end, or only an outside owner's acknowledgement is open (`step` says so)."""
    BLOCKED = "blocked"


class JournalViolation(enum.StrEnum):
    """Why a journal is blocked."""

    FOREIGN_IDENTITY = "foreign_identity"
    NOT_ORDERED_PREFIX = "not_ordered_prefix"
    PHASE_WITHOUT_RECEIPT = "phase_without_receipt"
    EFFECT_WITHOUT_RECEIPT = "effect_without_receipt"
    FOREIGN_EFFECT = "foreign_effect"
    RESULT_WITHOUT_KIND = "result_without_kind"
    NO_SPEND_KIND_SETTLED = "no_spend_kind_settled"
    FAILURE_CONTRADICTS_PHASES = "failure_contradicts_phases"
    CLOSEOUT_BEFORE_SPEND = "closeout_before_spend"


class RecoveryDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, what never to do again in this turn, and why.

    `effect_ref` is the identity that the step's effect must carry, the same as before the crash. `read_back_first`:
    look the effect up by it before trying. `step` with the action `nothing` is what still waits for an outside owner.
    """

    action: RecoveryAction
    step: TurnStep | None = None
    effect_ref: EffectRef | None = None
    never_again: tuple[TurnStep, ...] = ()
    read_back_first: bool = False
    violation: JournalViolation | None = None


_HOST_ACTION: Final = {
    HostRunState.NEVER_STARTED: RecoveryAction.RUN_HOST,
    HostRunState.RUNNING: RecoveryAction.ADOPT_HOST,
    HostRunState.ENDED: RecoveryAction.ADOPT_HOST,
    HostRunState.LOST_WITH_SESSION: RecoveryAction.RESUME_SESSION,
    HostRunState.LOST: RecoveryAction.RUN_HOST,
}

_STEP_ACTION: Final = {
    TurnStep.TYPED_RESULT: RecoveryAction.EVALUATE,
    TurnStep.VALIDATION: RecoveryAction.EVALUATE,
    TurnStep.DURABLE_WRITEBACK: RecoveryAction.RETRY_WRITEBACK,
    TurnStep.QUOTA_SPEND: RecoveryAction.SPEND_ONLY,
    TurnStep.SCHEDULER_APPLY: RecoveryAction.APPLY,
    TurnStep.SCHEDULER_ACK: RecoveryAction.ACK_ONLY,
}

_ENDING_FAILURES: Final = frozenset({LoopXTurnResultKind.HOST_FAILURE, LoopXTurnResultKind.VALIDATION_FAILED})
"""Failures that end the turn: what follows is the disposition's word, not recovery's."""

_READ_BACK_STEPS: Final = frozenset({TurnStep.DURABLE_WRITEBACK, TurnStep.QUOTA_SPEND, TurnStep.TERMINAL_CLOSEOUT})


def journal_view(
    journal: TurnJournal,
    *,
    expected: TurnIdentity,
    closeout_required: bool,
    host: HostRunState = HostRunState.NEVER_STARTED,
    effects: tuple[EffectRef, ...] = (),
    external_owner: bool = False,
) -> JournalView:
    """A stored journal as recovery sees it. The turn's own count of phases and its phase rows are compared, not merged.

    `closeout_required`: whether the turn's completion asks for a terminal closeout, whatever has been done about it.
    """
    turn = journal.turn
    identity = TurnIdentity(turn_key=turn.turn_key, goal_id=turn.goal_id, agent_id=turn.agent_id)
    required = CloseoutState.REQUIRED if closeout_required else CloseoutState.NOT_REQUIRED
    return JournalView(
        identity=identity,
        expected=expected,
        completed=tuple(map(str, PHASES[: turn.completed])),
        receipts=tuple(
            EffectReceipt(
                effect_ref=record.effect_ref,
                turn_key=turn.turn_key,
                step=TurnStep(record.phase),
                committed_at_ms=record.committed_at_ms,
                detail=record.receipt,
            )
            for record in journal.phases
        ),
        effects=effects,
        intended=turn.intended_kind,
        failure=turn.result_kind if turn.result_kind in FAILURE_PHASE else None,
        host=host,
        closeout=CloseoutState.DONE if turn.closeout is Closeout.DONE else required,
        external_owner=external_owner,
    )


def recover(journal: JournalView) -> RecoveryDecision:
    """The recovery decision for one open turn; total (contracts, section 5)."""
    violation = journal_violation(journal)
    if violation is not None:
        return RecoveryDecision(action=RecoveryAction.BLOCKED, never_again=STEPS, violation=violation)
    failure = _live_failure(journal)
    if failure in _ENDING_FAILURES or (_has_result(journal) and journal.intended in STOP_RESULT_KINDS):
        return RecoveryDecision(action=RecoveryAction.NOTHING, never_again=STEPS)
    if failure is LoopXTurnResultKind.TERMINAL_CLOSEOUT_FAILED and journal.closeout is not CloseoutState.DONE:
        return _do(journal, RecoveryAction.CLOSEOUT_ONLY, TurnStep.TERMINAL_CLOSEOUT)
    return _next(journal)


def journal_violation(journal: JournalView) -> JournalViolation | None:
    """The first thing that is inconsistent in a journal, or None."""
    return (
        _identity_violation(journal)
        or _prefix_violation(journal)
        or _effect_violation(journal)
        or _kind_violation(journal)
    )


def _next(journal: JournalView) -> RecoveryDecision:
    done = len(journal.completed)
    closeout_due = journal.closeout is CloseoutState.REQUIRED
    if done == len(PHASES):
        if closeout_due:
            return _do(journal, RecoveryAction.CLOSEOUT_ONLY, TurnStep.TERMINAL_CLOSEOUT)
        return RecoveryDecision(action=RecoveryAction.NOTHING, never_again=STEPS)
    step = STEPS[done]
    if step is TurnStep.HOST_EXECUTE:
        return _do(journal, _HOST_ACTION[journal.host], step)
    if step is TurnStep.SCHEDULER_ACK and journal.external_owner:
        return _await_owner(journal, closeout_due=closeout_due)
    return _do(journal, _STEP_ACTION[step], step)


def _await_owner(journal: JournalView, *, closeout_due: bool) -> RecoveryDecision:
    """The acknowledgement is another's to give: closeout does not wait for it."""
    if closeout_due:
        return _do(journal, RecoveryAction.CLOSEOUT_ONLY, TurnStep.TERMINAL_CLOSEOUT)
    return _do(journal, RecoveryAction.NOTHING, TurnStep.SCHEDULER_ACK)


def _do(journal: JournalView, action: RecoveryAction, step: TurnStep) -> RecoveryDecision:
    return RecoveryDecision(
        action=action,
        step=step,
        effect_ref=effect_ref(journal.identity.turn_key, step),
        never_again=_committed_steps(journal),
        read_back_first=step in _READ_BACK_STEPS,
    )


def _committed_steps(journal: JournalView) -> tuple[TurnStep, ...]:
    done = STEPS[: len(journal.completed)]
    return (*done, TurnStep.TERMINAL_CLOSEOUT) if journal.closeout is CloseoutState.DONE else done


def _has_result(journal: JournalView) -> bool:
    return LoopXTurnPhase.TYPED_RESULT in journal.completed


def _declared_failure(journal: JournalView) -> LoopXTurnResultKind | None:
    """The failure beside the intent; a turn may also have been typed as a failure from the start."""
    return journal.failure or (journal.intended if journal.intended in FAILURE_PHASE else None)


def _live_failure(journal: JournalView) -> LoopXTurnResultKind | None:
    """The failure that still stands: a writeback or a spend that failed and then committed is over."""
    failure = _declared_failure(journal)
    return None if failure is None or FAILURE_PHASE[failure] in journal.completed else failure


def _identity_violation(journal: JournalView) -> JournalViolation | None:
    return None if journal.identity == journal.expected else JournalViolation.FOREIGN_IDENTITY


def _prefix_violation(journal: JournalView) -> JournalViolation | None:
    if not is_ordered_prefix(journal.completed):
        return JournalViolation.NOT_ORDERED_PREFIX
    if journal.closeout is CloseoutState.DONE and len(journal.completed) < PHASES_BEFORE_CLOSEOUT:
        return JournalViolation.CLOSEOUT_BEFORE_SPEND
    return None


def _effect_violation(journal: JournalView) -> JournalViolation | None:
    """Receipts and phases must be the same set, and every effect that the world shows must have its receipt."""
    key = journal.identity.turn_key
    receipted: set[str] = set()
    for receipt in journal.receipts:
        if receipt.turn_key != key or receipt.effect_ref != effect_ref(key, receipt.step):
            return JournalViolation.FOREIGN_EFFECT
        receipted.add(receipt.step)
    if not receipted.issuperset(journal.completed):
        return JournalViolation.PHASE_WITHOUT_RECEIPT
    known = {effect_ref(key, TurnStep(step)) for step in receipted}
    if not known.issuperset(journal.effects) or receipted.difference(journal.completed, {TurnStep.TERMINAL_CLOSEOUT}):
        return JournalViolation.EFFECT_WITHOUT_RECEIPT
    return None


def _kind_violation(journal: JournalView) -> JournalViolation | None:
    intended = journal.intended
    if _has_result(journal) and intended is None:
        return JournalViolation.RESULT_WITHOUT_KIND
    if intended not in MATERIAL_RESULT_KINDS:
        stopped = intended in STOP_RESULT_KINDS and LoopXTurnPhase.DURABLE_WRITEBACK not in journal.completed
        if LoopXTurnPhase.VALIDATION in journal.completed and not stopped:
            return JournalViolation.NO_SPEND_KIND_SETTLED
    return JournalViolation.FAILURE_CONTRADICTS_PHASES if _failure_contradicts(journal) else None


def _failure_contradicts(journal: JournalView) -> bool:
    """A failure of a step that is not next, or a stop or material kind where a failure is expected."""
    failure = _declared_failure(journal)
    if failure is None:
        return False
    if failure not in FAILURE_PHASE:
        return True
    step = FAILURE_PHASE[failure]
    done = len(journal.completed)
    if step is TurnStep.TERMINAL_CLOSEOUT:
        return done < PHASES_BEFORE_CLOSEOUT or journal.closeout is CloseoutState.NOT_REQUIRED
    if step in journal.completed:
        return failure in _ENDING_FAILURES
    return step is not STEPS[done]
