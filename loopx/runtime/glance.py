"""Every goal at one glance: what needs a person, what runs, what waits until when, what was done.

A few short indexed look-ups, each bounded, whatever the number of goals and turns. Each goal's answer is the one
decision's; nothing is written, and only what is needed is imported, because other programs start it every tick.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import msgspec

from loopx.control_plane.goal import CLOSED_GOAL_STATES, GoalState
from loopx.control_plane.ids import AgentId
from loopx.control_plane.quota import decision as decisions
from loopx.control_plane.quota.facts import BudgetUse, GoalFacts
from loopx.control_plane.quota.policy import Budget, BudgetScope, BudgetUnit
from loopx.control_plane.work_items.gate import Gate
from loopx.runtime import pace
from loopx.runtime.pace import BudgetLine, Spike
from loopx.runtime.reading import read_facts
from loopx.runtime.session import DEFAULT_AGENT
from loopx.store import gates, goals, meters
from loopx.store.codec import load
from loopx.store.connection import Row, Tx
from loopx.store.store import Store

LIMIT = 12
"""Goals in one section of the overview."""
MOST_OPTIONS = 6
_ENDED = (GoalState.COMPLETED, GoalState.STOPPED, GoalState.CANCELLED)
_TEXT = 160
_QUESTION = 300


class Section(enum.StrEnum):
    """Where a goal stands for a person; in the order of the screen."""

    NEEDS_YOU = "needs_you"
    RUNNING = "running"
    WAITING = "waiting"
    SINCE = "since"
    """It ended since the person last looked."""


class GateLine(msgspec.Struct, frozen=True, kw_only=True):
    """An open question. `blocks_todos`: how many todos it holds back; 0 with `blocks_goal`."""

    gate_id: str
    kind: str
    question: str
    options: tuple[str, ...]
    blocks_goal: bool
    blocks_todos: int
    asked_at_ms: int
    fix: str


class RunningTurn(msgspec.Struct, frozen=True, kw_only=True):
    """The open turn of a goal. `driven`: a living process holds it; without one it waits to be resumed.

    `last_event_ms`: when its agent last printed anything; None when it has not, or nobody knows.
    """

    turn_key: str
    number: int
    engine: str
    agent_id: str
    todo_id: str | None
    completed: int
    state: str
    failed_phase: str | None
    violation: str | None
    driven: bool
    started_at_ms: int
    last_event_ms: int | None = None
    doing: str | None = None
    """The kind of the agent's last step, in the common vocabulary."""
    doing_text: str = ""
    """Untrusted: the agent's own words, or the file or command it names."""


class EndLine(msgspec.Struct, frozen=True, kw_only=True):
    """What an ended goal came to. Tokens and dollars are None where nobody told them."""

    turns: int
    slots: int
    tokens: int | None
    cost_microusd: int | None
    at_ms: int
    reason: str


class GoalLine(msgspec.Struct, frozen=True, kw_only=True):
    """One goal: its section, the decision about it, and what a person would ask next."""

    goal_id: str
    section: Section
    goal_state: str
    should_run: bool
    state: str
    effective_action: str
    rule: str
    reason: str
    wake_at_ms: int | None
    """When it is looked at again; None: nothing but a person or an event brings it on."""
    zone: str | None
    """The zone of its own cadence, when that is what it waits for."""
    spent_slots: int
    allowed_slots: int
    tokens: int | None
    token_limit: int | None
    turn: RunningTurn | None
    gates: tuple[GateLine, ...]
    end: EndLine | None
    schedule_pending: str | None
    """The cadence's state while its owner is not known to have it."""
    permission_bypass: bool
    exhausts_at_ms: int | None
    """When the first of its budgets ends at the pace of the last hours."""
    spike: Spike | None
    """Its last run used far more than its usual one."""
    next_command: tuple[str, ...]


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """All goals at a glance, in the order of the screen; `counts` are by goal state."""

    now_ms: int
    since_ms: int
    goals: tuple[GoalLine, ...]
    counts: dict[str, int]
    gates_open: int
    free_bytes_low: int | None
    """Free bytes, when they are below the floor under which nothing is launched."""
    machine_cap: BudgetUse | None
    """The machine-wide launch cap, where there is one."""


