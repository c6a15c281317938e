"""The one screen: what needs you, what runs, what waits until when, what was done since you looked.

Each line has its goal, its reason and the exact next command; nothing is said twice. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loopx.presentation.renderers import words
from loopx.presentation.renderers.paint import Paint
from loopx.presentation.renderers.quota_markdown import budget_text, row, spike_text
from loopx.runtime.glance import GateLine, GoalLine, Overview, RunningTurn, Section
from loopx.runtime.space import FLOOR_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopx.status import GoalDetail, RecentTurn

NAME = 24
COMMAND_COLUMN = 84
_DOING = {
    "message": "says",
    "tool_call": "runs",
    "file_change": "edits",
    "limit": "limit",
    "error": "error",
    "reasoning": "thinks",
}


def overview_text(seen: Overview, paint: Paint) -> str:
    """`loopx status`."""
    if not seen.goals and not seen.counts:
        return '  no goal yet        loopx run "OBJECTIVE" --check "CMD" --engine ENGINE'
    lines: list[str] = []
    if seen.free_bytes_low is not None:
        room = f"{seen.free_bytes_low >> 20} MiB"
        lines.append(f"  {paint.yellow(f'only {room} are free here; nothing is launched below {FLOOR_BYTES >> 20}')}")
    cap = seen.machine_cap
    if cap is not None and cap.used >= cap.limit:
        frees = f"; one frees at {words.clock(cap.frees_at_ms, seen.now_ms)}" if cap.frees_at_ms is not None else ""
        lines.append(f"  {paint.yellow(f'{cap.used} of {cap.limit} launches of this machine are used{frees}')}")
    width = min(NAME, max((len(line.goal_id) for line in seen.goals), default=0) + 2)
    said: set[str] = set()
    for section, title in _titles(seen):
        shown = [line for line in seen.goals if line.section is section]
        if shown:
            lines.append(f"  {paint.bold(title)}")
            lines += [_line(line, seen.now_ms, width, said, paint) for line in shown]
    lines += _rest(seen)
    return "\n".join(lines)


def _titles(seen: Overview) -> tuple[tuple[Section, str], ...]:
    return (
        (Section.NEEDS_YOU, "needs you"),
        (Section.RUNNING, "running"),
        (Section.WAITING, "waiting"),
        (Section.SINCE, f"since {words.clock(seen.since_ms, seen.now_ms)}"),
    )


def _rest(seen: Overview) -> list[str]:
    """What the screen does not show, in one line."""
    shown = sum(1 for line in seen.goals if line.goal_state in ("active", "paused"))
    more = seen.counts.get("active", 0) + seen.counts.get("paused", 0) - shown
    if more > 0:
        return [f"  and {words.count(more, 'more open goal')}        loopx goal list"]
    return [] if seen.goals else ["  nothing is open        loopx goal list"]


def _line(line: GoalLine, now_ms: int, width: int, said: set[str], paint: Paint) -> str:
    text, command = _words(line, now_ms)
    # A sentence that several goals share is said once; below it, each has only its command.
    shown = "the same" if text in said and len(text) > 24 else text
    said.add(text)
    mark = "" if line.section is not Section.SINCE else f"{_mark(line, paint)} "
    head = f"    {mark}{line.goal_id:<{width}}{shown}"
    return f"{head}{' ' * max(3, COMMAND_COLUMN - Paint.width(head))}{paint.dim(command)}" if command else head


def _mark(line: GoalLine, paint: Paint) -> str:
    return paint.green("✓") if line.goal_state == "completed" else paint.red("✗")


def _words(line: GoalLine, now_ms: int) -> tuple[str, str]:
    """A goal's sentence and its next command."""
    if line.section is Section.SINCE:
        return _ended(line)
    if line.section is Section.RUNNING and line.turn is not None:
        return _running(line, line.turn, now_ms), ""
    if line.section is Section.NEEDS_YOU:
        return _needs(line)
    return _waiting(line, now_ms)


def _needs(line: GoalLine) -> tuple[str, str]:
    command = words.command(line.next_command)
    turn = line.turn
    if line.gates:
        return _question(line.gates), gate_command(line.gates[0])
    if turn is not None and turn.violation is not None:
        return f"the journal of turn {turn.number} contradicts itself ({turn.violation})", command
    if turn is not None and not turn.driven and line.state != "blocked_health":
        return interrupted(turn), command
    return line.reason, command


def _question(gates: Sequence[GateLine]) -> str:
    gate = gates[0]
    question = words.one_line(words.QUESTIONS.get(gate.question, gate.question), 64)
    blocks = "blocks the goal" if gate.blocks_goal else f"blocks {words.count(gate.blocks_todos, 'todo')}"
    more = f"  and {len(gates) - 1} more" if len(gates) > 1 else ""
    return f'"{question}"  {blocks}{more}'


def gate_command(gate: GateLine) -> str:
    """The command that answers a question, its choices side by side."""
    if gate.fix:
        return gate.fix
    answers = "|".join(gate.options) if gate.options else "ANSWER"
    return f"loopx gate answer {gate.gate_id} {answers}"


def interrupted(turn: RunningTurn) -> str:
    """A turn that nobody drives any more."""
    if turn.failed_phase is not None:
        return f"turn {turn.number} is stuck at {words.word(words.PHASES, turn.failed_phase)}"
    after = tuple(words.PHASES)[turn.completed]
    return f"turn {turn.number} was interrupted after {words.word(words.PHASES, after)}"


