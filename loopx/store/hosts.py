"""Host runs: the intent before a launch, and the typed end with its usage after it."""

from __future__ import annotations

import msgspec

from loopx.control_plane.ids import GoalId, TurnKey
from loopx.control_plane.quota.policy import BudgetUnit
from loopx.control_plane.turn_driver.journal import Fence, HostReport, RunUsage, Turn
from loopx.store import events, meters, turns
from loopx.store.codec import dump, load, raw_or_none
from loopx.store.connection import Row, Tx


class HostRun(msgspec.Struct, frozen=True, kw_only=True):
    """One launch of a host on behalf of a turn."""

    run_id: str
    turn_key: TurnKey
    goal_id: GoalId
    engine: str
    attempt: int
    ended: bool
    spool_dir: str
    session_id: str | None
    resumes: str | None
    started_at_ms: int
    ended_at_ms: int | None
    end_kind: str | None
    usage: RunUsage
    prompt_bytes: int
    overhead_bytes: int
    report: HostReport | None


def intend(
    tx: Tx,
    *,
    run_id: str,
    turn_key: str,
    goal_id: str,
    engine: str,
    attempt: int,
    spool_dir: str,
    resumes: str | None,
    prompt_bytes: int,
    overhead_bytes: int,
    fence: Fence,
    now_ms: int,
) -> None:
    """Record that a host is about to be launched; the launch itself counts from now on.

    Raises ConflictError (`lease_lost`) when another process has the turn by now.
    """
    recorded = tx.run(
        "hosts.insert",
        run_id=run_id,
        turn_key=turn_key,
        goal_id=goal_id,
        engine=engine,
        attempt=attempt,
        spool_dir=spool_dir,
        resumes=resumes,
        prompt_bytes=prompt_bytes,
        overhead_bytes=overhead_bytes,
        resource=fence.resource,
        epoch=fence.epoch,
        now_ms=now_ms,
    )
    if recorded != 1:
        raise turns.lease_lost(turn_key)
    for owner in (goal_id, ""):
        meters.record(tx, owner, f"{run_id}:launch", {BudgetUnit.LAUNCHES: 1}, now_ms)


def record_outside(tx: Tx, report: HostReport, turn_key: str, goal_id: str, fence: Fence, now_ms: int) -> None:
    """Record what ran outside of LoopX, begun and ended at once: its usage is metered, and no launch is counted.

    Raises ConflictError (`lease_lost`).
    """
    recorded = tx.run(
        "hosts.insert",
        run_id=report.run_id,
        turn_key=turn_key,
        goal_id=goal_id,
        engine=report.engine,
        attempt=1,
        spool_dir="",
        resumes=None,
        prompt_bytes=0,
        overhead_bytes=0,
        resource=fence.resource,
        epoch=fence.epoch,
        now_ms=now_ms,
    )
    if recorded != 1:
        raise turns.lease_lost(turn_key)
    end(tx, report, goal_id, now_ms)


def end(tx: Tx, report: HostReport, goal_id: str, now_ms: int) -> bool:
    """Record a run's end and meter it, once; False when it was on record already."""
    usage = report.usage
    changed = tx.run(
        "hosts.end",
        run_id=report.run_id,
        end_kind=report.end_kind,
        handed_over=int(report.handed_over),
        session_id=report.session_id,
        input_tokens=usage.input_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        cost_microusd=usage.cost_microusd,
        raw_usage=raw_or_none(usage.raw),
        summary=dump(report),
        now_ms=now_ms,
    )
    if changed != 1:
        return False
    meters.record(tx, goal_id, report.run_id, amounts(report, usage), now_ms)
    return True


def abandon(tx: Tx, run_id: str, turn_key: str, fence: Fence, now_ms: int) -> None:
    """Record that a launch never became a process; the turn may launch again. Raises ConflictError (`lease_lost`)."""
    done = tx.run("hosts.abandon", run_id=run_id, resource=fence.resource, epoch=fence.epoch, now_ms=now_ms)
    if done != 1:
        raise turns.lease_lost(turn_key)


