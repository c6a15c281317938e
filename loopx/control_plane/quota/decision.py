"""The should-run decision: facts of one snapshot in, one answer out (quota, "Should-run in five steps").

Every surface (`status`, `why`, the page, the scheduler, the turn driver) calls `decide` and nothing else, so no two
can disagree. It reads no clock, writes nothing and says no prose beyond the short reasons; renderers make the words.
"""

from __future__ import annotations

import datetime

import msgspec

from loopx.control_plane.goal import GoalState
from loopx.control_plane.ids import AgentId, GoalId
from loopx.control_plane.quota import amounts, plan, states
from loopx.control_plane.quota.facts import BudgetUse, CapabilityIntent, GoalFacts, Health, TodoRef
from loopx.control_plane.quota.rules import (
    EffectiveAction,
    Row,
    Rule,
    budgets_full,
    caps_reached,
    first_match,
    floor_unmet,
)
from loopx.control_plane.quota.states import QuotaState, WaitingOn
from loopx.control_plane.quota.turn_envelope import UserAction

RECHECK_MS = 60_000
"""When to look again at something that frees without a known instant (another turn's reservation)."""
SOONEST_MS = 1_000
"""A wake that is already past is looked at this much later, so that a wait can never spin."""

EXIT_RUN, EXIT_NOT_NOW, EXIT_PERSON, EXIT_CAP = 0, 10, 11, 12
PACKET_SCHEMA = "loopx_quota_should_run_v0"
PACKET_BYTES = 2048
"""The packet's size is promised for ids of at most 96 bytes; every other text is cut to fit."""

__all__ = ["EffectiveAction", "QuotaDecision", "Rule", "decide", "encode_packet", "exit_code", "packet"]


class QuotaDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one goal and agent. `wake_after_ms` None: nothing but a person or an event moves it on."""

    goal_id: GoalId
    agent_id: AgentId
    revision: int
    decided_at_ms: int
    should_run: bool
    state: QuotaState
    effective_action: EffectiveAction
    rule: Rule
    reason: str
    delivery_allowed: bool
    must_attempt: bool
    quiet_noop_allowed: bool
    user_action_required: bool
    user_notify: bool
    user_actions: tuple[UserAction, ...]
    selected_todo: TodoRef | None
    capability_intent: CapabilityIntent | None
    waiting_on: WaitingOn | None
    wake_after_ms: int | None
    quota: plan.QuotaNumbers
    budgets: tuple[BudgetUse, ...]
    next_command: tuple[str, ...]


def decide(facts: GoalFacts) -> QuotaDecision:
    """The one decision. Total: every set of facts has an answer."""
    row = first_match(facts)
    return QuotaDecision(
        goal_id=facts.goal_id,
        agent_id=facts.agent_id,
        revision=facts.revision,
        decided_at_ms=facts.now_ms,
        should_run=row.run,
        state=row.state,
        effective_action=row.action,
        rule=row.rule,
        reason=_reason(row, facts),
        delivery_allowed=row.run,
        must_attempt=row.run,
        quiet_noop_allowed=row.quiet,
        user_action_required=row.user,
        user_notify=row.user,
        user_actions=_user_actions(row, facts) if row.user else (),
        selected_todo=_selected(row, facts),
        capability_intent=facts.granted_capability if row.rule is Rule.CAPABILITY_GRANTED else None,
        waiting_on=row.waiting_on,
        wake_after_ms=_wake_after(row.rule, facts),
        quota=quota_numbers(facts),
        budgets=facts.budgets,
        next_command=_next_command(row.rule, facts),
    )


def exit_code(decision: QuotaDecision) -> int:
    """0 run now; 10 not now; 11 needs a person; 12 absolute cap."""
    if decision.should_run:
        return EXIT_RUN
    if decision.rule is Rule.ABSOLUTE_CAP:
        return EXIT_CAP
    return EXIT_PERSON if decision.user_action_required else EXIT_NOT_NOW


def quota_numbers(facts: GoalFacts) -> plan.QuotaNumbers:
    """The allocation in numbers, the same whatever gates the goal."""
    return plan.quota_numbers(facts.quota, spent_slots=facts.spent_slots, frees_at_ms=facts.slot_frees_at_ms)


_TODO_RULES = frozenset({Rule.READY, Rule.READY_SOME_GATED, Rule.REPLAN_UNTRIED, Rule.WINDOW_USED_UP})


def _selected(row: Row, facts: GoalFacts) -> TodoRef | None:
    if row.rule is Rule.MONITOR_DUE:
        return facts.monitor_due
    return facts.ready if row.rule in _TODO_RULES else None


def _reason(row: Row, facts: GoalFacts) -> str:
    """The documented words where there are any, else a short machine phrase with its data."""
    rule = row.rule
    if rule in (Rule.STORE_UNHEALTHY, Rule.TREE_UNUSABLE):
        return f"{facts.health}: {facts.health_detail}" if facts.health_detail else str(facts.health)
    if rule is Rule.ABSOLUTE_CAP:
        return budget_reason(caps_reached(facts)[0])
    if rule is Rule.WINDOW_USED_UP and not quota_numbers(facts).exhausted:
        return budget_reason(budgets_full(facts)[0])
    if rule is Rule.WAIT_PENDING and facts.wait is not None:
        return f"{facts.wait.kind}: {facts.wait.detail}" if facts.wait.detail else f"{facts.wait.kind} is pending"
    if rule in (Rule.REPLAN_UNTRIED, Rule.REPLAN_IN_VAIN) and floor_unmet(facts):
        return states.floor_reason(facts.floor_streak, facts.quota.outcome_floor)
    if rule is Rule.BLOCKED_WITH_WAKE and facts.held is not None:
        held = facts.held
        return f"{held.todo_id} may write what {held.by_agent} is writing for {held.by_todo}"
    return _RULE_REASONS.get(rule) or states.reason_for(row.state, state_inputs(facts, row.waiting_on))


_RULE_REASONS = {
    Rule.GOAL_CLOSED: "goal is closed",
    Rule.REPLAN_UNTRIED: "no progress: a replan is due",
    Rule.REPLAN_IN_VAIN: "no progress, and a replan did not help",
    Rule.SUCCESSOR_MISSING: "a completed todo names successors that do not exist",
    Rule.MONITOR_DUE: "a monitor's probe is due",
    Rule.BLOCKED_WITH_WAKE: "every open todo waits for a known wake",
    Rule.BLOCKED_WITHOUT_WAKE: "open todos are blocked and nothing will wake them",
    Rule.NOTHING_LEFT: "nothing is left and the contract is green",
}


def state_inputs(facts: GoalFacts, waiting_on: WaitingOn | None) -> states.QuotaInputs:
    """The same facts as the seven-state derivation reads them, for a goal that waits on `waiting_on`.

    The floor and the breaker are no focus-wait marker: they hold back only what would be eligible.
    """
    return states.QuotaInputs(
        compute=facts.quota.compute,
        allowed_slots=plan.allowed_slots(facts.quota),
        spent_slots=facts.spent_slots,
        waiting_on=waiting_on,
        severity=None if facts.health is Health.OK else states.HIGH_SEVERITY,
        stopped=facts.state is not GoalState.ACTIVE,
    )


def budget_reason(use: BudgetUse) -> str:
    """One budget's use as a short phrase; reserved amounts are named when they matter."""
    reserved = f" and {use.reserved} reserved" if use.reserved else ""
    estimated = f" ({use.estimated} charged because the engine reported none)" if use.estimated else ""
    return f"{use.unit} per {use.scope}: {use.used} used{reserved} of {use.limit}{estimated}"


def _wake_after(rule: Rule, facts: GoalFacts) -> int | None:
    if rule is Rule.WINDOW_USED_UP:
        return _window_frees_at(facts)
    if rule is Rule.WAIT_PENDING and facts.wait is not None:
        return facts.wait.until_ms
    if rule is Rule.BLOCKED_WITH_WAKE and facts.blocked_wake_at_ms is not None:
        return max(facts.blocked_wake_at_ms, facts.now_ms + SOONEST_MS)
    if rule in (Rule.MONITOR_DUE, Rule.NOTHING_LEFT):
        return facts.now_ms
    return None


