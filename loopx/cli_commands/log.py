"""`loopx log`: everything that changed, of one goal or of all."""

from __future__ import annotations

import argparse

import msgspec

from loopx.cli_commands.base import Command, Context, add_goal, optional_goal
from loopx.control_plane.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopx.runtime.history import Happened


class _Events(msgspec.Struct, frozen=True, kw_only=True):
    """`loopx log --json`."""

    events: tuple[Happened, ...]


def _setup(parser: argparse.ArgumentParser) -> None:
    add_goal(parser, required=False)
    parser.add_argument("--since", metavar="WHEN", help="90m, 2h, 3d, yesterday, 2026-11-03, 2026-11-03 17:40")
    parser.add_argument("--replay", action="store_true", help="what the log alone tells, compared with the store")
    parser.add_argument("--limit", type=int, default=200, metavar="N", help="events at most (default: 200)")


def _run(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.log_text import log_text
    from loopx.runtime import history, instants

    store, goal_id = context.session().store, optional_goal(args)
    if args.replay:
        return _replay(context, goal_id)
    since = instants.parse_since(args.since, store.now_ms()) if args.since else None
    found = history.history(store, goal_id, since, max(1, args.limit))
    context.emit(_Events(events=found), lambda: log_text(found, store.now_ms(), one_goal=goal_id is not None))
    return 0


def _replay(context: Context, goal_id: str | None) -> int:
    """Ends with 4 when the log and the store tell different things: one of them is damaged."""
    from loopx.presentation.renderers.log_text import replay_text
    from loopx.runtime import replaying

    if goal_id is None:
        raise UsageError("goal_missing", "of which goal?", hint="loopx log GOAL --replay")
    found = replaying.replay(context.session().store, goal_id)
    context.emit(found, lambda: replay_text(found))
    return 0 if found.agrees else 4


COMMANDS = (Command(help="everything that changed", setup=_setup, run=_run, epilog="loopx log --since 2h"),)
