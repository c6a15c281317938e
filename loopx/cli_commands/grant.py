"""`loopx grant`: a person's standing answers, with scope and expiry."""

from __future__ import annotations

import argparse

import msgspec

from loopx.cli_commands import work_args
from loopx.cli_commands.base import Command, Context, add_goal, goal_of


class Revoked(msgspec.Struct, frozen=True, kw_only=True):
    """`loopx grant revoke --json`."""

    grant_id: str
    revoked: bool = True


def _setup_list(parser: argparse.ArgumentParser) -> None:
    add_goal(parser)
    work_args.add_page(parser)


def _list(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.gates import grants_text
    from loopx.runtime import gate_service

    store = context.session().store
    page = gate_service.grants_of(store, goal_of(args), after=args.after, limit=args.limit)
    context.emit(page, lambda: grants_text(page, store.now_ms()))
    return 0


def _setup_add(parser: argparse.ArgumentParser) -> None:
    add_goal(parser)
    parser.add_argument("--scope", required=True, metavar="SCOPE", help="capability:NAME, or question:KEY")
    parser.add_argument("--answer", default="yes", metavar="TEXT", help="default: yes")
    parser.add_argument("--expires", metavar="T", help="7d, or an ISO instant (default: until it is revoked)")


def _add(context: Context, args: argparse.Namespace) -> int:
    from loopx.runtime import gate_service

    person = context.require_person("grant add")
    store = context.session().store
    until = work_args.instant(args.expires, store.now_ms(), "--expires") if args.expires else None
    grant = gate_service.new_grant(store, goal_of(args), args.scope, args.answer, person, until)
    context.emit(grant, lambda: f"  granted  {grant.grant_id}   {grant.scope}: {grant.answer}")
    return 0


def _setup_revoke(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("grant", metavar="GRANT")


def _revoke(context: Context, args: argparse.Namespace) -> int:
    from loopx.runtime import gate_service

    person = context.require_person("grant revoke")
    gate_service.revoke(context.session().store, args.grant, person)
    context.emit(Revoked(grant_id=args.grant), lambda: f"  revoked  {args.grant}")
    return 0


COMMANDS = (
    Command(verb="list", help="the standing answers of a goal", setup=_setup_list, run=_list),
    Command(verb="add", help="answer something from now on", setup=_setup_add, run=_add),
    Command(verb="revoke", help="end a standing answer", setup=_setup_revoke, run=_revoke),
)
