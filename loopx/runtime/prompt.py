"""What LoopX says to an agent: the person's objective and todo, and at most 1.5 KB of its own around them.

Facts that the agent needs for one turn, and nothing else: the checks that will judge it, what failed last, what it
may not touch, and how to say that it is done or stuck. Held-out checks are never named here.
"""

from __future__ import annotations

import msgspec

from loopx.control_plane.turn_driver.journal import TurnPurpose

OVERHEAD_BYTES = 1500
"""The promise of the surface: what is added besides the person's own words."""

_CHECK_BYTES = 420
_FAILURE_BYTES = 480
_ANSWER_BYTES = 200
_PROTECTED_BYTES = 120
_LEAST_BYTES = 24
_MARGIN_BYTES = 16
"""For the empty lines between the parts."""


class PromptContext(msgspec.Struct, frozen=True, kw_only=True):
    """What goes into one prompt. `failure` is the last red result in a few lines; `answers` are people's."""

    purpose: TurnPurpose
    objective: str
    todo_title: str | None
    todo_body: str
    checks: tuple[tuple[str, str], ...]
    failure: str = ""
    recurring: bool = False
    restored: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    write_scope: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    open_todos: tuple[tuple[str, str], ...] = ()
    """Id and title of what is open, for a replan."""
    speaks_tools: bool = False
    """Whether the agent has LoopX's tools; otherwise the typed result file is named."""


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """The text, its size, and how much of it is LoopX's own."""

    text: str
    total_bytes: int
    overhead_bytes: int


def build(context: PromptContext) -> Prompt:
    """The prompt of one turn."""
    own = [_task_line(context)]
    person = [context.objective]
    lines = [own[0], "", context.objective, ""]
    if context.todo_title and context.todo_title != context.objective:
        person += [context.todo_title, context.todo_body]
        lines += [f"Todo: {context.todo_title}", *([context.todo_body] if context.todo_body else []), ""]
    elif context.todo_body:
        person.append(context.todo_body)
        lines += [context.todo_body, ""]
    if context.purpose is TurnPurpose.REPLAN:
        person += [f"{todo_id} {title}" for todo_id, title in context.open_todos]
        lines += ["Open todos:", *[f"- {todo_id} {title}" for todo_id, title in context.open_todos], ""]
    lines += _facts(context)
    text = "\n".join(lines).rstrip() + "\n"
    total = len(text.encode())
    return Prompt(
        text=text, total_bytes=total, overhead_bytes=max(0, total - sum(len(part.encode()) for part in person))
    )


def _task_line(context: PromptContext) -> str:
    if context.purpose is TurnPurpose.REPLAN:
        return (
            "The work below made no progress. Do not change files. Plan it anew: write which todos to add, drop or "
            'reorder as JSON {"add": [{"title": ...}], "drop": [id], "order": [id]} to the file named in '
            "LOOPX_REPLAN_FILE."
        )
    if context.purpose is TurnPurpose.REPAIR:
        return "The last attempt was not accepted. Mend it, in this folder:"
    return "Work on this, in this folder:"


def _facts(context: PromptContext) -> list[str]:
    """What LoopX adds, in reading order; its bytes go first to what an agent can least do without."""
    end = ["", _how_to_end(context)] if context.purpose is not TurnPurpose.REPLAN else []
    room = _Room(OVERHEAD_BYTES - _size([_task_line(context), *end]) - _MARGIN_BYTES)
    again = " (the same failure as before: try another way)" if context.recurring else ""
    failure = room.take(["", f"Last result{again}:"], context.failure.splitlines(), _FAILURE_BYTES)
    answers = room.take(["", "A person answered:"], [f"- {answer}" for answer in context.answers], _ANSWER_BYTES)
    checks = room.take(
        ["These checks are run after you stop, and decide:"],
        [_check_line(name, command) for name, command in context.checks],
        _CHECK_BYTES,
    )
    restored = room.take(
        ["", "Put back, because the checks' own files may not be weakened:"],
        [f"- {path}" for path in context.restored],
        _PROTECTED_BYTES,
    )
    scope = [f"Write only: {', '.join(context.write_scope)}"] if context.write_scope else []
    write_only = room.take([], scope, _PROTECTED_BYTES)
    leave = [f"Leave alone: {', '.join(context.protected)}"] if context.protected and not restored else []
    alone = room.take([""], leave, _PROTECTED_BYTES)
    return [*checks, *failure, *restored, *alone, *write_only, *answers, *end]


class _Room:
    """The bytes that are left for what LoopX says itself."""

    def __init__(self, left: int) -> None:
        self._left = left

    def take(self, head: list[str], lines: list[str], most: int) -> list[str]:
        """A section with as much of its lines as fits; nothing at all where not even its head does."""
        room = min(most, self._left - _size(head))
        if not lines or room < _LEAST_BYTES:
            return []
        section = [*head, *_fit(lines, room)]
        self._left -= _size(section)
        return section


def _size(lines: list[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def _check_line(name: str, command: str) -> str:
    return f"- {command}" if name == command or command.startswith(name) else f"- {name}: {command}"


def _how_to_end(context: PromptContext) -> str:
    tools = (
        "LoopX's tools (complete_todo, ask_person, report_blocker, nominate_no_change)"
        if context.speaks_tools
        else '`loopx todo complete`, `loopx gate ask "QUESTION"`, or write to the file $LOOPX_RESULT_FILE: '
        '{"turn_key": "<$LOOPX_TURN_KEY>", "kind": "completion|question|blocker|no_change", "summary": "...", '
        '"question": {"text": "..."}} (question only with that kind)'
    )
    return f"Do not commit. Stop when the work is done or you are stuck; to say which, use {tools}."


def _fit(lines: list[str], limit: int) -> list[str]:
    """As many lines as fit, the last one cut; UTF-8 is never cut inside a character."""
    kept: list[str] = []
    left = limit
    for line in lines:
        raw = line.encode()
        if len(raw) + 1 > left:
            cut = raw[: max(0, left - 4)].decode(errors="ignore")
            return [*kept, f"{cut} …"] if cut else [*kept, "…"]
        kept.append(line)
        left -= len(raw) + 1
    return kept
