"""Enums, numbers and instants as words for people, each in one place: English here, other languages in catalogues.

Other code carries codes; only here do they become words. A code that is newer than this table is shown as it is,
because a wrong word is worse than a plain code. Nothing here decides anything or reads the store.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Final

from loopx.presentation.i18n import translate

SEP: Final = "  ·  "
DOT: Final = " · "

REASONS: Final[Mapping[str, str]] = {
    "replan_delta": "the plan was changed",
    "repair_green": "the repair's check is green",
    "goal_complete": "every check is green",
    "todo_complete": "the todo's work is accepted",
    "no_change_accepted": "no change was needed: the tree is untouched and green",
    "guard_refused": "the change touched what it may not touch; it was put back",
    "green_turned_red": "a check that was green is red now",
    "false_completion": "it claimed to be done, and the checks are red",
    "measured_progress": "fewer failures than before, none new",
    "surface_change": "files changed, and no check moved",
    "blocker": "it is blocked, and says why",
    "execution_failed": "the agent reported an error of its own",
    "nothing_delivered": "nothing changed",
    "host_failed": "the engine failed",
    "needs_person": "the engine needs a person",
    "budget_wait": "the engine's limit is reached",
    "budget_cap": "a budget is used up",
    "cancelled": "stopped by a person",
    "question": "it asks a person",
    "no_op": "no tool was used and nothing changed",
    "unproved_change": "the change is not proved by anything",
}
"""Why a turn has its result (`ResultRule`)."""

ENDS: Final[Mapping[str, str]] = {
    "success": "ended cleanly",
    "no_op": "ended without doing anything",
    "auth_failed": "not signed in",
    "rate_limited": "usage limit reached",
    "quota_exhausted": "usage limit reached",
    "provider_overloaded": "the provider is overloaded",
    "provider_capacity": "the provider has no capacity",
    "transport_lost": "the connection was lost",
    "executor_timeout": "ran out of time",
    "output_budget_exhausted": "its output budget is used up",
    "session_missing": "its session is gone",
    "contract_rejected": "its result was not usable",
    "permission_denied": "a permission was refused",
    "not_started": "could not be started",
    "cancelled": "stopped",
    "worker_error": "it reported an error",
    "unknown": "it ended for an unknown reason",
}
"""How a host's run ended (`HostEndKind`)."""

RUN_ENDS: Final[Mapping[str, str]] = {
    "turn_limit": "this run's turns are used up",
    "time_limit": "this run's time is used up",
    "cancelled": "stopped",
    "stopped": "stopped",
    "terminal": "nothing is left, and every check is green",
    "paused": "the goal is paused",
    "throttled_skip": "throttled",
    "external_evidence_wait": "waiting for something outside",
    "blocked_wait": "every open todo waits",
    "monitor_due": "a monitor is due",
    "terminal_no_followup": "nothing is left",
    "slots_taken": "the slots are taken by open turns",
    "budget_taken": "a budget is used up",
    "user_action": "a person is needed",
    "sign_in": "a sign-in is needed",
}
"""Why a run ended."""

NOT_TO_BE_HAD: Final[Mapping[str, str]] = {
    "engine_missing": "is not installed",
    "engine_broken": "does not run here",
    "engine_not_external": "is no program of its own",
    "limited": "is at its usage limit",
    **ENDS,
}
"""Why an engine that was asked for could not be had."""

GATE_KINDS: Final[Mapping[str, str]] = {
    "question": "asks",
    "sign_in": "needs a sign-in",
    "configuration": "needs its setup mended",
    "blocker": "is blocked",
    "budget": "a budget is used up",
    "capability": "asks for a capability",
    "replan_preview": "proposes another plan",
    "breaker": "makes no progress",
}
QUESTIONS: Final[Mapping[str, str]] = {
    "no_progress": "No progress, and a new plan did not help. Go on all the same?",
    "blocked_todo": "A todo is blocked, and a new plan did not free it. Try it again?",
}
"""Questions that LoopX itself asks, by their code."""

