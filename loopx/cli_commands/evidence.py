"""`loopx evidence`: what proved what. LoopX's own findings are verified; whatever anybody says is claimed."""

from __future__ import annotations

import argparse

from loopx.cli_commands import work_args
from loopx.cli_commands.base import Command, Context, add_goal, goal_of


def _setup_list(parser: argparse.ArgumentParser) -> None:
    add_goal(parser)
    work_args.add_page(parser)
    parser.add_argument("--turn", metavar="TURN", help="only of this turn")


def _list(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.evidence import page_text
    from loopx.runtime import evidence_service

    goal_id = goal_of(args)
    work_args.caller_for(context, goal_id)
    store, hidden = context.session().store, context.may_not_see_held_out()
    page = evidence_service.page(
        store, goal_id, after=args.after, limit=args.limit, turn_key=args.turn, without_held_out=hidden
    )
    context.emit(page, lambda: page_text(page, goal_id, store.now_ms()))
    return 0


def _setup_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("evidence", metavar="EVIDENCE")


def _show(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.evidence import evidence_text
    from loopx.runtime import evidence_service

    store, hidden = context.session().store, context.may_not_see_held_out()
    found = evidence_service.get(store, args.evidence, without_held_out=hidden)
    work_args.caller_for(context, found.goal_id)
    context.emit(found, lambda: evidence_text(found, store.now_ms()))
    return 0


def _setup_add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="+", metavar="[GOAL] NAME")
    parser.add_argument("--goal-id", metavar="G")
    parser.add_argument("--text", default="", metavar="TEXT", help="a note")
    parser.add_argument("--link", default="", metavar="URL", help="where to look")
    parser.add_argument("--metric", type=float, metavar="X", help="a number")


def _add(context: Context, args: argparse.Namespace) -> int:
    from loopx.control_plane.errors import UsageError
    from loopx.runtime import agent_service, evidence_service

    words = list(args.words)
    if len(words) > 2:
        raise UsageError("too_many_words", f"too many words: {' '.join(words)}", hint="[GOAL] NAME")
    goal_id = words[0] if len(words) == 2 else args.goal_id
    caller = work_args.caller_for(context, goal_id)
    store = context.session().store
    if caller is not None:
        added = agent_service.add_evidence(store, caller, words[-1], args.text, args.link, args.metric)
    elif goal_id is None:
        raise UsageError("goal_missing", "of which goal?", hint="loopx evidence add GOAL NAME --text TEXT")
    else:
        person = context.require_person("evidence add")
        added = evidence_service.add(
            store, goal_id, words[-1], text=args.text, link=args.link, metric=args.metric, by=person
        )
    context.emit(added, lambda: f"  noted  {added.evidence_id}   as claimed")
    return 0


COMMANDS = (
    Command(verb="list", help="what is on record, the oldest first", setup=_setup_list, run=_list),
    Command(verb="show", help="one piece whole", setup=_setup_show, run=_show),
    Command(verb="add", help="put something on record, as claimed", setup=_setup_add, run=_add),
)
