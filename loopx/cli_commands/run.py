"""`loopx run`: create or continue a goal, and loop until it stops. It shows the run, and hands a person's stop on."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import TextIO

import msgspec

from loopx.cli_commands import goal_options
from loopx.cli_commands.base import SCHEMA_VERSION, Command, Context
from loopx.control_plane.errors import ConflictError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopx.presentation.renderers.live import LiveView
    from loopx.runtime.goal_runner import RunOptions, StopSignal
    from loopx.runtime.progress import Observer, ProgressEvent, RunEnded


def _setup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", nargs="?", metavar="OBJECTIVE|GOAL", help="what is wanted, or a goal's id")
    parser.add_argument("--goal-id", metavar="G", help="the goal to go on with, or the id for a new one")
    goal_options.add(parser)
    parser.add_argument("--todo", action="append", default=[], metavar="TITLE", help="a slice of it, in order")
    parser.add_argument("--max-turns", metavar="N", help="turns of this run, or unlimited (default: 24)")
    parser.add_argument("--minutes", "--max-minutes", dest="minutes", metavar="N", help="or unlimited (default: 120)")
    parser.add_argument("--no-wait", action="store_true", help="end with 10 instead of sleeping")
    parser.add_argument("--agent-id", metavar="A", help="whose turns these are (default: loopx)")


def _run(context: Context, args: argparse.Namespace) -> int:
    context.require_person("run")
    bounds = _bounds(context, args)
    goal_id, created = _goal(context, args)
    options = msgspec.structs.replace(bounds, created=created, engine=None if created else _engine(args))
    ended = _loop(context, goal_id, args.agent_id, options, defaults=not (args.max_turns or args.minutes))
    return ended.exit_code


def _bounds(context: Context, args: argparse.Namespace) -> RunOptions:
    """What bounds this run: its own flags, else the project's, else 24 turns and 2 hours."""
    from loopx.runtime.goal_runner import RunOptions

    turns = goal_options.limit(args.max_turns) if args.max_turns is not None else 0
    minutes = goal_options.limit(args.minutes) if args.minutes is not None else 0
    found = goal_options.defaults(context)
    return RunOptions(
        max_turns=found.max_turns if turns == 0 else turns,
        max_minutes=found.minutes if minutes == 0 else minutes,
        wait=not args.no_wait,
    )


def _engine(args: argparse.Namespace) -> str | None:
    return args.engine[0] if args.engine else None


def _goal(context: Context, args: argparse.Namespace) -> tuple[str, bool]:
    """The goal to run, and whether it was made just now."""
    target, named = args.target, args.goal_id
    if target is None and named is None:
        raise UsageError("objective_missing", "what is wanted?", hint='loopx run "OBJECTIVE" --check CMD, or a goal')
    known = target if target is not None and named in (None, target) else named if target is None else None
    if known is not None and goal_options.has_goal(context, known):
        _refuse_edits(known, args)
        return known, False
    if target is None or (named is None and goal_options.looks_like_id(target) and not args.check):
        raise goal_options.unknown_goal(context, known or target)
    goal = goal_options.create(context, goal_options.wish_of(args, target), named, tuple(args.todo))
    return goal.goal_id, True


def _refuse_edits(goal_id: str, args: argparse.Namespace) -> None:
    """A goal that exists is not changed in passing."""
    said = [name for name in goal_options.wish_of(args).said if name != "engines"]
    if len(args.engine) > 1:
        said.append("engines")
    if said or args.todo:
        hint = f"loopx todo add {goal_id} TITLE" if not said else f"loopx goal edit {goal_id} ..."
        what = ", ".join(name.replace("_", " ") for name in said) or "todos"
        raise UsageError("goal_exists", f"goal {goal_id} exists; a run does not change its {what}", hint=hint)


def _loop(context: Context, goal_id: str, agent_id: str | None, options: RunOptions, *, defaults: bool) -> RunEnded:
    from loopx.control_plane.ids import AgentId
    from loopx.runtime import telemetry
    from loopx.runtime.goal_runner import GoalRunner, StopSignal
    from loopx.runtime.run_guard import held_by
    from loopx.runtime.session import DEFAULT_AGENT

    session, stop = context.session(), StopSignal()
    _hear_signals(stop)

    def drive(observer: Observer) -> RunEnded:
        agent, env = AgentId(agent_id or DEFAULT_AGENT), dict(os.environ)
        try:
            with telemetry.observing(observer, session.store, env) as told:
                runner = GoalRunner(
                    session.store, session.project, goal_id, agent, told, env, options, stop, session.clock
                )
                return runner.run()
        except ConflictError as error:
            if error.code != "lease_held":
                raise
            raise held_by(goal_id, str(error.data.get("owner") or "")) from error

    if context.as_json:
        return drive(lambda event, /: _print_line(context, event))
    if context.quiet:
        return drive(lambda event, /: None)
    with _view(context, goal_id, stop, defaults=defaults) as view:
        return drive(view)


def _hear_signals(stop: StopSignal) -> None:
    """Every wish to stop is the same wish; a second one changes nothing."""

    def heard(number: int, frame: object) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, heard)


def _view(context: Context, goal_id: str, stop: StopSignal, *, defaults: bool) -> LiveView:
    from loopx.presentation.renderers.live import LiveView

    out: TextIO = sys.stdout
    live = out.isatty() and os.environ.get("TERM", "") != "dumb"
    others = _other_engines(context, goal_id)
    return LiveView(out, live=live, color=context.color, defaults=defaults, others=others, stopping=stop.is_set)


def _other_engines(context: Context, goal_id: str) -> str:
    """What else is here, for whoever waits at a limit; the programs are found, not run."""
    import shutil

    from loopx.hosts import registry
    from loopx.presentation.renderers.run_text import other_engines
    from loopx.store import goals

    with context.session().store.read() as tx:
        definition = goals.get(tx, goal_id).definition
    first = definition.engines[:1]
    found = tuple(word for word in registry.CLIS if word not in first and shutil.which(word) is not None)
    allowed = definition.engines[1:] if definition.fallback else ()
    return other_engines(goal_id, found, allowed)


def _print_line(context: Context, event: ProgressEvent) -> None:
    """One event, one line; a reader that went away never fails the run."""
    from loopx.runtime.progress import RunEnded

    body = msgspec.to_builtins(event)
    if isinstance(event, RunEnded):
        body = {"schema_version": SCHEMA_VERSION, "ok": event.exit_code == 0, **body}
    try:
        context.line(body)
    except OSError:
        return


COMMANDS = (
    Command(
        help="work on an objective until it is done, or go on with a goal",
        setup=_setup,
        run=_run,
        epilog='loopx run "make the date parser accept ISO week dates" --check "pytest -q tests/test_dates.py"',
    ),
)