def _window_frees_at(facts: GoalFacts) -> int | None:
    """When everything that is full has freed: the latest of the instants. None: an allocation of zero slots."""
    instants = [_free_instant(use.frees_at_ms, facts.now_ms) for use in budgets_full(facts)]
    if quota_numbers(facts).exhausted:
        if plan.allowed_slots(facts.quota) <= 0:
            return None
        instants.append(_free_instant(facts.slot_frees_at_ms, facts.now_ms))
    return max(instants)


def _free_instant(frees_at_ms: int | None, now_ms: int) -> int:
    if frees_at_ms is None:
        return now_ms + RECHECK_MS
    return max(frees_at_ms, now_ms + SOONEST_MS)


def _user_actions(row: Row, facts: GoalFacts) -> tuple[UserAction, ...]:
    asked = tuple(
        UserAction(question=gate.question, gate_id=gate.gate_id, options=gate.options) for gate in facts.gates
    )
    if row.rule in (Rule.GATE_BLOCKS, Rule.GATE_LEFT, Rule.REPLAN_IN_VAIN) and asked:
        return asked
    return (UserAction(question=_reason(row, facts)),)


def _next_command(rule: Rule, facts: GoalFacts) -> tuple[str, ...]:
    """One command that the command line accepts in this state as printed.

    A gate is shown, not answered, and a closed goal is shown, not reopened: a printed line that somebody runs blindly
    must not choose between answers, or undo an end.
    """
    goal = str(facts.goal_id)
    if rule is Rule.GOAL_CLOSED:
        return ("loopx", "goal", "show", goal)
    if rule is Rule.GOAL_PAUSED:
        return _unpause_command(facts)
    if rule in (Rule.STORE_UNHEALTHY, Rule.TREE_UNUSABLE):
        return ("loopx", "doctor")
    if rule is Rule.ABSOLUTE_CAP:
        return ("loopx", "quota", "raise", goal, "--budget", amounts.raised_budget(caps_reached(facts)[0]))
    if rule in (Rule.GATE_BLOCKS, Rule.GATE_LEFT, Rule.REPLAN_IN_VAIN):
        return _gate_command(facts, rule)
    if rule is Rule.WINDOW_USED_UP and plan.allowed_slots(facts.quota) <= 0:
        return ("loopx", "quota", "raise", goal, "--slots", "1")
    if rule in (Rule.WINDOW_USED_UP, Rule.WAIT_PENDING, Rule.BLOCKED_WITH_WAKE):
        return ("loopx", "why", goal)
    return ("loopx", "run", goal)


def _unpause_command(facts: GoalFacts) -> tuple[str, ...]:
    if facts.state is GoalState.ACTIVE:
        return ("loopx", "quota", "raise", str(facts.goal_id), "--compute", "1")
    return ("loopx", "goal", "resume", str(facts.goal_id))


def _gate_command(facts: GoalFacts, rule: Rule) -> tuple[str, ...]:
    if facts.gates:
        return ("loopx", "gate", "show", str(facts.gates[0].gate_id))
    if rule is Rule.REPLAN_IN_VAIN:
        return ("loopx", "why", str(facts.goal_id))
    return ("loopx", "gate", "list", str(facts.goal_id))


class PacketTodo(msgspec.Struct, frozen=True, kw_only=True):
    """The selected todo, its title cut to fit."""

    todo_id: str
    title: str


class PacketUser(msgspec.Struct, frozen=True, kw_only=True):
    """What a person is asked: the first question, and how many there are."""

    required: bool
    notify: bool
    gate_id: str | None = None
    question: str = ""
    options: tuple[str, ...] = ()
    actions: int = 0


class PacketBudget(msgspec.Struct, frozen=True, kw_only=True):
    """One budget's use; of many budgets the packet carries the fullest."""

    unit: str
    scope: str
    limit: int
    used: int
    reserved: int
    frees_at: str | None


class PacketQuota(msgspec.Struct, frozen=True, kw_only=True):
    """The allocation, whatever gates the goal: `state` is `throttled` or `eligible` by slots alone."""

    compute: float
    window_hours: float
    slot_minutes: float
    allowed_slots: int
    spent_slots: int
    state: str
    frees_at: str | None


