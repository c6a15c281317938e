"""Settling work that was done outside: for people with a runner of their own (`turn settle`).

The work is a candidate like every agent's: LoopX runs the contract, asks the guard, types the result, writes it back,
spends and schedules, as one turn with one journal. Only the host is missing, because it ran elsewhere. What was done
since LoopX last saw the tree is this turn's work, so nothing of it is taken for a person's own.
"""

from __future__ import annotations

import msgspec

from loopx.control_plane.effect_program import effect_ref, turn_key
from loopx.control_plane.errors import BudgetError, LoopXError, NeedsPersonError, NotNowError, UsageError
from loopx.control_plane.goal import CLOSED_GOAL_STATES
from loopx.control_plane.ids import AgentId, TodoId, TurnKey
from loopx.control_plane.quota import decision as decisions
from loopx.control_plane.quota.facts import GoalFacts, TodoRef
from loopx.control_plane.quota.turn_envelope import encode_envelope, envelope_from_decision
from loopx.control_plane.turn_driver.driver import route_turn
from loopx.control_plane.turn_driver.executor import TurnExecutor
from loopx.control_plane.turn_driver.journal import (
    Fence,
    HostReport,
    RunUsage,
    TurnJournal,
    TurnPurpose,
    TurnState,
)
from loopx.control_plane.turn_driver.transaction import TurnStep
from loopx.control_plane.work_items.todo import ENDED_TODO_STATUSES
from loopx.hosts import result_file
from loopx.hosts.protocol import HostEnd, HostEndKind, ProcessEnd, RetryPolicy
from loopx.hosts.result_file import ResultFileKind, TypedResult
from loopx.runtime import goal_work, turn_ports
from loopx.runtime import owner as owners
from loopx.runtime.claims import from_result
from loopx.runtime.goal_work import GoalWork
from loopx.runtime.host_port import MESSAGE_CHARS, HostWord
from loopx.runtime.leasing import LeaseKeeper
from loopx.runtime.progress import Observer
from loopx.runtime.project import Project
from loopx.runtime.reading import read_facts
from loopx.runtime.turn_runner import TurnRunner
from loopx.store import goals, hosts, leases, todos, turns
from loopx.store.codec import dump
from loopx.store.store import Store

OUTSIDE = "outside"
"""The engine's word of a settled turn when the caller names none."""


class Settle(msgspec.Struct, frozen=True, kw_only=True):
    """Work that wants to be settled. `result`: the bytes of a typed result file; `effect_key` makes a repeat safe."""

    goal_id: str
    agent_id: AgentId
    todo_id: str | None = None
    result: bytes = b"{}"
    effect_key: str | None = None
    engine: str = OUTSIDE


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """The turn that stands for the work. `replayed`: it was settled before, and nothing was done again."""

    journal: TurnJournal
    replayed: bool


def settle(store: Store, project: Project, asked: Settle, env: dict[str, str], observer: Observer) -> Settled:
    """Judge, write back, spend and schedule in one go; a repeat with the same effect key returns the same turn.

    Raises UsageError (`baseline_missing`, `result_invalid`, `todo_ended`), NotFoundError, ConflictError (`turn_open`,
    `lease_held`), NotNowError and BudgetError when no slot or budget is left for it (the work is not lost: settle it
    again later), NeedsPersonError while a gate blocks the goal.
    """
    runner = TurnRunner(store, project, asked.goal_id, asked.agent_id, observer, env)
    work = runner.work()
    nonce = f"settle/{asked.effect_key}" if asked.effect_key is not None else store.ids.secret()
    key = turn_key(work.goal_id, asked.agent_id, nonce)
    typed = read_result(asked.result, key)
    known = _known(store, key)
    if known is not None:
        done = known.turn.state is TurnState.CLOSED
        return Settled(journal=known if done else runner.resume(key), replayed=True)
    _refuse_closed(work)
    _require_baseline(store, work)
    goal_work.prepare_tree(store, project, work)
    journal = _start(store, project, work, asked, key, typed, env, observer)
    return Settled(journal=journal, replayed=False)


