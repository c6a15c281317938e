"""The loop: from one turn's receipt to the next, until a goal is terminal, a person is needed, or a limit ends the run.

It acts on dispositions and decides none: each comes from `decide_loop_disposition` on fresh facts. Waits are slept
through, calmly, and every end has a typed reason and an exit status.
"""

from __future__ import annotations

import threading
from typing import assert_never

import msgspec

from loopx.control_plane.errors import (
    BudgetError,
    CancelledError,
    ConflictError,
    LoopXError,
    NotNowError,
)
from loopx.control_plane.goal import CLOSED_GOAL_STATES, GoalDefinition, GoalState
from loopx.control_plane.ids import AgentId, GoalId, TurnKey
from loopx.control_plane.ports import Clock, CloseoutPort
from loopx.control_plane.quota.rules import Rule
from loopx.control_plane.turn_driver.journal import Turn, TurnJournal, TurnState
from loopx.control_plane.turn_driver.loop_controller import LoopDecision, LoopDisposition, TurnBudget
from loopx.control_plane.turn_driver.settlement import DEFAULT_BOUNDARIES
from loopx.control_plane.turn_driver.transaction import LoopXTurnPhase, LoopXTurnResultKind
from loopx.loops.deadline import Deadline
from loopx.runtime import after_run, capabilities, goal_work, run_guard, summaries
from loopx.runtime.clock import Throttle
from loopx.runtime.closing import close_terminal_goal
from loopx.runtime.engine_watch import EngineWatch, Refusal
from loopx.runtime.engines import EngineDesk, Picked
from loopx.runtime.progress import Disposed, GoalOpened, Observer, RunEnded, Slept, Waiting
from loopx.runtime.project import Project
from loopx.runtime.stuck import ask_breaker, ask_if_in_vain
from loopx.runtime.turn_runner import TurnPlan, TurnRunner
from loopx.store import goals
from loopx.store.store import Store

MAX_REFUSALS = 3
SLEEP_SLICE_S = 2.0
CLOCK_JUMP_MS = 30_000
SOONEST_MS = 1_000


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds one run. A turn limit of None is `unlimited`, spelled out by whoever asked for it."""

    max_turns: int | None = 24
    max_minutes: int | None = 120
    wait: bool = True
    engine: str | None = None
    created: bool = False
    probe: bool = True
    explicit: bool = True
    """A person asked for this run: it lets go of stops and back-offs. A worker's run does not."""


class StopSignal:
    """A person's wish to stop, from a signal handler or another thread."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep, at most so long; True when the wish came."""
        return self._event.wait(seconds)


class _End(msgspec.Struct, frozen=True, kw_only=True):
    disposition: LoopDisposition
    exit_code: int
    reason: str
    failure: str | None = None


