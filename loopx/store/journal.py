"""Committing steps of a turn: phase row, effect and event in one transaction, under the fence, keyed by `effect_ref`.

Safety lives here and not in whoever drives a turn: the prefix is compared and set in the statement that moves it, and
that statement requires the lease's epoch, so that a zombie, a duplicate or a late writer can change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

import msgspec

from loopx.control_plane.effect_program import effect_ref
from loopx.control_plane.errors import ConflictError
from loopx.control_plane.goal import GoalState
from loopx.control_plane.ids import TodoId
from loopx.control_plane.quota.facts import ContractState, PendingWait
from loopx.control_plane.quota.policy import BudgetUnit
from loopx.control_plane.scheduler.schedule import Schedule
from loopx.control_plane.turn_driver.journal import (
    ClosedOut,
    Closeout,
    Fence,
    Finished,
    HostEnded,
    HostExecuted,
    JournalStep,
    PhaseRecord,
    Restored,
    ResultTyped,
    ScheduleAcked,
    ScheduleApplied,
    SlotSpent,
    Stopped,
    Turn,
    TurnJournal,
    TurnPurpose,
    TurnResult,
    TurnState,
    Validated,
    WrittenBack,
)
from loopx.control_plane.turn_driver.transaction import PHASES, LoopXTurnResultKind, TurnStep
from loopx.control_plane.work_items.gate import GateKind
from loopx.control_plane.work_items.todo import ENDED_TODO_STATUSES
from loopx.store import events, evidence, gates, goals, hosts, ledger, meters, outbox, replans, schedules, todos, turns
from loopx.store.codec import dump, raw_or_none
from loopx.store.connection import Row, Tx

NewId = Callable[[str], str]

_KEEPS_OPEN = frozenset(
    {
        LoopXTurnResultKind.WRITEBACK_FAILED,
        LoopXTurnResultKind.QUOTA_SPEND_FAILED,
        LoopXTurnResultKind.TERMINAL_CLOSEOUT_FAILED,
    }
)
"""Failures after validation: the work is proved, so the turn stays open and is recovered from its prefix."""


_ENDED_WELL = frozenset({"success", "no_op"})
_PHASE_STEPS = (HostExecuted, ResultTyped, Validated, WrittenBack, SlotSpent, ScheduleApplied, ScheduleAcked)


def _is_phase(step: JournalStep) -> bool:
    """Whether the step completes a phase; the result of a host failure does not."""
    if isinstance(step, ResultTyped):
        return step.result.kind is not LoopXTurnResultKind.HOST_FAILURE
    return isinstance(step, _PHASE_STEPS)


class StepWriter:
    """Writes the steps of one commit inside one transaction."""

    def __init__(self, tx: Tx, journal: TurnJournal, fence: Fence, new_id: NewId, now_ms: int) -> None:
        self._tx = tx
        self._fence = fence
        self._new_id = new_id
        self._now = now_ms
        self._turn = journal.turn
        self._phases = list(journal.phases)
        self._host = journal.host
        self._schedule: Schedule | None = None
        self._unsaved = False

    def write(self, steps: Sequence[JournalStep]) -> TurnJournal:
        """Write the steps; the journal as it is then.

        Raises ConflictError: `lease_lost`, `prefix_moved`, `spend_conflict`.
        """
        self._hold(self._turn.completed + sum(1 for step in steps if _is_phase(step)))
        for step in steps:
            self._write(step)
        self._save()
        return TurnJournal(turn=self._turn, phases=tuple(self._phases), host=self._host)

    def _now_is(self, **changes: object) -> None:
        """What the turn is from here on, on its row already or by what else this transaction wrote."""
        self._turn = msgspec.structs.replace(self._turn, **changes)

    def _becomes(self, **changes: object) -> None:
        """What the turn's row is to say; `_save` writes it once for all steps of the commit."""
        self._now_is(**changes)
        self._unsaved = True

    def _save(self) -> None:
        """Write the turn's own columns, where a step changed them."""
        if not self._unsaved:
            return
        turn = self._turn
        self._tx.run(
            "turns.save",
            turn_key=turn.turn_key,
            state=turn.state,
            result_kind=turn.result_kind,
            failed_phase=turn.failed_phase,
            closeout=turn.closeout,
            slots=turn.slots,
            checkpoint=turn.checkpoint,
            ended_at_ms=turn.ended_at_ms,
        )
        self._unsaved = False

    def _hold(self, completed: int) -> None:
        """Move the prefix to where this commit takes it, under the fence; nobody else may have moved it."""
        turn = self._turn
        moved = self._tx.run(
            "turns.move",
            turn_key=turn.turn_key,
            completed=completed,
            expected=turn.completed,
            epoch=self._fence.epoch,
            resource=self._fence.resource,
            now_ms=self._now,
        )
        if moved != 1:
            raise self._why_not(turn)

    def _why_not(self, turn: Turn) -> ConflictError:
        current = turns.load_journal(self._tx, turn.turn_key).turn
        data: dict[str, str | int | float | bool | None] = {
            "turn_key": turn.turn_key,
            "completed": current.completed,
            "expected": turn.completed,
        }
        if current.completed != turn.completed or current.state != turn.state:
            return ConflictError(
                "prefix_moved",
                f"turn {turn.turn_key} moved to {current.completed} phases",
                hint="read it again",
                data=data,
            )
        return ConflictError(
            "lease_lost",
            f"this process no longer holds turn {turn.turn_key}",
            hint=f"loopx run {turn.goal_id} goes on from what is committed",
            data=data,
        )

    def _phase(self, phase_index: int, receipt: object) -> None:
        turn = self._turn
        if turn.completed != phase_index:
            raise ConflictError(
                "prefix_moved",
                f"turn {turn.turn_key} has {turn.completed} phases; {PHASES[phase_index]} is not next",
                hint="read it again",
            )
        phase, text = PHASES[phase_index], dump(receipt)
        reference = effect_ref(turn.turn_key, TurnStep(phase))
        self._tx.run(
            "turns.insert_phase",
            turn_key=turn.turn_key,
            ordinal=phase_index,
            phase=phase,
            effect_ref=reference,
            receipt=text,
            epoch=self._fence.epoch,
            now_ms=self._now,
        )
        self._phases.append(
            PhaseRecord(
                phase=phase,
                effect_ref=reference,
                receipt=msgspec.Raw(text.encode()),
                epoch=self._fence.epoch,
                committed_at_ms=self._now,
            )
        )
        self._event(f"phase_{phase}", {"effect_ref": reference})
        self._now_is(completed=phase_index + 1)

    def _event(self, kind: str, body: object) -> None:
        events.append(self._tx, self._turn.goal_id, kind, self._now, body, self._turn.turn_key)

    def _write(self, step: JournalStep) -> None:
        match step:
            case HostEnded():
                self._host_ended(step)
            case HostExecuted():
                self._phase(0, step.report)
            case ResultTyped():
                self._result_typed(step.result)
            case Validated():
                self._phase(2, {"kind": self._turn.intended_kind})
            case Restored():
                self._event("files_restored", {"order": self._require_result().restore})
            case WrittenBack():
                self._write_back(step.checkpoint)
            case SlotSpent():
                self._spend()
            case ScheduleApplied():
                self._apply(step)
            case ScheduleAcked():
                self._acknowledge()
            case ClosedOut():
                self._close_out()
            case Stopped():
                self._stop(step)
            case Finished():
                self._finish()
            case _:
                assert_never(step)

    def _require_result(self) -> TurnResult:
        result = self._turn.result
        if result is None:
            raise ConflictError("result_missing", f"turn {self._turn.turn_key} has no result", hint="loopx doctor")
        return result

    def _host_ended(self, step: HostEnded) -> None:
        self._host = step.report
        if hosts.end(self._tx, step.report, self._turn.goal_id, self._now):
            usage = step.report.usage
            self._event(
                "host_ended",
                {
                    "run_id": step.report.run_id,
                    "end": step.report.end_kind,
                    "input_tokens": usage.input_tokens,
                    "output_tokens": usage.output_tokens,
                    "cost_microusd": usage.cost_microusd,
                    "wall_ms": step.report.wall_ms,
                },
            )

    def _result_typed(self, result: TurnResult) -> None:
        turn = self._turn
        self._tx.run(
            "turns.set_result",
            turn_key=turn.turn_key,
            result=dump(result),
            intended_kind=result.kind,
            outcome=result.outcome,
            delivery_kind=result.turn_kind,
            tree_after=result.tree_after,
        )
        for draft in result.evidence:
            evidence.insert(
                self._tx,
                self._new_id("ev"),
                turn.goal_id,
                draft,
                self._now,
                turn_key=turn.turn_key,
                todo_id=turn.todo_id,
            )
        self._now_is(result=result, intended_kind=result.kind)
        if result.kind is not LoopXTurnResultKind.HOST_FAILURE:
            self._phase(1, {"kind": result.kind, "reason": result.reason})

    def _write_back(self, checkpoint: str | None) -> None:
        turn, result = self._turn, self._require_result()
        if checkpoint is not None:
            self._tx.run(
                "evidence.bind_commit", turn_key=turn.turn_key, tree_hash=result.tree_after, commit_sha=checkpoint
            )
        contract = result.contract
        self._tx.run(
            "goals.write_back",
            goal_id=turn.goal_id,
            contract_state=contract,
            contract_tree=result.tree_after,
            checkpoint=checkpoint,
            evaluation=raw_or_none(result.evaluation),
        )
        if result.kind is LoopXTurnResultKind.VALIDATED_COMPLETION and turn.todo_id is not None:
            self._finish_todo(turn.todo_id, result)
        if result.delta is not None and not _awaits_person(result):
            replans.apply(
                self._tx, turn.goal_id, result.delta, self._now, self._new_id, by=turn.agent_id, turn_key=turn.turn_key
            )
        self._becomes(checkpoint=checkpoint, result_kind=None, failed_phase=None)
        self._phase(3, {"checkpoint": checkpoint, "tree": result.tree_after, "contract": contract})

    def _finish_todo(self, todo_id: TodoId, result: TurnResult) -> None:
        """Somebody may have ended the todo while the turn ran; the turn's work is proved all the same."""
        turn = self._turn
        if todos.get(self._tx, todo_id).status not in ENDED_TODO_STATUSES:
            todos.finish(self._tx, turn.goal_id, todo_id, turn.agent_id, result.continuation, self._now, turn.turn_key)

    def _spend(self) -> None:
        turn = self._turn
        reference = effect_ref(turn.turn_key, TurnStep.QUOTA_SPEND)
        receipt = ledger.spend(
            self._tx, turn.goal_id, reference, 1, self._now, turn_key=turn.turn_key, reason=str(turn.intended_kind)
        )
        self._becomes(slots=receipt.entry.slots, result_kind=None, failed_phase=None)
        self._phase(4, receipt)

    def _apply(self, step: ScheduleApplied) -> None:
        self._schedule, receipt = schedules.apply(self._tx, self._scheduled(), step.due, self._now)
        self._phase(5, receipt)

    def _acknowledge(self) -> None:
        self._schedule, receipt = schedules.acknowledge_applied(self._tx, self._scheduled(), self._now)
        self._phase(6, receipt)

    def _scheduled(self) -> Schedule:
        """The goal's schedule, read once and then as this commit left it."""
        if self._schedule is None:
            self._schedule = schedules.get(self._tx, self._turn.goal_id)
        return self._schedule

    def _close_out(self) -> None:
        turn = self._turn
        self._tx.run("goals.close", goal_id=turn.goal_id, now_ms=self._now)
        self._tx.run("todos.close_all", goal_id=turn.goal_id, now_ms=self._now)
        schedules.close(self._tx, turn.goal_id, self._now)
        self._schedule = None
        self._event("goal_completed", {"from": GoalState.ACTIVE, "by": "loopx", "reason": "terminal_closeout"})
        outbox.notify(
            self._tx,
            turn.goal_id,
            f"{turn.turn_key}:terminal",
            "goal_completed",
            {"turn_key": turn.turn_key},
            self._now,
        )
        self._becomes(closeout=Closeout.DONE, result_kind=None, failed_phase=None)

    def _stop(self, step: Stopped) -> None:
        turn = self._turn
        if step.kind in _KEEPS_OPEN:
            closeout = Closeout.FAILED if step.failed_phase is TurnStep.TERMINAL_CLOSEOUT else turn.closeout
            self._event("turn_stuck", {"kind": step.kind, "failed_phase": step.failed_phase, "code": step.code})
            self._becomes(result_kind=step.kind, failed_phase=step.failed_phase, closeout=closeout)
            return
        result = self._require_result()
        self._ask(result)
        self._tx.run(
            "goals.set_contract",
            goal_id=turn.goal_id,
            contract_state=_after_refusal(result),
            contract_tree=result.tree_after,
        )
        self._close(step.kind, step.failed_phase, result)

    def _ask(self, result: TurnResult) -> None:
        if result.gate is not None:
            gates.ask(
                self._tx, self._turn.goal_id, self._new_id("g"), result.gate, self._now, turn_key=self._turn.turn_key
            )

    def _finish(self) -> None:
        result = self._require_result()
        # A question beside proved work is asked all the same.
        self._ask(result)
        self._close(result.kind, None, result)

    def _close(self, kind: LoopXTurnResultKind, failed: TurnStep | None, result: TurnResult) -> None:
        turn = self._turn
        self._becomes(state=TurnState.CLOSED, result_kind=kind, failed_phase=failed, ended_at_ms=self._now)
        meters.settle(self._tx, turn.goal_id, turn.turn_key, self._silence(), self._now)
        if turn.todo_id is not None:
            self._tx.run("todos.let_go", todo_id=turn.todo_id, agent_id=turn.agent_id, now_ms=self._now)
        self._leave_on_goal(kind, result)
        if turn.purpose is TurnPurpose.REPLAN and kind is LoopXTurnResultKind.REPLAN_REQUIRED:
            # It lets go of closed turns, and is one itself.
            self._save()
            self._tx.run("turns.discharge_goal", goal_id=turn.goal_id, after=-1)
        self._event(
            "turn_closed",
            {
                "kind": kind,
                "failed_phase": failed,
                "slots": turn.slots,
                "outcome": result.outcome,
                "reason": result.reason,
            },
        )
        if turn.todo_id is not None:
            self._tx.run("leases.end", resource=f"todo:{turn.todo_id}", owner=turn.agent_id)
        self._tx.run("leases.release", resource=self._fence.resource, epoch=self._fence.epoch)

    def _silence(self) -> Callable[[BudgetUnit], meters.Silence]:
        """What the engines that worked for this turn told of a unit."""

        def of(unit: BudgetUnit) -> meters.Silence:
            reports = [run.report for run in hosts.of_turn(self._tx, self._turn.turn_key) if run.report is not None]
            silent = [one for one in reports if one.handed_over and unit not in hosts.amounts(one, one.usage)]
            if not silent:
                return meters.Silence.NONE
            well = any(one.end_kind in _ENDED_WELL for one in silent)
            return meters.Silence.UNREPORTED if well else meters.Silence.CUT_OFF

        return of

    def _leave_on_goal(self, kind: LoopXTurnResultKind, result: TurnResult) -> None:
        row = goals.row_of(self._tx, self._turn.goal_id)
        counts = streaks(row, self._turn, kind, result)
        wait = result.wait
        self._tx.run(
            "goals.after_turn",
            goal_id=self._turn.goal_id,
            floor_streak=counts["floor_streak"],
            idle_streak=counts["idle_streak"],
            failure_streak=counts["failure_streak"],
            host_failure_streak=counts["host_failure_streak"],
            replan_tried=counts["replan_tried"],
            wait_kind=wait.kind if wait else None,
            wait_until_ms=wait.until_ms if wait else None,
            wait_detail=wait.detail if wait else None,
            due_at_ms=self._due(row, kind, wait),
            now_ms=self._now,
        )
        if row["budget_count"]:
            budgets = goals.definition_of(self._tx, self._turn.goal_id, row["revision"]).budgets
            full = meters.capped(self._tx, self._turn.goal_id, budgets)
            self._tx.run("goals.set_capped", goal_id=self._turn.goal_id, capped=int(full))

    def _due(self, row: Row, kind: LoopXTurnResultKind, wait: PendingWait | None) -> int | None:
        if row["state"] != GoalState.ACTIVE:
            return None
        if wait is not None:
            return wait.until_ms
        if kind is LoopXTurnResultKind.USER_ACTION_REQUIRED:
            return None
        next_due = self._scheduled().next_due_ms
        return next_due if next_due is not None else self._now


