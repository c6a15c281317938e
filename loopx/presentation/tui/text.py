"""The live terminal view's panels as styled text, from typed views. Strangers' words are plain text, never markup."""

from __future__ import annotations

from rich.text import Text

from loopx.presentation import untrusted
from loopx.presentation.i18n import translate
from loopx.presentation.renderers import page_words, words
from loopx.presentation.renderers.run_text import engine_label
from loopx.runtime.agent_stream import StreamLine
from loopx.runtime.glance import GoalLine, Section
from loopx.runtime.progress import CheckSummary
from loopx.runtime.turn_views import TurnLine
from loopx.runtime.views import GoalView

STYLES = {"good": "green", "bad": "red", "ask": "yellow", "busy": "cyan", "calm": "dim"}
SECTIONS = {
    Section.NEEDS_YOU: ("?", "ask"),
    Section.RUNNING: ("▶", "busy"),
    Section.WAITING: ("◷", "calm"),
    Section.SINCE: ("✓", "good"),
}
TURNS = 8
WIDE = 27
"""Columns of a line in the list of goals."""


def tone(code: str | None) -> str:
    """The style of a code."""
    return STYLES[page_words.tone(code)]


def goal_label(line: GoalLine) -> Text:
    """One goal in the list: what it is doing, in a sign and a few words."""
    sign, kind = SECTIONS[line.section]
    if line.section is Section.SINCE and line.goal_state != "completed":
        sign, kind = "✗", "bad"
    if line.goal_state == "paused":
        sign = "‖"
    text = Text.assemble((f"{sign} ", STYLES[kind]), (line.goal_id, "bold"), no_wrap=True, overflow="ellipsis")
    text.append(f"\n  {_where(line)}", "dim")
    return text


def _where(line: GoalLine) -> str:
    if line.gates:
        return untrusted.one_line(words.word(words.QUESTIONS, line.gates[0].question), WIDE)
    if line.turn is not None:
        return f"{translate('turn')} {line.turn.number} {engine_label(line.turn.engine)}"
    if line.goal_state != "active":
        return words.word(words.STATES, line.goal_state)
    return words.word(page_words.QUOTA_STATES, line.state)


def bar(turn: TurnLine) -> Text:
    """The seven phases."""
    done = STYLES["good"] if turn.slots or turn.open else "dim"
    text = Text("▰" * turn.completed, STYLES["busy"] if turn.open else done)
    if turn.failed_phase is not None:
        text.append("✗", STYLES["bad"])
    rest = 7 - turn.completed - (1 if turn.failed_phase is not None else 0)
    return text.append("▱" * max(0, rest), "dim")


def check(one: CheckSummary) -> Text:
    """One check with its numbers."""
    sign = "✓" if one.verdict == "green" else "✗" if one.verdict in ("red", "flaky") else "?"
    numbers = ""
    if one.failed is not None and one.total is not None:
        failing = translate("{failed} of {total} failing").format(failed=one.failed, total=one.total)
        numbers = f"{one.total} {translate('of')} {one.total}" if one.verdict == "green" else failing
    return Text.assemble((f"{sign} ", tone(one.verdict)), untrusted.one_line(one.name, 50), (f"  {numbers}", "dim"))


def head(view: GoalView) -> Text:
    """What the goal is, and what is known of its checks."""
    goal = view.goal
    state = words.word(words.STATES, goal.state)
    contract = words.word(page_words.CONTRACT, view.contract)
    text = Text.assemble((goal.goal_id, "bold"), "  ", (state, tone(goal.state)), "  ", (contract, tone(view.contract)))
    text.append(f"\n{untrusted.one_line(goal.definition.objective, 300)}")
    return text


def now(view: GoalView) -> Text:
    """The turn that runs, or why none does."""
    if view.running is None:
        return Text.assemble(
            (words.word(page_words.QUOTA_STATES, view.decision.state), "bold"),
            "  ",
            words.word(page_words.RULES, view.decision.rule),
            (f"  {untrusted.one_line(view.decision.reason, 120)}", "dim"),
            (f"\n{words.command(view.decision.next_command)}" if view.decision.next_command else "", "cyan"),
        )
    turn = view.running.turn
    text = Text.assemble((f"{translate('turn')} {turn.number}  ", "bold"), bar(turn), f"  {engine_label(turn.engine)}")
    moved = words.ago(view.running.moved_at_ms, view.now_ms)
    return text.append(f"  {words.span(turn.wall_ms)}  ·  {translate('last moved')} {moved}", "dim")


def turns(view: GoalView) -> Text:
    """The last turns, the newest first."""
    lines: list[Text] = []
    for turn in view.turns[:TURNS]:
        line = Text.assemble((f"{turn.number:>3} ", "bold"), bar(turn), "  ")
        if turn.result_kind is not None:
            line.append(words.word(page_words.RESULT_KINDS, turn.result_kind), tone(turn.result_kind))
        cost = [words.slots(turn.slots) if not turn.open else "", words.tokens(turn.tokens)]
        line.append(f"  {words.joined([*cost, words.duration(turn.wall_ms)])}", "dim")
        lines.append(line)
    return Text("\n").join(lines) if lines else Text(translate("No turn has run yet."), "dim")


def checks(view: GoalView) -> Text:
    """The checks as the last turn left them."""
    last = next((turn for turn in view.turns if turn.checks), None)
    found = [check(one) for one in last.checks[:8]] if last is not None else []
    return Text("\n").join(found) if found else Text(translate("No check has run."), "dim")


def spend(view: GoalView) -> Text:
    """What it cost so far, and what is left."""
    quota = view.quota
    spent = translate("{spent} of {allowed} in {hours} h").format(
        spent=quota.spent_slots, allowed=quota.allowed_slots, hours=f"{quota.window_hours:g}"
    )
    lines = [f"{translate('slots')}  {spent}"]
    for one in quota.budgets:
        unit = words.word(page_words.UNITS, one.unit)
        used, limit = page_words.amount(one.unit, one.used), page_words.amount(one.unit, one.limit)
        lines.append(f"{unit}  {used} {translate('of')} {limit}")
    known = {one.unit for one in quota.budgets}
    lines += [
        f"{words.word(page_words.UNITS, one.unit)}  {page_words.amount(one.unit, one.total)}"
        for one in view.spend
        if one.unit in ("tokens", "microusd") and one.unit not in known
    ]
    return Text("\n".join(lines))


def stream_line(line: StreamLine) -> Text:
    """One step of the agent."""
    verb = page_words.stream_verb(line.kind, line.tool, denied=line.denied)
    style = {"file_change": "green", "error": "red", "limit": "yellow"}.get(line.kind, "dim")
    what = ", ".join(line.paths) if line.kind == "file_change" else line.text or line.tool or ""
    words_of = untrusted.one_line(what, 1000)
    body = "" if line.kind in ("message", "file_change") else "cyan" if line.kind == "tool_call" else style
    return Text.assemble((f"{verb:>8}  ", "red" if line.denied else style), (words_of, body))
