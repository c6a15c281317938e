"""`loopx handoff`: sixteen lines for whoever takes a goal over, person or agent."""

from __future__ import annotations

import argparse

from loopx.cli_commands import work_args
from loopx.cli_commands.base import Command, Context, add_goal, goal_of


def _run(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.handoff import packet_text
    from loopx.presentation.renderers.paint import Paint
    from loopx.runtime import handoff

    goal_id = goal_of(args)
    work_args.caller_for(context, goal_id)
    store = context.session().store
    found = handoff.packet(store, goal_id, without_held_out=context.may_not_see_held_out())
    context.emit(found, lambda: packet_text(found, store.now_ms(), Paint(color=context.color)))
    return 0


COMMANDS = (Command(help="sixteen lines for whoever takes over", setup=add_goal, run=_run),)