STATES: Final[Mapping[str, str]] = {
    "active": "active",
    "paused": "paused",
    "stopped": "stopped",
    "completed": "done",
    "cancelled": "closed",
}
TODO_STATUSES: Final[Mapping[str, str]] = {
    "open": "open",
    "claimed": "claimed",
    "done": "done",
    "blocked": "blocked",
    "deferred": "deferred",
    "superseded": "dropped",
}
VERDICTS: Final[Mapping[str, str]] = {
    "green": "green",
    "red": "red",
    "flaky": "flaky",
    "starved": "ran out of the run's time",
    "not_evaluable": "could not run",
}
CHECK_REASONS: Final[Mapping[str, str]] = {
    "exit_code": "",
    "killed_by_signal": "killed by a signal",
    "timeout": "took too long",
    "text_absent": "the expected text is absent",
    "output_not_json": "its output is not JSON",
    "pointer_absent": "the JSON has no such value",
    "value_differs": "another value than expected",
    "output_too_large": "too much output",
    "differs_from_capture": "differs from the baseline",
    "no_number": "printed no number",
    "capture_missing": "its baseline is missing",
    "program_missing": "its program is missing",
    "not_executable": "its program is not executable",
    "cannot_start": "could not be started",
    "session_clock": "the run's time is up",
    "cancelled": "stopped",
    "flipped": "red, then green on the same tree",
}
FINDINGS: Final[Mapping[str, str]] = {
    "test_added": "test added",
    "test_deleted": "test deleted",
    "test_edited": "test edited",
    "test_skipped": "test skipped",
    "xfail_added": "test marked as expected to fail",
    "fewer_collected": "fewer tests collected",
    "tests_replaced": "tests replaced",
    "test_masked": "test masked",
    "check_script_changed": "a check's script changed",
    "runner_config_changed": "the test runner's settings changed",
    "runner_config_added": "test runner's settings added",
    "ci_changed": "CI changed",
    "ci_added": "CI added",
    "lock_changed": "a lock file changed",
    "protected_changed": "a protected file changed",
    "protected_added": "a protected file added",
    "program_shadowed": "a check's program is shadowed",
    "program_changed": "a check's program changed",
    "startup_hook_added": "a start-up hook added",
    "startup_hook_changed": "a start-up hook changed",
    "out_of_scope": "outside the write scope",
    "check_definition_changed": "a check's definition changed",
    "clock_or_network_faked": "clock or network faked",
    "report_lost": "the test report is gone",
    "runner_disarmed": "the test runner can fail no more",
    "checks_rewritten": "a check's code was changed while it ran",
    "link_out_of_tree": "a link leads out of the tree",
    "git_rules_changed": "git's own rules changed",
    "user_head_moved": "your HEAD moved",
    "user_branch_moved": "another branch is checked out",
    "user_index_moved": "your index changed",
    "goal_branch_moved": "somebody moved the goal's branch",
    "second_run_incomplete": "the run without these changes did not finish",
    "identical_actions": "the same action again and again",
    "turn_budget": "the turn's budget was used up",
    "host_degraded": "the engine did nothing twice in a row",
}
PHASES: Final[Mapping[str, str]] = {
    "start": "it started",
    "host_execute": "the agent's work",
    "typed_result": "its result",
    "validation": "validation",
    "durable_writeback": "the writeback",
    "quota_spend": "the spend",
    "scheduler_apply": "scheduling",
    "scheduler_ack": "scheduling",
}
NEXT_STEP: Final[Mapping[str, str]] = {
    "start": "finding its agent again",
    "host_execute": "judging its work now (agent not run again)",
    "typed_result": "validating it now (agent not run again)",
    "validation": "writing it back now (agent not run again)",
    "durable_writeback": "spending now (agent not run again, nothing written again)",
    "quota_spend": "scheduling it now (agent not run again, nothing spent again)",
    "scheduler_apply": "acknowledging it now (agent not run again, nothing spent again)",
    "scheduler_ack": "closing it now (agent not run again, nothing spent again)",
}
"""What a resumed turn does, by the last phase that was committed."""

