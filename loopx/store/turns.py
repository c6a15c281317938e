"""Turns: started in one transaction with their lease, claim and reservations; read back as journals."""

from __future__ import annotations

import msgspec

from loopx.control_plane.effect_program import effect_ref
from loopx.control_plane.errors import ConflictError, NeedsPersonError, NotFoundError, NotNowError
from loopx.control_plane.ids import AgentId, EffectRef, Epoch, GoalId, TodoId, TurnKey
from loopx.control_plane.turn_driver.driver import LoopXTurnRoute
from loopx.control_plane.turn_driver.journal import (
    Closeout,
    EngineChoice,
    Fence,
    HostReport,
    PhaseRecord,
    Turn,
    TurnJournal,
    TurnPurpose,
    TurnResult,
    TurnState,
)
from loopx.control_plane.turn_driver.transaction import PHASES, LoopXTurnPhase, LoopXTurnResultKind, TurnStep
from loopx.control_plane.work_items.lease import CLAIM_LEASE_MS, TURN_LEASE_MS
from loopx.control_plane.work_items.todo import Todo
from loopx.store import events, gates, goals, leases, ledger, meters, todos
from loopx.store.codec import dump, load
from loopx.store.connection import Row, Tx

_ACK = PHASES.index(LoopXTurnPhase.SCHEDULER_ACK)


