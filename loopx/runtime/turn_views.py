"""What a page shows of one turn: its phases, its host runs, its evidence, its diff, and why it was decided so.

Typed, bounded, read in one snapshot. It decides nothing and makes no words: renderers do.
"""

from __future__ import annotations

import msgspec

from loopx.contracts.model import CheckResult
from loopx.control_plane.errors import LoopXError, NotFoundError
from loopx.control_plane.quota import decision as decisions
from loopx.control_plane.quota import explain
from loopx.control_plane.quota.facts import GoalFacts
from loopx.control_plane.turn_driver.journal import EvidenceKind, PhaseRecord, Turn
from loopx.control_plane.turn_driver.transaction import PHASES
from loopx.hosts import redact
from loopx.runtime import agent_stream, summaries
from loopx.runtime.agent_stream import AgentStream, StreamLine
from loopx.runtime.progress import CheckSummary
from loopx.runtime.project import Project
from loopx.store import evidence, hosts, turns
from loopx.store.connection import Tx
from loopx.store.evidence import Evidence
from loopx.store.hosts import HostRun
from loopx.store.store import Store

DIFF_BYTES = 200_000
RECEIPT_CHARS = 20_000


class TurnLine(msgspec.Struct, frozen=True, kw_only=True):
    """One turn in a timeline."""

    turn_key: str
    number: int
    purpose: str
    engine: str
    state: str
    completed: int
    failed_phase: str | None
    result_kind: str | None
    reason: str
    failure: str | None
    slots: int
    todo_id: str | None
    started_at_ms: int
    ended_at_ms: int | None
    wall_ms: int
    tokens: int | None
    cost_microusd: int | None
    tool_calls: int
    checks: tuple[CheckSummary, ...]
    checkpoint: str | None
    confirmed_in_snapshot: bool
    restored: tuple[str, ...]
    findings: tuple[str, ...]
    recurring: bool
    message: str
    closed_out: bool
    leads_to: str | None = None
    """The disposition that came after: of the next turn, or `terminal`; None while nothing has followed."""

    @property
    def open(self) -> bool:
        return self.state != "closed"


class PhaseLine(msgspec.Struct, frozen=True, kw_only=True):
    """One of the seven phases. `took_ms`: since the phase before, or since the start."""

    phase: str
    committed_at_ms: int | None
    took_ms: int | None
    effect_ref: str | None
    receipt: str | None


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """One launch of the host."""

    run_id: str
    engine: str
    attempt: int
    ended: bool
    end_kind: str | None
    session_id: str | None
    started_at_ms: int
    ended_at_ms: int | None
    moved_at_ms: int | None
    exit_code: int | None
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    cost_microusd: int | None
    prompt_bytes: int
    overhead_bytes: int
    printed_bytes: int


