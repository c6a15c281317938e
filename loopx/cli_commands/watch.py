"""`loopx watch`: the live terminal view."""

from __future__ import annotations

import argparse

from loopx.cli_commands.base import Command, Context, add_goal, optional_goal


def _setup(parser: argparse.ArgumentParser) -> None:
    add_goal(parser, required=False)


def _run(context: Context, args: argparse.Namespace) -> int:
    person = context.require_person("watching, where answers are given,")
    import sys

    from loopx.control_plane.errors import UsageError

    if context.as_json or not sys.stdout.isatty():
        raise UsageError("no_terminal", "watch needs a terminal", hint="loopx status --json, or loopx serve")
    from loopx.presentation.tui.app import WatchApp
    from loopx.presentation.tui.source import Source
    from loopx.runtime.session import Session, open_session
    from loopx.store import goals

    goal_id = optional_goal(args)
    session = context.session()
    if goal_id is not None:
        with session.store.read() as tx:
            goals.row_of(tx, goal_id)

    def fresh() -> Session:
        return open_session(context.project_dir, context.database)

    WatchApp(Source(fresh, person), goal_id).run()
    return 0


COMMANDS = (
    Command(
        help="goals, the running turn and its agent, live in this terminal",
        setup=_setup,
        run=_run,
        epilog="p pause or resume, a answer, c cancel, q quit",
    ),
)
