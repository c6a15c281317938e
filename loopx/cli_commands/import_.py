"""`loopx import`: an export into an empty store, or goals of the other program of this name as paused goals."""

from __future__ import annotations

import argparse
import os
import sys

from loopx.cli_commands.base import Command, Context
from loopx.control_plane.errors import UsageError


def _setup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="PATH", help="an export (- is standard input), or a foreign .loopx folder or registry.json"
    )


def _run(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.care_text import imported_text
    from loopx.runtime import exchange, rival

    session = context.session(create=True)
    by = context.require_person("importing")
    registry = rival.registry_of(args.path) if args.path != "-" else None
    if registry is not None:
        return _take_over(context, registry, by)
    if os.path.isdir(args.path):
        raise UsageError(
            "import_unknown",
            f"nothing in {args.path} is known: no export, and no registry.json that can be read",
            hint="name a file that loopx export wrote, or the other program's registry.json",
        )
    done = (
        exchange.import_lines(session.store, sys.stdin.buffer)
        if args.path == "-"
        else exchange.import_from(session.store, args.path)
    )
    context.emit(done, lambda: imported_text(done))
    return 0


def _take_over(context: Context, registry: str, by: str) -> int:
    from loopx.presentation.renderers.care_text import taken_text
    from loopx.runtime import rival, rival_import

    session = context.session()
    taken = rival_import.take_over(session.store, session.project, rival.read(registry), by)
    context.emit(taken, lambda: taken_text(taken))
    return 0


COMMANDS = (
    Command(
        help="read an export, or another program's goals",
        setup=_setup,
        run=_run,
        epilog="an export is read into a store without goals, in one transaction, its event chains verified",
    ),
)
