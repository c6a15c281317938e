"""Why a decision came out as it did, as data: the facts that it read, the row that decided, what would change it.

For `why`, and for replaying a logged decision from its recorded facts. It decides nothing and says no prose: names and
values only, which renderers turn into words.
"""

from __future__ import annotations

import enum

import msgspec

from loopx.control_plane.goal import GoalState
from loopx.control_plane.ids import GoalId
from loopx.control_plane.quota import amounts, plan
from loopx.control_plane.quota.decision import QuotaDecision, decide
from loopx.control_plane.quota.facts import BudgetUse, GoalFacts
from loopx.control_plane.quota.policy import BudgetScope
from loopx.control_plane.quota.rules import TABLE, Rule, budgets_full, caps_reached
from loopx.control_plane.quota.states import QuotaState

FactValue = str | int | float | bool | None


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One fact that the decision read. Instants end in `_ms`."""

    name: str
    value: FactValue


class ChangeKind(enum.StrEnum):
    """What kind of thing would change the answer: time passing, a command, or an event outside."""

    INSTANT = "instant"
    COMMAND = "command"
    EVENT = "event"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that would change the answer: exactly the field of its kind is set.

    A command's words in capitals are for a person to fill in (`ANSWER`); an event is a short code.
    """

    kind: ChangeKind
    at_ms: int | None = None
    command: tuple[str, ...] = ()
    event: str = ""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The facts, the row that fired with its number in the table (from 1), and what would change the answer."""

    goal_id: GoalId
    rule: Rule
    row: int
    state: QuotaState
    facts: tuple[Fact, ...]
    changes: tuple[Change, ...]


def explain(facts: GoalFacts, decision: QuotaDecision) -> Explanation:
    """Explain a decision that was made from these facts."""
    return Explanation(
        goal_id=facts.goal_id,
        rule=decision.rule,
        row=1 + [row.rule for row in TABLE].index(decision.rule),
        state=decision.state,
        facts=_facts(facts, decision),
        changes=_changes(facts, decision),
    )


def replay(encoded_facts: bytes) -> QuotaDecision:
    """The decision again, from facts that were logged with it (`encode_facts`)."""
    return decide(msgspec.json.decode(encoded_facts, type=GoalFacts))


def encode_facts(facts: GoalFacts) -> bytes:
    """The facts as they are logged beside a decision."""
    return msgspec.json.encode(facts)


def _facts(facts: GoalFacts, decision: QuotaDecision) -> tuple[Fact, ...]:
    return (
        *_named(
            goal_state=facts.state,
            revision=facts.revision,
            waiting_on=decision.waiting_on,
            health=facts.health,
            contract=facts.contract,
        ),
        *_quota_facts(facts),
        *_budget_facts(facts),
        *_work_facts(facts),
        *_hold_facts(facts),
    )


def _named(**values: FactValue) -> tuple[Fact, ...]:
    return tuple(Fact(name=name, value=value) for name, value in values.items())


def _quota_facts(facts: GoalFacts) -> tuple[Fact, ...]:
    return _named(
        compute=facts.quota.compute,
        spent_slots=facts.spent_slots,
        allowed_slots=plan.allowed_slots(facts.quota),
        window_hours=facts.quota.window_hours,
        slot_frees_at_ms=facts.slot_frees_at_ms,
    )


def _budget_facts(facts: GoalFacts) -> tuple[Fact, ...]:
    return tuple(
        Fact(name=f"budget.{use.unit}.{use.scope}.{name}", value=value)
        for use in facts.budgets
        for name, value in (("used", use.used), ("reserved", use.reserved), ("limit", use.limit))
    )


def _work_facts(facts: GoalFacts) -> tuple[Fact, ...]:
    return _named(
        ready_todo=facts.ready.todo_id if facts.ready else None,
        ready_title=facts.ready.title if facts.ready else None,
        held_todo=facts.held.todo_id if facts.held else None,
        held_by_todo=facts.held.by_todo if facts.held else None,
        held_by_agent=facts.held.by_agent if facts.held else None,
        ready_gated=facts.ready_gated,
        open_todos=facts.open_todos,
        blocked_wake_at_ms=facts.blocked_wake_at_ms,
        blocked_without_wake=facts.blocked_without_wake,
        missing_successors=len(facts.missing_successors),
        monitor_due=facts.monitor_due.todo_id if facts.monitor_due else None,
        capability=facts.granted_capability.capability if facts.granted_capability else None,
    )


def _hold_facts(facts: GoalFacts) -> tuple[Fact, ...]:
    return (
        *_named(
            open_gates=len(facts.gates),
            wait=facts.wait.kind if facts.wait else None,
            wait_until_ms=facts.wait.until_ms if facts.wait else None,
            breaker=facts.breaker,
            floor_streak=facts.floor_streak,
            floor_threshold=facts.quota.outcome_floor,
            floor_replan_tried=facts.floor_replan_tried,
            next_occurrence_ms=facts.next_occurrence_ms,
        ),
        *(Fact(name=f"gate.{gate.gate_id}", value=gate.question) for gate in facts.gates),
    )


def _changes(facts: GoalFacts, decision: QuotaDecision) -> tuple[Change, ...]:
    found = list(_commands(facts, decision.rule))
    if decision.wake_after_ms is not None and decision.wake_after_ms > facts.now_ms:
        found.insert(0, Change(kind=ChangeKind.INSTANT, at_ms=decision.wake_after_ms))
    event = _EVENTS.get(decision.rule)
    if event is not None:
        found.append(Change(kind=ChangeKind.EVENT, event=event))
    return tuple(found)


_EVENTS = {
    Rule.STORE_UNHEALTHY: "journal_or_store_repaired",
    Rule.TREE_UNUSABLE: "work_tree_usable",
    Rule.WAIT_PENDING: "outside_evidence",
    Rule.REPLAN_UNTRIED: "replan_committed",
    Rule.REPLAN_IN_VAIN: "accountable_outcome",
    Rule.SUCCESSOR_MISSING: "successors_exist",
    Rule.MONITOR_DUE: "probe_result",
    Rule.BLOCKED_WITH_WAKE: "todo_unblocked",
    Rule.BLOCKED_WITHOUT_WAKE: "todo_unblocked",
    Rule.CAPABILITY_GRANTED: "capability_done",
}


def _commands(facts: GoalFacts, rule: Rule) -> tuple[Change, ...]:
    goal = str(facts.goal_id)
    if rule is Rule.GOAL_CLOSED:
        return (_command("goal", "reopen", goal),)
    if rule is Rule.GOAL_PAUSED:
        return _unpause(facts, goal)
    if rule in (Rule.STORE_UNHEALTHY, Rule.TREE_UNUSABLE):
        return (_command("doctor"),)
    if rule is Rule.ABSOLUTE_CAP:
        reached = caps_reached(facts)
        # A budget in a unit that the engine does not report stops again after its next turn, however high it is.
        blind = (f"{amounts.unit_word(use.unit)}=unlimited/{use.scope}" for use in reached if use.estimated)
        words = (*(amounts.raised_budget(use) for use in reached), *blind)
        return tuple(_command("quota", "raise", goal, "--budget", word) for word in words)
    if rule is Rule.WINDOW_USED_UP:
        return _window_raises(facts, goal)
    if rule in (Rule.GATE_BLOCKS, Rule.GATE_LEFT, Rule.REPLAN_IN_VAIN):
        answers = tuple(_command("gate", "answer", str(gate.gate_id), "ANSWER") for gate in facts.gates)
        # What is not asked yet is asked by the next run.
        return answers or (_command("run", goal),)
    if rule is Rule.BLOCKED_WITH_WAKE and facts.held is not None:
        return (_command("todo", "release", str(facts.held.by_todo)),)
    if rule in (Rule.BLOCKED_WITH_WAKE, Rule.NOTHING_LEFT):
        return (_command("todo", "add", goal, "TITLE"),)
    return (_command("goal", "pause", goal),)


def _unpause(facts: GoalFacts, goal: str) -> tuple[Change, ...]:
    resume = () if facts.state is GoalState.ACTIVE else (_command("goal", "resume", goal),)
    compute = (_command("quota", "raise", goal, "--compute", "1"),) if facts.quota.compute <= 0 else ()
    return resume + compute


def _window_raises(facts: GoalFacts, goal: str) -> tuple[Change, ...]:
    slots = facts.spent_slots + 1
    found = [_budget_raise(use, goal) for use in budgets_full(facts)]
    if facts.spent_slots >= plan.allowed_slots(facts.quota):
        found.insert(0, _command("quota", "raise", goal, "--slots", str(slots)))
    return tuple(found)


def _budget_raise(use: BudgetUse, goal: str) -> Change:
    if use.scope is BudgetScope.MACHINE:
        return _command("quota", "cap", amounts.raised_budget(use))
    return _command("quota", "raise", goal, "--budget", amounts.raised_budget(use))


def _command(*words: str) -> Change:
    return Change(kind=ChangeKind.COMMAND, command=("loopx", *words))
