"""`loopx uninstall`: say what LoopX keeps for this project, and with --yes take it away. Branches stay."""

from __future__ import annotations

import argparse
import os

from loopx.cli_commands.base import Command, Context
from loopx.control_plane.errors import StoreError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopx.store.store import Store


def _setup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only say what there is (also without --yes)")
    parser.add_argument("--yes", action="store_true", help="remove it")
    parser.add_argument("--branches", action="store_true", help="the loopx/* branches too")
    parser.add_argument("--force", action="store_true", help="although goals have work trees of their own")


def _run(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.care_text import kept_text, left_text
    from loopx.runtime import leaving
    from loopx.runtime.project import locate

    project, env = locate(context.project_dir, context.database), dict(os.environ)
    store = _store(context)
    found = leaving.look(store, project, env)
    if args.dry_run or not args.yes:
        context.emit(found, lambda: kept_text(found))
        if not args.dry_run and not context.as_json:
            raise UsageError("not_confirmed", "nothing was removed", hint="add --yes to remove it")
        return 0
    if store is not None:
        context.require_person("removing LoopX's state")
        leaving.require_idle(store)
    if not args.force:
        leaving.require_nothing_lost(found)
    context.close()
    done = leaving.remove(found, project, env, branches=args.branches)
    context.emit(done, lambda: left_text(done))
    return 0


def _store(context: Context) -> Store | None:
    """The store, if it can be read: what is around it can be removed all the same."""
    try:
        return context.session().store
    except StoreError:
        return None


COMMANDS = (Command(help="what LoopX keeps for this project, and taking it away", setup=_setup, run=_run),)
