"""`loopx status`: one calm screen. Started by other programs every tick, so it imports only what it shows."""

from __future__ import annotations

import argparse
import sys

from loopx.cli_commands.base import Command, Context, add_goal, optional_goal


def _setup(parser: argparse.ArgumentParser) -> None:
    add_goal(parser, required=False)
    parser.add_argument(
        "--since", metavar="WHEN", help="what was done since: 2h, yesterday, 2026-11-03 (default: your last look)"
    )
    parser.add_argument("--limit", type=int, default=12, metavar="N", help="goals in each part (default: 12)")


def _run(context: Context, args: argparse.Namespace) -> int:
    from loopx import status
    from loopx.presentation.renderers import paint, status_text
    from loopx.runtime import instants, looking

    session = context.session()
    store = session.store
    colors = paint.Paint(color=context.color)
    goal_id = optional_goal(args)
    if goal_id is not None:
        one = status.status_of(store, goal_id)
        context.emit(one, lambda: status_text.detail_text(one, store.now_ms(), colors))
        return 0
    now = store.now_ms()
    since = instants.parse_since(args.since, now) if args.since else looking.last(session.project, now)
    seen = status.overview(store, since_ms=since, limit=max(1, args.limit))
    context.emit(seen, lambda: status_text.overview_text(seen, colors))
    if not context.as_json and not context.quiet and sys.stdout.isatty():
        looking.remember(session.project, now)
    return 0


COMMANDS = (
    Command(
        help="one screen: what needs you, runs, waits, and was done since you last looked",
        setup=_setup,
        run=_run,
        epilog="loopx status GOAL shows one goal in full",
    ),
)
