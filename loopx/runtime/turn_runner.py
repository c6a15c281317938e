"""One governed turn: plan it from fresh facts, start it in one transaction, execute it, or resume an interrupted one.

`plan` is a read; nothing is written before `start`. Who may write is decided by leases, and what was committed by the
journal, so that this runner may be killed anywhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from loopx.control_plane.effect_program import effect_ref, turn_key
from loopx.control_plane.errors import ConflictError, LoopXError, NotFoundError, StoreError, UsageError
from loopx.control_plane.ids import AgentId, EffectRef, Epoch, GoalId, TodoId, TurnKey
from loopx.control_plane.ports import CloseoutPort
from loopx.control_plane.quota import decision as decisions
from loopx.control_plane.quota.facts import GoalFacts, TodoRef
from loopx.control_plane.quota.turn_envelope import (
    EnvelopeScheduler,
    TurnEnvelope,
    encode_envelope,
    envelope_from_decision,
)
from loopx.control_plane.turn_driver import recovery
from loopx.control_plane.turn_driver.driver import REPLAN_ACTIONS, LoopXTurnRoute
from loopx.control_plane.turn_driver.executor import TurnExecutor
from loopx.control_plane.turn_driver.journal import EngineChoice, Fence, Turn, TurnJournal, TurnPurpose, TurnState
from loopx.control_plane.turn_driver.loop_controller import (
    DispositionInputs,
    LoopDecision,
    LoopDisposition,
    LoopRefusal,
    TurnBudget,
    ValidatedTurnReceipt,
    decide_loop_disposition,
)
from loopx.control_plane.turn_driver.settlement import DEFAULT_BOUNDARIES, terminal_closeout_requirement
from loopx.control_plane.turn_driver.transaction import (
    PHASES,
    HostRetry,
    LoopXTurnPhase,
    LoopXTurnResultKind,
    ReceiptRoute,
    TurnReceipt,
    TurnStep,
)
from loopx.control_plane.work_items import frontier
from loopx.runtime import machine
from loopx.runtime import owner as owners
from loopx.runtime.goal_work import GoalWork, open_goal
from loopx.runtime.leasing import LeaseKeeper
from loopx.runtime.progress import Observer, TurnOpened
from loopx.runtime.project import Project
from loopx.runtime.reading import read_facts
from loopx.runtime.turn_ports import TurnWiring, goal_todo, token_hash
from loopx.store import events, goals, leases, ledger, schedules, turns
from loopx.store.codec import dump
from loopx.store.connection import Tx
from loopx.store.store import Store
from loopx.workspace import difference


class TurnPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What would happen now, and why. `refusal` instead of a disposition: the inputs were stale."""

    facts: GoalFacts
    decision: decisions.QuotaDecision
    envelope: TurnEnvelope
    predecessor: TurnKey | None
    outcome: LoopDecision | LoopRefusal
    frontier_terminal: bool
    event_seq: int
    """How much of the goal's history was seen: what acts on this plan alone must find no later event."""

    @property
    def disposition(self) -> LoopDisposition | None:
        return self.outcome.disposition if isinstance(self.outcome, LoopDecision) else None


PURPOSE = {
    LoopDisposition.RUN_NOW: TurnPurpose.WORK,
    LoopDisposition.REPAIR: TurnPurpose.REPAIR,
    LoopDisposition.REPLAN: TurnPurpose.REPLAN,
}


