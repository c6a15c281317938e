"""Small words that the work commands share: instants, pages, a todo with or without its goal, who acts."""

from __future__ import annotations

import argparse
import os

from loopx.cli_commands.base import TOKEN_VARIABLE, Caller, Context
from loopx.control_plane.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopx.control_plane.ids import AgentId
    from loopx.control_plane.work_items.todo import Wake

MOST_LISTED = 1000


def instant(text: str, now_ms: int, field: str) -> int:
    """An instant in milliseconds: a span from now (`90s`, `2h`, `7d`), or an ISO date and time.

    One without a zone is this machine's. Raises UsageError (`instant_invalid`, `instant_past`).
    """
    from loopx.control_plane.quota.amounts import parse_duration_ms

    if text[-1:].isalpha() and text[:1].isdigit() and not text.upper().endswith("Z"):
        try:
            return now_ms + parse_duration_ms(text)
        except UsageError as error:
            raise _bad_instant(text, field) from error
    import datetime

    try:
        at_ms = int(datetime.datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError, OSError) as error:
        raise _bad_instant(text, field) from error
    if at_ms <= now_ms:
        raise UsageError("instant_past", f"{field}: {text} is past", hint="name a later instant, or a span: 2h")
    return at_ms


def _bad_instant(text: str, field: str) -> UsageError:
    return UsageError(
        "instant_invalid",
        f"{field}: {text!r} is no instant",
        hint="a span (90s, 2h, 7d) or an ISO instant (2026-11-03T17:40+01:00)",
        data={"field": field},
    )


def span_ms(text: str, field: str) -> int:
    """A span in milliseconds. Raises UsageError (`budget_amount_invalid`)."""
    from loopx.control_plane.quota.amounts import parse_duration_ms

    return parse_duration_ms(text, field=field)


def add_page(parser: argparse.ArgumentParser, *, default: int = 50) -> None:
    """`--limit N` and `--after ID`."""
    parser.add_argument("--limit", type=_limit, default=default, metavar="N", help=f"at most (default: {default})")
    parser.add_argument("--after", default="", metavar="ID", help="go on behind this one")


def _limit(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= MOST_LISTED:
        raise UsageError("limit_invalid", f"{text!r} is no limit", hint=f"a whole number from 1 to {MOST_LISTED}")
    return int(text)


def add_wake(parser: argparse.ArgumentParser) -> None:
    """What ends a deferral."""
    parser.add_argument("--wake-at", metavar="T", help="2h, 7d, or an ISO instant")
    parser.add_argument("--wake-todo", metavar="TODO", help="when that one is done")
    parser.add_argument("--wake-probe", metavar="CMD", help="when this command succeeds")


def wake_of(args: argparse.Namespace, now_ms: int) -> Wake | None:
    """The wake that was asked for. Raises UsageError (`wake_ambiguous`)."""
    import shlex

    from loopx.control_plane.ids import TodoId
    from loopx.control_plane.work_items.todo import Wake, WakeKind

    given = [word for word in (args.wake_at, args.wake_todo, args.wake_probe) if word]
    if len(given) > 1:
        raise UsageError("wake_ambiguous", "a todo wakes for one reason", hint="give one of the --wake-... flags")
    if args.wake_at:
        return Wake(kind=WakeKind.INSTANT, at_ms=instant(args.wake_at, now_ms, "--wake-at"))
    if args.wake_todo:
        return Wake(kind=WakeKind.TODO_DONE, todo_id=TodoId(args.wake_todo))
    return Wake(kind=WakeKind.PROBE, probe=tuple(shlex.split(args.wake_probe))) if args.wake_probe else None


def add_todo(parser: argparse.ArgumentParser) -> None:
    """`[GOAL] TODO`: the goal may be left out, because a todo's id says which."""
    parser.add_argument("words", nargs="*", metavar="[GOAL] TODO")
    parser.add_argument("--goal-id", metavar="G")


def todo_of(args: argparse.Namespace) -> tuple[str | None, str]:
    """The goal, if it was named, and the todo. Raises UsageError (`todo_missing`)."""
    goal_id, words = args.goal_id, list(args.words)
    if len(words) > 2 or (len(words) == 2 and goal_id is not None and goal_id != words[0]):
        raise UsageError("too_many_words", f"too many words: {' '.join(words)}", hint="[GOAL] TODO")
    if not words:
        raise UsageError("todo_missing", "which todo?", hint="loopx todo list GOAL")
    return (words[0] if len(words) == 2 else goal_id), words[-1]


def agent_id(text: str) -> AgentId:
    """Raises UsageError (`bad_agent_id`)."""
    import re

    from loopx.control_plane.ids import AgentId

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}", text):
        raise UsageError("bad_agent_id", f"{text!r} can't be an agent's id", hint="letters, digits, . _ @ -")
    return AgentId(text)


def has_token() -> bool:
    """Whether this process carries a turn's token."""
    return bool(os.environ.get(TOKEN_VARIABLE))


def caller_for(context: Context, goal_id: str | None) -> Caller | None:
    """The agent of the turn, None for a person. To an agent, goals of others do not exist.

    Raises UsageError (`token_refused`), NotFoundError (`goal_unknown`).
    """
    if not has_token():
        return None
    from loopx.runtime import agent_service

    caller = context.caller()
    if caller is not None and goal_id is not None:
        agent_service.require_same_goal(caller, goal_id)
    return caller


def person_or_agent(context: Context, args: argparse.Namespace, verb: str) -> tuple[AgentId | None, str]:
    """Who acts outside a turn: an agent that names itself, or a person (the agent is None then), and their name.

    Raises NeedsPersonError (`person_only`) inside a turn.
    """
    named: str | None = args.agent_id
    if named is not None and not has_token():
        return agent_id(named), named
    return None, context.require_person(verb)
