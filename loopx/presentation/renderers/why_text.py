"""`loopx why`: the answer, the facts behind it, the rule that fired, and what would change it."""

from __future__ import annotations

from collections.abc import Mapping

from loopx.control_plane.quota.explain import Change, ChangeKind, Fact
from loopx.presentation.renderers import words
from loopx.presentation.renderers.quota_markdown import headline, row
from loopx.runtime.why_service import Why

RULES = {
    "goal_closed": "the goal has ended",
    "goal_paused": "the goal is paused or stopped, or its compute is 0",
    "store_unhealthy": "the journal is blocked, or the store is unhealthy",
    "tree_unusable": "the work tree can't be used",
    "absolute_cap": "a budget over the whole goal is used up",
    "gate_blocks": "a question blocks the goal, or all ready todos",
    "capability_granted": "a capability was granted and is to be carried out",
    "window_used_up": "spent >= allowed in this window",
    "wait_pending": "a limit, a backoff or outside evidence is pending",
    "replan_untried": "no progress, and a replan was not tried yet",
    "replan_in_vain": "no progress, and a replan did not help",
    "successor_missing": "a completed todo names successors that do not exist",
    "monitor_due": "a monitor's probe is due",
    "ready_some_gated": "a todo is ready; others wait for an answer",
    "ready": "a todo is ready",
    "goal_is_the_work": "no todo, and the contract is not green: the goal itself is the work",
    "blocked_with_wake": "every open todo waits for a known instant",
    "gate_left": "a question is all that is left",
    "blocked_without_wake": "open todos are blocked, and nothing will wake them",
    "nothing_left": "nothing is left, and the contract is green",
}
"""The rows of the decision's table, in words."""

WAITING_ON = {
    "codex": "the agent",
    "agent": "the agent",
    "user_or_controller": "a person",
    "controller": "a person",
    "external_evidence": "something outside",
    "monitor": "a monitor",
}
EVENTS = {
    "journal_or_store_repaired": "the journal or the store is repaired",
    "work_tree_usable": "the work tree can be used again",
    "outside_evidence": "what it waits for arrives",
    "replan_committed": "a replan is committed",
    "accountable_outcome": "a turn with an accountable outcome",
    "successors_exist": "the named successors exist",
    "probe_result": "the probe's result",
    "todo_unblocked": "a todo is unblocked",
    "capability_done": "the capability is carried out",
}
"""Events that would change the answer."""


def why_text(why: Why, now_ms: int) -> str:
    """The whole answer."""
    facts = {fact.name: fact.value for fact in why.explanation.facts}
    lines = [_head(why, now_ms)]
    waiting = WAITING_ON.get(str(facts.get("waiting_on")))
    todo = f' (todo {why.todo_id} "{words.one_line(why.todo_title or "", 50)}")' if why.todo_id is not None else ""
    if waiting is not None:
        lines.append(row("waiting on", f"{waiting}{todo}"))
    lines.append(row("because", why.reason))
    lines.append(row("slots", _slots(facts, why.decided_at_ms)))
    lines += _facts(facts, why)
    lines.append(row("rule", f"{words.word(RULES, why.rule)}        row {why.row} of {why.rows}"))
    if why.last_result is not None and why.turn_key is None:
        reason = words.word(words.REASONS, why.last_reason) if why.last_reason else ""
        lines.append(row("last turn", words.joined([why.last_result, reason])))
    if why.agrees is not None:
        lines.append(row("replayed", "the same answer" if why.agrees else "ANOTHER ANSWER THAN WAS RECORDED"))
    changes = words.joined([_change(one, why.decided_at_ms) for one in why.explanation.changes], ", or  ")
    if changes:
        lines.append(f"  what would change it: {changes}")
    return "\n".join(lines)


def _head(why: Why, now_ms: int) -> str:
    if why.turn_key is None:
        return f"  {headline(why.should_run, why.state)}"
    when = words.clock(why.decided_at_ms, now_ms)
    result = f", and ended as {why.last_result}" if why.last_result else ""
    return f"  turn {why.turn_key} was let run at {when}{result}"


def _slots(facts: Mapping[str, object], now_ms: int) -> str:
    window = facts.get("window_hours")
    text = (
        f"{facts.get('spent_slots')} of {facts.get('allowed_slots')} spent in the last {window:g} h"
        if isinstance(window, int | float)
        else ""
    )
    frees = facts.get("slot_frees_at_ms")
    return f"{text} (one frees at {words.clock(frees, now_ms)})" if isinstance(frees, int) else text


def _facts(facts: Mapping[str, object], why: Why) -> list[str]:
    """The other facts that say something: what is at its default says nothing."""
    lines = [row("contract", str(facts.get("contract")))]
    lines += [
        row("question", f'"{words.one_line(str(value), 70)}"')
        for name, value in facts.items()
        if name.startswith("gate.")
    ]
    if facts.get("health") != "ok":
        lines.append(row("health", str(facts.get("health"))))
    for name in ("wait", "breaker"):
        value = facts.get(name)
        if value not in (None, "closed"):
            lines.append(row(name, str(value)))
    streak, floor = facts.get("floor_streak"), facts.get("floor_threshold")
    if streak:
        lines.append(row("hand-off floor", f"{streak} of {floor} delivered turns without an outcome"))
    if facts.get("held_todo") is not None and why.rule != "blocked_with_wake":
        holder = f"{facts.get('held_by_agent')} is writing for {facts.get('held_by_todo')}"
        lines.append(row("left alone", f"{facts.get('held_todo')}: it may write what {holder}"))
    lines += _budgets(why.explanation.facts)
    return lines


def _budgets(facts: tuple[Fact, ...]) -> list[str]:
    found: dict[str, dict[str, object]] = {}
    for fact in facts:
        if fact.name.startswith("budget."):
            name, _, field = fact.name.removeprefix("budget.").rpartition(".")
            found.setdefault(name, {})[field] = fact.value
    return [
        row(
            "budget", f"{name.replace('.', ' per ')}: {use['used']} used, {use['reserved']} reserved, of {use['limit']}"
        )
        for name, use in found.items()
    ]


def _change(change: Change, now_ms: int) -> str:
    if change.kind is ChangeKind.INSTANT and change.at_ms is not None:
        return words.clock(change.at_ms, now_ms)
    if change.kind is ChangeKind.COMMAND:
        return words.command(change.command)
    return words.word(EVENTS, change.event)