def overview(store: Store, *, since_ms: int, agent_id: AgentId | None = None, limit: int = LIMIT) -> Overview:
    """Everything at a glance. Raises StoreError."""
    from loopx.runtime import machine, space

    agent = agent_id or AgentId(DEFAULT_AGENT)
    with store.read() as tx:
        look = Look(store, tx, agent)
        lines = look.lines(_pressing(tx, limit), _waiting(tx, limit), limit)
        lines += look.ended(since_ms, limit)
        counts = {str(row["state"]): int(row["n"]) for row in tx.all("goals.count_by_state")}
        free = space.free_bytes(store.path)
        return Overview(
            now_ms=look.now_ms,
            since_ms=since_ms,
            goals=tuple(lines),
            counts=counts,
            gates_open=tx.number("gates.count_open", limit=1000),
            free_bytes_low=free if free is not None and free < space.FLOOR_BYTES else None,
            machine_cap=machine.use(look.now_ms),
        )


def _pressing(tx: Tx, limit: int) -> tuple[str, ...]:
    """Goals that may need a person or run, each once."""
    found: list[Iterable[Row]] = [
        tx.all("turns.open_all", limit=limit),
        tx.all("goals.attention", limit=limit),
        tx.all("gates.open_all", limit=limit),
        tx.all("goals.without_wake", limit=limit),
    ]
    return _each_once(found)


def _waiting(tx: Tx, limit: int) -> tuple[str, ...]:
    """Goals that wait, the next one first."""
    found: list[Iterable[Row]] = [
        # Those that are shown elsewhere already take no place among the waiting ones.
        tx.all("goals.next_up", limit=2 * limit),
        tx.all("goals.page_by_state", state=GoalState.PAUSED, limit=limit, skip=0),
    ]
    return _each_once(found)


def _each_once(found: Iterable[Iterable[Row]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row["goal_id"] for rows in found for row in rows))