class Packet(msgspec.Struct, frozen=True, kw_only=True):
    """What `quota should-run` prints. Instants are RFC 3339 in UTC; `wake_after` is one, or none."""

    schema_version: str = PACKET_SCHEMA
    ok: bool = True
    goal_id: str
    agent_id: str
    should_run: bool
    state: str
    reason: str
    effective_action: str
    rule: str
    selected_todo: PacketTodo | None
    waiting_on: str | None
    user_action: PacketUser
    wake_after: str | None
    quota: PacketQuota
    budget: tuple[PacketBudget, ...]
    next_command: tuple[str, ...]


_packet_encoder = msgspec.json.Encoder()
_CUTS = ((160, 6), (80, 4), (32, 2), (8, 1), (0, 0))
"""How many bytes each text may take and how many budgets are carried, from generous to bare."""


def packet(decision: QuotaDecision) -> Packet:
    """The decision as its packet, at most 2 KB of JSON: long texts are cut, and only the fullest budgets carried."""
    for text_bytes, budgets in _CUTS:
        made = _packet(decision, text_bytes, budgets)
        if len(_packet_encoder.encode(made)) <= PACKET_BYTES:
            return made
    return made


def encode_packet(decision: QuotaDecision) -> bytes:
    """The packet's JSON, as printed."""
    return _packet_encoder.encode(packet(decision))


def instant_words(at_ms: int | None) -> str | None:
    """An instant as RFC 3339 in UTC, to the millisecond."""
    if at_ms is None:
        return None
    at = datetime.datetime.fromtimestamp(at_ms // 1000, datetime.UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"


def _packet(decision: QuotaDecision, text_bytes: int, budgets: int) -> Packet:
    todo = decision.selected_todo
    return Packet(
        goal_id=decision.goal_id,
        agent_id=decision.agent_id,
        should_run=decision.should_run,
        state=decision.state,
        reason=cut(decision.reason, max(text_bytes, 64)),
        effective_action=decision.effective_action,
        rule=decision.rule,
        selected_todo=None if todo is None else PacketTodo(todo_id=todo.todo_id, title=cut(todo.title, text_bytes)),
        waiting_on=decision.waiting_on,
        user_action=_packet_user(decision, text_bytes),
        wake_after=instant_words(decision.wake_after_ms),
        quota=_packet_quota(decision.quota),
        budget=tuple(_packet_budget(use) for use in _fullest(decision.budgets, budgets)),
        next_command=decision.next_command,
    )


def _packet_user(decision: QuotaDecision, text_bytes: int) -> PacketUser:
    if not decision.user_actions:
        return PacketUser(required=decision.user_action_required, notify=decision.user_notify)
    first = decision.user_actions[0]
    return PacketUser(
        required=decision.user_action_required,
        notify=decision.user_notify,
        gate_id=first.gate_id,
        question=cut(first.question, text_bytes),
        options=tuple(cut(option, text_bytes // 4) for option in first.options[: text_bytes // 20]),
        actions=len(decision.user_actions),
    )


def _packet_quota(quota: plan.QuotaNumbers) -> PacketQuota:
    return PacketQuota(
        compute=quota.compute,
        window_hours=quota.window_hours,
        slot_minutes=quota.slot_minutes,
        allowed_slots=quota.allowed_slots,
        spent_slots=quota.spent_slots,
        state=QuotaState.THROTTLED if quota.exhausted else QuotaState.ELIGIBLE,
        frees_at=instant_words(quota.frees_at_ms),
    )


def _packet_budget(use: BudgetUse) -> PacketBudget:
    return PacketBudget(
        unit=use.unit,
        scope=use.scope,
        limit=use.limit,
        used=use.used,
        reserved=use.reserved,
        frees_at=instant_words(use.frees_at_ms),
    )


def _fullest(budgets: tuple[BudgetUse, ...], count: int) -> tuple[BudgetUse, ...]:
    return tuple(sorted(budgets, key=lambda use: -(use.used + use.reserved) / max(1, use.limit))[:count])


def cut(text: str, json_bytes: int) -> str:
    """The text, shortened with an ellipsis until its JSON form (quotes aside) takes at most `json_bytes` bytes."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    if len(_packet_encoder.encode(text)) - 2 <= json_bytes:
        return text
    kept = text[: max(0, json_bytes - 3)]
    while kept and len(_packet_encoder.encode(kept)) + 1 > json_bytes:
        kept = kept[:-1]
    return kept + "…" if json_bytes >= 3 else ""
