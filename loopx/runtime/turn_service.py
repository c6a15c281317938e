"""Turns as people look at them: planned, listed, shown, with their journal and what recovery would do. Reads only."""

from __future__ import annotations

import msgspec

from loopx.control_plane.effect_program import effect_ref
from loopx.control_plane.errors import NotFoundError
from loopx.control_plane.ids import AgentId, EffectRef, TurnKey
from loopx.control_plane.quota import decision as decisions
from loopx.control_plane.scheduler.schedule import ScheduleOwner
from loopx.control_plane.turn_driver import recovery
from loopx.control_plane.turn_driver.journal import PassedOver, PhaseRecord, Turn, TurnJournal
from loopx.control_plane.turn_driver.loop_controller import LoopDecision, LoopRefusal, TurnBudget
from loopx.control_plane.turn_driver.settlement import terminal_closeout_requirement
from loopx.control_plane.turn_driver.transaction import TurnStep
from loopx.hosts import identity, runfiles
from loopx.runtime.progress import silent
from loopx.runtime.project import Project
from loopx.runtime.turn_runner import TurnRunner
from loopx.store import evidence, goals, hosts, ledger, schedules, turns
from loopx.store.codec import load
from loopx.store.connection import Row, Tx
from loopx.store.evidence import Evidence
from loopx.store.hosts import HostRun
from loopx.store.store import Store


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """What acting on the disposition may cost (contracts, section 6)."""

    spends_quota: bool
    launches_host: bool
    writes_state: bool


class PlanView(msgspec.Struct, frozen=True, kw_only=True):
    """What would happen now: the decision, its signed envelope, and the disposition with its costs.

    `open_turn`: a turn that would be resumed before anything new is decided. `refusal`: the facts contradict the last
    receipt, so that there is no disposition.
    """

    goal_id: str
    agent_id: str
    open_turn: str | None
    disposition: str | None
    route: str | None
    reason: str
    refusal: str | None
    costs: Costs | None
    predecessor: str | None
    frontier_terminal: bool
    should_run: bool
    exit_code: int
    decision: decisions.Packet
    envelope: msgspec.Raw


def plan(store: Store, project: Project, goal_id: str, agent_id: AgentId) -> PlanView:
    """Raises NotFoundError (`goal_unknown`), StoreError. Writes nothing."""
    from loopx.control_plane.quota.turn_envelope import encode_envelope

    runner = TurnRunner(store, project, goal_id, agent_id, silent, {})
    found = runner.plan(TurnBudget(limit=1, used=0))
    outcome = found.outcome
    decided = outcome if isinstance(outcome, LoopDecision) else None
    kind = decided.disposition if decided is not None else None
    return PlanView(
        goal_id=goal_id,
        agent_id=agent_id,
        open_turn=runner.open_turn(),
        disposition=kind,
        route=decided.route if decided is not None else None,
        reason=decided.reason if decided is not None else "",
        refusal=outcome.code if isinstance(outcome, LoopRefusal) else None,
        costs=None
        if kind is None
        else Costs(spends_quota=kind.spends_quota, launches_host=kind.launches_host, writes_state=kind.writes_state),
        predecessor=found.predecessor,
        frontier_terminal=found.frontier_terminal,
        should_run=found.decision.should_run,
        exit_code=decisions.exit_code(found.decision),
        decision=decisions.packet(found.decision),
        envelope=msgspec.Raw(encode_envelope(found.envelope)),
    )


class TurnLine(msgspec.Struct, frozen=True, kw_only=True):
    """One turn in a line. Tokens and dollars are None where no host told them."""

    turn_key: str
    goal_id: str
    number: int
    state: str
    result_kind: str | None
    reason: str
    failure: str | None
    failed_phase: str | None
    purpose: str
    engine: str
    agent_id: str
    todo_id: str | None
    completed: int
    slots: int
    outcome: str | None
    checkpoint: str | None
    started_at_ms: int
    ended_at_ms: int | None
    tokens: int | None
    cost_microusd: int | None
    checks_green: int = 0
    checks_total: int = 0