def _require_baseline(store: Store, work: GoalWork) -> None:
    """A baseline that is taken now would have the work itself for its start."""
    if goal_work.baseline_of(store, work.goal_id) is None:
        raise UsageError(
            "baseline_missing",
            f"what {work.goal_id} looked like before this work is not on record",
            hint=f"put the work aside (git stash), loopx check run {work.goal_id} --baseline, bring it back, settle",
        )


def read_result(raw: bytes, key: TurnKey) -> TypedResult:
    """The typed result; the turn's key may be left out, since it is only made now. Raises UsageError."""
    try:
        fields = msgspec.json.decode(raw, type=dict[str, object])
    except msgspec.DecodeError as error:
        raise _invalid(str(error)) from error
    fields.setdefault("turn_key", key)
    fields.setdefault("kind", ResultFileKind.PROGRESS)
    read = result_file.parse(msgspec.json.encode(fields), key)
    if read.result is None:
        raise _invalid(f"{read.reject}{f': {read.detail}' if read.detail else ''}")
    return read.result


def _invalid(detail: str) -> UsageError:
    return UsageError(
        "result_invalid",
        f"the result can't be used: {detail}",
        hint=f'write {{"kind": "completion", "summary": "..."}}; kinds: {", ".join(ResultFileKind)}',
    )


def _known(store: Store, key: TurnKey) -> TurnJournal | None:
    with store.read() as tx:
        return turns.load_journal(tx, key) if tx.one("turns.get", turn_key=key) is not None else None


def _refuse_closed(work: GoalWork) -> None:
    if work.goal.state in CLOSED_GOAL_STATES:
        raise NotNowError(
            "goal_closed", f"goal {work.goal_id} is {work.goal.state}", hint=f"loopx goal reopen {work.goal_id}"
        )


def _start(
    store: Store,
    project: Project,
    work: GoalWork,
    asked: Settle,
    key: TurnKey,
    typed: TypedResult,
    env: dict[str, str],
    observer: Observer,
) -> TurnJournal:
    facts, predecessor = _facts(store, work, asked)
    decision = decisions.decide(facts)
    if not decision.should_run:
        raise _not_now(decision)
    envelope = envelope_from_decision(decision, boundary=work.goal.definition.boundary)
    selected = decision.selected_todo
    request = turns.StartTurn(
        turn_key=key,
        goal_id=work.goal_id,
        agent_id=asked.agent_id,
        owner=owners.current_owner(),
        revision=facts.revision,
        purpose=TurnPurpose.WORK,
        route=route_turn(envelope).route,
        engine=asked.engine,
        todo_id=selected.todo_id if selected is not None else None,
        new_todo=turn_ports.goal_todo(store, work) if selected is None else None,
        predecessor=predecessor,
        tree_before=_last_seen(store, work),
        envelope=encode_envelope(envelope).decode(),
        decision=dump(facts),
        token_hash=None,
        dead_owner=_dead_owner(store, asked),
    )
    report = _report(key, asked.engine, typed)
    with store.write() as tx:
        now = store.now_ms()
        _, fence = turns.start(tx, request, now)
        # The host's part is on record from the start, so that whoever resumes this turn launches nothing.
        hosts.record_outside(tx, report, key, work.goal_id, fence, now)
        journal = turns.load_journal(tx, key)
    return _execute(store, project, work, journal, env, observer)


def _execute(
    store: Store, project: Project, work: GoalWork, journal: TurnJournal, env: dict[str, str], observer: Observer
) -> TurnJournal:
    turn = journal.turn
    fence = Fence(resource=turns.turn_resource(turn.goal_id, turn.agent_id), epoch=turn.epoch)
    with LeaseKeeper(store.path, store.clock, fence, turn.todo_id) as keeper:
        wiring = turn_ports.TurnWiring(store, project, work, env, observer, lambda: False, lambda: None)
        return TurnExecutor(wiring.ports(journal, None, lambda: keeper.lost)).run(journal, fence)


