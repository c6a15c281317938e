"""`loopx report`: one goal as one HTML file, to send to a colleague or to attach to a pull request."""

from __future__ import annotations

import argparse
import os
import sys

import msgspec

from loopx.cli_commands.base import Command, Context, add_goal, goal_of


class ReportWritten(msgspec.Struct, frozen=True, kw_only=True):
    """Where the report is."""

    goal_id: str
    path: str
    bytes: int
    turns: int


def _setup(parser: argparse.ArgumentParser) -> None:
    add_goal(parser)
    parser.add_argument("--since", metavar="WHEN", help="only turns since: 2h, 3d, yesterday, 2026-11-03")
    parser.add_argument("-o", "--output", metavar="FILE", help="default loopx-GOAL.html here; - for standard output")


def _run(context: Context, args: argparse.Namespace) -> int:
    from loopx.control_plane.errors import UsageError
    from loopx.presentation.report.page import report_html
    from loopx.runtime import instants
    from loopx.runtime.report_view import report_view

    session = context.session()
    since = instants.parse_since(args.since, session.store.now_ms()) if args.since else None
    goal_id = goal_of(args)
    view = report_view(session.store, session.project, goal_id, since)
    text = report_html(view).encode("utf-8", "replace")
    if args.output == "-":
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()
        return 0
    path = os.path.abspath(args.output or f"loopx-{goal_id}.html")
    try:
        with open(path, "wb") as file:
            file.write(text)
    except OSError as error:
        raise UsageError("report_unwritable", f"{path} can't be written: {error.strerror}", hint="-o FILE") from error
    written = ReportWritten(goal_id=goal_id, path=path, bytes=len(text), turns=len(view.turns))
    context.emit(written, lambda: f"  {path}   {len(text) // 1024 + 1} KB, {len(view.turns)} turns")
    return 0


COMMANDS = (
    Command(
        help="a goal as one HTML file, plots included",
        setup=_setup,
        run=_run,
        epilog="loopx report GOAL -o report.html; it needs nothing beside it, and secrets are taken out",
    ),
)
