"""Recovery: each row of the table, totality, and that nothing committed is ever done again (contracts, section 5)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopx.control_plane.effect_program import EffectReceipt, effect_ref
from loopx.control_plane.ids import AgentId, EffectRef, Epoch, GoalId, TurnKey
from loopx.control_plane.turn_driver.driver import LoopXTurnRoute
from loopx.control_plane.turn_driver.journal import Closeout, PhaseRecord, Turn, TurnJournal, TurnPurpose, TurnState
from loopx.control_plane.turn_driver.recovery import (
    CloseoutState,
    HostRunState,
    JournalView,
    JournalViolation,
    RecoveryAction,
    TurnIdentity,
    journal_view,
    recover,
)
from loopx.control_plane.turn_driver.transaction import (
    FAILURE_PHASE,
    MATERIAL_RESULT_KINDS,
    PHASES,
    STEPS,
    LoopXTurnResultKind,
    TurnStep,
)

Kind = LoopXTurnResultKind
Action = RecoveryAction
KEY = TurnKey("t-1")
ME = TurnIdentity(turn_key=KEY, goal_id=GoalId("g"), agent_id=AgentId("a"))
replace = msgspec.structs.replace


def effect(step: TurnStep, *, key: TurnKey = KEY) -> EffectReceipt:
    return EffectReceipt(effect_ref=effect_ref(key, step), turn_key=key, step=step)


def journal(
    done: int,
    *,
    intended: Kind | None = Kind.VALIDATED_PROGRESS,
    failure: Kind | None = None,
    host: HostRunState = HostRunState.ENDED,
    closeout: CloseoutState = CloseoutState.NOT_REQUIRED,
    external_owner: bool = False,
) -> JournalView:
    steps = STEPS[:done]
    return JournalView(
        identity=ME,
        expected=ME,
        completed=tuple(str(phase) for phase in PHASES[:done]),
        receipts=tuple(map(effect, steps)),
        effects=tuple(effect_ref(KEY, step) for step in steps),
        intended=intended if done >= 2 else None,
        failure=failure,
        host=host,
        closeout=closeout,
        external_owner=external_owner,
    )


@pytest.mark.parametrize(
    ("host", "action"),
    [
        (HostRunState.RUNNING, Action.ADOPT_HOST),
        (HostRunState.ENDED, Action.ADOPT_HOST),
        (HostRunState.LOST_WITH_SESSION, Action.RESUME_SESSION),
        (HostRunState.LOST, Action.RUN_HOST),
        (HostRunState.NEVER_STARTED, Action.RUN_HOST),
    ],
)
def test_a_crash_during_the_host_adopts_it_else_resumes_else_runs_again(host: HostRunState, action: Action) -> None:
    decision = recover(journal(0, host=host))
    assert decision.action is action
    assert decision.never_again == ()


@pytest.mark.parametrize(
    ("done", "failure", "action", "step"),
    [
        (1, None, Action.EVALUATE, TurnStep.TYPED_RESULT),
        (2, None, Action.EVALUATE, TurnStep.VALIDATION),
        (3, None, Action.RETRY_WRITEBACK, TurnStep.DURABLE_WRITEBACK),
        (3, Kind.WRITEBACK_FAILED, Action.RETRY_WRITEBACK, TurnStep.DURABLE_WRITEBACK),
        (4, None, Action.SPEND_ONLY, TurnStep.QUOTA_SPEND),
        (4, Kind.QUOTA_SPEND_FAILED, Action.SPEND_ONLY, TurnStep.QUOTA_SPEND),
        (4, Kind.WRITEBACK_FAILED, Action.SPEND_ONLY, TurnStep.QUOTA_SPEND),
        (5, None, Action.APPLY, TurnStep.SCHEDULER_APPLY),
        (6, None, Action.ACK_ONLY, TurnStep.SCHEDULER_ACK),
    ],
)
def test_each_prefix_goes_on_at_the_next_step(done: int, failure: Kind | None, action: Action, step: TurnStep) -> None:
    decision = recover(journal(done, failure=failure))
    assert (decision.action, decision.step) == (action, step)
    assert decision.effect_ref == effect_ref(KEY, step), "the same identity as before the crash"
    assert decision.never_again == STEPS[:done]


def test_a_spend_is_read_back_before_it_is_tried() -> None:
    assert recover(journal(4)).read_back_first
    assert recover(journal(3)).read_back_first
    assert not recover(journal(5)).read_back_first


@pytest.mark.parametrize("kind", sorted(MATERIAL_RESULT_KINDS))
def test_a_committed_turn_needs_nothing(kind: Kind) -> None:
    decision = recover(journal(7, intended=kind))
    assert (decision.action, decision.never_again) == (Action.NOTHING, STEPS)


def test_a_failed_validation_stops_without_writeback_or_spend() -> None:
    for view in (journal(2, failure=Kind.VALIDATION_FAILED), journal(2, intended=Kind.VALIDATION_FAILED)):
        decision = recover(view)
        assert decision.action is Action.NOTHING
        assert {TurnStep.DURABLE_WRITEBACK, TurnStep.QUOTA_SPEND} <= set(decision.never_again)


@pytest.mark.parametrize("kind", [Kind.WAIT, Kind.USER_ACTION_REQUIRED, Kind.ITERATION_FAILED])
def test_a_stop_is_the_end(kind: Kind) -> None:
    assert recover(journal(2, intended=kind)).action is Action.NOTHING


def test_a_host_failure_is_the_end_of_recovery_and_the_dispositions_business() -> None:
    assert recover(journal(0, failure=Kind.HOST_FAILURE)).action is Action.NOTHING


@pytest.mark.parametrize("done", [5, 6, 7])
def test_a_failed_closeout_is_only_closed_out(done: int) -> None:
    view = journal(
        done,
        intended=Kind.VALIDATED_COMPLETION,
        failure=Kind.TERMINAL_CLOSEOUT_FAILED,
        closeout=CloseoutState.REQUIRED,
    )
    decision = recover(view)
    assert (decision.action, decision.step) == (Action.CLOSEOUT_ONLY, TurnStep.TERMINAL_CLOSEOUT)
    assert {TurnStep.HOST_EXECUTE, TurnStep.DURABLE_WRITEBACK, TurnStep.QUOTA_SPEND} <= set(decision.never_again)


def test_a_closeout_follows_the_acknowledgement_but_does_not_wait_for_an_outside_owner() -> None:
    completion = Kind.VALIDATED_COMPLETION
    due = CloseoutState.REQUIRED
    assert recover(journal(5, intended=completion, closeout=due)).action is Action.APPLY
    assert recover(journal(6, intended=completion, closeout=due)).action is Action.ACK_ONLY
    assert recover(journal(7, intended=completion, closeout=due)).action is Action.CLOSEOUT_ONLY
    outside = journal(6, intended=completion, closeout=due, external_owner=True)
    assert recover(outside).action is Action.CLOSEOUT_ONLY
    closed = replace(outside, closeout=CloseoutState.DONE, receipts=(*outside.receipts, effect(STEPS[-1])))
    assert (recover(closed).action, recover(closed).step) == (Action.NOTHING, TurnStep.SCHEDULER_ACK)


GOOD = journal(4)
STRANGER = replace(ME, agent_id=AgentId("b"))


@pytest.mark.parametrize(
    ("view", "violation"),
    [
        (replace(GOOD, expected=STRANGER), JournalViolation.FOREIGN_IDENTITY),
        (replace(GOOD, expected=replace(ME, goal_id=GoalId("h"))), JournalViolation.FOREIGN_IDENTITY),
        (replace(GOOD, expected=replace(ME, turn_key=TurnKey("t-2"))), JournalViolation.FOREIGN_IDENTITY),
        (replace(GOOD, completed=("host_execute", "validation")), JournalViolation.NOT_ORDERED_PREFIX),
        (replace(GOOD, completed=(*GOOD.completed, "made_up")), JournalViolation.NOT_ORDERED_PREFIX),
        (replace(GOOD, receipts=GOOD.receipts[:3]), JournalViolation.PHASE_WITHOUT_RECEIPT),
        (
            replace(GOOD, receipts=(*GOOD.receipts, effect(TurnStep.QUOTA_SPEND))),
            JournalViolation.EFFECT_WITHOUT_RECEIPT,
        ),
        (
            replace(GOOD, effects=(*GOOD.effects, effect_ref(KEY, TurnStep.QUOTA_SPEND))),
            JournalViolation.EFFECT_WITHOUT_RECEIPT,
        ),
        (
            replace(GOOD, receipts=(effect(TurnStep.HOST_EXECUTE, key=TurnKey("t-2")), *GOOD.receipts[1:])),
            JournalViolation.FOREIGN_EFFECT,
        ),
        (
            replace(GOOD, receipts=(replace(GOOD.receipts[0], effect_ref=EffectRef("x")), *GOOD.receipts[1:])),
            JournalViolation.FOREIGN_EFFECT,
        ),
        (replace(GOOD, intended=None), JournalViolation.RESULT_WITHOUT_KIND),
        (replace(GOOD, intended=Kind.WAIT), JournalViolation.NO_SPEND_KIND_SETTLED),
        (journal(3, intended=Kind.WRITEBACK_FAILED), JournalViolation.NO_SPEND_KIND_SETTLED),
        (journal(2, intended=Kind.HOST_FAILURE), JournalViolation.FAILURE_CONTRADICTS_PHASES),
        (replace(GOOD, failure=Kind.VALIDATION_FAILED), JournalViolation.FAILURE_CONTRADICTS_PHASES),
        (replace(GOOD, failure=Kind.HOST_FAILURE), JournalViolation.FAILURE_CONTRADICTS_PHASES),
        (replace(GOOD, failure=Kind.WAIT), JournalViolation.FAILURE_CONTRADICTS_PHASES),
        (replace(GOOD, failure=Kind.TERMINAL_CLOSEOUT_FAILED), JournalViolation.FAILURE_CONTRADICTS_PHASES),
        (journal(2, failure=Kind.QUOTA_SPEND_FAILED), JournalViolation.FAILURE_CONTRADICTS_PHASES),
        (replace(GOOD, closeout=CloseoutState.DONE), JournalViolation.CLOSEOUT_BEFORE_SPEND),
    ],
)
def test_an_inconsistent_journal_is_blocked_with_its_violation(view: JournalView, violation: JournalViolation) -> None:
    decision = recover(view)
    assert (decision.action, decision.violation) == (Action.BLOCKED, violation)
    assert decision.never_again == STEPS, "no guessing"
    assert decision.step is None


consistent = st.builds(
    journal,
    st.integers(0, 7),
    intended=st.sampled_from(Kind),
    failure=st.none() | st.sampled_from(Kind),
    host=st.sampled_from(HostRunState),
    closeout=st.sampled_from(CloseoutState),
    external_owner=st.booleans(),
)


@given(consistent)
def test_recovery_is_total_and_never_repeats_a_committed_step(view: JournalView) -> None:
    decision = recover(view)
    done = {TurnStep(phase) for phase in view.completed}
    assert (decision.violation is not None) == (decision.action is Action.BLOCKED)
    assert done <= set(decision.never_again)
    if decision.step is not None:
        assert decision.step not in decision.never_again
    if decision.action is Action.RETRY_WRITEBACK:
        assert view.intended in MATERIAL_RESULT_KINDS, "only a material result is written"
    if decision.action is Action.SPEND_ONLY:
        assert view.intended in MATERIAL_RESULT_KINDS, "no-spend never spends"
        assert len(done) == 4, "a spend follows the writeback and nothing else"
    if decision.action is Action.ACK_ONLY:
        assert TurnStep.SCHEDULER_APPLY in done, "ack never before apply"
    if decision.action in {Action.ADOPT_HOST, Action.RESUME_SESSION, Action.RUN_HOST}:
        assert not done, "the host never runs again once it is done"
    if view.failure is Kind.VALIDATION_FAILED and decision.action is not Action.BLOCKED:
        assert decision.action is Action.NOTHING


spoilt = st.builds(
    JournalView,
    identity=st.just(ME),
    expected=st.sampled_from([ME, STRANGER]),
    completed=st.lists(st.sampled_from([*map(str, STEPS), "made_up"]), max_size=9).map(tuple),
    receipts=st.lists(st.sampled_from(STEPS).map(effect), max_size=9).map(tuple),
    effects=st.lists(st.sampled_from(STEPS).map(lambda step: effect_ref(KEY, step)), max_size=9).map(tuple),
    intended=st.none() | st.sampled_from(Kind),
    failure=st.none() | st.sampled_from(Kind),
    host=st.sampled_from(HostRunState),
    closeout=st.sampled_from(CloseoutState),
    external_owner=st.booleans(),
)


@given(spoilt)
def test_recovery_is_total_over_any_journal(view: JournalView) -> None:
    decision = recover(view)
    if tuple(view.completed) != tuple(map(str, PHASES[: len(view.completed)])) or view.expected != ME:
        assert decision.action is Action.BLOCKED


@given(consistent)
def test_recovery_reaches_the_end_of_the_turn(view: JournalView) -> None:
    """Doing what recovery says, step after step, ends; and every step is done at most once."""
    for _ in range(len(STEPS) + 1):
        decision = recover(view)
        if decision.action in {Action.NOTHING, Action.BLOCKED}:
            return
        assert decision.step is not None
        view = _committed(view, decision.step)
    raise AssertionError("recovery did not end")


def _committed(view: JournalView, step: TurnStep) -> JournalView:
    receipts = (*view.receipts, effect(step))
    if step is TurnStep.TERMINAL_CLOSEOUT:
        return replace(view, receipts=receipts, closeout=CloseoutState.DONE, failure=None)
    intended = view.intended or Kind.VALIDATED_PROGRESS
    assert step not in view.completed
    live = view.failure if view.failure is not None and FAILURE_PHASE.get(view.failure) != step else None
    return replace(view, receipts=receipts, completed=(*view.completed, str(step)), intended=intended, failure=live)


def stored(
    completed: int, rows: int, *, result_kind: Kind | None = None, closeout: Closeout = Closeout.NONE
) -> TurnJournal:
    turn = Turn(
        turn_key=KEY,
        goal_id=ME.goal_id,
        agent_id=ME.agent_id,
        todo_id=None,
        number=1,
        goal_revision=1,
        purpose=TurnPurpose.WORK,
        route=LoopXTurnRoute.READY_FOR_HOST,
        state=TurnState.OPEN,
        completed=completed,
        intended_kind=Kind.VALIDATED_COMPLETION,
        result_kind=result_kind,
        failed_phase=None,
        closeout=closeout,
        epoch=Epoch(1),
        engine="command:true",
        predecessor=None,
        discharged=False,
        slots=0,
        tree_before=None,
        checkpoint=None,
        result=None,
        started_at_ms=0,
        ended_at_ms=None,
    )
    phases = tuple(
        PhaseRecord(
            phase=phase,
            effect_ref=effect_ref(KEY, TurnStep(phase)),
            receipt=msgspec.Raw(b"{}"),
            epoch=Epoch(1),
            committed_at_ms=5,
        )
        for phase in PHASES[:rows]
    )
    return TurnJournal(turn=turn, phases=phases)


@pytest.mark.parametrize(
    ("journal", "action", "violation"),
    [
        (stored(4, 4), Action.SPEND_ONLY, None),
        (stored(4, 4, result_kind=Kind.QUOTA_SPEND_FAILED), Action.SPEND_ONLY, None),
        (stored(7, 7), Action.CLOSEOUT_ONLY, None),
        (stored(7, 7, result_kind=Kind.TERMINAL_CLOSEOUT_FAILED, closeout=Closeout.FAILED), Action.CLOSEOUT_ONLY, None),
        (stored(7, 7, closeout=Closeout.DONE), Action.NOTHING, None),
        (stored(4, 3), Action.BLOCKED, JournalViolation.PHASE_WITHOUT_RECEIPT),
        (stored(4, 5), Action.BLOCKED, JournalViolation.EFFECT_WITHOUT_RECEIPT),
    ],
)
def test_a_stored_journal_is_seen_as_it_is(
    journal: TurnJournal, action: Action, violation: JournalViolation | None
) -> None:
    decision = recover(journal_view(journal, expected=ME, closeout_required=True))
    assert (decision.action, decision.violation) == (action, violation)
