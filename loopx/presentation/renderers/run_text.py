"""The blocks of a run as text: goal, baseline, turn, wait, end. Pure functions from typed events to lines.

Dense and honest: a line says what happened, what it cost, and what comes next, or it is not printed.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

import msgspec

from loopx.presentation.renderers import words
from loopx.presentation.renderers.paint import Paint
from loopx.runtime.progress import (
    BaselineTaken,
    CheckSummary,
    GoalOpened,
    RunEnded,
    TurnEnded,
    TurnOpened,
    Waiting,
)

INDENT = " " * 10
COLUMN = 64
PHASES = 7
MOST_CHECKS = 6
_QUIET_KINDS = frozenset({"validated_progress", "validated_completion", "repair_required", "replan_required"})


class Doing(msgspec.Struct, kw_only=True):
    """What the stream showed of the turn that runs: counted, because the words of an agent are no measure."""

    edited: set[str] = msgspec.field(default_factory=set)
    commands: int = 0
    said: str = ""


def engine_label(word: str) -> str:
    """An engine as people know it: a CLI's name, or the script that a command runs."""
    kind, _, rest = word.partition(":")
    if kind == "command":
        try:
            argv = shlex.split(rest)
        except ValueError:
            return words.one_line(rest, 24)
        scripts = [part for part in argv[1:] if not part.startswith("-") and ("/" in part or "." in part)]
        return os.path.basename((scripts or argv or [rest])[0])
    return rest if kind == "external" else word


def columns(left: str, right: str, at: int = COLUMN) -> str:
    """Two parts of a line; the right one never runs into the left one."""
    return f"{left}{' ' * max(3, at - Paint.width(left))}{right}" if right else left


def bar(completed: int) -> str:
    """The seven phases, those that are committed filled."""
    return "▰" * completed + "▱" * (PHASES - completed)


def instead_line(event: TurnOpened) -> str:
    """Another engine than the asked one takes over; that is never silent."""
    return f"  {engine_label(event.asked)} is not to be had; {engine_label(event.engine)} works instead"


def goal_lines(event: GoalOpened, paint: Paint, *, defaults: bool) -> list[str]:
    """What this run is about, and what bounds it."""
    version = f" {event.engine_version}" if event.engine_version not in (None, "unknown") else ""
    engine = engine_label(event.engine)
    known = not event.engine.startswith("command:")
    signed = f" ({words.word(words.SIGNED_IN, event.signed_in)})" if known else ""
    turns = words.count(event.max_turns, "turn") if event.max_turns else "unlimited turns"
    time = words.span(event.max_minutes * 60_000) if event.max_minutes else "unlimited time"
    bounds = f"this run: {turns}, {time}{' (defaults)' if defaults else ''}"
    instead = f" instead of {engine_label(event.asked)}" if event.asked not in ("", event.engine) else ""
    parts = [
        paint.bold(event.goal_id),
        words.count(event.checks, "check"),
        f"{engine}{version}{signed}{instead}",
        f"model {event.model}" if event.model else "",
        paint.yellow("permission bypass") if event.permission == "bypass" else "",
        bounds,
    ]
    return [f"  goal  {words.joined(parts, words.SEP)}"]


def baseline_lines(event: BaselineTaken, paint: Paint) -> list[str]:
    """The contract on the untouched tree, and whether it gates anything."""
    note = "all green already: this contract gates nothing" if event.gates_nothing else "the contract gates something"
    lines = []
    for number, check in enumerate(event.checks):
        left = f"  baseline  {check.name}  {verdict(check, paint)}  {numbers(check)}".rstrip()
        lines.append(columns(left, note if number == 0 else ""))
    if event.not_snapshotable:
        lines.append(f"{INDENT}  a clean snapshot judges otherwise here, so completions are confirmed in place")
    return [*lines, ""]


def verdict(check: CheckSummary, paint: Paint) -> str:
    """`✓ green`, `✗ red`, or why there is no verdict."""
    text = words.word(words.VERDICTS, check.verdict)
    if check.verdict == "green":
        return paint.green(f"✓ {text}")
    return paint.red(f"✗ {text}") if check.verdict in ("red", "flaky") else paint.yellow(f"? {text}")


def numbers(check: CheckSummary, before: int | None = None) -> str:
    """`1 of 41 failing (was 3)`, `41 of 41`, or the reason."""
    if check.total is None or check.failed is None:
        return words.word(words.CHECK_REASONS, check.reason)
    if check.verdict == "green":
        return f"{check.total - check.failed} of {check.total}"
    was = f" (was {before})" if before is not None and before != check.failed else ""
    why = words.word(words.CHECK_REASONS, check.reason)
    return f"{check.failed} of {check.total} failing{was}{f', {why}' if why else ''}"


