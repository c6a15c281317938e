"""Codes that only pages show, as words in English, in one place beside `words`. It decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from loopx.presentation.i18n import translate
from loopx.presentation.renderers import words

RESULT_KINDS: Final[Mapping[str, str]] = {
    "validated_progress": "progress",
    "validated_completion": "completion",
    "repair_required": "repair",
    "replan_required": "new plan",
    "user_action_required": "asks a person",
    "wait": "waits",
    "iteration_failed": "stopped",
    "host_failure": "engine failed",
    "validation_failed": "refused",
    "writeback_failed": "writeback failed",
    "quota_spend_failed": "spend failed",
    "terminal_closeout_failed": "closeout failed",
}
"""How a turn ended, in a word or two."""

MATERIAL: Final = frozenset({"validated_progress", "validated_completion", "repair_required", "replan_required"})

PHASE_NAMES: Final[Mapping[str, str]] = {
    "host_execute": "agent works",
    "typed_result": "result",
    "validation": "validation",
    "durable_writeback": "writeback",
    "quota_spend": "spend",
    "scheduler_apply": "schedule",
    "scheduler_ack": "acknowledged",
}
DISPOSITIONS: Final[Mapping[str, str]] = {
    "run_now": "next turn at once",
    "repair": "then a repair",
    "replan": "then a new plan",
    "capability_action_required": "then a capability",
    "wait": "then a wait",
    "user_action_required": "then a person",
    "stop": "then a stop",
    "terminal": "nothing left: done",
}
PURPOSES: Final[Mapping[str, str]] = {"work": "work", "repair": "repair", "replan": "new plan"}
QUOTA_STATES: Final[Mapping[str, str]] = {
    "eligible": "may run",
    "paused": "paused",
    "blocked_health": "unwell",
    "operator_gate": "needs a person",
    "waiting": "waits",
    "focus_wait": "held: no progress",
    "throttled": "throttled",
}
RULES: Final[Mapping[str, str]] = {
    "goal_closed": "the goal has ended",
    "goal_paused": "a person paused it",
    "store_unhealthy": "its records need a person",
    "tree_unusable": "its work tree can't be used",
    "absolute_cap": "a budget is used up",
    "window_used_up": "the window's slots or a budget are used up",
    "gate_blocks": "a question blocks it",
    "gate_left": "only a question is left",
    "wait_pending": "something outside is awaited",
    "replan_untried": "no progress: a new plan is due",
    "replan_in_vain": "no progress, and a new plan did not help",
    "successor_missing": "a promised todo does not exist",
    "capability_granted": "a granted capability is to be run",
    "ready": "a todo is ready",
    "goal_is_the_work": "the goal itself is the work",
    "ready_some_gated": "a todo is ready; others wait for answers",
    "monitor_due": "a probe is due",
    "blocked_with_wake": "every open todo waits for an instant",
    "blocked_without_wake": "every open todo is blocked",
    "nothing_left": "nothing is left to do",
}
"""The rule that decided whether a goal may run."""

EVENTS: Final[Mapping[str, str]] = {
    "goal_created": "goal created",
    "goal_edited": "goal edited",
    "goal_active": "goal resumed",
    "goal_paused": "goal paused",
    "goal_stopped": "goal stopped",
    "goal_completed": "goal completed",
    "goal_cancelled": "goal closed",
    "baseline_taken": "baseline taken",
    "turn_started": "turn started",
    "turn_resumed": "turn resumed",
    "turn_closed": "turn closed",
    "turn_stuck": "turn stuck",
    "host_ended": "agent ended",
    "quota_spent": "slot spent",
    "quota_voided": "spend taken off",
    "journal_blocked": "journal blocked",
    "files_restored": "files put back",
    "gate_asked": "question asked",
    "gate_answered": "question answered",
    "gate_expired": "question expired",
    "grant_added": "standing answer added",
    "grant_revoked": "standing answer revoked",
    "todo_added": "todo added",
    "todo_done": "todo done",
    "schedule_set": "schedule set",
    "schedule_applied": "schedule applied",
    "schedule_acked": "schedule acknowledged",
    "schedule_closed": "schedule closed",
    "schedule_reopened": "schedule reopened",
}
SCHEDULE_STATES: Final[Mapping[str, str]] = {
    "pending_apply": "not yet applied",
    "pending_ack": "not yet acknowledged by its owner",
    "in_force": "in force",
    "failed": "refused by its owner",
    "closed": "closed",
}
EVIDENCE_KINDS: Final[Mapping[str, str]] = {
    "check": "check",
    "diff": "change",
    "metric": "metric",
    "link": "link",
    "note": "note",
    "guard": "guard",
}
PRODUCERS: Final[Mapping[str, str]] = {"verified": "verified", "claimed": "the agent's word"}
WHERE: Final[Mapping[str, str]] = {
    "in place": "in place",
    "snapshot": "in a clean snapshot",
    "todo": "of the todo",
    "baseline": "before anything",
}
UNITS: Final[Mapping[str, str]] = {
    "turns": "turns",
    "launches": "launches",
    "input_tokens": "input tokens",
    "cached_tokens": "cached tokens",
    "output_tokens": "output tokens",
    "tokens": "tokens",
    "microusd": "dollars",
    "wall_ms": "agent time",
}
CONTRACT: Final[Mapping[str, str]] = {
    "green": "all checks green",
    "red": "checks red",
    "unknown": "not checked on this tree",
}
PERMISSIONS: Final[Mapping[str, str]] = {
    "read_only": "may only read",
    "workspace": "may write in its folder",
    "bypass": "may do anything",
}
MISSING_DIFF: Final[Mapping[str, str]] = {
    "tree_missing": "its trees were pruned",
    "project_missing": "the project's folder is gone",
}
FACTS: Final[Mapping[str, str]] = {
    "goal_state": "goal",
    "revision": "revision",
    "waiting_on": "waiting on",
    "health": "health",
    "contract": "contract",
    "compute": "compute",
    "spent_slots": "slots spent",
    "allowed_slots": "slots allowed",
    "window_hours": "window, hours",
    "slot_frees_at_ms": "a slot frees",
    "ready_todo": "ready todo",
    "ready_title": "its title",
    "ready_gated": "others gated",
    "open_todos": "open todos",
    "blocked_wake_at_ms": "a blocked todo wakes",
    "blocked_without_wake": "blocked without a wake",
    "missing_successors": "promised todos missing",
    "monitor_due": "probe due",
    "capability": "capability",
    "open_gates": "open questions",
    "wait": "wait",
    "wait_until_ms": "wait until",
    "breaker": "breaker",
    "floor_streak": "turns without an outcome",
    "floor_threshold": "held after",
    "floor_replan_tried": "new plan tried",
    "next_occurrence_ms": "next by schedule",
}
"""What a decision read, by the fact's name."""

