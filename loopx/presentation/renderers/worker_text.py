"""What a worker prints while it works, one short line each: what runs, what it came to, when the next thing is due."""

from __future__ import annotations

import datetime
from typing import assert_never

import msgspec

from loopx.presentation.renderers.words import DOT, RUN_ENDS
from loopx.runtime import worker
from loopx.runtime.worker import WorkerEvent


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """The few fields of a child's line that are shown."""

    type: str = ""
    goal_id: str = ""
    number: int = 0
    engine: str = ""
    result_kind: str | None = None
    slots: int = 0
    reason: str = ""
    exit_code: int = 0
    goal_state: str = ""


def text_of(event: WorkerEvent | msgspec.Raw) -> str | None:
    """The line for people; None for what is not worth one."""
    if isinstance(event, msgspec.Raw):
        return _child_text(event)
    match event:
        case worker.WorkerStarted():
            return f"  worker  {event.project}{DOT}{event.most} at once{DOT}agent {event.agent_id}"
        case worker.WorkerIdle():
            when = "until something changes" if event.until_ms is None else f"until {_clock(event.until_ms)}"
            return f"  asleep  {when}"
        case worker.RunStarted():
            return f"  {event.goal_id}  goes on where it was interrupted" if event.resume else None
        case worker.RunFailed():
            again = f"{DOT}again at {_clock(event.again_at_ms)}" if event.again_at_ms else ""
            return f"  {event.goal_id}  could not run: {event.message}{again}"
        case worker.WorkerSlept():
            return f"  the machine slept, or its clock jumped, by {event.jump_ms / 1000:.0f} s"
        case worker.WorkerEnded():
            left = f"{DOT}{event.left_running} left to their hosts" if event.left_running else ""
            return f"  worker ended{DOT}{event.runs} runs{DOT}{event.turns} turns{DOT}{event.spent_slots} slots{left}"
        case _:
            assert_never(event)


def _child_text(raw: msgspec.Raw) -> str | None:
    try:
        line = msgspec.json.decode(raw, type=_Line)
    except msgspec.MsgspecError:
        return None
    if line.type == "turn_started":
        return f"  {line.goal_id}  turn {line.number}{DOT}{line.engine}"
    if line.type == "turn":
        slots = f"{DOT}{line.slots} slot" if line.slots else f"{DOT}nothing spent"
        return f"  {line.goal_id}  turn {line.number}{DOT}{line.result_kind}{slots}"
    if line.type == "result" and line.goal_state == "completed":
        return f"  {line.goal_id}  done"
    if line.type == "result" and line.exit_code in (11, 13):
        return f"  {line.goal_id}  {RUN_ENDS.get(line.reason, line.reason)}"
    return None


def _clock(at_ms: int) -> str:
    at = datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC).astimezone()
    today = datetime.datetime.now(datetime.UTC).astimezone().date()
    return f"{at:%H:%M}" if at.date() == today else f"{at:%Y-%m-%d %H:%M}"
