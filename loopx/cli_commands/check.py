"""`loopx check`: the contract: what it says, and what it says of the tree as it is now."""

from __future__ import annotations

import argparse
import os

import msgspec

from loopx.cli_commands import work_args
from loopx.cli_commands.base import Command, Context, add_goal, goal_of
from loopx.control_plane.errors import NotFoundError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopx.contracts.model import Check
    from loopx.runtime.goal_reads import CheckShown
    from loopx.runtime.progress import CheckSummary


class Checks(msgspec.Struct, frozen=True, kw_only=True):
    """`loopx check list --json`."""

    goal_id: str
    checks: tuple[CheckShown, ...]


class CheckRun(msgspec.Struct, frozen=True, kw_only=True):
    """`loopx check run --json`. `green`: every check that was run is."""

    goal_id: str
    tree: str | None
    green: bool
    checks: tuple[CheckSummary, ...]


def _hidden(context: Context, goal_id: str) -> bool:
    """Whether held-out checks are kept from whoever asks; an agent sees only its own goal."""
    work_args.caller_for(context, goal_id)
    return context.may_not_see_held_out()


def _list(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.checks import list_text
    from loopx.presentation.renderers.paint import Paint
    from loopx.runtime import goal_reads

    goal_id = goal_of(args)
    hidden = _hidden(context, goal_id)
    found = goal_reads.show(context.session().store, goal_id).checks
    shown = tuple(check for check in found if not (hidden and check.held_out))
    context.emit(Checks(goal_id=goal_id, checks=shown), lambda: list_text(shown, Paint(color=context.color)))
    return 0


def _setup_run(parser: argparse.ArgumentParser) -> None:
    add_goal(parser)
    parser.add_argument("--name", action="append", default=[], metavar="CHECK", help="only this one")
    parser.add_argument("--baseline", action="store_true", help="the tree as it is now is the start; once, before work")


def _run(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.checks import Printer, run_text
    from loopx.presentation.renderers.paint import Paint
    from loopx.runtime import todo_proof
    from loopx.runtime.evaluation import summarise

    goal_id = goal_of(args)
    if args.baseline:
        return _baseline(context, args, goal_id)
    hidden = _hidden(context, goal_id)
    session = context.session()
    chosen = _chosen(context, goal_id, tuple(args.name), hidden=hidden)
    paint = Paint(color=context.color)
    printer = Printer(paint, silent=context.as_json or context.quiet)
    env = dict(os.environ)
    evaluation = todo_proof.evaluate_checks(session.store, session.project, goal_id, env, printer, chosen)
    checks = tuple(summarise(result) for result in evaluation.results)
    answer = CheckRun(goal_id=goal_id, tree=evaluation.tree_hash, green=evaluation.all_green, checks=checks)
    context.emit(answer, lambda: run_text(checks, paint))
    return 0 if evaluation.all_green else 14


def _baseline(context: Context, args: argparse.Namespace, goal_id: str) -> int:
    """Put the start on record; red checks are what is expected of it, so that they are no failure."""
    from loopx.presentation.renderers.checks import run_text
    from loopx.presentation.renderers.paint import Paint
    from loopx.runtime import starting
    from loopx.runtime.evaluation import summarise

    context.require_person("check run --baseline")
    if args.name:
        raise UsageError("baseline_whole", "a baseline is of all checks", hint=f"loopx check run {goal_id} --baseline")
    session = context.session()
    taken = starting.put_on_record(session.store, session.project, goal_id, dict(os.environ)).evaluation
    checks = tuple(summarise(result) for result in taken.results)
    answer = CheckRun(goal_id=goal_id, tree=taken.tree_hash, green=taken.all_green, checks=checks)
    context.emit(answer, lambda: run_text(checks, Paint(color=context.color)))
    return 0


def _chosen(context: Context, goal_id: str, names: tuple[str, ...], *, hidden: bool) -> tuple[Check, ...] | None:
    """The checks to run; None: the whole contract. Raises NotFoundError (`check_unknown`)."""
    from loopx.contracts.model import Contract
    from loopx.runtime import goal_reads

    definition, _ = goal_reads.definition_of(context.session().store, goal_id)
    known = msgspec.json.decode(definition.contract, type=Contract).checks
    visible = tuple(check for check in known if not (hidden and check.held_out))
    for name in names:
        if not any(check.name == name for check in visible):
            raise NotFoundError("check_unknown", f"{goal_id} has no check {name!r}", hint=f"loopx check list {goal_id}")
    if names:
        return tuple(check for check in visible if check.name in names)
    return visible if len(visible) != len(known) else None


COMMANDS = (
    Command(verb="run", help="run the checks on the tree as it is", setup=_setup_run, run=_run),
    Command(verb="list", help="the checks, and what they said last", setup=add_goal, run=_list),
)