class _Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a line shows of a stored result."""

    reason: str = ""
    failure: str | None = None
    checks_green: int = 0
    checks_total: int = 0


def list_turns(store: Store, goal_id: str, *, before: int | None = None, limit: int = 20) -> tuple[TurnLine, ...]:
    """Turns, the newest first; `before`: only those with a smaller number. Raises NotFoundError (`goal_unknown`)."""
    with store.read() as tx:
        goals.row_of(tx, goal_id)
        return lines(tx, goal_id, before=before, limit=limit)


def lines(tx: Tx, goal_id: str, *, before: int | None = None, limit: int = 20) -> tuple[TurnLine, ...]:
    """The same inside a running snapshot."""
    top = before if before is not None else 1 << 62
    return tuple(_line(tx, row) for row in tx.all("turns.lines", goal_id=goal_id, before=top, limit=limit))


def _line(tx: Tx, row: Row) -> TurnLine:
    result = load(row["result"], _Result) if row["result"] else _Result()
    used = tx.one("hosts.totals_of_turn", turn_key=row["turn_key"])
    return TurnLine(
        turn_key=row["turn_key"],
        goal_id=row["goal_id"],
        number=row["number"],
        state=row["state"],
        result_kind=row["result_kind"] or row["intended_kind"],
        reason=result.reason,
        failure=result.failure,
        failed_phase=row["failed_phase"],
        purpose=row["purpose"],
        engine=row["engine"],
        agent_id=row["agent_id"],
        todo_id=row["todo_id"],
        completed=row["completed"],
        slots=row["slots"],
        outcome=row["outcome"],
        checkpoint=row["checkpoint"],
        started_at_ms=row["started_at_ms"],
        ended_at_ms=row["ended_at_ms"],
        tokens=_tokens(used),
        cost_microusd=used["cost_microusd"] if used is not None else None,
        checks_green=result.checks_green,
        checks_total=result.checks_total,
    )


def _tokens(used: Row | None) -> int | None:
    if used is None or (used["input_tokens"] is None and used["output_tokens"] is None):
        return None
    return (used["input_tokens"] or 0) + (used["output_tokens"] or 0)


def find(tx: Tx, goal_id: str | None, word: str | None) -> TurnKey:
    """The turn that people mean: a key, a number of the goal, or (without a word) the goal's last one.

    Raises NotFoundError (`turn_unknown`, `goal_unknown`).
    """
    if word is None and goal_id is not None and tx.one("turns.get", turn_key=goal_id) is not None:
        return TurnKey(goal_id)
    if goal_id is None:
        row = tx.one("turns.get", turn_key=word)
    else:
        goals.row_of(tx, goal_id)
        row = _of_goal(tx, goal_id, word)
    if row is None:
        what = f"no turn {word!r}" if word is not None else f"{goal_id} has had no turn yet"
        raise NotFoundError("turn_unknown", what, hint=f"loopx turn list {goal_id or 'GOAL'}")
    return TurnKey(row["turn_key"])


def _of_goal(tx: Tx, goal_id: str, word: str | None) -> Row | None:
    if word is None:
        return tx.one("turns.last_key", goal_id=goal_id)
    number = word.removeprefix("#")
    if number.isdigit():
        return tx.one("turns.by_number", goal_id=goal_id, number=int(number))
    row = tx.one("turns.get", turn_key=word)
    return row if row is not None and row["goal_id"] == goal_id else None


class PhaseView(msgspec.Struct, frozen=True, kw_only=True):
    """One committed phase: its identity, when, under which epoch, and the receipt of its effect."""

    phase: str
    effect_ref: EffectRef
    committed_at_ms: int
    epoch: int
    receipt: msgspec.Raw


class RecoveryView(msgspec.Struct, frozen=True, kw_only=True):
    """What a resume would do with an open turn, and what it would never do again."""

    action: str
    step: str | None
    effect_ref: str | None
    never_again: tuple[str, ...]
    violation: str | None


class JournalView(msgspec.Struct, frozen=True, kw_only=True):
    """One turn's journal: the ordered prefix of its phases, and what is left."""

    turn_key: str
    goal_id: str
    number: int
    state: str
    intended_kind: str | None
    result_kind: str | None
    failed_phase: str | None
    closeout: str
    completed: int
    phases: tuple[PhaseView, ...]
    recovery: RecoveryView | None
    """None once the turn is closed."""


