"""`loopx gc`: let go of output, prompts and caches that are old enough. Facts and branches stay."""

from __future__ import annotations

import argparse

from loopx.cli_commands.base import Command, Context
from loopx.control_plane.errors import UsageError


def _setup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    parser.add_argument("--days", type=int, default=30, metavar="N", help="keep this many days (default: 30)")


def _run(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.care_text import collected_text
    from loopx.runtime import retention

    if args.days < 0:
        raise UsageError("days_invalid", "days: write a number from 0", hint="loopx gc --days 30")
    if not args.dry_run:
        context.require_person("removing old output")
    session = context.session()
    done = retention.collect(session.store, session.project, days=args.days, remove=not args.dry_run)
    context.emit(done, lambda: collected_text(done))
    return 0


COMMANDS = (Command(help="let go of old output, prompts and caches", setup=_setup, run=_run),)
