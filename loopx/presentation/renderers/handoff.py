"""The hand-off packet as text: at most sixteen lines."""

from __future__ import annotations

from loopx.presentation.renderers import run_text, words
from loopx.presentation.renderers.gates import how, question
from loopx.presentation.renderers.paint import Paint
from loopx.runtime.handoff import Packet

MOST_LINES = 16


def packet_text(packet: Packet, now_ms: int, paint: Paint) -> str:
    """Goal, state, what changed, evidence, open questions, next."""
    lines = [
        f"  {paint.bold(packet.goal_id)}   "
        + words.joined([words.word(words.STATES, packet.state), f"contract {packet.contract}"]),
        _row("goal", f'"{words.one_line(packet.objective, 100)}"'),
        _row("so far", _so_far(packet)),
        *_changed(packet, paint),
        *_todos(packet),
        *_questions(packet),
        _row("now", _now(packet, now_ms)),
    ]
    kept = [line for line in lines if line][: MOST_LINES - 1]
    return "\n".join([*kept, _row("next", words.command(packet.next_command) or f"loopx goal show {packet.goal_id}")])


def _row(name: str, text: str) -> str:
    return f"    {name:<9}{text}" if text else ""


def _so_far(packet: Packet) -> str:
    where = f"in {packet.root}" + (f" and on {packet.branch}" if packet.branch else "")
    return words.joined([words.count(packet.turns, "turn"), words.count(packet.spent_slots, "slot"), where])


def _changed(packet: Packet, paint: Paint) -> list[str]:
    last = packet.last
    if last is None:
        return [_row("changed", "nothing yet")]
    kept = f"checkpoint {last.checkpoint[:6]}" if last.checkpoint else "" if last.changed else "nothing changed"
    why = words.word(words.REASONS, last.reason)
    lines = [_row("changed", words.joined([f"turn {last.number}: {last.result_kind}", why, kept]))]
    if last.message:
        lines.append(_row("said", f'"{words.one_line(last.message, 100)}"'))
    red = [check for check in last.checks if check.verdict != "green"]
    shown = red[:3] or list(last.checks[:1])
    lines += [
        _row(
            "evidence" if place == 0 else "",
            f"{run_text.verdict(check, paint)}  {words.one_line(check.name, 60)}  {run_text.numbers(check)}".rstrip(),
        )
        for place, check in enumerate(shown)
    ]
    return lines


def _todos(packet: Packet) -> list[str]:
    lines = [
        _row("todo" if place == 0 else "", f"{todo.todo_id}  {words.one_line(todo.title, 70)}   {todo.status}")
        for place, todo in enumerate(packet.next_todos)
    ]
    more = packet.open_todos - len(packet.next_todos)
    return [*lines, _row("", f"and {more} more")] if more > 0 else lines


def _questions(packet: Packet) -> list[str]:
    return [
        _row("asks" if place == 0 else "", f'"{question(gate, 60)}"   {how(gate)}')
        for place, gate in enumerate(packet.questions)
    ]


def _now(packet: Packet, now_ms: int) -> str:
    running = f"turn {packet.open_turn} is open" if packet.open_turn is not None else ""
    wakes = f"wakes {words.clock(packet.wake_after_ms, now_ms)}" if packet.wake_after_ms else ""
    return words.joined([running, packet.quota_state, packet.reason, wakes])
