"""`loopx turn`: one governed turn at a time, and what is known of those that were. A wrapper: it decides nothing."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec

from loopx.cli_commands.base import SCHEMA_VERSION, Command, Context, add_goal, goal_of
from loopx.cli_commands.quota import add_agent, agent_of
from loopx.control_plane.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopx.runtime.goal_runner import StopSignal
    from loopx.runtime.progress import CheckSummary, Observer, ProgressEvent
    from loopx.runtime.turn_output import OutputLine
    from loopx.runtime.turn_service import TurnLine


def _add_turn(parser: argparse.ArgumentParser) -> None:
    """`GOAL [TURN]`, or a turn's key alone."""
    add_goal(parser)
    parser.add_argument("turn", nargs="?", metavar="TURN", help="its number or key (default: the last one)")


def _turn_of(args: argparse.Namespace) -> tuple[str | None, str | None]:
    """(goal, turn): with --goal-id the one positional word is the turn."""
    if args.goal_id:
        return args.goal_id, args.turn or args.goal
    if args.goal is None:
        raise UsageError("turn_missing", "which turn?", hint="GOAL [NUMBER], or a turn's key")
    return args.goal, args.turn


def _setup_plan(parser: argparse.ArgumentParser) -> None:
    add_goal(parser)
    add_agent(parser)