class Look:
    """One look at the store: one snapshot, one instant, one agent."""

    def __init__(self, store: Store, tx: Tx, agent: AgentId) -> None:
        self._store = store
        self._tx = tx
        self._agent = agent
        self.now_ms = store.now_ms()

    def lines(self, pressing: Sequence[str], waiting: Sequence[str], limit: int) -> list[GoalLine]:
        """The lines of open goals, at most `limit` in a section, in the order of the screen."""
        sections: dict[Section, list[GoalLine]] = {section: [] for section in Section}
        for number, goal_id in enumerate(dict.fromkeys((*pressing, *waiting))):
            # What only waits is looked at while there is a place for it: each look costs as much as a decision.
            if number >= len(pressing) and len(sections[Section.WAITING]) >= limit:
                break
            line = self.line(goal_id)
            if line.section is not Section.SINCE and len(sections[line.section]) < limit:
                sections[line.section].append(line)
        sections[Section.WAITING].sort(key=lambda line: (line.wake_at_ms is None, line.wake_at_ms or 0))
        return [line for section in Section for line in sections[section]]

    def ended(self, since_ms: int, limit: int) -> list[GoalLine]:
        """Goals that ended since an instant, the newest first."""
        rows = [
            row
            for state in _ENDED
            for row in self._tx.all("goals.closed_since", state=state, since_ms=since_ms, limit=limit)
        ]
        rows.sort(key=lambda row: -int(row["updated_at_ms"]))
        return [self.line(row["goal_id"]) for row in rows[:limit]]

    def line(self, goal_id: str) -> GoalLine:
        tx = self._tx
        row = goals.row_of(tx, goal_id)
        facts = read_facts(self._store, tx, goal_id, self._agent)
        decision = decisions.decide(facts)
        turn = self._turn(goal_id) if facts.state not in CLOSED_GOAL_STATES else None
        asked = tuple(_gate(gate) for gate in gates.open_gates(tx, goal_id, 3))
        section = _section(facts, decision, turn, asked)
        wake = self._wake(row, facts, decision) if section is Section.WAITING else decision.wake_after_ms
        schedule = tx.one("schedules.get", goal_id=goal_id)
        definition = goals.definition_of(tx, goal_id, row["revision"])
        on_cadence = schedule is not None and schedule["rrule"] and wake == facts.next_occurrence_ms
        return GoalLine(
            goal_id=goal_id,
            section=section,
            goal_state=facts.state,
            should_run=decision.should_run,
            state=decision.state,
            effective_action=decision.effective_action,
            rule=decision.rule,
            reason=decisions.cut(decision.reason, _QUESTION),
            wake_at_ms=wake,
            zone=schedule["zone"] if schedule is not None and on_cadence and wake is not None else None,
            spent_slots=decision.quota.spent_slots,
            allowed_slots=decision.quota.allowed_slots,
            tokens=self._metered(goal_id, BudgetUnit.TOKENS),
            token_limit=next(
                (
                    budget.limit
                    for budget in definition.budgets
                    if budget.unit is BudgetUnit.TOKENS and budget.scope is BudgetScope.GOAL
                ),
                None,
            ),
            turn=turn,
            gates=asked if facts.state not in CLOSED_GOAL_STATES else (),
            end=self._end(row) if facts.state in _ENDED else None,
            schedule_pending=schedule["state"] if schedule is not None and _pending(schedule) else None,
            permission_bypass=definition.permission == "bypass",
            exhausts_at_ms=self._exhausts_at(goal_id, definition.budgets),
            spike=next(iter(pace.spikes(tx, goal_id)), None) if facts.state not in CLOSED_GOAL_STATES else None,
            next_command=_next_command(decision, turn, asked),
        )

    def _wake(self, row: Row, facts: GoalFacts, decision: decisions.QuotaDecision) -> int | None:
        """When the goal runs next: the decision's own instant, its cadence's, or the one that is stored."""
        if decision.wake_after_ms is not None or not decision.should_run:
            return decision.wake_after_ms
        due: int | None = row["due_at_ms"]
        later = facts.next_occurrence_ms
        return later if later is not None and later > self.now_ms else due

    def budget_lines(self, goal_id: str, written: tuple[Budget, ...]) -> tuple[BudgetLine, ...]:
        """The goal's budgets with their use and pace."""
        uses = tuple(meters.budget_use(self._tx, goal_id, budget, self.now_ms) for budget in written)
        return pace.budget_lines(self._tx, goal_id, written, uses, self.now_ms)

    def _exhausts_at(self, goal_id: str, written: tuple[Budget, ...]) -> int | None:
        instants = (line.exhausts_at_ms for line in self.budget_lines(goal_id, written) if line.used < line.limit)
        return min((at_ms for at_ms in instants if at_ms is not None), default=None)

    def _metered(self, goal_id: str, unit: BudgetUnit) -> int | None:
        row = self._tx.one("meters.total", goal_id=goal_id, unit=unit)
        return int(row["cumulative"]) if row is not None else None

    def _end(self, row: Row) -> EndLine:
        goal_id = row["goal_id"]
        last = self._tx.one("events.last_end", goal_id=goal_id)
        reason = load(last["body"], _EndBody).reason if last is not None else ""
        return EndLine(
            turns=row["turn_count"],
            slots=self._tx.number("ledger.total", goal_id=goal_id),
            tokens=self._metered(goal_id, BudgetUnit.TOKENS),
            cost_microusd=self._metered(goal_id, BudgetUnit.MICROUSD),
            at_ms=row["updated_at_ms"],
            reason=decisions.cut(reason, _TEXT),
        )

    def _turn(self, goal_id: str) -> RunningTurn | None:
        found = self._tx.one("turns.open_of_goal", goal_id=goal_id)
        if found is None:
            return None
        row = self._tx.one("turns.get", turn_key=found["turn_key"])
        assert row is not None
        turn = RunningTurn(
            turn_key=row["turn_key"],
            number=row["number"],
            engine=row["engine"],
            agent_id=row["agent_id"],
            todo_id=row["todo_id"],
            completed=row["completed"],
            state=row["state"],
            failed_phase=row["failed_phase"],
            violation=row["violation"],
            driven=self._driven(goal_id, row["agent_id"]),
            started_at_ms=row["started_at_ms"],
        )
        return self._with_activity(turn)

    def _driven(self, goal_id: str, agent_id: str) -> bool:
        """Whether a process still drives the turn: its lease lives, and its owner is not proved dead."""
        lease = self._tx.one("leases.get", resource=f"turn:{goal_id}:{agent_id}")
        if lease is None or lease["expires_at_ms"] <= self.now_ms:
            return False
        # Only a running turn pays for a look at processes.
        from loopx.runtime import owner

        return not owner.is_dead(lease["owner"])

    def _with_activity(self, turn: RunningTurn) -> RunningTurn:
        from loopx.store import hosts

        run = hosts.last_of_turn(self._tx, turn.turn_key)
        if run is None or run.ended or not run.spool_dir:
            return turn
        from loopx.runtime import agent_stream

        stream = agent_stream.AgentStream(run, tail_bytes=16 << 10)
        try:
            steps = stream.read()
        finally:
            stream.close()
        last = steps[-1] if steps else None
        text = "" if last is None else ", ".join(last.paths) or last.text or last.tool or ""
        return msgspec.structs.replace(
            turn,
            last_event_ms=agent_stream.moved_at_ms(run.spool_dir),
            doing=last.kind if last is not None else None,
            doing_text=decisions.cut(text, _TEXT),
        )