def resumed_line(event: TurnOpened) -> str:
    """What was found of an interrupted turn, and what is done with it."""
    after = str(event.resumed_after)
    step = words.word(words.NEXT_STEP, after)
    when = "before its agent was done" if after == "start" else f"after {after}"
    return f"  turn {event.number} was interrupted {when}; {step}"


def turn_lines(
    event: TurnEnded, engine: str, doing: Doing, completed: int, before: Mapping[str, int], paint: Paint
) -> list[str]:
    """What one turn did, how it was judged, what it cost, and what was kept of it."""
    head = (
        f"  turn {event.number}  {bar(completed)}  {words.duration(event.wall_ms)}  {_did(event, engine, doing, paint)}"
    )
    price = words.joined(
        [_kind(event, paint), words.slots(event.slots), words.tokens(event.tokens), words.money(event.cost_microusd)]
    )
    lines = [head, *_check_lines(event, price, before, paint)]
    lines += [f"{INDENT}{line}" for line in _notes(event, engine)]
    return lines


def _did(event: TurnEnded, engine: str, doing: Doing, paint: Paint) -> str:
    label = engine_label(engine)
    if event.failure and event.result_kind in ("wait", "host_failure", "user_action_required"):
        said = f": {words.one_line(event.message, 80)}" if event.message else ""
        return f"{label}: {words.word(words.ENDS, event.failure)}{said}"
    counted = words.joined(
        [
            f"edited {words.count(len(doing.edited), 'file')}" if doing.edited else "",
            f"ran {words.count(doing.commands, 'command')}" if doing.commands else "",
        ],
        ", ",
    )
    claims = event.reason in ("false_completion", "no_op", "nothing_delivered", "guard_refused")
    if event.message and (claims or not counted):
        return f'{label} said: "{words.one_line(event.message, 72)}"'
    return f"{label}: {counted}" if counted else label


def _kind(event: TurnEnded, paint: Paint) -> str:
    if event.result_kind in _QUIET_KINDS:
        return event.result_kind
    return paint.yellow(event.result_kind)


def _check_lines(event: TurnEnded, price: str, before: Mapping[str, int], paint: Paint) -> list[str]:
    checks = list(event.checks)
    if not checks:
        return [f"{INDENT}{price}"]
    shown = _telling(checks)
    several = len(checks) > 1
    lines = []
    for number, check in enumerate(shown):
        name = f"{words.one_line(check.name, 40)} " if several else ""
        again = ", again in a clean snapshot" if event.confirmed_in_snapshot and number == len(shown) - 1 else ""
        left = f"{INDENT}check {name}{verdict(check, paint)}  {numbers(check, before.get(check.name))}{again}".rstrip()
        lines.append(columns(left, price if number == 0 else ""))
    hidden = len(checks) - len(shown)
    if hidden:
        lines.append(f"{INDENT}and {hidden} more green")
    return lines


def _telling(checks: Sequence[CheckSummary]) -> list[CheckSummary]:
    if len(checks) <= MOST_CHECKS:
        return list(checks)
    return [check for check in checks if check.verdict != "green"][:MOST_CHECKS] or [checks[0]]


def _notes(event: TurnEnded, engine: str) -> list[str]:
    notes = []
    if event.result_kind not in ("validated_progress", "validated_completion") and event.reason:
        notes.append(words.word(words.REASONS, event.reason))
    if event.recurring:
        notes.append(f"the same failure as before; {engine_label(engine)} is told")
    if event.restored:
        names = words.one_line(", ".join(event.restored), 160)
        notes.append(f"put back: {names}   (the agent's copy is kept as evidence)")
    notes += _finding_notes(event)
    if event.checkpoint:
        notes.append(f"checkpoint {event.checkpoint[:6]} on loopx/{event.goal_id}")
    if event.continuation == "no_followup":
        notes.append("no follow-up")
    if event.failed_phase and event.slots:
        notes.append(f"stuck at {words.word(words.PHASES, event.failed_phase)}; a re-run goes on from there")
    return notes


def _finding_notes(event: TurnEnded) -> list[str]:
    """What the guard discloses: refused findings are told by what was put back."""
    told = []
    for finding in event.findings:
        code, _, path = finding.partition(" ")
        if not code.endswith(":refused"):
            told.append(words.one_line(f"{words.word(words.FINDINGS, code)}{f': {path}' if path else ''}", 100))
    return [f"disclosed: {', '.join(told[:4])}{' …' if len(told) > 4 else ''}"] if told else []