def _awaits_person(result: TurnResult) -> bool:
    """Whether a person confirms the new plan first; the answer carries it out."""
    return result.gate is not None and result.gate.kind is GateKind.REPLAN_PREVIEW


def _after_refusal(result: TurnResult) -> ContractState:
    """What is known of the contract after a turn that was not accepted: files that went back make it unknown again."""
    return ContractState.UNKNOWN if result.restore is not None else result.contract


def streaks(row: Row, turn: Turn, kind: LoopXTurnResultKind, result: TurnResult) -> dict[str, int]:
    """The goal's streak counters after a turn: what feeds the hand-off floor and the breaker."""
    material = turn.slots > 0
    accountable = result.outcome is not None and result.outcome.accountable
    replanned = turn.purpose is TurnPurpose.REPLAN
    failed = kind is LoopXTurnResultKind.VALIDATION_FAILED
    host_failed = kind is LoopXTurnResultKind.HOST_FAILURE
    counts = {
        "floor_streak": int(row["floor_streak"]),
        "idle_streak": int(row["idle_streak"]),
        "failure_streak": int(row["failure_streak"]),
        "host_failure_streak": int(row["host_failure_streak"]),
        "replan_tried": int(row["replan_tried"]),
    }
    if replanned:
        counts["replan_tried"] = 1
        if kind is LoopXTurnResultKind.REPLAN_REQUIRED:
            counts.update(floor_streak=0, idle_streak=0, failure_streak=0, host_failure_streak=0)
        return counts
    counts["host_failure_streak"] = counts["host_failure_streak"] + 1 if host_failed else 0
    if material:
        counts["floor_streak"] = 0 if accountable else counts["floor_streak"] + 1
        counts["failure_streak"] = 0
        counts["idle_streak"] = counts["idle_streak"] + 1 if result.no_change else 0
        if accountable:
            counts["replan_tried"] = 0
    elif failed:
        counts["failure_streak"] += 1
        counts["idle_streak"] = counts["idle_streak"] + 1 if result.no_change else 0
    elif kind is LoopXTurnResultKind.USER_ACTION_REQUIRED and result.gate is not None:
        counts.update(floor_streak=0, idle_streak=0)
    return counts
