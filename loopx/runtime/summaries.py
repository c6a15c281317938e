"""Turns and runs in a few numbers, read back from the store for whoever watches. It decides nothing."""

from __future__ import annotations

import msgspec

from loopx.contracts.model import CheckResult
from loopx.control_plane.quota.policy import BudgetUnit
from loopx.control_plane.turn_driver.journal import EvidenceKind, Turn, TurnJournal
from loopx.control_plane.turn_driver.loop_controller import LoopDisposition
from loopx.runtime.evaluation import summarise
from loopx.runtime.progress import CheckSummary, RunEnded, TurnEnded
from loopx.store import evidence, gates, goals
from loopx.store.connection import Row, Tx
from loopx.store.store import Store

_PREFIXES = ("snapshot: ", "todo: ", "baseline: ")


def checks_of(tx: Tx, turn_key: str) -> tuple[CheckSummary, ...]:
    """The goal's checks as this turn left them, held-out ones included (a person may see them)."""
    return tuple(
        summarise(msgspec.json.decode(one.body, type=CheckResult))
        for one in evidence.of_turn(tx, turn_key)
        if one.kind is EvidenceKind.CHECK and not one.name.startswith(_PREFIXES)
    )


def _usage(tx: Tx, turn_key: str) -> Row | None:
    return tx.one("hosts.totals_of_turn", turn_key=turn_key)


def turn_ended(store: Store, journal: TurnJournal) -> TurnEnded:
    """What a turn came to."""
    turn, result = journal.turn, journal.turn.result
    with store.read() as tx:
        usage = _usage(tx, turn.turn_key)
        checks = checks_of(tx, turn.turn_key)
        asked = [gate for gate in gates.open_gates(tx, turn.goal_id) if gate.turn_key == turn.turn_key]
    tokens = None
    if usage is not None and (usage["input_tokens"] is not None or usage["output_tokens"] is not None):
        tokens = (usage["input_tokens"] or 0) + (usage["output_tokens"] or 0)
    return TurnEnded(
        goal_id=turn.goal_id,
        turn_key=turn.turn_key,
        number=turn.number,
        result_kind=str(turn.result_kind or turn.intended_kind or ""),
        disposition=None,
        slots=turn.slots,
        checks=checks,
        reason=result.reason if result is not None else "",
        failure=result.failure if result is not None else None,
        checkpoint=turn.checkpoint,
        wall_ms=(turn.ended_at_ms or store.now_ms()) - turn.started_at_ms,
        tokens=tokens,
        cost_microusd=usage["cost_microusd"] if usage is not None else None,
        edited=0,
        tool_calls=journal.host.tool_calls if journal.host is not None else 0,
        message=result.message if result is not None else "",
        findings=result.findings if result is not None else (),
        recurring=result.recurring if result is not None else False,
        restored=result.restore.paths if result is not None and result.restore is not None else (),
        failed_phase=str(turn.failed_phase) if turn.failed_phase is not None else None,
        continuation=str(result.continuation.kind) if result is not None and result.continuation is not None else None,
        confirmed_in_snapshot=result.confirmed_in_snapshot if result is not None else False,
        gate_id=asked[0].gate_id if asked else None,
    )


def run_ended(
    store: Store,
    goal_id: str,
    *,
    disposition: LoopDisposition,
    exit_code: int,
    reason: str,
    failure: str | None,
    last: Turn | None,
    turns_run: int,
    first_number: int | None,
    wall_ms: int,
    next_command: tuple[str, ...],
) -> RunEnded:
    """What a run came to. `spent_slots` and tokens are this goal's since it began."""
    with store.read() as tx:
        row = goals.row_of(tx, goal_id)
        last_key = last.turn_key if last is not None else None
        checks = checks_of(tx, last_key) if last_key is not None else ()
        open_gates = gates.open_gates(tx, goal_id)
        spent = tx.number("ledger.total", goal_id=goal_id)
        tokens = tx.one("meters.total", goal_id=goal_id, unit=BudgetUnit.TOKENS)
        cost = tx.one("meters.total", goal_id=goal_id, unit=BudgetUnit.MICROUSD)
    result = last.result if last is not None else None
    return RunEnded(
        goal_id=goal_id,
        disposition=disposition,
        result_kind=str(last.result_kind or last.intended_kind) if last is not None else None,
        turns=turns_run,
        spent_slots=spent,
        checks=checks,
        failure=failure if failure is not None else (result.failure if result is not None and exit_code else None),
        exit_code=exit_code,
        goal_state=row["state"],
        reason=reason,
        total_turns=row["turn_count"],
        tokens=tokens["cumulative"] if tokens is not None else None,
        cost_microusd=cost["cumulative"] if cost is not None else None,
        wall_ms=wall_ms,
        branch=f"loopx/{goal_id}" if row["last_checkpoint"] else None,
        next_command=next_command,
        gate_id=open_gates[0].gate_id if open_gates else None,
        question=open_gates[0].question if open_gates else None,
        fix=open_gates[0].fix if open_gates else "",
    )
