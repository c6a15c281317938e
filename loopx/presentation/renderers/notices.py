"""A notification in words: a title that fits a phone's screen, and what to do next. It adds no facts of its own."""

from __future__ import annotations

import msgspec

from loopx.presentation.renderers.quota_markdown import amount_text
from loopx.presentation.renderers.words import QUESTIONS, RUN_ENDS
from loopx.runtime.notifications import Message

_TITLES = {
    "gate_asked": "{goal}: a question",
    "gate_unanswered": "{goal}: still waiting for you",
    "goal_completed": "{goal}: done",
    "run_stopped": "{goal}: stopped",
    "run_failed": "{goal}: can't run",
    "spike": "{goal}: unusual use",
    "capability_done": "{goal}: {capability} done",
    "capability_failed": "{goal}: {capability} failed",
    "test": "LoopX: a test",
}


class _Data(msgspec.Struct, frozen=True, kw_only=True):
    gate_id: str = ""
    question: str = ""
    reason: str = ""
    capability: str = ""
    exit_code: int | None = None
    latest: int | None = None
    median: int | None = None
    unit: str = ""
    code: str = ""
    message: str = ""


def words(message: Message) -> tuple[str, str]:
    """Title and text."""
    data = msgspec.json.decode(message.data, type=_Data)
    title = _TITLES.get(message.what, "{goal}: " + message.what).format(
        goal=message.goal_id, capability=data.capability
    )
    texts = [_text(message, one) for one in (data, *(msgspec.json.decode(raw, type=_Data) for raw in message.also))]
    left_out = message.more - len(message.also)
    if left_out > 0:
        texts.append(f"(and {left_out} more of this kind)")
    return title, "\n".join(dict.fromkeys(texts))


def _text(message: Message, data: _Data) -> str:
    goal = message.goal_id
    if message.what in ("gate_asked", "gate_unanswered"):
        question = QUESTIONS.get(data.question, data.question)
        return f"{question}\nloopx gate answer {data.gate_id} ..."
    if message.what == "goal_completed":
        return f"Every check is green and nothing is left to do.\nloopx report {goal}"
    if message.what == "run_stopped":
        return f"{RUN_ENDS.get(data.reason, data.reason)}\nloopx why {goal}"
    if message.what == "run_failed":
        return f"{data.message or data.code}\nloopx why {goal}"
    if message.what == "spike":
        latest, usual = amount_text(data.unit, data.latest or 0), amount_text(data.unit, data.median or 0)
        return f"The last turn used {latest}; {usual} is usual.\nloopx quota status {goal}"
    if message.what.startswith("capability_"):
        ended = "" if data.exit_code is None else f" (exit {data.exit_code})"
        return f"{data.capability}: {message.what.removeprefix('capability_')}{ended}\nloopx capability list {goal}"
    return "This is what a notification looks like."