def _running(line: GoalLine, turn: RunningTurn, now_ms: int) -> str:
    doing = ""
    if turn.doing is not None:
        verb = _DOING.get(turn.doing, turn.doing)
        doing = f"{verb} {words.one_line(turn.doing_text, 40)}".strip()
    moved = words.ago(turn.last_event_ms, now_ms) if turn.last_event_ms is not None else "nothing heard yet"
    used = ""
    if line.tokens is not None:
        limit = f" of {words.short_number(line.token_limit)}" if line.token_limit is not None else ""
        used = f"{words.short_number(line.tokens)}{limit} tokens"
    bypass = "permission bypass" if line.permission_bypass else ""
    ends = f"budget ends about {words.clock(line.exhausts_at_ms, now_ms)}" if line.exhausts_at_ms is not None else ""
    spike = "UNUSUAL USE" if line.spike is not None else ""
    return words.joined(
        [f"turn {turn.number}", words.one_line(turn.engine, 24), doing, moved, used, ends, spike, bypass]
    )


def _waiting(line: GoalLine, now_ms: int) -> tuple[str, str]:
    command = words.command(line.next_command)
    pending = "; its cadence is not acknowledged" if line.schedule_pending else ""
    pending += "; its last run was unusual" if line.spike is not None else ""
    if line.goal_state == "paused":
        return "paused", command
    if line.should_run and line.wake_at_ms is not None and line.wake_at_ms > now_ms:
        zone = f" {line.zone}" if line.zone else ""
        return (
            f"next {words.clock(line.wake_at_ms, now_ms)}{zone} ({words.until(line.wake_at_ms, now_ms)}){pending}",
            "",
        )
    if line.should_run:
        return f"ready; nothing runs it{pending}", command
    if line.rule == "window_used_up":
        return _throttled(line, now_ms) + pending, command
    wake = f"; looked at again {words.clock(line.wake_at_ms, now_ms)}" if line.wake_at_ms is not None else ""
    return f"{line.reason}{wake}{pending}", command


def _throttled(line: GoalLine, now_ms: int) -> str:
    if line.spent_slots < line.allowed_slots:
        what = line.reason
    else:
        what = f"throttled: {line.spent_slots} of {line.allowed_slots} slots"
    if line.wake_at_ms is None:
        return what
    return f"{what}; a slot frees at {words.clock(line.wake_at_ms, now_ms)}"


def _ended(line: GoalLine) -> tuple[str, str]:
    end = line.end
    if end is None:
        return words.word(words.STATES, line.goal_state), ""
    cost = [words.money(end.cost_microusd) or words.tokens(end.tokens)]
    if line.goal_state == "completed":
        return words.joined([f"done in {words.count(end.turns, 'turn')}", *cost]), ""
    why = f": {words.word(words.RUN_ENDS, end.reason)}" if end.reason else ""
    state = words.word(words.STATES, line.goal_state)
    return words.joined([f"{state}{why}", *cost]), f"loopx why {line.goal_id}"


def detail_text(goal: GoalDetail, now_ms: int, paint: Paint) -> str:
    """`loopx status GOAL`."""
    (line,) = goal.goals
    text, command = _words(line, now_ms)
    state = words.word(words.STATES, line.goal_state)
    lines = [f"  {paint.bold(goal.goal_id)}   {state}   {text}", row("wants", words.one_line(goal.objective, 96))]
    if command:
        lines.append(row("next", command))
    lines += _listed("checks", (_check(one.name, one.verdict, one.failed, one.total, paint) for one in goal.checks))
    lines += _listed("todos", (f"{one.status:<9} {one.todo_id}  {words.one_line(one.title, 70)}" for one in goal.todos))
    counts = words.joined(
        [f"{number} {words.word(words.TODO_STATUSES, name)}" for name, number in goal.todo_counts.items()]
    )
    if counts:
        lines.append(row("" if goal.todos else "todos", counts))
    lines += _listed("turns", (_recent(one) for one in goal.turns))
    lines.append(row("slots", f"{line.spent_slots} of {line.allowed_slots} in this window · {goal.total_slots} in all"))
    used = words.joined([words.tokens(line.tokens), words.money(goal.cost_microusd)])
    if used:
        lines.append(row("used", used))
    lines += _listed("budget", (budget_text(one, now_ms) for one in goal.budgets))
    lines += _listed("unusual", (spike_text(one) for one in goal.spikes))
    bypass = " · permission bypass" if line.permission_bypass else ""
    lines.append(
        row("engines", f"{', '.join(words.one_line(engine, 60) for engine in goal.engines) or 'none'}{bypass}")
    )
    if goal.branch is not None:
        lines.append(row("branch", goal.branch))
    return "\n".join(lines)


def _recent(turn: RecentTurn) -> str:
    why = words.word(words.REASONS, turn.reason) if turn.reason else ""
    return f"{turn.number:>3}  {turn.result_kind or 'open':<22} {why}".rstrip()


def _listed(label: str, texts: Iterable[str]) -> list[str]:
    return [row(label if number == 0 else "", text) for number, text in enumerate(texts)]


def _check(name: str, verdict: str, failed: int | None, total: int | None, paint: Paint) -> str:
    mark = paint.green("✓") if verdict == "green" else paint.red("✗")
    parts = f"  {failed} of {total} failing" if failed is not None and total else ""
    return f"{mark} {words.word(words.VERDICTS, verdict):<6} {words.one_line(name, 60)}{parts}"