class GoalRunner:
    """Runs one goal for one agent until something ends the run."""

    def __init__(
        self,
        store: Store,
        project: Project,
        goal_id: str,
        agent_id: AgentId,
        observer: Observer,
        env: dict[str, str],
        options: RunOptions,
        stop: StopSignal,
        clock: Clock,
        *,
        boundaries: frozenset[LoopXTurnPhase] = DEFAULT_BOUNDARIES,
        closeout: CloseoutPort | None = None,
    ) -> None:
        self._store = store
        self._project = project
        self._goal_id = goal_id
        self._agent_id = agent_id
        self._observer = observer
        self._full_env = env
        self._env = env = capabilities.without_secrets(project, env)
        self._options = options
        self._stop = stop
        self._clock = clock
        self._started = clock.monotonic_ms()
        minutes = options.max_minutes
        self._deadline = Deadline.after(clock.monotonic_ms, None if minutes is None else minutes * 60_000)
        desk = EngineDesk(env, self._tree_root, options.engine, store.now_ms, probing=options.probe)
        self._watch = EngineWatch(store, GoalId(goal_id), desk, self._definition)
        self._runner = TurnRunner(
            store,
            project,
            goal_id,
            agent_id,
            observer,
            env,
            stopping=self._must_stop,
            left_ms=self._deadline.remaining_ms,
            boundaries=boundaries,
            closeout=closeout,
            program_of=self._watch.program,
        )
        self._turns = 0
        self._first_number: int | None = None
        self._last: Turn | None = None
        self._plan: TurnPlan | None = None
        self._state_check = Throttle(clock, 500)
        self._cancelled_by_state = False

    def run(self) -> RunEnded:
        """Run until something ends it; the typed end, which was told to the observer too.

        Raises what can't be a run's end: UsageError for a contract that can't be run, ConflictError (`goal_running`)
        when another process runs this goal, StoreError.
        """
        self._refuse_closed(self._runner.work().goal.state)
        with run_guard.only_run(self._store, self._goal_id, self._agent_id, self._runner.owner):
            return self._run()

    def _run(self) -> RunEnded:
        work = self._runner.work()
        picked = self._watch.begin(explicit=self._options.explicit)
        self._tell_opened(work, picked)
        # Without an engine not even the baseline is worth its time; later the loop asks when it needs one.
        refusal = self._watch.refusal(picked) if self._is_untouched() else None
        if refusal is not None:
            return self._finish(_refused(refusal))
        try:
            goal_work.prepare_tree(self._store, self._project, work)
            self._baseline(work)
            end = self._loop()
        except CancelledError:
            end = _End(disposition=LoopDisposition.STOP, exit_code=130, reason="cancelled", failure="cancelled")
        return self._finish(end)

    def _is_untouched(self) -> bool:
        return goal_work.baseline_of(self._store, self._goal_id) is None and self._runner.open_turn() is None

    def _definition(self) -> GoalDefinition:
        return self._runner.work().goal.definition

    def _tree_root(self) -> str:
        return self._runner.work().tree.root

    def _baseline(self, work: goal_work.GoalWork) -> None:
        goal_work.take_baseline(
            self._store, work, self._env, self._observer, self._must_stop, self._deadline.remaining_ms
        )

    def _refuse_closed(self, state: str) -> None:
        if state in CLOSED_GOAL_STATES:
            raise NotNowError(
                "goal_closed", f"goal {self._goal_id} is {state}", hint=f"loopx goal reopen {self._goal_id}"
            )
        if state == GoalState.STOPPED:
            raise NotNowError(
                "goal_stopped", f"goal {self._goal_id} is stopped", hint=f"loopx goal resume {self._goal_id}"
            )

    def _must_stop(self) -> bool:
        """A signal, or the goal was stopped or cancelled by a person elsewhere."""
        if self._stop.is_set() or self._cancelled_by_state:
            return True
        if self._state_check.due():
            with self._store.read() as tx:
                state = goals.row_of(tx, self._goal_id)["state"]
            self._cancelled_by_state = state in ("stopped", "cancelled")
        return self._cancelled_by_state

    def _loop(self) -> _End:
        refusals = 0
        while True:
            if self._must_stop():
                return _End(disposition=LoopDisposition.STOP, exit_code=130, reason="cancelled", failure="cancelled")
            open_key = self._runner.open_turn()
            if open_key is not None:
                end = self._resume(open_key)
                if end is not None:
                    return end
                continue
            plan = self._runner.plan(self._budget())
            self._plan = plan
            if plan.disposition is None:
                refusals += 1
                if refusals > MAX_REFUSALS:
                    raise ConflictError(
                        "plan_refused",
                        f"the facts of {self._goal_id} contradict each other: {plan.outcome}",
                        hint=f"loopx why {self._goal_id}",
                    )
                continue
            refusals = 0
            self._tell_disposed(plan)
            ended = self._act(plan, plan.disposition)
            if ended is not None:
                return ended

    def _resume(self, key: TurnKey) -> _End | None:
        """Take an interrupted turn to its end, unless another process was faster."""
        try:
            journal = self._runner.resume(key)
            # A worker's turn is one turn, interrupted or not: what follows has a wake of its own.
            self._turns += int(not self._options.explicit)
            return self._after(journal)
        except ConflictError as error:
            if error.code != "turn_closed":
                raise
            return None

    def _act(self, plan: TurnPlan, disposition: LoopDisposition) -> _End | None:
        match disposition:
            case LoopDisposition.RUN_NOW | LoopDisposition.REPAIR | LoopDisposition.REPLAN:
                if plan.decision.rule is Rule.BLOCKED_WITHOUT_WAKE and ask_if_in_vain(self._store, self._goal_id):
                    return None
                return self._take_turn(plan, disposition)
            case LoopDisposition.WAIT:
                return self._wait(plan)
            case LoopDisposition.USER_ACTION_REQUIRED:
                return self._ask(plan)
            case LoopDisposition.CAPABILITY_ACTION_REQUIRED:
                return self._capability(plan)
            case LoopDisposition.STOP:
                return _End(disposition=disposition, exit_code=130, reason="stopped")
            case LoopDisposition.TERMINAL:
                return self._terminal(plan)
            case _:
                assert_never(disposition)

    def _take_turn(self, plan: TurnPlan, disposition: LoopDisposition) -> _End | None:
        limit = self._options.max_turns
        if limit is not None and self._turns >= limit:
            return _End(disposition=disposition, exit_code=12, reason="turn_limit")
        if not self._deadline.admit():
            return _End(disposition=disposition, exit_code=12, reason="time_limit", failure="budget_exhausted")
        # A person may have changed the checks between two turns.
        self._baseline(self._runner.work())
        picked = self._watch.pick()
        refusal = self._watch.refusal(picked)
        if refusal is not None:
            return _refused(refusal)
        if picked.engine is None:
            self._watch.wait_or_go_on()
            return None
        try:
            journal = self._runner.start(plan, disposition, picked.engine, picked.choice)
        except (NotNowError, BudgetError) as error:
            return None if self._options.wait and self._nap() else _late(error)
        except ConflictError as error:
            if error.code in ("turn_open", "stale_revision", "todo_taken", "scope_overlap"):
                return None
            raise
        self._turns += 1
        return self._after(journal)

    def _nap(self) -> bool:
        """Let whoever was faster finish; False when the run must end instead."""
        return not self._stop.wait(SLEEP_SLICE_S) and self._deadline.admit()

    def _after(self, journal: TurnJournal) -> _End | None:
        turn = journal.turn
        self._last = turn
        if self._first_number is None:
            self._first_number = turn.number
        self._observer(summaries.turn_ended(self._store, journal))
        after_run.after_turn(self._store, self._project, self._goal_id, self._full_env)
        self._watch.after(turn, journal.host)
        if turn.state is not TurnState.CLOSED:
            return self._stuck(turn)
        if turn.result_kind is LoopXTurnResultKind.HOST_FAILURE:
            return self._host_failed(turn)
        if turn.result_kind is LoopXTurnResultKind.ITERATION_FAILED:
            return _End(disposition=LoopDisposition.STOP, exit_code=130, reason="cancelled", failure="cancelled")
        return None

    def _stuck(self, turn: Turn) -> _End:
        """The work is proved, and something outside keeps its settlement from committing; a re-run goes on there."""
        return _End(
            disposition=LoopDisposition.REPAIR,
            exit_code=11,
            reason=f"settlement_stuck:{turn.failed_phase}",
            failure=str(turn.result_kind) if turn.result_kind is not None else None,
        )

    def _host_failed(self, turn: Turn) -> _End | None:
        result = turn.result
        if result is None or (result.retryable and result.attempts_left > 0):
            return None
        if self._watch.never_started(turn) and self._watch.goes_on():
            return None
        return _End(
            disposition=LoopDisposition.REPAIR,
            exit_code=13,
            reason=f"engine_failed:{result.failure}",
            failure="engine_unavailable" if result.failure == "not_started" else "infrastructure",
        )

    def _wait(self, plan: TurnPlan) -> _End | None:
        decision = plan.decision
        until = decision.wake_after_ms
        if decision.rule is Rule.MONITOR_DUE:
            from loopx.runtime.monitors import run_due_monitor

            run_due_monitor(self._store, self._runner.work(), self._env, self._must_stop)
            return None
        if decision.rule is Rule.BLOCKED_WITH_WAKE and self._probe_ran():
            return None
        self._observer(
            Waiting(
                goal_id=self._goal_id,
                state=decision.state,
                action=decision.effective_action,
                reason=decision.reason,
                until_ms=until,
            )
        )
        late = _End(disposition=LoopDisposition.WAIT, exit_code=10, reason=str(decision.effective_action))
        if not self._options.wait or until is None:
            return late
        left = self._deadline.remaining_ms()
        if left is not None and until - self._store.now_ms() > left:
            return late
        # A wake that is past already still lets a moment go by, so that no wait can spin.
        self._sleep_until(max(until, self._store.now_ms() + SOONEST_MS))
        return None

    def _probe_ran(self) -> bool:
        from loopx.runtime.monitors import run_due_probe

        return run_due_probe(self._store, self._runner.work(), self._env, self._must_stop)

    def _sleep_until(self, until_ms: int) -> None:
        """Sleep until an instant or until something changes; a jump of the clock is told, and ends the sleep."""
        revision = self._change_mark()
        wall, steady = self._store.now_ms(), self._clock.monotonic_ms()
        while self._store.now_ms() < until_ms and not self._must_stop():
            left = max(0.05, (until_ms - self._store.now_ms()) / 1000)
            if self._stop.wait(min(SLEEP_SLICE_S, left)):
                return
            jump = (self._store.now_ms() - wall) - (self._clock.monotonic_ms() - steady)
            if abs(jump) > CLOCK_JUMP_MS:
                self._observer(Slept(goal_id=self._goal_id, jump_ms=jump))
                return
            if self._change_mark() != revision:
                return

    def _change_mark(self) -> int:
        with self._store.read() as tx:
            return int(goals.row_of(tx, self._goal_id)["event_seq"])

    def _ask(self, plan: TurnPlan) -> _End:
        """A person is needed: make sure that there is a question, and end the run."""
        decision = plan.decision
        if decision.rule is Rule.REPLAN_IN_VAIN:
            ask_breaker(self._store, self._goal_id)
        exit_code = 12 if decision.rule is Rule.ABSOLUTE_CAP else 11
        return _End(disposition=LoopDisposition.USER_ACTION_REQUIRED, exit_code=exit_code, reason=decision.reason)

    def _capability(self, plan: TurnPlan) -> _End | None:
        from loopx.runtime.capability_run import RunState, run_granted

        state = run_granted(self._store, self._project, self._goal_id, self._full_env, self._must_stop)
        if state is RunState.BUSY and not (self._options.wait and self._nap()):
            return _End(disposition=LoopDisposition.WAIT, exit_code=10, reason="capability_running")
        after_run.after_turn(self._store, self._project, self._goal_id, self._full_env)
        return None

    def _terminal(self, plan: TurnPlan) -> _End | None:
        if plan.facts.state not in CLOSED_GOAL_STATES and not close_terminal_goal(
            self._store, self._runner.work(), self._env, self._observer, self._must_stop, plan.event_seq
        ):
            return None
        return _End(disposition=LoopDisposition.TERMINAL, exit_code=0, reason="terminal")

    def _budget(self) -> TurnBudget:
        limit = self._options.max_turns
        return TurnBudget(limit=limit if limit is not None else 1 << 31, used=self._turns)

    def _tell_opened(self, work: goal_work.GoalWork, picked: Picked) -> None:
        options, probe = self._options, picked.probe
        self._observer(
            GoalOpened(
                goal_id=self._goal_id,
                objective=work.goal.definition.objective,
                checks=len(work.contract.checks),
                engine=picked.engine or picked.choice.asked,
                asked=picked.choice.asked,
                engine_version=probe.version if probe is not None else None,
                signed_in=probe.signed_in if probe is not None else "unknown",
                max_turns=options.max_turns or 0,
                max_minutes=options.max_minutes or 0,
                created=options.created,
                model=work.goal.definition.model,
                permission=work.goal.definition.permission,
                root=work.tree.root,
            )
        )

    def _tell_disposed(self, plan: TurnPlan) -> None:
        outcome = plan.outcome
        if isinstance(outcome, LoopDecision):
            self._observer(
                Disposed(
                    goal_id=self._goal_id,
                    disposition=outcome.disposition,
                    route=outcome.route,
                    reason=outcome.reason,
                )
            )

    def _finish(self, end: _End) -> RunEnded:
        told = summaries.run_ended(
            self._store,
            self._goal_id,
            disposition=end.disposition,
            exit_code=end.exit_code,
            reason=end.reason,
            failure=end.failure,
            last=self._last,
            turns_run=self._turns,
            first_number=self._first_number,
            wall_ms=self._clock.monotonic_ms() - self._started,
            next_command=self._plan.decision.next_command if self._plan is not None else (),
        )
        self._observer(told)
        after_run.after_run(
            self._store, self._project, self._agent_id, told, self._full_env, explicit=self._options.explicit
        )
        return told


def _late(error: LoopXError) -> _End:
    return _End(disposition=LoopDisposition.WAIT, exit_code=error.exit_code, reason=error.code)


def _refused(refusal: Refusal) -> _End:
    asks = refusal.exit_code == 11
    return _End(
        disposition=LoopDisposition.USER_ACTION_REQUIRED if asks else LoopDisposition.REPAIR,
        exit_code=refusal.exit_code,
        reason=refusal.reason,
        failure=refusal.failure,
    )
