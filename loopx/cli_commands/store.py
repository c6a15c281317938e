"""`loopx store`: the store itself, as a whole."""

from __future__ import annotations

import argparse

from loopx.cli_commands.base import Command, Context
from loopx.control_plane.errors import UsageError


def _setup_copy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="a path, or sqlite:///PATH")


def _copy(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.care_text import backup_text
    from loopx.runtime import backups

    context.require_person("copying the store")
    target = str(args.target)
    if target.startswith("sqlite:///"):
        target = target.removeprefix("sqlite://")
    elif "://" in target:
        raise UsageError(
            "database_unsupported",
            f"this LoopX has no store for {target.partition('://')[0]}:// addresses",
            hint="use a path, or sqlite:///PATH",
        )
    made = backups.backup(context.session().store, target)
    context.emit(made, lambda: backup_text(made))
    return 0


COMMANDS = (
    Command(
        verb="copy",
        help="copy the store elsewhere; use it there with --database",
        setup=_setup_copy,
        run=_copy,
        epilog="loopx store copy /srv/loopx.db; then LOOPX_DATABASE_URL=/srv/loopx.db loopx status",
    ),
    Command(
        verb="path", help="where the store is", setup=lambda parser: None, run=lambda context, args: _path(context)
    ),
)


def _path(context: Context) -> int:
    from loopx.runtime.project import locate

    found = locate(context.project_dir, context.database)
    context.emit({"database": found.database, "state_dir": found.state_dir}, lambda: found.database)
    return 0