def waiting_lines(event: Waiting, now_ms: int, others: str) -> list[str]:
    """Why the run sleeps, until when, and what would go on instead."""
    if event.until_ms is None:
        when = "until something changes"
    else:
        when = f"wakes {words.clock(event.until_ms, now_ms)} ({words.until(event.until_ms, now_ms)})"
    return [f"{INDENT}{words.joined([_waiting_for(event), when, others])}"]


def other_engines(goal_id: str, found: Sequence[str], allowed: Sequence[str]) -> str:
    """Which other engines are here, and whether the goal may use them."""
    if not found and not allowed:
        return ""
    named = dict.fromkeys([*map(engine_label, allowed), *found])
    if allowed:
        return f"other engines: {', '.join(named)} (allowed: {', '.join(map(engine_label, allowed))})"
    return f"other engines: {', '.join(named)} (allowed: no; loopx goal edit {goal_id} --fallback {found[0]})"


def _waiting_for(event: Waiting) -> str:
    kind, _, detail = event.reason.partition(": ")
    if kind == "limit":
        return "waiting, not counted as an attempt"
    if kind == "backoff":
        return f"waiting before it is tried again ({words.word(words.ENDS, detail)})"
    return f"waiting: {event.reason}"


_HEADS = {0: "done", 10: "waiting", 11: "needs you", 12: "limit", 13: "engine", 14: "red", 130: "stopped"}


def end_lines(event: RunEnded, paint: Paint) -> list[str]:
    """What the run came to: its totals, where the work is, and the next step."""
    head = _HEADS.get(event.exit_code, "ended")
    painted = paint.green(head) if event.exit_code == 0 else paint.yellow(head)
    lead = f"  {painted}{' ' * max(2, 8 - len(head))}"
    under = " " * Paint.width(lead)
    totals = words.joined(
        [
            words.count(event.total_turns, "turn"),
            words.count(event.spent_slots, "slot"),
            words.tokens(event.tokens),
            words.money(event.cost_microusd),
            words.duration(event.wall_ms),
        ]
    )
    where = f"in your tree and on {event.branch}" if event.branch else ""
    if event.exit_code == 0:
        return ["", columns(f"{lead}{totals}", words.joined([where, f"loopx report {event.goal_id}"], "     "), 44)]
    why = _why(event)
    lines = ["", f"{lead}{why}" if why else f"{lead}{totals}"]
    if why:
        lines.append(columns(f"{under}{totals}", where, 44))
    return [*lines, *(f"{under}{line}" for line in _next_steps(event))]


def _why(event: RunEnded) -> str:
    code, _, detail = event.reason.partition(":")
    if code == "engine_failed":
        return f"the engine failed: {words.word(words.ENDS, detail)}"
    if code in ("engine_missing", "engine_broken"):
        return f"the engine {words.word(words.NOT_TO_BE_HAD, code)}"
    if code == "settlement_stuck":
        return f"the work is proved, and {words.word(words.PHASES, detail)} could not be committed"
    if event.question:
        return f'"{words.one_line(words.word(words.QUESTIONS, event.question), 100)}"'
    return words.word(words.RUN_ENDS, event.reason)


def _next_steps(event: RunEnded) -> list[str]:
    code, _, detail = event.reason.partition(":")
    steps = []
    if event.goal_state in ("paused", "stopped"):
        steps.append(f"loopx goal resume {event.goal_id}   then  loopx run {event.goal_id}")
    elif event.gate_id and event.fix:
        steps.append(f"mend it: {event.fix}   then  loopx run {event.goal_id}")
    elif event.gate_id:
        steps.append(f"loopx gate answer {event.gate_id} ANSWER   then  loopx run {event.goal_id}")
    elif code in ("engine_missing", "engine_broken") and detail:
        steps.append(f"mend it: {detail}")
    elif event.next_command and event.exit_code in (10, 11, 12) and event.reason not in ("turn_limit", "time_limit"):
        steps.append(words.command(event.next_command))
    else:
        steps.append(f"goes on with  loopx run {event.goal_id}")
    red = [check.name for check in event.checks if check.verdict != "green"]
    if red and event.exit_code not in (0, 11):
        steps.insert(0, f"still red: {', '.join(red[:4])}{' …' if len(red) > 4 else ''}")
    return steps