class CheckLine(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluated check with its output. `where`: `in place`, `snapshot`, `todo` or `baseline`."""

    evidence_id: str
    name: str
    where: str
    result: CheckResult
    at_ms: int


class DiffView(msgspec.Struct, frozen=True, kw_only=True):
    """The patch of a turn; `missing` says by a code why there is none."""

    text: str = ""
    truncated: bool = False
    missing: str = ""


class TurnView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the turn's page shows."""

    now_ms: int
    line: TurnLine
    agent_id: str
    goal_revision: int
    route: str
    predecessor: str | None
    tree_before: str | None
    tree_after: str | None
    violation: str | None
    continuation: str | None
    outcome: str | None
    phases: tuple[PhaseLine, ...]
    runs: tuple[RunLine, ...]
    prompt: str | None
    stream: tuple[StreamLine, ...]
    stream_skipped_bytes: int
    checks: tuple[CheckLine, ...]
    evidence: tuple[Evidence, ...]
    decision: decisions.QuotaDecision | None
    explanation: explain.Explanation | None
    previous: int | None
    next: int | None


def turn_line(tx: Tx, turn: Turn, now_ms: int, leads_to: str | None = None) -> TurnLine:
    """One turn as a timeline shows it."""
    usage = tx.one("hosts.totals_of_turn", turn_key=turn.turn_key)
    tokens = None
    if usage is not None and (usage["input_tokens"] is not None or usage["output_tokens"] is not None):
        tokens = (usage["input_tokens"] or 0) + (usage["output_tokens"] or 0)
    last = hosts.last_of_turn(tx, turn.turn_key)
    result = turn.result
    return TurnLine(
        turn_key=turn.turn_key,
        number=turn.number,
        purpose=turn.purpose,
        engine=turn.engine,
        state=turn.state,
        completed=turn.completed,
        failed_phase=turn.failed_phase,
        result_kind=turn.result_kind or (turn.intended_kind if turn.completed > 1 else None),
        reason=result.reason if result is not None else "",
        failure=result.failure if result is not None else None,
        slots=turn.slots,
        todo_id=turn.todo_id,
        started_at_ms=turn.started_at_ms,
        ended_at_ms=turn.ended_at_ms,
        wall_ms=(turn.ended_at_ms or now_ms) - turn.started_at_ms,
        tokens=tokens,
        cost_microusd=usage["cost_microusd"] if usage is not None else None,
        tool_calls=last.report.tool_calls if last is not None and last.report is not None else 0,
        checks=summaries.checks_of(tx, turn.turn_key),
        checkpoint=turn.checkpoint,
        confirmed_in_snapshot=result.confirmed_in_snapshot if result is not None else False,
        restored=result.restore.paths if result is not None and result.restore is not None else (),
        findings=result.findings if result is not None else (),
        recurring=result.recurring if result is not None else False,
        message=redact.redact(result.message) if result is not None else "",
        closed_out=turn.closeout == "done",
        leads_to=leads_to,
    )


_LED_BY = {"work": "run_now", "repair": "repair", "replan": "replan"}


def timeline(tx: Tx, goal_id: str, now_ms: int, *, before: int = 1 << 62, limit: int = 30) -> tuple[TurnLine, ...]:
    """Turns, the newest first, each with the disposition that followed it."""
    found = turns.page(tx, goal_id, before=before, limit=limit)
    lines: list[TurnLine] = []
    later = tx.one("turns.by_number", goal_id=goal_id, number=before) if before < 1 << 62 else None
    after = turns.load_journal(tx, later["turn_key"]).turn.purpose if later is not None else None
    for turn in found:
        leads = _LED_BY.get(after) if after is not None else ("terminal" if turn.closeout == "done" else None)
        lines.append(turn_line(tx, turn, now_ms, leads))
        after = turn.purpose
    return tuple(lines)


def run_line(run: HostRun) -> RunLine:
    """One launch as a page shows it."""
    usage = run.usage
    return RunLine(
        run_id=run.run_id,
        engine=run.engine,
        attempt=run.attempt,
        ended=run.ended,
        end_kind=run.end_kind,
        session_id=run.session_id,
        started_at_ms=run.started_at_ms,
        ended_at_ms=run.ended_at_ms,
        moved_at_ms=agent_stream.moved_at_ms(run.spool_dir),
        exit_code=run.report.exit_code if run.report is not None else None,
        input_tokens=usage.input_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        cost_microusd=usage.cost_microusd,
        prompt_bytes=run.prompt_bytes,
        overhead_bytes=run.overhead_bytes,
        printed_bytes=agent_stream.stream_bytes(run.spool_dir),
    )


def turn_key_of(tx: Tx, goal_id: str, number: int) -> str:
    """Raises NotFoundError (`turn_unknown`)."""
    row = tx.one("turns.by_number", goal_id=goal_id, number=number)
    if row is None:
        raise NotFoundError("turn_unknown", f"{goal_id} has no turn {number}", hint=f"loopx turn list {goal_id}")
    return str(row["turn_key"])


def turn_view(store: Store, goal_id: str, number: int) -> TurnView:
    """Everything about one turn. Raises NotFoundError (`goal_unknown`, `turn_unknown`)."""
    now = store.now_ms()
    with store.read() as tx:
        key = turn_key_of(tx, goal_id, number)
        journal = turns.load_journal(tx, key)
        row = tx.one("turns.get", turn_key=key)
        runs = hosts.of_turn(tx, key)
        proofs = evidence.of_turn(tx, key)
        after = tx.one("turns.by_number", goal_id=goal_id, number=number + 1)
        line = timeline(tx, goal_id, now, before=number + 1, limit=1)[0]
    turn, result = journal.turn, journal.turn.result
    decision, explanation = _why(row["decision"] if row is not None else "")
    lines, skipped = _stream(runs[-1]) if runs else ((), 0)
    return TurnView(
        now_ms=now,
        line=line,
        agent_id=turn.agent_id,
        goal_revision=turn.goal_revision,
        route=turn.route,
        predecessor=turn.predecessor,
        tree_before=turn.tree_before,
        tree_after=result.tree_after if result is not None else None,
        violation=turn.violation,
        continuation=result.continuation.kind if result is not None and result.continuation is not None else None,
        outcome=result.outcome if result is not None else None,
        phases=_phases(turn, journal.phases),
        runs=tuple(run_line(run) for run in runs),
        prompt=agent_stream.prompt_of(runs[-1].spool_dir) if runs else None,
        stream=lines,
        stream_skipped_bytes=skipped,
        checks=tuple(_check(one) for one in proofs if one.kind is EvidenceKind.CHECK),
        evidence=tuple(one for one in proofs if one.kind is not EvidenceKind.CHECK),
        decision=decision,
        explanation=explanation,
        previous=number - 1 if number > 1 else None,
        next=number + 1 if after is not None else None,
    )


def _phases(turn: Turn, records: tuple[PhaseRecord, ...]) -> tuple[PhaseLine, ...]:
    lines: list[PhaseLine] = []
    last = turn.started_at_ms
    known = {record.phase: record for record in records}
    for phase in PHASES:
        record = known.get(phase)
        if record is None:
            lines.append(PhaseLine(phase=phase, committed_at_ms=None, took_ms=None, effect_ref=None, receipt=None))
            continue
        lines.append(
            PhaseLine(
                phase=phase,
                committed_at_ms=record.committed_at_ms,
                took_ms=max(0, record.committed_at_ms - last),
                effect_ref=record.effect_ref,
                receipt=_pretty(record),
            )
        )
        last = record.committed_at_ms
    return tuple(lines)


def _pretty(record: PhaseRecord) -> str:
    body: object = msgspec.json.decode(record.receipt)
    if record.phase == PHASES[0] and isinstance(body, dict):
        # The host's whole typed end repeats what its own fields say.
        body = {name: value for name, value in body.items() if name != "end"}
    text = msgspec.json.format(msgspec.json.encode(body), indent=2).decode()
    return redact.redact(text)[:RECEIPT_CHARS]


def _check(one: Evidence) -> CheckLine:
    where, name = "in place", one.name
    for prefix in ("snapshot", "todo", "baseline"):
        if one.name.startswith(f"{prefix}: "):
            where, name = prefix, one.name.removeprefix(f"{prefix}: ")
    result = msgspec.json.decode(one.body, type=CheckResult)
    output = msgspec.structs.replace(
        result.output, head=redact.redact(result.output.head), tail=redact.redact(result.output.tail)
    )
    shown = msgspec.structs.replace(result, output=output)
    return CheckLine(evidence_id=one.evidence_id, name=name, where=where, result=shown, at_ms=one.at_ms)


def _why(encoded: str) -> tuple[decisions.QuotaDecision | None, explain.Explanation | None]:
    """The decision again, from the facts that were recorded with the turn; none for facts of another version."""
    try:
        facts = msgspec.json.decode(encoded, type=GoalFacts)
    except msgspec.DecodeError:
        return None, None
    decision = decisions.decide(facts)
    return decision, explain.explain(facts, decision)


def _stream(run: HostRun) -> tuple[tuple[StreamLine, ...], int]:
    stream = AgentStream(run)
    try:
        return stream.read(final=run.ended), stream.skipped_bytes
    finally:
        stream.close()


def turn_diff(store: Store, project: Project, goal_id: str, before: str | None, after: str | None) -> DiffView:
    """The patch between two captured trees, cut at a bound; what is not there any more is said by its code."""
    from loopx.runtime.goal_work import open_goal
    from loopx.workspace import difference

    if before is None or after is None or before == after:
        return DiffView()
    try:
        repository = open_goal(store, project, goal_id).tree.repository
        found = difference.diff_text(repository, before, after, DIFF_BYTES)
    except LoopXError as error:
        return DiffView(missing=error.code)
    return DiffView(text=redact.redact(found.text), truncated=found.truncated)
