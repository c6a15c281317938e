"""`loopx why`: the reason of a decision, now or as it was when a turn was let run."""

from __future__ import annotations

import argparse

from loopx.cli_commands.base import Command, Context, add_goal, goal_of


def _setup(parser: argparse.ArgumentParser) -> None:
    add_goal(parser)
    parser.add_argument("--at", metavar="TURN", help="the decision that let this turn run, made again from its facts")
    parser.add_argument("--agent-id", metavar="A", help="as this agent would be answered (default: loopx)")


def _run(context: Context, args: argparse.Namespace) -> int:
    from loopx.control_plane.ids import AgentId
    from loopx.presentation.renderers.why_text import why_text
    from loopx.runtime import why_service
    from loopx.runtime.session import DEFAULT_AGENT

    goal_id, store = goal_of(args), context.session().store
    if args.at:
        found = why_service.at_turn(store, goal_id, args.at)
    else:
        found = why_service.now(store, goal_id, AgentId(args.agent_id or DEFAULT_AGENT))
    context.emit(found, lambda: why_text(found, store.now_ms()))
    return 0


COMMANDS = (Command(help="why it may or may not run now, and what would change that", setup=_setup, run=_run),)
