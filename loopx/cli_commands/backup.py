"""`loopx backup`: a consistent copy of the store while it is used, read back and found whole."""

from __future__ import annotations

import argparse

from loopx.cli_commands.base import Command, Context


def _setup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE", help="where to (default: the state folder's backups/)")
    parser.add_argument("--force", action="store_true", help="replace FILE if it is there")


def _run(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.care_text import backup_text
    from loopx.runtime import backups

    context.require_person("copying the store")
    session = context.session()
    made = backups.backup(session.store, args.file or backups.default_path(session.project), force=args.force)
    context.emit(made, lambda: backup_text(made))
    return 0


COMMANDS = (
    Command(
        help="copy the store while it is used",
        setup=_setup,
        run=_run,
        epilog="spools and branches are not in it; put it back with loopx restore FILE",
    ),
)
