"""Cadences for people: what is wanted, what its owner has, when it fires next, and what is left to set."""

from __future__ import annotations

from loopx.presentation.renderers import words
from loopx.presentation.renderers.quota_markdown import row
from loopx.runtime.beating import Beat
from loopx.runtime.schedule_install import Outcome, Plan
from loopx.runtime.schedule_service import ScheduleView

STATES = {
    "pending_apply": "wanted, not applied yet",
    "pending_ack": "applied; its owner has not confirmed it yet",
    "in_force": "in force",
    "failed": "its owner could not take it",
    "closed": "closed: the goal has ended",
}
OWNERS = {"loopx": "LoopX", "cron": "cron", "systemd": "a systemd timer", "host": "the engine's own automation"}


def show_text(view: ScheduleView, now_ms: int) -> str:
    """`schedule show`, and what every change leaves behind."""
    rule = (
        f"{view.rrule}  ({view.zone}, from {view.dtstart_local})" if view.rrule else "none: it runs as soon as it may"
    )
    lines = [
        f"  {view.goal_id}   {words.word(STATES, view.state)}",
        row("rule", rule),
        row("owner", words.word(OWNERS, view.owner)),
        row("revision", f"{view.revision} wanted · {view.applied_revision} applied · {view.acked_revision} confirmed"),
    ]
    if view.upcoming_ms:
        lines.append(row("next", ", ".join(words.clock(at, now_ms) for at in view.upcoming_ms)))
    if view.misses:
        lines.append(row("missed", f"{words.count(view.misses, 'occurrence')}, each made up for by one run"))
    if view.failure:
        lines.append(row("failed", words.one_line(view.failure, 90)))
    if view.acked_turns:
        lines.append(row("completed", f"{words.count(len(view.acked_turns), 'turn')} that waited for this"))
    lines += _left(view)
    return "\n".join(lines)


def _left(view: ScheduleView) -> list[str]:
    """What a person, or an owner outside, still has to do."""
    if view.state == "pending_apply":
        return [row("then", f"loopx schedule apply {view.goal_id}")]
    if view.state in ("pending_ack", "failed"):
        rule = f"'{view.applied_rrule}'" if view.applied_rrule else "none"
        lines = [row("then", f"set {rule} at {words.word(OWNERS, view.owner)}")]
        if view.owner in ("cron", "systemd"):
            lines = [row("then", f"loopx schedule install {view.goal_id}")]
        return [*lines, row("", f"loopx schedule ack {view.goal_id} --revision {view.applied_revision} --rrule {rule}")]
    return []


def beat_text(done: Beat) -> str:
    """`schedule beat`: the answer, and whether it was given before."""
    receipt = done.receipt
    answer = "run now" if receipt.should_run else f"not now: {receipt.effective_action}"
    again = "  (it was told before)" if receipt.replayed else ""
    return f"  {receipt.goal_id}   beat {receipt.beat_key}: {answer}{again}        {words.command(done.next_command)}"


def plan_text(plan: Plan) -> str:
    """`schedule install --print`: exactly what would be written."""
    if plan.line is not None:
        return plan.line
    return "\n".join(f"# {path}\n{text}" for path, text in plan.files)


def outcome_text(outcome: Outcome, view: ScheduleView, now_ms: int) -> str:
    """`schedule install`."""
    head = "written and read back" if outcome.confirmed else "written, and NOT confirmed"
    lines = [f"  {head}", *(row("", one) for one in outcome.written)]
    lines += [row("then", command) for command in outcome.left]
    return "\n".join([*lines, show_text(view, now_ms)])