def set_aside(tx: Tx, report: HostReport, turn: Turn, fence: Fence, now_ms: int) -> None:
    """Record and meter a run that found its session gone, without a report: it is no attempt, the turn launches anew.

    Raises ConflictError (`lease_lost`).
    """
    usage = report.usage
    done = tx.run(
        "hosts.set_aside",
        run_id=report.run_id,
        end_kind=report.end_kind,
        handed_over=int(report.handed_over),
        input_tokens=usage.input_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        cost_microusd=usage.cost_microusd,
        resource=fence.resource,
        epoch=fence.epoch,
        now_ms=now_ms,
    )
    if done != 1:
        raise turns.lease_lost(turn.turn_key)
    meters.record(tx, turn.goal_id, report.run_id, amounts(report, usage), now_ms)
    body = {"run_id": report.run_id, "end": report.end_kind}
    events.append(tx, turn.goal_id, "host_set_aside", now_ms, body, turn.turn_key)


def amounts(report: HostReport, usage: RunUsage) -> dict[BudgetUnit, int]:
    """What a run's own counters say in each unit; a unit that it did not report is not there."""
    known = {
        BudgetUnit.INPUT_TOKENS: usage.input_tokens,
        BudgetUnit.CACHED_TOKENS: usage.cached_tokens,
        BudgetUnit.OUTPUT_TOKENS: usage.output_tokens,
        BudgetUnit.MICROUSD: usage.cost_microusd,
        BudgetUnit.WALL_MS: report.wall_ms,
    }
    if usage.input_tokens is not None or usage.output_tokens is not None:
        known[BudgetUnit.TOKENS] = (usage.input_tokens or 0) + (usage.output_tokens or 0)
    return {unit: amount for unit, amount in known.items() if amount is not None}


def from_row(row: Row) -> HostRun:
    return HostRun(
        run_id=row["run_id"],
        turn_key=TurnKey(row["turn_key"]),
        goal_id=GoalId(row["goal_id"]),
        engine=row["engine"],
        attempt=row["attempt"],
        ended=row["state"] == "ended",
        spool_dir=row["spool_dir"],
        session_id=row["session_id"],
        resumes=row["resumes"],
        started_at_ms=row["started_at_ms"],
        ended_at_ms=row["ended_at_ms"],
        end_kind=row["end_kind"],
        usage=RunUsage(
            input_tokens=row["input_tokens"],
            cached_tokens=row["cached_tokens"],
            output_tokens=row["output_tokens"],
            reasoning_tokens=row["reasoning_tokens"],
            cost_microusd=row["cost_microusd"],
            raw=msgspec.Raw((row["raw_usage"] or "null").encode()),
        ),
        prompt_bytes=row["prompt_bytes"],
        overhead_bytes=row["overhead_bytes"],
        report=load(row["summary"], HostReport) if row["summary"] else None,
    )


def last_of_turn(tx: Tx, turn_key: str) -> HostRun | None:
    row = tx.one("hosts.last_of_turn", turn_key=turn_key)
    return from_row(row) if row is not None else None


def of_turn(tx: Tx, turn_key: str) -> tuple[HostRun, ...]:
    return tuple(from_row(row) for row in tx.all("hosts.of_turn", turn_key=turn_key))


def open_runs(tx: Tx, limit: int = 1000) -> tuple[HostRun, ...]:
    """Runs whose end is not on record: the ledger of processes that may still be there."""
    return tuple(from_row(row) for row in tx.all("hosts.open_all", limit=limit))


def last_session_usage(tx: Tx, session_id: str) -> msgspec.Raw | None:
    row = tx.one("hosts.last_session_usage", session_id=session_id)
    return msgspec.Raw(row["raw_usage"].encode()) if row is not None else None


def began_here(tx: Tx, session_id: str) -> bool:
    """Whether the session was opened by a run of ours, and not brought in from elsewhere."""
    return tx.one("hosts.began_here", session_id=session_id) is not None


def runs_of_session(tx: Tx, session_id: str) -> int:
    """How many runs the session has had."""
    return tx.number("hosts.runs_of_session", session_id=session_id)