class TurnRunner:
    """Plans, starts, executes and resumes the turns of one goal for one agent."""

    def __init__(
        self,
        store: Store,
        project: Project,
        goal_id: str,
        agent_id: AgentId,
        observer: Observer,
        env: dict[str, str],
        *,
        stopping: Callable[[], bool] = lambda: False,
        left_ms: Callable[[], int | None] = lambda: None,
        boundaries: frozenset[LoopXTurnPhase] = DEFAULT_BOUNDARIES,
        closeout: CloseoutPort | None = None,
        program_of: Callable[[str], str | None] = lambda engine: None,
    ) -> None:
        self._store = store
        self._project = project
        self._goal_id = goal_id
        self._agent_id = agent_id
        self._observer = observer
        self._env = env
        self._stopping = stopping
        self._left_ms = left_ms
        self._boundaries = boundaries
        self._closeout = closeout
        self._program_of = program_of
        self.owner = owners.current_owner()

    def work(self) -> GoalWork:
        """The goal as it is now. Raises NotFoundError (`goal_unknown`)."""
        return open_goal(self._store, self._project, self._goal_id)

    def plan(self, budget: TurnBudget | None) -> TurnPlan:
        """Decide from one snapshot what happens next; writes nothing."""
        with self._store.read() as tx:
            facts = read_facts(self._store, tx, self._goal_id, self._agent_id)
            decision = decisions.decide(facts)
            definition = goals.definition_of(tx, self._goal_id, facts.revision)
            schedule = schedules.get(tx, self._goal_id)
            envelope = envelope_from_decision(
                self._with_subject(decision, definition.objective),
                boundary=definition.boundary,
                scheduler=EnvelopeScheduler(
                    owner=schedule.owner, revision=schedule.revision, wake_after_ms=decision.wake_after_ms
                ),
            )
            last = self._last_turn(tx, decision, facts)
            terminal = frontier.prove(self._frontier(tx, facts)).terminal
            seen = int(goals.row_of(tx, self._goal_id)["event_seq"])
        receipt = None if last is None else ValidatedTurnReceipt.from_execution(receipt_of(last))
        outcome = decide_loop_disposition(
            DispositionInputs(
                envelope=envelope,
                receipt=receipt,
                predecessor_turn_key=last.turn_key if last is not None else None,
                budget=budget,
                frontier_terminal=terminal,
            )
        )
        return TurnPlan(
            facts=facts,
            decision=decision,
            envelope=envelope,
            predecessor=last.turn_key if last is not None else None,
            outcome=outcome,
            frontier_terminal=terminal,
            event_seq=seen,
        )

    def _with_subject(self, decision: decisions.QuotaDecision, objective: str) -> decisions.QuotaDecision:
        """Where the goal itself is the work, the envelope names the todo that the turn's start makes for it."""
        if decision.rule is not decisions.Rule.GOAL_IS_THE_WORK:
            return decision
        todo = TodoRef(todo_id=TodoId(self._store.ids.new("td")), title=objective)
        return msgspec.structs.replace(decision, selected_todo=todo)

    def _last_turn(self, tx: Tx, decision: decisions.QuotaDecision, facts: GoalFacts) -> Turn | None:
        """The selected todo's last turn, until its obligation is discharged (contracts, section 6).

        None while nothing may run: a failure is repaired when there is a slot and a budget for it, and keeps till then.
        """
        if not decision.should_run:
            return None
        selected = decision.selected_todo
        last = turns.last_of_todo(tx, selected.todo_id) if selected is not None else None
        if last is None or _is_discharged(last, facts):
            return None
        return None if _replan_comes_first(decision, last) else last

    def _frontier(self, tx: Tx, facts: GoalFacts) -> frontier.FrontierCounts:
        row = goals.row_of(tx, self._goal_id)
        monitors = tx.number("todos.monitor_next", goal_id=self._goal_id)
        return frontier.FrontierCounts(
            goal_id=facts.goal_id,
            revision=facts.revision,
            state=facts.state,
            open_todos=int(facts.open_todos),
            open_gates=len(facts.gates),
            open_monitors=int(monitors > 0),
            open_capabilities=tx.number("capabilities.any_pending", goal_id=self._goal_id),
            missing_successors=len(facts.missing_successors),
            replan_due=False,
            open_turns=int(turns.open_turn(tx, self._goal_id) is not None),
            contract=facts.contract,
            contract_tree=row["contract_tree"],
        )

    def open_turn(self) -> TurnKey | None:
        """The turn of this goal and agent that is not closed."""
        with self._store.read() as tx:
            return turns.open_turn(tx, self._goal_id, self._agent_id)

    def start(
        self, plan: TurnPlan, disposition: LoopDisposition, engine: str, choice: EngineChoice | None = None
    ) -> TurnJournal:
        """Start a turn with this engine and take it to its end. `choice`: how the engine came to be chosen.

        Raises ConflictError, NotNowError and BudgetError when others were first.
        """
        work = self.work()
        tree_before = work.tree.capture()
        token = self._store.ids.secret()
        purpose = PURPOSE[disposition]
        selected = plan.decision.selected_todo if purpose is not TurnPurpose.REPLAN else None
        named = plan.envelope.action.selected_todo
        made_id = named.todo_id if named is not None else None
        makes = selected is None and purpose is not TurnPurpose.REPLAN
        new_todo = goal_todo(self._store, work, made_id) if makes else None
        request = turns.StartTurn(
            turn_key=turn_key(work.goal_id, self._agent_id, self._store.ids.secret()),
            goal_id=work.goal_id,
            agent_id=self._agent_id,
            owner=self.owner,
            revision=plan.facts.revision,
            purpose=purpose,
            route=plan.outcome.route if isinstance(plan.outcome, LoopDecision) else _route(plan),
            engine=engine,
            todo_id=selected.todo_id if selected is not None else None,
            new_todo=new_todo,
            predecessor=plan.predecessor,
            tree_before=tree_before,
            envelope=encode_envelope(plan.envelope).decode(),
            decision=dump(plan.facts),
            token_hash=token_hash(token),
            dead_owner=self._dead_owner(),
            choice=choice,
        )
        accepted = self._accept_outside_changes(work, tree_before)
        work.tree.remember_user(request.turn_key)
        # Before the transaction, in which nothing may wait for a file. Who dies in between has used a place, no more.
        machine.take(request.turn_key, self._store.now_ms())
        try:
            with self._store.write() as tx:
                if accepted is not None:
                    tx.run("goals.set_accepted", goal_id=work.goal_id, accepted=dump(accepted))
                journal, fence = turns.start(tx, request, self._store.now_ms())
            self._store.remember(journal)
        except StoreError as error:
            journal, fence = self._read_back(request.turn_key, None, error)
        except LoopXError:
            machine.give_back(request.turn_key)
            raise
        self._tell_opened(journal.turn, resumed=False)
        return self._execute(work, journal, fence, token)

    def _accept_outside_changes(self, work: GoalWork, tree_now: str) -> dict[str, str | None] | None:
        """What people changed between turns is theirs: their files are no edit of the agent's."""
        with self._store.read() as tx:
            last = turns.last_of_goal(tx, work.goal_id)
            row = goals.row_of(tx, work.goal_id)
        before = row["contract_tree"]
        if last is not None and last.result is not None:
            before = last.result.tree_left or last.result.tree_after
        if before is None or before == tree_now:
            return None
        restored = set(last.result.restore.paths) if last and last.result and last.result.restore else set()
        changes = difference.diff(work.tree.repository, before, tree_now)
        theirs: dict[str, str | None] = msgspec.json.decode(row["accepted"]) if row["accepted"] else {}
        for change in changes:
            if change.path not in restored:
                theirs[change.path] = change.new_blob
            if change.old_path is not None and change.old_path != change.path:
                theirs[change.old_path] = None
        return theirs

    def resume(self, key: TurnKey) -> TurnJournal:
        """Take an interrupted turn from its committed prefix to its end.

        Raises ConflictError (`lease_held` while another process drives it, `turn_closed` when one finished it), and
        NeedsPersonError (`journal_blocked`).
        """
        dead_owner = self._dead_owner()
        before = self._store.load(key).turn.epoch
        try:
            with self._store.write() as tx:
                journal, fence = turns.take_over(tx, key, self.owner, self._store.now_ms(), dead_owner=dead_owner)
        except StoreError as error:
            journal, fence = self._read_back(key, before, error)
        self._require_sound(journal, fence)
        self._tell_opened(journal.turn, resumed=True)
        return self._execute(self.work(), journal, fence, None)

    def _read_back(self, key: TurnKey, before: Epoch | None, error: StoreError) -> tuple[TurnJournal, Fence]:
        """The turn that this process took in a commit whose answer was lost; `error` again when it did not take it."""
        try:
            journal = self._store.load(key)
        except NotFoundError:
            raise error from None
        fence = turns.fence_of(journal.turn)
        with self._store.read() as tx:
            held = leases.get(tx, fence.resource)
        if fence.epoch == before or held is None or (held.owner, held.epoch) != (self.owner, fence.epoch):
            raise error
        return journal, fence

    def _require_sound(self, journal: TurnJournal, fence: Fence) -> None:
        """Block a journal that contradicts itself: guessing its progress is never an option."""
        turn = journal.turn
        violation = recovery.journal_violation(
            recovery.journal_view(
                journal,
                expected=recovery.TurnIdentity(
                    turn_key=turn.turn_key, goal_id=GoalId(self._goal_id), agent_id=turn.agent_id
                ),
                closeout_required=terminal_closeout_requirement(turn),
                effects=self._effects_shown(turn),
            )
        )
        if violation is None:
            return
        with self._store.write() as tx:
            tx.run("turns.block", turn_key=turn.turn_key, violation=violation)
            leases.release(tx, fence.resource, fence.epoch)
            body = {"violation": violation}
            events.append(tx, turn.goal_id, "journal_blocked", self._store.now_ms(), body, turn.turn_key)
        raise turns.blocked(msgspec.structs.replace(turn, violation=str(violation)))

    def _effects_shown(self, turn: Turn) -> tuple[EffectRef, ...]:
        """Effects of this turn that the store itself shows. A checkpoint without its receipt is no contradiction."""
        spend = effect_ref(turn.turn_key, TurnStep.QUOTA_SPEND)
        with self._store.read() as tx:
            return (spend,) if ledger.by_effect(tx, spend) is not None else ()

    def _execute(self, work: GoalWork, journal: TurnJournal, fence: Fence, token: str | None) -> TurnJournal:
        turn = journal.turn
        closed = False
        try:
            with LeaseKeeper(self._store.path, self._store.clock, fence, turn.todo_id) as keeper:
                wiring = TurnWiring(
                    self._store,
                    self._project,
                    work,
                    self._env,
                    self._observer,
                    self._stopping,
                    self._left_ms,
                    self._closeout,
                    self._program_of,
                )
                ports = wiring.ports(journal, token, lambda: keeper.lost)
                ended = TurnExecutor(ports, self._boundaries).run(journal, fence)
            closed = ended.turn.state is TurnState.CLOSED
            if closed:
                work.tree.forget_user(turn.turn_key)
            return ended
        finally:
            if not closed:
                self._let_go(fence)

    def _let_go(self, fence: Fence) -> None:
        """A turn that stays open is anybody's from now on, this process included."""
        with contextlib.suppress(LoopXError), self._store.write() as tx:
            leases.release(tx, fence.resource, fence.epoch)

    def _dead_owner(self) -> str | None:
        """The holder of this agent's turn lease, if its process is proved gone."""
        with self._store.read() as tx:
            held = leases.get(tx, turns.turn_resource(self._goal_id, self._agent_id))
        return held.owner if held is not None and owners.is_dead(held.owner) else None

    def _tell_opened(self, turn: Turn, *, resumed: bool) -> None:
        after = None
        if resumed:
            after = str(PHASES[turn.completed - 1]) if turn.completed else "start"
        self._observer(
            TurnOpened(
                goal_id=turn.goal_id,
                turn_key=turn.turn_key,
                number=turn.number,
                purpose=turn.purpose,
                engine=turn.engine,
                todo_id=turn.todo_id,
                resumed_after=after,
                completed=turn.completed,
                asked=turn.choice.asked if turn.choice is not None else "",
            )
        )


