"""`loopx export`: everything as JSON lines, from one snapshot, with a count and a digest at the end."""

from __future__ import annotations

import argparse
import sys

from loopx.cli_commands.base import Command, Context


def _setup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="where to; - is standard output")
    parser.add_argument("--force", action="store_true", help="replace FILE if it is there")


def _run(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.care_text import exported_text
    from loopx.runtime import exchange

    context.require_person("exporting the store")
    session = context.session()
    if args.file == "-":
        exchange.export(session.store, session.project.root, sys.stdout.buffer)
        return 0
    done = exchange.export_to(session.store, session.project.root, args.file, force=args.force)
    context.emit(done, lambda: exported_text(done))
    return 0


COMMANDS = (Command(help="write everything as JSON lines", setup=_setup, run=_run),)
