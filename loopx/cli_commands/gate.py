"""`loopx gate`: questions to people. Anybody may ask; only a person answers, and the first answer counts."""

from __future__ import annotations

import argparse

from loopx.cli_commands import work_args
from loopx.cli_commands.base import Caller, Command, Context, add_goal, optional_goal
from loopx.control_plane.errors import UsageError


def _setup_list(parser: argparse.ArgumentParser) -> None:
    add_goal(parser, required=False)
    work_args.add_page(parser)
    parser.add_argument("--all", action="store_true", help="answered ones too; of one goal")


def _list(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.gates import page_text
    from loopx.runtime import gate_service

    store, goal_id = context.session().store, optional_goal(args)
    if args.all:
        if goal_id is None:
            raise UsageError("goal_missing", "of which goal?", hint="loopx gate list GOAL --all")
        page = gate_service.whole_page(store, goal_id, after=args.after, limit=args.limit)
    else:
        page = gate_service.open_page(store, goal_id, args.limit)
    context.emit(page, lambda: page_text(page, store.now_ms()))
    return 0


def _setup_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("gate", metavar="GATE")


def _show(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.gates import gate_text
    from loopx.runtime import gate_service

    store = context.session().store
    gate = gate_service.get(store, args.gate)
    context.emit(gate, lambda: gate_text(gate, store.now_ms()))
    return 0


def _setup_ask(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="+", metavar="[GOAL] QUESTION")
    parser.add_argument("--goal-id", metavar="G")
    parser.add_argument("--option", action="append", default=[], metavar="TEXT", help="an answer that may be given")
    parser.add_argument("--todo", action="append", default=[], metavar="TODO", help="only this waits for the answer")
    parser.add_argument("--expires", metavar="T", help="2d, or an ISO instant: not asked any more then")


def _ask(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.gates import asked_text
    from loopx.runtime import gate_service

    goal_id, question = _goal_and_question(args)
    caller = work_args.caller_for(context, goal_id)
    if caller is not None:
        return _ask_as_agent(context, args, caller, question)
    if goal_id is None:
        raise UsageError("goal_missing", "of which goal?", hint='loopx gate ask GOAL "QUESTION"')
    store = context.session().store
    expires = work_args.instant(args.expires, store.now_ms(), "--expires") if args.expires else None
    asked = gate_service.ask(store, goal_id, question, tuple(args.option), tuple(args.todo), expires)
    context.emit(asked, lambda: asked_text(asked, tuple(args.option)))
    return 0


def _goal_and_question(args: argparse.Namespace) -> tuple[str | None, str]:
    words = list(args.words)
    if len(words) == 1 and (args.goal_id is not None or work_args.has_token()):
        return args.goal_id, words[0]
    if len(words) != 2:
        raise UsageError("question_unclear", "a goal and one question", hint='loopx gate ask GOAL "QUESTION"')
    return words[0], words[1]


def _ask_as_agent(context: Context, args: argparse.Namespace, caller: Caller, question: str) -> int:
    from loopx.runtime import agent_service

    told = agent_service.ask_person(context.session().store, caller, question, tuple(args.option))
    context.emit(told, lambda: "  noted: a person is asked when this turn ends; stop here if you can't go on")
    return 0


def _setup_answer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("gate", metavar="GATE")
    parser.add_argument("answer", metavar="ANSWER")
    parser.add_argument("--always", action="store_true", help="answer this question so from now on")
    parser.add_argument("--for", dest="until", metavar="T", help="with --always: only so long, such as 7d")


def _answer(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.gates import answered_text
    from loopx.runtime import gate_service

    person = context.require_person("gate answer")
    store = context.session().store
    until = work_args.instant(args.until, store.now_ms(), "--for") if args.until else None
    always = args.always or until is not None
    done = gate_service.answer(store, args.gate, args.answer, person, always=always, until_ms=until)
    context.emit(done, lambda: answered_text(done))
    return 0


COMMANDS = (
    Command(verb="list", help="what people are asked", setup=_setup_list, run=_list),
    Command(verb="show", help="one question whole", setup=_setup_show, run=_show),
    Command(verb="ask", help="ask a person something concrete", setup=_setup_ask, run=_ask),
    Command(verb="answer", help="answer it; only a person can", setup=_setup_answer, run=_answer),
)