def _facts(store: Store, work: GoalWork, asked: Settle) -> tuple[GoalFacts, TurnKey | None]:
    """The facts with the named todo as the one that is selected, and its last turn.

    Raises NotFoundError (`todo_unknown`), UsageError (`todo_ended`).
    """
    with store.read() as tx:
        facts = read_facts(store, tx, asked.goal_id, asked.agent_id)
        if asked.todo_id is not None:
            todo = todos.get(tx, asked.todo_id, asked.goal_id)
            if todo.status in ENDED_TODO_STATUSES:
                raise UsageError(
                    "todo_ended",
                    f"todo {todo.todo_id} is {todo.status}",
                    hint=f"loopx todo list {work.goal_id}",
                )
            ref = TodoRef(todo_id=TodoId(todo.todo_id), title=todo.title)
            facts = msgspec.structs.replace(facts, ready=ref, blocked_wake_at_ms=None, blocked_without_wake=False)
        ready = facts.ready
        last = turns.last_of_todo(tx, ready.todo_id) if ready is not None else None
    return facts, last.turn_key if last is not None else None


def _last_seen(store: Store, work: GoalWork) -> str | None:
    """The tree as LoopX saw it last: after the last turn, else at the goal's start."""
    with store.read() as tx:
        last = turns.last_of_goal(tx, work.goal_id)
        row = goals.row_of(tx, work.goal_id)
    if last is not None and last.result is not None and last.result.restore is None and last.result.tree_after:
        return last.result.tree_after
    found: str | None = row["base_tree"] or row["contract_tree"]
    return found


def _dead_owner(store: Store, asked: Settle) -> str | None:
    with store.read() as tx:
        held = leases.get(tx, turns.turn_resource(asked.goal_id, asked.agent_id))
    return held.owner if held is not None and owners.is_dead(held.owner) else None


def _report(key: TurnKey, engine: str, typed: TypedResult) -> HostReport:
    """What the outside runner says, as a host's report: claims and usage, and nothing that proves anything."""
    failed = typed.kind is ResultFileKind.ERROR
    end = HostEnd(
        kind=HostEndKind.WORKER_ERROR if failed else HostEndKind.SUCCESS,
        process=ProcessEnd.WORKER_ERROR if failed else ProcessEnd.CLEAN,
        retry=RetryPolicy.NONE,
        handed_over=True,
        detail=typed.summary[:500] if failed else "",
    )
    used = result_file.usage_of(typed)
    # Somebody worked, or there would be nothing to settle: the minimum-activity rule is about hosts that LoopX ran.
    word = HostWord(end=end, claims=from_result(typed), tool_calls=1)
    return HostReport(
        run_id=effect_ref(key, TurnStep.HOST_EXECUTE, "1").replace("/", "."),
        engine=engine,
        end_kind=end.kind,
        handed_over=True,
        tool_calls=1,
        usage=RunUsage(
            input_tokens=used.input_tokens,
            cached_tokens=used.cached_input_tokens,
            output_tokens=used.output_tokens,
            reasoning_tokens=used.reasoning_tokens,
            cost_microusd=used.cost_microusd,
        ),
        message=typed.summary[:MESSAGE_CHARS],
        end=msgspec.Raw(msgspec.json.encode(word)),
    )


def _not_now(decision: decisions.QuotaDecision) -> LoopXError:
    """Why the work can't be settled now, with the exit status of should-run."""
    code = decisions.exit_code(decision)
    message = f"{decision.goal_id} can't settle a turn now: {decision.reason}"
    hint = f"the work is not lost; settle it again after: {' '.join(decision.next_command)}"
    if code == decisions.EXIT_PERSON:
        return NeedsPersonError(str(decision.effective_action), message, hint=hint)
    if code == decisions.EXIT_CAP:
        return BudgetError(str(decision.effective_action), message, hint=hint)
    return NotNowError(
        str(decision.effective_action), message, hint=hint, data={"wake_after_ms": decision.wake_after_ms}
    )