class _EndBody(msgspec.Struct, frozen=True, kw_only=True):
    reason: str = ""


def _gate(gate: Gate) -> GateLine:
    return GateLine(
        gate_id=gate.gate_id,
        kind=gate.kind,
        question=decisions.cut(gate.question, _QUESTION),
        options=tuple(decisions.cut(option, 60) for option in gate.options[:MOST_OPTIONS]),
        blocks_goal=not gate.todos,
        blocks_todos=len(gate.todos),
        asked_at_ms=gate.created_at_ms,
        fix=decisions.cut(gate.fix, _TEXT),
    )


def _section(
    facts: GoalFacts, decision: decisions.QuotaDecision, turn: RunningTurn | None, asked: tuple[GateLine, ...]
) -> Section:
    if facts.state in _ENDED:
        return Section.SINCE
    if facts.state is GoalState.PAUSED:
        return Section.WAITING
    if decision.user_action_required or asked:
        return Section.NEEDS_YOU
    if turn is None:
        return Section.WAITING
    # Nobody drives it: whoever runs the goal next goes on with it, and until then a person may want to know.
    return Section.RUNNING if turn.driven else Section.NEEDS_YOU


def _pending(schedule: Row) -> bool:
    return schedule["state"] in ("pending_apply", "pending_ack", "failed")


def _next_command(
    decision: decisions.QuotaDecision, turn: RunningTurn | None, asked: tuple[GateLine, ...]
) -> tuple[str, ...]:
    if asked and not decision.user_action_required:
        return ("loopx", "gate", "show", asked[0].gate_id)
    if turn is not None and not decision.user_action_required:
        if turn.driven:
            return ("loopx", "turn", "log", decision.goal_id, "--follow")
        return ("loopx", "run", decision.goal_id)
    return decision.next_command