SIGNED_IN: Final[Mapping[str, str]] = {"yes": "signed in", "no": "not signed in", "unknown": "sign-in unknown"}


def word(table: Mapping[str, str], code: str | None) -> str:
    """The words of a code in the reader's language, or the code itself."""
    return translate(table.get(str(code), str(code))) if code is not None else ""


def count(number: int, one: str, many: str | None = None) -> str:
    """`1 turn`, `3 turns`."""
    return f"{number} {translate(one if number == 1 else many or one + 's')}"


def duration(ms: int) -> str:
    """A duration as short as it reads well: `0.4s`, `12s`, `4m12s`, `2h05m`, `3d 4h`."""
    if ms < 10_000:
        return f"{ms / 1000:.1f}s"
    seconds = ms // 1000
    if seconds < 60:
        return f"{seconds}s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes:02d}m"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours}h"


def span(ms: int) -> str:
    """A span of time in round words: `6 s`, `12 m`, `1 h 12 m`, `3 d`."""
    seconds = max(0, ms) // 1000
    if seconds < 60:
        return f"{seconds} s"
    minutes = seconds // 60
    if minutes < 60:
        return f"{minutes} m"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} m" if minutes else f"{hours} h"
    return f"{hours // 24} d"


def until(at_ms: int, now_ms: int) -> str:
    """`in 9 h`, or `now`."""
    return translate("in {span}").format(span=span(at_ms - now_ms)) if at_ms > now_ms else translate("now")


def ago(at_ms: int, now_ms: int) -> str:
    """`14 s ago`."""
    return translate("{span} ago").format(span=span(now_ms - at_ms))


def clock(at_ms: int, now_ms: int | None = None) -> str:
    """An instant on this machine's clock: `17:40` today, `Tue 17:40` within a week, else `2026-11-03 17:40`."""
    at = datetime.datetime.fromtimestamp(at_ms / 1000).astimezone()
    if now_ms is None:
        return at.strftime("%Y-%m-%d %H:%M")
    now = datetime.datetime.fromtimestamp(now_ms / 1000).astimezone()
    if at.date() == now.date():
        return at.strftime("%H:%M")
    near = abs((at.date() - now.date()).days) < 7
    return at.strftime("%a %H:%M") if near else at.strftime("%Y-%m-%d %H:%M")


def tokens(number: int | None) -> str:
    """`182k tokens`; nothing for unknown."""
    return f"{short_number(number)} {translate('tokens')}" if number is not None else ""


def short_number(number: int) -> str:
    """`950`, `182k`, `2.1M`."""
    if number < 1_000:
        return str(number)
    if number < 999_500:
        return f"{number / 1_000:.0f}k" if number >= 9_950 else f"{number / 1_000:.1f}".removesuffix(".0") + "k"
    return f"{number / 1_000_000:.1f}".removesuffix(".0") + "M"


def money(microusd: int | None) -> str:
    """`$0.40`; nothing for unknown, and small amounts in full."""
    if microusd is None:
        return ""
    if 0 < microusd < 10_000:
        return f"${microusd / 1_000_000:.4f}"
    return f"${microusd / 1_000_000:,.2f}"


def slots(number: int) -> str:
    """`1 slot`, or that nothing was spent."""
    return count(number, "slot") if number else translate("nothing spent")


def joined(parts: Sequence[str], separator: str = DOT) -> str:
    """The parts that say something, in one line."""
    return separator.join(part for part in parts if part)


def one_line(text: str, width: int) -> str:
    """Untrusted text on one line, without control characters, cut at a width."""
    flat = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return flat if len(flat) <= width else flat[: max(1, width - 1)] + "…"


def command(words: Sequence[str]) -> str:
    """A command as a person may paste it into a shell."""
    import shlex

    return shlex.join(words)