def journal(store: Store, goal_id: str | None, word: str | None) -> JournalView:
    """Raises NotFoundError (`turn_unknown`)."""
    with store.read() as tx:
        found = turns.load_journal(tx, find(tx, goal_id, word))
        turn = found.turn
        decision = recovery_of(tx, found) if turn.state != "closed" else None
    return JournalView(
        turn_key=turn.turn_key,
        goal_id=turn.goal_id,
        number=turn.number,
        state=turn.state,
        intended_kind=turn.intended_kind,
        result_kind=turn.result_kind,
        failed_phase=turn.failed_phase,
        closeout=turn.closeout,
        completed=turn.completed,
        phases=tuple(_phase(record) for record in found.phases),
        recovery=recovery_view(decision) if decision is not None else None,
    )


def _phase(record: PhaseRecord) -> PhaseView:
    return PhaseView(
        phase=record.phase,
        effect_ref=record.effect_ref,
        committed_at_ms=record.committed_at_ms,
        epoch=record.epoch,
        receipt=record.receipt,
    )


def recovery_view(decision: recovery.RecoveryDecision) -> RecoveryView:
    """A recovery decision as it is shown."""
    return RecoveryView(
        action=decision.action,
        step=decision.step,
        effect_ref=decision.effect_ref,
        never_again=tuple(map(str, decision.never_again)),
        violation=decision.violation,
    )


def recovery_of(tx: Tx, found: TurnJournal) -> recovery.RecoveryDecision:
    """What recovery says about an open turn, from its journal and from what the world shows of its effects."""
    turn = found.turn
    run = hosts.last_of_turn(tx, turn.turn_key)
    own = recovery.TurnIdentity(turn_key=turn.turn_key, goal_id=turn.goal_id, agent_id=turn.agent_id)
    schedule = schedules.get(tx, turn.goal_id)
    return recovery.recover(
        recovery.journal_view(
            found,
            expected=own,
            closeout_required=terminal_closeout_requirement(turn),
            host=host_state(run),
            effects=_effects(tx, turn),
            external_owner=schedule.owner is not ScheduleOwner.LOOPX,
        )
    )


def _effects(tx: Tx, turn: Turn) -> tuple[EffectRef, ...]:
    """The turn's effects that the store shows, whether or not the journal has a receipt for them."""
    spent = effect_ref(turn.turn_key, TurnStep.QUOTA_SPEND)
    return (spent,) if ledger.by_effect(tx, spent) is not None else ()


def host_state(run: HostRun | None) -> recovery.HostRunState:
    """What the records and the processes of this machine show of a host run; looks, and touches nothing."""
    if run is None:
        return recovery.HostRunState.NEVER_STARTED
    if run.ended or runfiles.exit_record(run.spool_dir) is not None:
        return recovery.HostRunState.ENDED
    found = runfiles.host(run.spool_dir)
    if found is None:
        return recovery.HostRunState.NEVER_STARTED
    if identity.alive(found.host) or identity.alive(found.keeper):
        return recovery.HostRunState.RUNNING
    return recovery.HostRunState.LOST


class HostView(msgspec.Struct, frozen=True, kw_only=True):
    """One launch of the turn's host."""

    run_id: str
    engine: str
    attempt: int
    state: str
    end_kind: str | None
    session_id: str | None
    resumes: str | None
    """The session in which it was asked to go on; None for a fresh one."""
    started_at_ms: int
    ended_at_ms: int | None
    prompt_bytes: int
    overhead_bytes: int
    """What LoopX added to the person's own words."""
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    cost_microusd: int | None


