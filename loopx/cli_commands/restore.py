"""`loopx restore`: put a backup in the store's place; the store that was there stays beside it."""

from __future__ import annotations

import argparse

from loopx.cli_commands.base import Command, Context
from loopx.control_plane.errors import StoreError


def _setup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a file that loopx backup made")


def _run(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.care_text import restored_text
    from loopx.runtime import backups, project

    try:
        context.require_person("restoring the store")
    except StoreError:
        # A store that can't be read is what a restore is for.
        pass
    finally:
        context.close()
    done = backups.restore(project.locate(context.project_dir, context.database), args.file)
    context.emit(done, lambda: restored_text(done))
    return 0


COMMANDS = (
    Command(
        help="put a backup back; the replaced store is kept beside it",
        setup=_setup,
        run=_run,
        epilog="a newer or damaged backup is refused before anything is touched",
    ),
)
