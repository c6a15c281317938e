"""`loopx goal`: objectives and their contracts. Every change is a person's; no decision is made here."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

import msgspec

from loopx.cli_commands import goal_options
from loopx.cli_commands.base import Command, Context, add_goal, goal_of
from loopx.control_plane.errors import UsageError
from loopx.control_plane.goal import GoalState


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """A goal that was made or changed."""

    goal_id: str
    state: str
    revision: int


def _setup_create(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("objective", metavar="OBJECTIVE", help="what is wanted")
    parser.add_argument("--goal-id", metavar="G", help="its id (default: made from the objective)")
    goal_options.add(parser)
    parser.add_argument("--todo", action="append", default=[], metavar="TITLE", help="a slice of it, in order")
    parser.add_argument("--baseline", action="store_true", help="run the checks now: the start, for a runner of yours")


def _create(context: Context, args: argparse.Namespace) -> int:
    context.require_person("goal create")
    wish = goal_options.wish_of(args, args.objective)
    goal = goal_options.create(context, wish, args.goal_id, tuple(args.todo), engine_needed=False)
    if args.baseline:
        from loopx.runtime import starting

        session = context.session()
        starting.put_on_record(session.store, session.project, goal.goal_id, dict(os.environ))
    answer = Changed(goal_id=goal.goal_id, state=goal.state, revision=goal.revision)
    context.emit(answer, lambda: f"  made  {goal.goal_id}   loopx run {goal.goal_id}")
    return 0


def _setup_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state", choices=tuple(GoalState), help="only these")
    parser.add_argument("--limit", type=goal_options.whole, default=50, metavar="N", help="at most (default: 50)")
    parser.add_argument("--after", default="", metavar="GOAL", help="go on behind this goal")


def _list(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.goals import page_text
    from loopx.runtime import goal_reads

    store = context.session().store
    state = GoalState(args.state) if args.state else None
    page = goal_reads.page(store, state=state, after=args.after, limit=args.limit)
    context.emit(page, lambda: page_text(page, store.now_ms()))
    return 0


def _show(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.goals import goal_text
    from loopx.presentation.renderers.paint import Paint
    from loopx.runtime import goal_reads

    store = context.session().store
    shown = goal_reads.show(store, goal_of(args))
    if context.may_not_see_held_out():
        visible = tuple(check for check in shown.checks if not check.held_out)
        shown = msgspec.structs.replace(shown, checks=visible)
    context.emit(shown, lambda: goal_text(shown, store.now_ms(), Paint(color=context.color)))
    return 0


def _setup_edit(parser: argparse.ArgumentParser) -> None:
    add_goal(parser)
    goal_options.add(parser)
    goal_options.add_edits(parser)
    parser.add_argument("--revision", type=int, metavar="N", help="refuse if somebody edited it since")


def _edit(context: Context, args: argparse.Namespace) -> int:
    from loopx.runtime import goal_draft, goal_reads, goal_service

    context.require_person("goal edit")
    store, goal_id = context.session().store, goal_of(args)
    wish = goal_options.wish_of(args)
    if not wish.said:
        raise UsageError("nothing_to_edit", "nothing to change was named", hint="loopx goal edit --help")
    definition, revision = goal_reads.definition_of(store, goal_id)
    changed = goal_draft.edited(definition, wish)
    expected = args.revision if args.revision is not None else revision
    made = goal_service.edit(store, goal_id, changed, wish.said, expected=expected)
    state = goal_reads.show(store, goal_id).state
    what = ", ".join(name.replace("_", " ") for name in wish.said)
    context.emit(Changed(goal_id=goal_id, state=state, revision=made), lambda: f"  {goal_id}  revision {made}: {what}")
    return 0


def _setup_move(parser: argparse.ArgumentParser) -> None:
    add_goal(parser)
    parser.add_argument("--reason", default="", metavar="TEXT", help="for the record")


def _pause(context: Context, args: argparse.Namespace) -> int:
    return _move(context, args, GoalState.PAUSED, "goal pause", "a running turn finishes first   loopx goal resume {}")


def _resume(context: Context, args: argparse.Namespace) -> int:
    return _move(context, args, GoalState.ACTIVE, "goal resume", "loopx run {}")


def _move(context: Context, args: argparse.Namespace, state: GoalState, verb: str, then: str) -> int:
    from loopx.presentation.renderers.goals import moved_text
    from loopx.runtime import goal_service

    person = context.require_person(verb)
    goal = goal_service.move(context.session().store, goal_of(args), state, person, args.reason)
    answer = Changed(goal_id=goal.goal_id, state=goal.state, revision=goal.revision)
    context.emit(answer, lambda: moved_text(goal.goal_id, goal.state, then.format(goal.goal_id)))
    return 0


def _stopping(state: GoalState, verb: str) -> Callable[[Context, argparse.Namespace], int]:
    def run(context: Context, args: argparse.Namespace) -> int:
        from loopx.presentation.renderers.goals import stopped_text
        from loopx.runtime import goal_stop

        person = context.require_person(verb)
        session = context.session()
        done = goal_stop.stop(session.store, session.project, goal_of(args), state, person, args.reason)
        context.emit(done, lambda: stopped_text(done))
        return 0

    return run


def _reopen(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.goals import moved_text
    from loopx.runtime import goal_service

    person = context.require_person("goal reopen")
    goal = goal_service.reopen(context.session().store, goal_of(args), person)
    answer = Changed(goal_id=goal.goal_id, state=goal.state, revision=goal.revision)
    context.emit(answer, lambda: moved_text(goal.goal_id, goal.state, f"loopx run {goal.goal_id}"))
    return 0


def _setup_discard(parser: argparse.ArgumentParser) -> None:
    add_goal(parser)
    parser.add_argument("--force", action="store_true", help="also what others changed in the tree since")


def _discard(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.goals import moved_text
    from loopx.runtime import goal_stop

    person = context.require_person("goal discard")
    session = context.session()
    done = goal_stop.discard(session.store, session.project, goal_of(args), person, force=args.force)
    context.emit(
        done,
        lambda: moved_text(done.goal_id, done.state, f"{done.root} is as it was at the start; the branch is kept"),
    )
    return 0


COMMANDS = (
    Command(verb="create", help="make a goal", setup=_setup_create, run=_create),
    Command(verb="list", help="the goals of this project", setup=_setup_list, run=_list),
    Command(verb="show", help="one goal whole", setup=add_goal, run=_show),
    Command(verb="edit", help="change it: a new revision", setup=_setup_edit, run=_edit),
    Command(verb="pause", help="let the running turn finish, then wait", setup=_setup_move, run=_pause),
    Command(verb="resume", help="let it go on", setup=_setup_move, run=_resume),
    Command(
        verb="stop",
        help="cancel the running turn, and wait",
        setup=_setup_move,
        run=_stopping(GoalState.STOPPED, "goal stop"),
    ),
    Command(
        verb="close",
        help="end it for good, done or not",
        setup=_setup_move,
        run=_stopping(GoalState.CANCELLED, "goal close"),
    ),
    Command(verb="reopen", help="open a closed goal again", setup=add_goal, run=_reopen),
    Command(verb="discard", help="put the tree back to the goal's start", setup=_setup_discard, run=_discard),
)