class EvidenceLine(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of evidence in a line."""

    evidence_id: str
    kind: str
    produced: str
    name: str
    verdict: str | None
    tree_hash: str | None


class TurnView(msgspec.Struct, frozen=True, kw_only=True):
    """One turn in full: its line, its host runs, its phases, its evidence, and the decision that let it run."""

    turn: TurnLine
    asked: str
    """The engine that was asked for; `turn.engine` is the one that was resolved."""
    explicit: bool
    passed_over: tuple[PassedOver, ...]
    ran: str | None
    """The engine that really got the task; None when none did, or not yet."""
    goal_revision: int
    route: str
    predecessor: str | None
    todo_title: str | None
    message: str
    """The agent's last words: a claim."""
    findings: tuple[str, ...]
    restored: tuple[str, ...]
    continuation: str | None
    tree_before: str | None
    tree_after: str | None
    violation: str | None
    hosts: tuple[HostView, ...]
    phases: tuple[PhaseView, ...]
    evidence: tuple[EvidenceLine, ...]
    rule: str | None
    envelope: msgspec.Raw


def show(store: Store, goal_id: str | None, word: str | None) -> TurnView:
    """Raises NotFoundError (`turn_unknown`, `goal_unknown`)."""
    with store.read() as tx:
        key = find(tx, goal_id, word)
        found = turns.load_journal(tx, key)
        row = tx.one("turns.get", turn_key=key)
        assert row is not None
        turn = found.turn
        todo = tx.one("todos.get", todo_id=turn.todo_id) if turn.todo_id is not None else None
        return TurnView(
            turn=_line(tx, row),
            asked=turn.choice.asked if turn.choice is not None else turn.engine,
            explicit=turn.choice.explicit if turn.choice is not None else False,
            passed_over=turn.choice.passed_over if turn.choice is not None else (),
            ran=found.host.engine if found.host is not None and found.host.handed_over else None,
            goal_revision=turn.goal_revision,
            route=turn.route,
            predecessor=turn.predecessor,
            todo_title=todo["title"] if todo is not None else None,
            message=turn.result.message if turn.result is not None else "",
            findings=turn.result.findings if turn.result is not None else (),
            restored=turn.result.restore.paths if turn.result is not None and turn.result.restore is not None else (),
            continuation=str(turn.result.continuation.kind)
            if turn.result is not None and turn.result.continuation is not None
            else None,
            tree_before=turn.tree_before,
            tree_after=row["tree_after"],
            violation=turn.violation,
            hosts=tuple(_host(run) for run in hosts.of_turn(tx, key)),
            phases=tuple(_phase(record) for record in found.phases),
            evidence=tuple(_evidence(one) for one in evidence.of_turn(tx, key)),
            rule=_rule(row["decision"]),
            envelope=msgspec.Raw(row["envelope"].encode()),
        )


def _rule(encoded: str) -> str | None:
    """The rule of the recorded decision, replayed from its facts; None where nothing usable was recorded."""
    from loopx.control_plane.quota.explain import replay

    try:
        return str(replay(encoded.encode()).rule)
    except msgspec.DecodeError:
        return None


def _host(run: HostRun) -> HostView:
    return HostView(
        run_id=run.run_id,
        engine=run.engine,
        attempt=run.attempt,
        state=host_state(run),
        end_kind=run.end_kind,
        session_id=run.session_id,
        resumes=run.resumes,
        started_at_ms=run.started_at_ms,
        ended_at_ms=run.ended_at_ms,
        prompt_bytes=run.prompt_bytes,
        overhead_bytes=run.overhead_bytes,
        input_tokens=run.usage.input_tokens,
        cached_tokens=run.usage.cached_tokens,
        output_tokens=run.usage.output_tokens,
        cost_microusd=run.usage.cost_microusd,
    )


def _evidence(one: Evidence) -> EvidenceLine:
    return EvidenceLine(
        evidence_id=one.evidence_id,
        kind=one.kind,
        produced=one.produced,
        name=one.name,
        verdict=one.verdict,
        tree_hash=one.tree_hash,
    )
