"""`loopx log`: everything that changed, a line each, in words where there are any and as its code where not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loopx.presentation.renderers import words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopx.runtime.history import Happened
    from loopx.runtime.replaying import Replay

KINDS: Mapping[str, str] = {
    "goal_created": "created",
    "goal_edited": "edited",
    "goal_active": "active",
    "goal_paused": "paused",
    "goal_stopped": "stopped",
    "goal_cancelled": "closed",
    "goal_completed": "done",
    "baseline_taken": "baseline taken",
    "todo_added": "todo added",
    "todo_done": "todo done",
    "todos_woken": "todos woken",
    "turn_started": "turn started",
    "turn_resumed": "turn resumed",
    "turn_closed": "turn ended",
    "turn_stuck": "turn stuck",
    "turn_reverted": "turn reverted",
    "host_ended": "agent ended",
    "files_restored": "files put back",
    "replan_applied": "new plan confirmed",
    "replan_dropped": "new plan dropped",
    "agent_refused": "agent refused",
    "gate_asked": "asked",
    "gate_answered": "answered",
    "gate_expired": "question expired",
    "grant_added": "grant added",
    "grant_revoked": "grant revoked",
    "quota_spent": "slot spent",
    "quota_voided": "spend voided",
    "schedule_applied": "cadence applied",
    "schedule_acked": "cadence acknowledged",
    "schedule_closed": "cadence closed",
    "journal_blocked": "journal blocked",
}
_TELLING = ("kind", "question", "answer", "title", "reason", "outcome", "end", "by", "engine", "violation")
"""Fields of an event's body that a person wants to see, in this order."""


def log_text(events: Sequence[Happened], now_ms: int, *, one_goal: bool) -> str:
    """Events in order, the newest last."""
    if not events:
        return "  nothing changed"
    return "\n".join(event_line(event, now_ms, one_goal=one_goal) for event in events)


def event_line(event: Happened, now_ms: int, *, one_goal: bool) -> str:
    """One event: when, which goal, what, and what is telling about it."""
    goal = "" if one_goal else f"{event.goal_id:<24} "
    what = KINDS.get(event.kind, event.kind.replace("_", " "))
    details = [words.one_line(str(event.body[name]), 60) for name in _TELLING if event.body.get(name)]
    return f"  {words.clock(event.at_ms, now_ms):<12} {goal}{what:<22} {words.joined(details)}".rstrip()


def replay_text(replay: Replay) -> str:
    """What the events alone tell of todos, questions and capabilities, and whether the store says the same."""
    lines = [f"  {words.count(replay.events, 'event')} of {replay.goal_id}"]
    for noun, states in (("todo", replay.todos), ("question", replay.gates), ("capability", replay.capabilities)):
        tally = {status: list(states.values()).count(status) for status in dict.fromkeys(states.values())}
        if tally:
            lines.append(f"    {noun:<12}{words.joined([f'{count} {status}' for status, count in tally.items()])}")
    if replay.broken_link is not None:
        lines.append(f"    the chain is broken at event {replay.broken_link}")
    lines += [f"    {difference}" for difference in replay.differences]
    return "\n".join([*lines, "    the store says the same" if replay.agrees else "    loopx doctor"])
