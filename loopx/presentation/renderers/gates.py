"""Questions and standing answers as text: each with the command that answers it."""

from __future__ import annotations

from collections.abc import Sequence

from loopx.control_plane.work_items.gate import Gate, GateKind, Grant
from loopx.presentation.renderers import words
from loopx.runtime.gate_service import Answered, Asked, GatePage, GrantPage


def page_text(page: GatePage, now_ms: int) -> str:
    """Two lines for each question: what is asked and since when, and how to answer."""
    if not page.gates:
        return "  nobody asks anything"
    lines = [line for gate in page.gates for line in _lines(gate, now_ms)]
    if page.next_after is not None:
        lines.append(f"  more:  --after {page.next_after}")
    return "\n".join(lines)


def _lines(gate: Gate, now_ms: int) -> list[str]:
    blocks = words.count(len(gate.todos), "todo") if gate.todos else "the goal"
    head = f'  {gate.gate_id}  {gate.goal_id}  "{question(gate, 80)}"'
    if gate.status != "open":
        return [f"{head}   {gate.status}: {words.one_line(gate.answer or '', 40)}"]
    since = words.ago(gate.created_at_ms, now_ms)
    return [f"{head}   blocks {blocks}{words.DOT}{since}", f"           {how(gate)}"]


def question(gate: Gate, width: int) -> str:
    """The question in words; LoopX's own questions are codes."""
    return words.one_line(words.word(words.QUESTIONS, gate.question), width)


def how(gate: Gate) -> str:
    """The command that answers."""
    options = "|".join(words.one_line(option, 20) for option in gate.options) or "ANSWER"
    fix = f"   first:  {words.one_line(gate.fix, 80)}" if gate.fix else ""
    return f"loopx gate answer {gate.gate_id} {options}{fix}"


def gate_text(gate: Gate, now_ms: int) -> str:
    """One question whole."""
    lines = [
        f"  {gate.gate_id}   {gate.goal_id}   {words.word(words.GATE_KINDS, gate.kind)}",
        *_question_lines(gate),
        f"    asked      {words.ago(gate.created_at_ms, now_ms)}"
        + (f"   by turn {gate.turn_key}" if gate.turn_key else ""),
        f"    blocks     {', '.join(gate.todos) or 'the whole goal'}",
    ]
    if gate.expires_at_ms is not None:
        lines.append(f"    expires    {words.clock(gate.expires_at_ms, now_ms)}")
    if gate.status == "open":
        return "\n".join([*lines, f"    answer     {how(gate)}"])
    by = f" by {gate.answered_by}" if gate.answered_by else ""
    return "\n".join([*lines, f"    {gate.status:<11}{words.one_line(gate.answer or '', 400)}{by}"])


def _question_lines(gate: Gate) -> list[str]:
    """A new plan is shown change by change, every other question in one line."""
    if gate.kind is not GateKind.REPLAN_PREVIEW:
        return [f'    "{question(gate, 600)}"']
    head, *changes = gate.question.splitlines()
    return [f"    {words.one_line(head, 80)}", *(f"      {words.one_line(change, 140)}" for change in changes)]


def asked_text(asked: Asked, options: Sequence[str]) -> str:
    """That somebody is asked, or that a standing answer was there."""
    if asked.answer is not None:
        return f"  answered at once by a standing grant: {words.one_line(asked.answer, 100)}"
    was = "is asked already" if asked.already else "asked"
    return f"  {was}  {asked.gate_id}   loopx gate answer {asked.gate_id} {'|'.join(options) or 'ANSWER'}"


def answered_text(done: Answered) -> str:
    """What the answer did, and the next step."""
    standing = f"from now on ({done.grant_id})" if done.grant_id else ""
    ended = f"todo {done.ended_todo} is done" if done.ended_todo else ""
    then = f"loopx run {done.goal_id}"
    if done.goal_state != "active":
        then = f"goal {words.word(words.STATES, done.goal_state)}   loopx goal resume {done.goal_id}"
    parts = words.joined([words.one_line(done.answer, 60), standing, ended])
    return f"  answered  {done.gate_id}   {parts}   {then}"


def grants_text(page: GrantPage, now_ms: int) -> str:
    """One line for each standing answer, and the cursor of what follows."""
    if not page.grants:
        return "  no standing answers"
    lines = [
        f"  {grant.grant_id}  {words.one_line(grant.scope, 60)}: {words.one_line(grant.answer, 40)}"
        f"   by {grant.granted_by}   {_standing(grant, now_ms)}"
        for grant in page.grants
    ]
    if page.next_after is not None:
        lines.append(f"  more:  --after {page.next_after}")
    return "\n".join(lines)


def _standing(grant: Grant, now_ms: int) -> str:
    if grant.revoked:
        return "revoked"
    if grant.expires_at_ms is None:
        return "until it is revoked"
    return f"until {words.clock(grant.expires_at_ms, now_ms)}" if grant.expires_at_ms > now_ms else "expired"