def _plan(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.turn_text import plan_text
    from loopx.runtime import turn_service

    session = context.session()
    view = turn_service.plan(session.store, session.project, goal_of(args), agent_of(context, args))
    context.emit(view, lambda: plan_text(view))
    return 0


def _setup_once(parser: argparse.ArgumentParser) -> None:
    add_goal(parser)
    add_agent(parser)
    parser.add_argument("--engine", metavar="E", help="this engine instead of the goal's own")


def _once(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.turn_text import once_text
    from loopx.runtime import turn_acts
    from loopx.runtime.goal_runner import StopSignal

    goal_id = goal_of(args)
    context.require_person("running a turn")
    stop = StopSignal()
    with _hears_stop(stop), _shown(context) as observer:
        done = turn_acts.run_once(
            context.session(),
            goal_id,
            agent_of(context, args),
            dict(os.environ),
            observer,
            engine=args.engine,
            stop=stop,
        )
    context.emit(done, lambda: once_text(done))
    return done.exit_code


@contextmanager
def _hears_stop(stop: StopSignal) -> Iterator[None]:
    """Ctrl-C and TERM end the turn in good order instead of this process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, lambda *_: stop.set())
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _shown(context: Context) -> Iterator[Observer]:
    """Whoever watches: the live view for a person, nobody for a script. The run's own end is told by the command."""
    from loopx.runtime.progress import RunEnded, silent

    if context.as_json or context.quiet:
        yield silent
        return
    from loopx.presentation.renderers.live import LiveView

    with LiveView(sys.stdout, live=sys.stdout.isatty(), color=context.color) as view:

        def tell(event: ProgressEvent, /) -> None:
            if not isinstance(event, RunEnded):
                view(event)

        yield tell


def _resume(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.turn_text import resumed_text
    from loopx.runtime import turn_acts
    from loopx.runtime.progress import silent

    goal_id = goal_of(args)
    context.require_person("resuming a turn")
    session = context.session()
    done = turn_acts.resume(session.store, session.project, goal_id, dict(os.environ), silent)
    context.emit(done, lambda: resumed_text(done))
    return done.exit_code


class _SettledTurn(msgspec.Struct, frozen=True, kw_only=True):
    """`loopx turn settle --json`."""

    goal_id: str
    turn_key: str
    number: int
    replayed: bool
    result_kind: str
    reason: str
    failed_phase: str | None
    spent_slots: int
    checks: tuple[CheckSummary, ...]
    checkpoint: str | None
    continuation: str | None
    gate_id: str | None
    exit_code: int


def _setup_settle(parser: argparse.ArgumentParser) -> None:
    add_goal(parser)
    add_agent(parser)
    parser.add_argument("--todo", metavar="T", help="the todo that was worked on (default: the one that is next)")
    parser.add_argument("--result", metavar="FILE", help="a typed result, JSON; - reads standard input")
    parser.add_argument("--kind", metavar="K", help="progress, completion, question, blocker, no_change or error")
    parser.add_argument("--summary", metavar="TEXT", help="the worker's own words: a claim")
    parser.add_argument("--question", metavar="TEXT", help="with --kind question or blocker")
    parser.add_argument(
        "--successor", action="append", default=[], metavar="T", help="a todo that follows (repeatable)"
    )
    parser.add_argument("--effect-key", metavar="KEY", help="makes a repeat of this settlement the same settlement")
    parser.add_argument("--engine", metavar="WORD", default="outside", help="who worked, for the record")


def _settle(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.turn_text import settled_text
    from loopx.runtime import settling, summaries, turn_acts
    from loopx.runtime.progress import silent

    if context.caller() is not None:
        raise UsageError("inside_turn", "LoopX settles this turn itself", hint="loopx todo complete")
    session = context.session()
    asked = settling.Settle(
        goal_id=goal_of(args),
        agent_id=agent_of(context, args),
        todo_id=args.todo,
        result=_result_of(args),
        effect_key=args.effect_key,
        engine=args.engine,
    )
    done = settling.settle(session.store, session.project, asked, dict(os.environ), silent)
    turn = summaries.turn_ended(session.store, done.journal)
    stuck = turn.failed_phase is not None and done.journal.turn.state != "closed"
    payload = _SettledTurn(
        goal_id=turn.goal_id,
        turn_key=turn.turn_key,
        number=turn.number,
        replayed=done.replayed,
        result_kind=turn.result_kind,
        reason=turn.reason,
        failed_phase=turn.failed_phase,
        spent_slots=turn.slots,
        checks=turn.checks,
        checkpoint=turn.checkpoint,
        continuation=turn.continuation,
        gate_id=turn.gate_id,
        exit_code=11 if stuck else turn_acts.exit_of(turn.result_kind),
    )
    context.emit(payload, lambda: settled_text(turn, args.engine, replayed=done.replayed))
    return payload.exit_code


def _result_of(args: argparse.Namespace) -> bytes:
    """The typed result: a file's bytes, or what the flags say. Raises UsageError."""
    if args.result is None:
        return msgspec.json.encode(_result_from_flags(args))
    if args.kind or args.summary or args.question or args.successor:
        raise UsageError("usage", "--result says it all", hint="leave out --kind, --summary, --question, --successor")
    try:
        if args.result == "-":
            return sys.stdin.buffer.read()
        with open(args.result, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(
            "result_unreadable", f"{args.result} can't be read: {error.strerror}", hint="name a JSON file"
        ) from error


def _result_from_flags(args: argparse.Namespace) -> dict[str, object]:
    fields: dict[str, object] = {"kind": args.kind or "progress", "summary": args.summary or ""}
    if args.question:
        fields["question"] = {"text": args.question}
    if args.successor:
        fields["continuation"] = {"mode": "successor", "todo_ids": args.successor}
    return fields


def _setup_revert(parser: argparse.ArgumentParser) -> None:
    _add_turn(parser)
    parser.add_argument("--force", action="store_true", help="although the tree changed since; names what it replaces")


def _revert(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.turn_text import reverted_text
    from loopx.runtime import turn_acts

    goal_id, word = _turn_of(args)
    by = context.require_person("reverting a turn")
    session = context.session()
    done = turn_acts.revert(session.store, session.project, goal_id, word, by, force=args.force)
    context.emit(done, lambda: reverted_text(done))
    return 0


class _Turns(msgspec.Struct, frozen=True, kw_only=True):
    """`loopx turn list --json`."""

    goal_id: str
    turns: tuple[TurnLine, ...]


def _setup_list(parser: argparse.ArgumentParser) -> None:
    add_goal(parser)
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="turns, the newest first (default: 20)")
    parser.add_argument("--before", type=int, metavar="NUMBER", help="only older ones than this")


def _list(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.turn_text import list_text
    from loopx.runtime import turn_service

    goal_id, store = goal_of(args), context.session().store
    lines = turn_service.list_turns(store, goal_id, before=args.before, limit=args.limit)
    context.emit(_Turns(goal_id=goal_id, turns=lines), lambda: list_text(lines, goal_id, store.now_ms()))
    return 0


def _show(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.turn_text import show_text
    from loopx.runtime import turn_service

    store = context.session().store
    view = turn_service.show(store, *_turn_of(args))
    context.emit(view, lambda: show_text(view, store.now_ms()))
    return 0


def _journal(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.turn_text import journal_text
    from loopx.runtime import turn_service

    store = context.session().store
    view = turn_service.journal(store, *_turn_of(args))
    context.emit(view, lambda: journal_text(view, store.now_ms()))
    return 0


class _Logged(msgspec.Struct, frozen=True, kw_only=True):
    """The last line of `loopx turn log --json`; before it comes one of type `output` for each line of the host."""

    run_id: str
    stream: str
    lines: int
    lost: int


def _setup_log(parser: argparse.ArgumentParser) -> None:
    _add_turn(parser)
    parser.add_argument("--follow", "-f", action="store_true", help="go on until its host has ended")
    parser.add_argument("--stderr", action="store_true", help="what it wrote to standard error instead")


def _log(context: Context, args: argparse.Namespace) -> int:
    from loopx.runtime import turn_output

    run = turn_output.run_of(context.session().store, *_turn_of(args))
    stream = "stderr" if args.stderr else "stdout"
    lines = turn_output.follow(run, stream, lambda: False) if args.follow else turn_output.read(run, stream)
    if context.as_json:
        return _log_as_json(context, run.run_id, stream, lines)
    for line in lines:
        _print_line(line)
    return 0


def _log_as_json(context: Context, run_id: str, stream: str, lines: Iterable[OutputLine]) -> int:
    """A line for each line, as they come, and last the command's own answer."""
    count = lost = 0
    for line in lines:
        context.line({"type": "output", **msgspec.to_builtins(line)})
        count, lost = count + 1, lost + line.lost
    answer = _Logged(run_id=run_id, stream=stream, lines=count, lost=lost)
    context.line({"schema_version": SCHEMA_VERSION, "ok": True, "type": "result", **msgspec.to_builtins(answer)})
    return 0


def _print_line(line: OutputLine) -> None:
    if line.lost:
        print(f"  ({line.lost} bytes were not kept)")
    print(line.text, flush=True)


COMMANDS = (
    Command(
        verb="plan", help="what would happen now, and what it would cost; writes nothing", setup=_setup_plan, run=_plan
    ),
    Command(verb="run-once", help="one governed turn, with the exit codes of should-run", setup=_setup_once, run=_once),
    Command(verb="resume", help="take an interrupted turn to its end", setup=add_goal, run=_resume),
    Command(
        verb="settle",
        help="judge, write back, spend and schedule work of your own runner, in one go",
        setup=_setup_settle,
        run=_settle,
        epilog="loopx turn settle GOAL --todo T --kind completion --effect-key KEY",
    ),
    Command(verb="revert", help="put the work tree back to before a turn", setup=_setup_revert, run=_revert),
    Command(verb="list", help="turns of a goal, the newest first", setup=_setup_list, run=_list),
    Command(verb="show", help="one turn: prompt size, phases, receipts, evidence", setup=_add_turn, run=_show),
    Command(
        verb="journal",
        help="its phases with their effect_refs, and what a resume would do",
        setup=_add_turn,
        run=_journal,
    ),
    Command(verb="log", help="what its host printed, harmless to a terminal", setup=_setup_log, run=_log),
)