def _route(plan: TurnPlan) -> LoopXTurnRoute:
    raise UsageError("plan_refused", "this plan was refused and can't be started", hint="plan it again")


_WAITING_KINDS = frozenset({LoopXTurnResultKind.WAIT, LoopXTurnResultKind.HOST_FAILURE})


_REPAIRED_KINDS = frozenset({LoopXTurnResultKind.VALIDATION_FAILED, LoopXTurnResultKind.REPAIR_REQUIRED})


def _replan_comes_first(decision: decisions.QuotaDecision, last: Turn) -> bool:
    """Whether a replan is due and the last turn only asks for another repair of its own todo.

    The replan's subject is the goal's frontier, not that todo: handing the receipt in would repair for ever, because
    each failed repair asks for the next one.
    """
    return decision.effective_action in REPLAN_ACTIONS and last.result_kind in _REPAIRED_KINDS


def _is_discharged(turn: Turn, facts: GoalFacts) -> bool:
    """Whether the turn's obligation is met, so that its receipt is no longer handed in."""
    if turn.discharged:
        return True
    if turn.result_kind in _WAITING_KINDS:
        return facts.wait is None
    if turn.result_kind is LoopXTurnResultKind.USER_ACTION_REQUIRED:
        return not facts.gates
    return False


def receipt_of(turn: Turn) -> TurnReceipt:
    """The receipt of a closed turn, from its journal."""
    result = turn.result
    kind = turn.result_kind or turn.intended_kind
    if kind is None:
        raise ConflictError("turn_unfinished", f"turn {turn.turn_key} has no result yet", hint="loopx turn resume")
    retry = None
    if result is not None and kind is LoopXTurnResultKind.HOST_FAILURE:
        retry = HostRetry(
            retryable=result.retryable,
            attempts_left=result.attempts_left,
            not_before_ms=result.retry_not_before_ms,
        )
    return TurnReceipt(
        turn_key=turn.turn_key,
        goal_id=turn.goal_id,
        agent_id=turn.agent_id,
        todo_id=turn.todo_id,
        route=ReceiptRoute(kind=turn.route),
        result_kind=kind,
        completed_phases=PHASES[: turn.completed],
        failed_phase=turn.failed_phase,
        continuation=result.continuation if result is not None else None,
        recovery=result.recovery if result is not None else None,
        retry=retry,
        closed_out=turn.closeout == "done",
    )
