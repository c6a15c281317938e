"""`loopx worker`: run every due goal of the project until it is stopped, once, or from login on."""

from __future__ import annotations

import argparse
import os
import sys

import msgspec

from loopx.cli_commands.base import Command, Context
from loopx.control_plane.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopx.runtime.worker import WorkerEvent


def _setup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max", dest="most", type=int, metavar="N", help="runs at once (default: one per core)")
    parser.add_argument("--once", action="store_true", help="end when nothing is due")
    parser.add_argument("--agent-id", dest="agent_id", metavar="A", help="the agent for whom it runs")
    parser.add_argument("--install", action="store_true", help="run it at login: a systemd user unit")
    parser.add_argument("--print", dest="show", action="store_true", help="print that unit instead")


def _run(context: Context, args: argparse.Namespace) -> int:
    from loopx.control_plane.ids import AgentId
    from loopx.runtime.session import DEFAULT_AGENT
    from loopx.runtime.worker import Options, Worker, default_most

    most = default_most() if args.most is None else args.most
    if most < 1:
        raise UsageError("max_invalid", f"--max {most}: at least 1", hint="leave it out for one run per core")
    context.require_person("worker")
    session = context.session(create=True)
    agent_id = AgentId(args.agent_id or DEFAULT_AGENT)
    if args.install or args.show:
        return _install(context, agent_id, most, write=args.install)
    options = Options(agent_id=agent_id, most=most, once=args.once)
    worker = Worker(session.store, session.project, options, _Teller(context), dict(os.environ), session.clock)
    return worker.run().exit_code


class _Teller:
    """Prints the worker's events, and its children's lines; a reader that went away ends no work."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._open = True

    def __call__(self, event: WorkerEvent | msgspec.Raw, /) -> None:
        if not self._open:
            return
        try:
            self._say(event)
        except OSError:
            self._open = False

    def _say(self, event: WorkerEvent | msgspec.Raw) -> None:
        if self._context.as_json:
            line = bytes(event) if isinstance(event, msgspec.Raw) else msgspec.json.encode(event)
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.buffer.flush()
        elif not self._context.quiet:
            from loopx.presentation.renderers.worker_text import text_of

            words = text_of(event)
            if words:
                print(words, flush=True)


def _install(context: Context, agent_id: str, most: int, *, write: bool) -> int:
    from loopx.runtime import service_unit

    made = service_unit.unit(context.session().project, agent_id, most, os.environ)
    if not write:
        context.emit(made, lambda: made.text)
        return 0
    done = service_unit.install(made)
    context.emit(done, lambda: _installed_text(done.path, done.running, done.todo))
    return 0


def _installed_text(path: str, running: bool, todo: tuple[str, ...]) -> str:
    head = f"  {path}{'  · running' if running else ''}"
    then = (
        "  to keep it running after you log out:"
        if running
        else "  no user service manager answered here; when there is one:"
    )
    return "\n".join([head, then, *(f"    {line}" for line in todo)])


COMMANDS = (Command(help="run every due goal", setup=_setup, run=_run),)