class StartTurn(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is chosen before a turn runs."""

    turn_key: TurnKey
    goal_id: GoalId
    agent_id: AgentId
    owner: str
    """Names the process that drives the turn, for people and for proving it dead."""
    revision: int
    purpose: TurnPurpose
    route: LoopXTurnRoute
    engine: str
    todo_id: TodoId | None
    new_todo: Todo | None
    """The todo that is made for a goal which is itself the work."""
    predecessor: TurnKey | None
    tree_before: str | None
    envelope: str
    decision: str
    token_hash: str | None
    dead_owner: str | None = None
    choice: EngineChoice | None = None


def turn_resource(goal_id: str, agent_id: str) -> str:
    """The lease of the one open turn that a goal and agent may have."""
    return f"turn:{goal_id}:{agent_id}"


def start(tx: Tx, request: StartTurn, now_ms: int) -> tuple[TurnJournal, Fence]:
    """Start a turn: lease, claim, reservations, turn row and event, together or not at all.

    Raises ConflictError: `turn_open` (resume it instead), `lease_held`, `stale_revision`, `todo_taken`,
    `scope_overlap`, `tree_busy`;
    NotNowError (`slots_taken`); BudgetError (`budget_taken`).
    """
    row = goals.row_of(tx, request.goal_id)
    events.read_with(tx, row)
    open_turn = tx.one("turns.open_of", goal_id=request.goal_id, agent_id=request.agent_id)
    if open_turn is not None:
        raise ConflictError(
            "turn_open",
            f"turn {open_turn['turn_key']} of {request.goal_id} is still open",
            hint=f"loopx run {request.goal_id}",
            data={"turn_key": open_turn["turn_key"]},
        )
    busy = tx.one("goals.same_tree_open", tree_key=row["tree_key"], goal_id=request.goal_id)
    if busy is not None:
        raise ConflictError(
            "tree_busy",
            f"goal {busy['goal_id']} has a turn open in the same work tree",
            hint=f"loopx run {busy['goal_id']} first, or give this goal its own tree: --worktree",
            data={"goal_id": busy["goal_id"]},
        )
    epoch = leases.acquire(
        tx,
        turn_resource(request.goal_id, request.agent_id),
        request.owner,
        TURN_LEASE_MS,
        now_ms,
        dead_owner=request.dead_owner,
    )
    numbered = tx.run("goals.next_turn_number", goal_id=request.goal_id, revision=request.revision, now_ms=now_ms)
    if numbered != 1:
        raise ConflictError(
            "stale_revision",
            f"goal {request.goal_id} changed (revision {row['revision']}, {row['state']})",
            hint="run the command again",
        )
    # What time alone ended (deferrals, gates with an expiry) is written down by whoever goes on because of it.
    todos.wake_due(tx, request.goal_id, now_ms)
    gates.expire_due(tx, request.goal_id, now_ms)
    todo_id = _claim(tx, request, now_ms)
    _reserve_slot(tx, row, now_ms)
    written = tx.one(
        "turns.insert",
        turn_key=request.turn_key,
        goal_id=request.goal_id,
        agent_id=request.agent_id,
        todo_id=todo_id,
        purpose=request.purpose,
        route=request.route,
        epoch=epoch,
        engine=request.engine,
        predecessor=request.predecessor,
        tree_before=request.tree_before,
        envelope=request.envelope,
        decision=request.decision,
        token_hash=request.token_hash,
        choice=dump(request.choice) if request.choice is not None else None,
        now_ms=now_ms,
    )
    if row["budget_count"]:
        definition = goals.definition_of(tx, request.goal_id, row["revision"])
        meters.reserve(tx, request.goal_id, request.turn_key, definition.budgets, now_ms)
    tx.run("meters.reserve", turn_key=request.turn_key, goal_id=request.goal_id, unit=meters.SLOTS, amount=1)
    events.append(tx, request.goal_id, "turn_started", now_ms, _told(request, todo_id), request.turn_key)
    if written is None:
        raise ConflictError("goal_gone", f"goal {request.goal_id} is gone", hint="loopx goal list")
    fence = Fence(resource=turn_resource(request.goal_id, request.agent_id), epoch=epoch)
    return TurnJournal(turn=turn_from_row(written), phases=(), host=None), fence


def _told(request: StartTurn, todo_id: TodoId | None) -> dict[str, object]:
    """What the log tells of a start."""
    told: dict[str, object] = {
        "todo_id": todo_id,
        "agent_id": request.agent_id,
        "purpose": request.purpose,
        "route": request.route,
        "engine": request.engine,
    }
    return told if request.choice is None else {**told, "asked": request.choice.asked}


def _claim(tx: Tx, request: StartTurn, now_ms: int) -> TodoId | None:
    todo_id = request.todo_id
    if request.new_todo is not None:
        todos.insert(tx, request.new_todo)
        todo_id = request.new_todo.todo_id
    if todo_id is None:
        return None
    # A claim belongs to the agent, so that its next turn may go on with it; one agent has one open turn at most.
    agent = request.agent_id
    todos.require_no_overlap(tx, request.goal_id, todo_id, agent, now_ms)
    leases.acquire(tx, f"todo:{todo_id}", agent, CLAIM_LEASE_MS, now_ms, dead_owner=agent)
    todos.claim(tx, request.goal_id, todo_id, request.agent_id, now_ms, turn_key=request.turn_key)
    return todo_id


def _reserve_slot(tx: Tx, row: Row, now_ms: int) -> None:
    goal_id, allowed = str(row["goal_id"]), int(row["allowed_slots"])
    spent = ledger.spent_in_window(tx, goal_id, row["window_ms"], now_ms)
    reserved = tx.number("meters.reserved", goal_id=goal_id, unit=meters.SLOTS)
    if spent + reserved >= allowed:
        raise NotNowError(
            "slots_taken",
            f"{spent} of {allowed} slots of {goal_id} are spent and {reserved} reserved by open turns",
            hint=f"loopx why {goal_id}",
            data={"spent": spent, "reserved": reserved, "allowed": allowed},
        )


def take_over(
    tx: Tx, turn_key: TurnKey, owner: str, now_ms: int, *, dead_owner: str | None = None
) -> tuple[TurnJournal, Fence]:
    """Take an open turn whose driver is gone: a new epoch, so that the old driver can write nothing any more.

    Raises ConflictError (`lease_held` while its driver lives, `turn_closed` when somebody finished it meanwhile),
    NeedsPersonError (`journal_blocked`), NotFoundError (`turn_unknown`).
    """
    journal = load_journal(tx, turn_key)
    turn = journal.turn
    _require_open(turn)
    resource = turn_resource(turn.goal_id, turn.agent_id)
    epoch = leases.acquire(tx, resource, owner, TURN_LEASE_MS, now_ms, dead_owner=dead_owner)
    tx.run("turns.start_epoch", turn_key=turn_key, epoch=epoch)
    events.append(tx, turn.goal_id, "turn_resumed", now_ms, {"completed": turn.completed, "epoch": epoch}, turn_key)
    return load_journal(tx, turn_key), Fence(resource=resource, epoch=epoch)


def fence_of(turn: Turn) -> Fence:
    """The fence of whoever took the turn last."""
    return Fence(resource=turn_resource(turn.goal_id, turn.agent_id), epoch=turn.epoch)


def set_token(tx: Tx, turn: Turn, token_hash: str, now_ms: int) -> None:
    """Give the turn's agent another credential. Raises ConflictError (`lease_lost`)."""
    fence = fence_of(turn)
    done = tx.run(
        "turns.set_token",
        turn_key=turn.turn_key,
        token_hash=token_hash,
        resource=fence.resource,
        epoch=fence.epoch,
        now_ms=now_ms,
    )
    if done != 1:
        raise lease_lost(turn.turn_key)


def lease_lost(turn_key: str) -> ConflictError:
    """What a process hears whose turn was taken over."""
    return ConflictError(
        "lease_lost",
        f"this process no longer holds turn {turn_key}",
        hint="another one goes on from what is committed",
        data={"turn_key": turn_key},
    )


def _require_open(turn: Turn) -> None:
    """A lease on a turn that can't be driven would only keep the next turn from starting."""
    if turn.state is TurnState.CLOSED:
        raise ConflictError(
            "turn_closed",
            f"turn {turn.turn_key} was finished by another process",
            hint=f"loopx run {turn.goal_id}",
            data={"turn_key": turn.turn_key},
        )
    if turn.state is TurnState.BLOCKED:
        raise blocked(turn)


def blocked(turn: Turn) -> NeedsPersonError:
    """What is said of a turn whose journal contradicts itself."""
    return NeedsPersonError(
        "journal_blocked",
        f"the journal of turn {turn.turn_key} is inconsistent: {turn.violation}",
        hint="loopx doctor",
        data={"turn_key": turn.turn_key, "violation": turn.violation},
    )


def get(tx: Tx, turn_key: str) -> Turn:
    """The turn without its phases. Raises NotFoundError (`turn_unknown`)."""
    row = tx.one("turns.get", turn_key=turn_key)
    if row is None:
        raise NotFoundError("turn_unknown", f"no turn {turn_key!r}", hint="loopx turn list GOAL")
    return turn_from_row(row)


def load_journal(tx: Tx, turn_key: str) -> TurnJournal:
    """Raises NotFoundError (`turn_unknown`)."""
    turn = get(tx, turn_key)
    phases = tuple(
        PhaseRecord(
            phase=LoopXTurnPhase(phase["phase"]),
            effect_ref=EffectRef(phase["effect_ref"]),
            receipt=msgspec.Raw(phase["receipt"].encode()),
            epoch=Epoch(phase["epoch"]),
            committed_at_ms=phase["committed_at_ms"],
        )
        for phase in tx.all("turns.phases", turn_key=turn_key)
    )
    run = tx.one("hosts.last_of_turn", turn_key=turn_key)
    host = load(run["summary"], HostReport) if run is not None and run["summary"] else None
    return TurnJournal(turn=turn, phases=phases, host=host)


def turn_from_row(row: Row) -> Turn:
    return Turn(
        turn_key=TurnKey(row["turn_key"]),
        goal_id=GoalId(row["goal_id"]),
        agent_id=AgentId(row["agent_id"]),
        todo_id=row["todo_id"],
        number=row["number"],
        goal_revision=row["goal_revision"],
        purpose=TurnPurpose(row["purpose"]),
        route=LoopXTurnRoute(row["route"]),
        state=TurnState(row["state"]),
        completed=row["completed"],
        intended_kind=LoopXTurnResultKind(row["intended_kind"]) if row["intended_kind"] else None,
        result_kind=LoopXTurnResultKind(row["result_kind"]) if row["result_kind"] else None,
        failed_phase=TurnStep(row["failed_phase"]) if row["failed_phase"] else None,
        closeout=Closeout(row["closeout"]),
        epoch=Epoch(row["epoch"]),
        engine=row["engine"],
        predecessor=row["predecessor"],
        discharged=bool(row["discharged"]),
        slots=row["slots"],
        tree_before=row["tree_before"],
        checkpoint=row["checkpoint"],
        result=load(row["result"], TurnResult) if row["result"] else None,
        started_at_ms=row["started_at_ms"],
        ended_at_ms=row["ended_at_ms"],
        violation=row["violation"],
        choice=load(row["choice"], EngineChoice) if row["choice"] else None,
    )


def open_turn(tx: Tx, goal_id: str, agent_id: str | None = None) -> TurnKey | None:
    """The goal's open (or blocked) turn: of the agent, or of any."""
    if agent_id is None:
        row = tx.one("turns.open_of_goal", goal_id=goal_id)
    else:
        row = tx.one("turns.open_of", goal_id=goal_id, agent_id=agent_id)
    return TurnKey(row["turn_key"]) if row is not None else None


def last_of_todo(tx: Tx, todo_id: str) -> Turn | None:
    row = tx.one("turns.last_of_todo", todo_id=todo_id)
    return load_journal(tx, row["turn_key"]).turn if row is not None else None


def last_of_goal(tx: Tx, goal_id: str) -> Turn | None:
    row = tx.one("turns.last_of_goal", goal_id=goal_id)
    return load_journal(tx, row["turn_key"]).turn if row is not None else None


def page(tx: Tx, goal_id: str, *, before: int = 1 << 62, limit: int = 50) -> tuple[Turn, ...]:
    """Turns, the newest first."""
    keys = [row["turn_key"] for row in tx.all("turns.page", goal_id=goal_id, before=before, limit=limit)]
    return tuple(load_journal(tx, key).turn for key in keys)


def limits_in_a_row(tx: Tx, turn: Turn, most: int = 8) -> int:
    """How many closed turns before this one, the newest first and at most so many, ended at its engine's limit."""
    rows = tx.all("turns.results_of_engine", goal_id=turn.goal_id, engine=turn.engine, before=turn.number, limit=most)
    kinds = [row["result_kind"] for row in rows]
    return next((at for at, kind in enumerate(kinds) if kind != LoopXTurnResultKind.WAIT), len(kinds))


def acknowledge_closed(tx: Tx, turn_key: str, receipt: object, now_ms: int) -> None:
    """Complete a closed turn whose acknowledgement an outside owner gave only now: phase row and event together.

    Raises ConflictError (`prefix_moved`) when somebody else did.
    """
    turn = load_journal(tx, turn_key).turn
    if tx.run("turns.ack", turn_key=turn_key) != 1:
        raise ConflictError("prefix_moved", f"turn {turn_key} is acknowledged already", hint="read it again")
    reference = effect_ref(turn.turn_key, TurnStep.SCHEDULER_ACK)
    tx.run(
        "turns.insert_phase",
        turn_key=turn_key,
        ordinal=_ACK,
        phase=PHASES[_ACK],
        effect_ref=reference,
        receipt=dump(receipt),
        epoch=turn.epoch,
        now_ms=now_ms,
    )
    events.append(tx, turn.goal_id, f"phase_{PHASES[_ACK]}", now_ms, {"effect_ref": reference}, turn_key)