MOVES: Final[Mapping[str, str]] = {
    "pause": "Paused. A running turn goes on to its end.",
    "resume": "Resumed.",
    "stop": "Stopped. A running agent is ended now.",
}
"""What a person's word to a goal did."""

HIDDEN_EVENTS: Final = ("phase_", "schedule_ack", "schedule_appl", "todo_claim")
"""Beginnings of kinds of events that a turn's own page shows better."""

TONES: Final[Mapping[str, str]] = {
    "validated_progress": "good",
    "validated_completion": "good",
    "repair_required": "good",
    "replan_required": "good",
    "user_action_required": "ask",
    "wait": "calm",
    "iteration_failed": "calm",
    "host_failure": "bad",
    "validation_failed": "bad",
    "writeback_failed": "bad",
    "quota_spend_failed": "bad",
    "terminal_closeout_failed": "bad",
    "green": "good",
    "red": "bad",
    "flaky": "bad",
    "refused": "bad",
    "starved": "ask",
    "not_evaluable": "ask",
    "disclosed": "ask",
    "done": "good",
    "completed": "good",
    "blocked": "bad",
    "claimed": "busy",
    "active": "busy",
    "paused": "ask",
    "stopped": "ask",
}
"""How a code is to be coloured: good, bad, ask, busy or calm. Colour never says anything that a word does not."""


def tone(code: str | None) -> str:
    """The tone of a code."""
    return TONES.get(str(code), "calm")


def amount(unit: str, number: int) -> str:
    """A metered amount in its own unit."""
    if unit == "microusd":
        return words.money(number)
    if unit == "wall_ms":
        return words.duration(number)
    return words.short_number(number)


def fact(name: str, value: object, now_ms: int) -> str:
    """A fact's value: instants as clock and distance, yes and no, the rest as it is."""
    if value is None:
        return translate("none")
    if isinstance(value, bool):
        return translate("yes") if value else translate("no")
    if name.endswith("_ms") and isinstance(value, int):
        return f"{words.clock(value, now_ms)} ({words.until(value, now_ms)})"
    return str(value)


STREAM_VERBS: Final[Mapping[str, str]] = {
    "message": "said",
    "tool_call": "ran",
    "file_change": "edited",
    "limit": "limit",
    "error": "error",
}
"""What an agent did, by the kind of a step."""
SHELLS: Final = frozenset({"exec_command", "shell", "Bash", "bash", "run_shell_command"})
"""Tools that run a command: its words say enough."""
PATCHES: Final = frozenset(
    {"apply_patch", "Edit", "MultiEdit", "Write", "NotebookEdit", "edit", "write", "patch", "replace", "write_file"}
)
"""Tools that edit files: the change that follows names them."""


def stream_shown(kind: str, tool: str | None, *, denied: bool) -> bool:
    """Whether a step is worth a line; an edit is told once, when it is done."""
    return denied or not (kind == "tool_call" and tool in PATCHES)


def stream_verb(kind: str, tool: str | None, *, denied: bool) -> str:
    """What a step of an agent's stream is, in a word."""
    return translate("was refused") if denied else words.word(STREAM_VERBS, kind)
