"""`loopx todo`: the work graph, for people, for agents with a runner of their own, and for the agent of a turn.

`claim` is started by other programs every tick: whatever is heavy is imported inside the verb that needs it.
"""

from __future__ import annotations

import argparse

import msgspec

from loopx.cli_commands import work_args
from loopx.cli_commands.base import Caller, Command, Context, add_goal, goal_of
from loopx.control_plane.errors import UsageError
from loopx.control_plane.work_items.todo import TodoStatus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopx.runtime.todo_service import NewTodo, TodoMoved


def _setup_add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="+", metavar="[GOAL] TITLE")
    parser.add_argument("--goal-id", metavar="G")
    parser.add_argument("--body", default="", metavar="TEXT", help="more of it, told to the agent")
    parser.add_argument("--priority", type=int, default=0, metavar="N", help="higher goes first")
    parser.add_argument("--depends-on", action="append", default=[], metavar="TODO", help="waits until that is done")
    parser.add_argument("--check", action="append", default=[], metavar="CMD", help="decides whether it is done")
    parser.add_argument(
        "--scope", action="append", default=[], metavar="GLOB", help="what it writes; claims never overlap"
    )
    parser.add_argument("--review-of", metavar="TODO", help="a review: never by who did that one")
    parser.add_argument("--person", action="store_true", help="a person does it; they are asked")
    parser.add_argument("--monitor", metavar="CMD", help="watch what this prints; a change becomes a todo")
    parser.add_argument("--every", default="5m", metavar="T", help="how often a monitor looks (default: 5m)")
    work_args.add_wake(parser)


def _add(context: Context, args: argparse.Namespace) -> int:
    from loopx.runtime import todo_service

    goal_id, title = _goal_and_title(args)
    caller = work_args.caller_for(context, goal_id)
    if caller is not None:
        return _add_as_agent(context, args, caller, title)
    if goal_id is None:
        raise UsageError("goal_missing", "of which goal?", hint='loopx todo add GOAL "TITLE"')
    person = context.require_person("todo add")
    store = context.session().store
    todo = todo_service.add(store, goal_id, _new_todo(args, title, store.now_ms()), person)
    moved = todo_service.TodoMoved(todo_id=todo.todo_id, goal_id=todo.goal_id, status=todo.status)
    return _tell(context, moved, "added")


def _goal_and_title(args: argparse.Namespace) -> tuple[str | None, str]:
    words = list(args.words)
    if len(words) == 1 and (args.goal_id is not None or work_args.has_token()):
        return args.goal_id, words[0]
    if len(words) != 2:
        raise UsageError("title_unclear", "a goal and one title", hint='loopx todo add GOAL "TITLE"')
    if args.goal_id not in (None, words[0]):
        raise UsageError("goal_unclear", f"{args.goal_id} or {words[0]}?", hint="name the goal once")
    return words[0], words[1]


def _new_todo(args: argparse.Namespace, title: str, now_ms: int) -> NewTodo:
    import shlex

    from loopx.runtime.todo_service import NewTodo

    return NewTodo(
        title=title,
        body=args.body,
        priority=args.priority,
        depends_on=tuple(args.depends_on),
        checks=_checks(args.check),
        write_scope=tuple(args.scope),
        review_of=args.review_of,
        for_person=args.person,
        monitor=tuple(shlex.split(args.monitor)) if args.monitor else (),
        every_ms=work_args.span_ms(args.every, "--every"),
        wake=work_args.wake_of(args, now_ms),
    )


def _checks(lines: list[str]) -> msgspec.Raw:
    if not lines:
        return msgspec.Raw(b"[]")
    from loopx.contracts.parse import parse_command_line

    return msgspec.Raw(msgspec.json.encode(parse_command_line(lines)))


def _add_as_agent(context: Context, args: argparse.Namespace, caller: Caller, title: str) -> int:
    from loopx.runtime import agent_service

    if args.check or args.monitor or args.person or args.review_of or args.scope or args.wake_at:
        raise UsageError("agent_adds_plain", "an agent adds plain todos", hint="title, body, priority, depends-on")
    added = agent_service.add_todo(
        context.session().store, caller, title, args.body, args.priority, tuple(args.depends_on)
    )
    context.emit(added, lambda: f"  added  {added.todo_id}")
    return 0


def _setup_list(parser: argparse.ArgumentParser) -> None:
    add_goal(parser, required=False)
    work_args.add_page(parser)
    parser.add_argument("--all", action="store_true", help="those that have ended too")


def _list(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.todos import page_text
    from loopx.runtime import todo_reads

    caller = work_args.caller_for(context, args.goal_id or args.goal)
    goal_id = caller.goal_id if caller is not None else goal_of(args)
    store = context.session().store
    page = todo_reads.page(store, goal_id, after=args.after, limit=args.limit, every=args.all)
    context.emit(page, lambda: page_text(page, goal_id, store.now_ms()))
    return 0


def _show(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.todos import todo_text
    from loopx.runtime import todo_reads

    goal_id, todo_id = work_args.todo_of(args)
    caller = work_args.caller_for(context, goal_id)
    store = context.session().store
    todo = todo_reads.show(store, todo_id, caller.goal_id if caller is not None else goal_id)
    context.emit(todo, lambda: todo_text(todo, store.now_ms()))
    return 0


def _setup_claim(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="GOAL [TODO]")
    parser.add_argument("--goal-id", metavar="G")
    parser.add_argument("--next", action="store_true", help="whichever is ready and most urgent")
    parser.add_argument("--agent-id", metavar="A", help="who claims (default: you)")


def _claim(context: Context, args: argparse.Namespace) -> int:
    from loopx.control_plane.ids import AgentId, TurnKey
    from loopx.runtime import todo_service

    goal_id, todo_id = _goal_and_todo(args)
    caller = work_args.caller_for(context, goal_id)
    turn_key = TurnKey(caller.turn_key) if caller is not None else None
    if caller is not None:
        goal_id, agent = caller.goal_id, AgentId(caller.agent_id)
    else:
        named, name = work_args.person_or_agent(context, args, "todo claim")
        agent = named if named is not None else AgentId(name)
    if goal_id is None:
        raise UsageError("goal_missing", "of which goal?", hint="loopx todo claim GOAL --next")
    if (todo_id is None) is not args.next:
        raise UsageError("todo_missing", "which todo?", hint="name one, or take the next: --next")
    claimed = todo_service.claim(context.session().store, goal_id, todo_id, agent, turn_key=turn_key)
    context.emit(claimed, lambda: f"  claimed  {claimed.todo_id}   {claimed.title}   for 45 m by {claimed.agent_id}")
    return 0


def _goal_and_todo(args: argparse.Namespace) -> tuple[str | None, str | None]:
    """`GOAL`, `GOAL TODO`, or with the goal named otherwise (a flag, a turn's token) just `TODO`."""
    words = list(args.words)
    if args.goal_id is None and words and not (work_args.has_token() and len(words) == 1 and not args.next):
        return words[0], words[1] if len(words) > 1 else None
    return args.goal_id, words[0] if words else None


def _setup_own(parser: argparse.ArgumentParser) -> None:
    work_args.add_todo(parser)
    parser.add_argument("--agent-id", metavar="A", help="an agent with a runner of its own, whose claim it is")


def _release(context: Context, args: argparse.Namespace) -> int:
    from loopx.runtime import todo_service

    _, todo_id = work_args.todo_of(args)
    agent, _ = work_args.person_or_agent(context, args, "todo release")
    return _tell(context, todo_service.release(context.session().store, _known(context, args, todo_id), agent), "free")


def _known(context: Context, args: argparse.Namespace, todo_id: str) -> str:
    """The todo's id, refused when it is not of the goal that was named."""
    from loopx.runtime import todo_reads

    goal_id, _ = work_args.todo_of(args)
    return todo_reads.show(context.session().store, todo_id, goal_id).todo_id


def _setup_update(parser: argparse.ArgumentParser) -> None:
    work_args.add_todo(parser)
    parser.add_argument("--title", metavar="TEXT")
    parser.add_argument("--body", metavar="TEXT")
    parser.add_argument("--priority", type=int, metavar="N", help="higher goes first")
    parser.add_argument("--check", action="append", default=[], metavar="CMD", help="replaces its checks")


def _update(context: Context, args: argparse.Namespace) -> int:
    from loopx.runtime import todo_service

    _, todo_id = work_args.todo_of(args)
    person = context.require_person("todo update")
    edit = todo_service.TodoEdit(
        title=args.title,
        body=args.body,
        priority=args.priority,
        checks=_checks(args.check) if args.check else None,
    )
    moved = todo_service.update(context.session().store, _known(context, args, todo_id), edit, person)
    return _tell(context, moved, "changed")


def _setup_complete(parser: argparse.ArgumentParser) -> None:
    _setup_own(parser)
    parser.add_argument("--successor", action="append", default=[], metavar="TODO", help="what follows it")
    parser.add_argument("--note", default="", metavar="TEXT", help="what was done")
    parser.add_argument("--no-change", metavar="WHY", help="of a turn's agent: nothing needs to change")


def _complete(context: Context, args: argparse.Namespace) -> int:
    import os

    from loopx.runtime import todo_service

    if work_args.has_token():
        return _complete_as_agent(context, args)
    _, todo_id = work_args.todo_of(args)
    agent, name = work_args.person_or_agent(context, args, "todo complete")
    session = context.session()
    todo_id = _known(context, args, todo_id)
    if agent is not None:
        from loopx.runtime import todo_proof
        from loopx.store import todos

        with session.store.read() as tx:
            todo = todos.get(tx, todo_id)
        todo_service.require_own(todo, agent)
        todo_proof.require_proof(session.store, session.project, todo, dict(os.environ))
    moved = todo_service.complete(session.store, todo_id, name, tuple(args.successor), args.note)
    return _tell(context, moved, "done")


def _complete_as_agent(context: Context, args: argparse.Namespace) -> int:
    from loopx.runtime import agent_service

    goal_id, todo_id = work_args.todo_of(args) if args.words else (args.goal_id, None)
    caller = work_args.caller_for(context, goal_id)
    if caller is None:
        raise UsageError("token_refused", "the turn of this token is over", hint="a token dies with its turn")
    store = context.session().store
    if args.no_change is not None:
        told = agent_service.nominate_no_change(store, caller, args.no_change)
    else:
        told = agent_service.complete_todo(store, caller, todo_id, args.note, tuple(args.successor))
    context.emit(told, lambda: "  noted: a candidate, until LoopX has run the checks")
    return 0


def _setup_move(parser: argparse.ArgumentParser) -> None:
    _setup_own(parser)
    parser.add_argument("--reason", default="", metavar="TEXT", help="for the record, and for whoever comes next")


def _setup_wait(parser: argparse.ArgumentParser) -> None:
    _setup_move(parser)
    work_args.add_wake(parser)


def _block(context: Context, args: argparse.Namespace) -> int:
    if work_args.has_token():
        return _report_blocker(context, args)
    return _move(context, args, TodoStatus.BLOCKED, "todo block", "blocked")


def _report_blocker(context: Context, args: argparse.Namespace) -> int:
    from loopx.runtime import agent_service

    goal_id, _ = work_args.todo_of(args) if args.words else (args.goal_id, None)
    caller = work_args.caller_for(context, goal_id)
    if caller is None:
        raise UsageError("token_refused", "the turn of this token is over", hint="a token dies with its turn")
    told = agent_service.report_blocker(context.session().store, caller, args.reason)
    context.emit(told, lambda: "  noted: a person is told when this turn ends")
    return 0


def _defer(context: Context, args: argparse.Namespace) -> int:
    return _move(context, args, TodoStatus.DEFERRED, "todo defer", "deferred")


def _supersede(context: Context, args: argparse.Namespace) -> int:
    return _move(context, args, TodoStatus.SUPERSEDED, "todo supersede", "dropped")


def _reopen(context: Context, args: argparse.Namespace) -> int:
    return _move(context, args, TodoStatus.OPEN, "todo reopen", "open")


def _move(context: Context, args: argparse.Namespace, status: TodoStatus, verb: str, word: str) -> int:
    from loopx.runtime import todo_service

    _, todo_id = work_args.todo_of(args)
    agent, name = work_args.person_or_agent(context, args, verb)
    if agent is not None and status in (TodoStatus.SUPERSEDED, TodoStatus.OPEN):
        context.require_person(verb)
    store = context.session().store
    wake = work_args.wake_of(args, store.now_ms()) if hasattr(args, "wake_at") else None
    moved = todo_service.move(store, _known(context, args, todo_id), status, agent, name, reason=args.reason, wake=wake)
    return _tell(context, moved, word)


def _tell(context: Context, moved: TodoMoved, word: str) -> int:
    context.emit(moved, lambda: f"  {word}  {moved.todo_id}   {moved.goal_id}")
    return 0


COMMANDS = (
    Command(verb="add", help="add a slice of a goal", setup=_setup_add, run=_add),
    Command(verb="list", help="what is to be done", setup=_setup_list, run=_list),
    Command(verb="show", help="one todo whole", setup=work_args.add_todo, run=_show),
    Command(verb="claim", help="take one for 45 minutes", setup=_setup_claim, run=_claim),
    Command(verb="release", help="give a claim up", setup=_setup_own, run=_release),
    Command(verb="update", help="change its words, priority or checks", setup=_setup_update, run=_update),
    Command(verb="complete", help="mark as done", setup=_setup_complete, run=_complete),
    Command(verb="block", help="say that it can't go on", setup=_setup_wait, run=_block),
    Command(verb="defer", help="put it off until something happens", setup=_setup_wait, run=_defer),
    Command(verb="supersede", help="drop it", setup=_setup_move, run=_supersede),
    Command(verb="reopen", help="open it again", setup=_setup_move, run=_reopen),
)
