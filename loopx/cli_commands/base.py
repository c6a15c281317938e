"""What every command shares: global flags, the open session, who is calling, and how answers and errors are printed.

A command module offers `COMMANDS`, a tuple of `Command`; a group has several, with a verb each. No decision is made
here or in any command: they call runtime and store, and print.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import msgspec

from loopx.control_plane.errors import LoopXError, NeedsPersonError, NotFoundError, StoreError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopx.runtime.session import Session

SCHEMA_VERSION = "loopx_cli_v1"
TOKEN_VARIABLE = "LOOPX_TURN_TOKEN"

Run = Callable[["Context", argparse.Namespace], int]


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """One command, or one verb of a group (`verb` empty: the command itself)."""

    verb: str = ""
    help: str
    setup: Callable[[argparse.ArgumentParser], None]
    run: Run
    epilog: str = ""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The agent of an open turn, known by its token."""

    turn_key: str
    goal_id: str
    agent_id: str


class _Formatter(argparse.HelpFormatter):
    """Knows its width: argparse would import shutil to ask for it, in every command, for help that nobody asked for."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns())


def _columns() -> int:
    try:
        wide = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        wide = 0
    return min(wide or 100, 120) - 2


class Parser(argparse.ArgumentParser):
    """Raises UsageError instead of exiting, so that usage errors look like all others."""

    def __init__(
        self, prog: str, description: str | None = None, epilog: str | None = None, *, add_help: bool = True
    ) -> None:
        super().__init__(prog, None, description, epilog, formatter_class=_Formatter, add_help=add_help)

    def error(self, message: str) -> NoReturn:
        raise UsageError("usage", message, hint=f"{self.prog} --help")


class Context:
    """One invocation: its global flags, its output, and its session, opened when first asked for."""

    def __init__(self, *, as_json: bool, project: str | None, database: str | None, quiet: bool, color: bool) -> None:
        self.as_json = as_json
        self.project_dir = project
        self.database = database
        self.quiet = quiet
        self.color = color and not as_json and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._session: Session | None = None

    def session(self, *, create: bool = False) -> Session:
        """The open project. Raises StoreError (`store_missing`) unless `create`."""
        if self._session is None:
            from loopx.runtime.session import open_session

            self._session = open_session(self.project_dir, self.database, create=create)
        return self._session

    def emit(self, payload: object, text: Callable[[], str]) -> None:
        """Print one answer: one JSON object with `schema_version` and `ok`, or text for people."""
        if self.as_json:
            # Through JSON and back, because a payload may hold pieces that are JSON already.
            body = msgspec.json.decode(msgspec.json.encode(payload))
            fields = body if isinstance(body, dict) else {"value": body}
            self.line({"schema_version": SCHEMA_VERSION, "ok": True, **fields})
            return
        words = text()
        if words and not self.quiet:
            print(words)

    def line(self, payload: object) -> None:
        """Print one JSON line at once."""
        sys.stdout.write(msgspec.json.encode(payload).decode() + "\n")
        sys.stdout.flush()

    def fail(self, error: LoopXError) -> int:
        """Print an error; its exit status."""
        if self.as_json:
            body = {"code": error.code, "message": error.message, "hint": error.hint, "data": error.data}
            self.line({"schema_version": SCHEMA_VERSION, "ok": False, "error": body})
        else:
            from loopx.presentation.renderers.errors import error_text

            print(error_text(error), file=sys.stderr)
        return error.exit_code

    def refused(self, words: Sequence[str], error: LoopXError) -> None:
        """Put on record that an agent was refused; a person's own mistakes are nobody's business."""
        token = os.environ.get(TOKEN_VARIABLE)
        if not token and error.code != "person_only":
            return
        from loopx.runtime import refusals

        with contextlib.suppress(LoopXError):
            refusals.record(self.session().store, token, " ".join(words[:2]), error)
        self.close()

    def caller(self) -> Caller | None:
        """The agent whose token this process carries; None for a person.

        Raises UsageError: `token_refused` for a token of no open turn, `token_foreign` for that of another turn than
        the one from whose host this process was started.
        """
        token = os.environ.get(TOKEN_VARIABLE)
        if not token:
            return None
        import hashlib

        digest = hashlib.sha256(token.encode()).hexdigest()
        with self.session().store.read() as tx:
            row = tx.one("turns.by_token", token_hash=digest)
        if row is None:
            raise UsageError(
                "token_refused", "the turn of this token is over, or never was", hint="a token dies with its turn"
            )
        from loopx.runtime import refusals

        refusals.require_own_token(self.session().store, row["turn_key"])
        return Caller(turn_key=row["turn_key"], goal_id=row["goal_id"], agent_id=row["agent_id"])

    def require_person(self, verb: str) -> str:
        """The person's name for the record. Raises NeedsPersonError (`person_only`) inside a turn."""
        if os.environ.get(TOKEN_VARIABLE) or self._inside_a_host():
            raise NeedsPersonError(
                "person_only",
                f"{verb} is a person's to do; an agent can't",
                hint='ask instead: loopx gate ask "QUESTION"',
            )
        return os.environ.get("USER") or "person"

    def may_not_see_held_out(self) -> bool:
        """Whether this may be an agent, from whom held-out checks are kept."""
        return bool(os.environ.get(TOKEN_VARIABLE)) or self._inside_a_host()

    def _inside_a_host(self) -> bool:
        """Whether an ancestor of this process is a host that the store knows."""
        from loopx.runtime.ancestry import inside_a_host

        try:
            session = self.session()
        except StoreError as error:
            if error.code != "store_missing":
                raise
            return False  # a project without a store never launched anything
        return inside_a_host(session.store)

    def overview(self, groups: Sequence[tuple[str, Sequence[tuple[str, str, str]]]]) -> int:
        """Print all commands; imports none of them."""
        lines = ["usage: loopx COMMAND [...]   --json --project DIR --database URL -q --no-color", ""]
        for title, commands in groups:
            lines.append(f"  {title}")
            lines.extend(f"    {name:<10} {words}" for name, _, words in commands)
            lines.append("")
        lines.append('first: loopx run "make the date parser accept ISO week dates" --check "pytest -q" --engine codex')
        print("\n".join(lines))
        return 0

    def version(self) -> int:
        """Print the version."""
        from importlib.metadata import version

        print(f"loopx {version('loopx-control')}")
        return 0

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def split_globals(words: list[str]) -> tuple[Context, list[str]]:
    """Take the global flags out, wherever they stand before a `--`."""
    flags: dict[str, str | bool] = {}
    rest: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        name, _, value = word.partition("=")
        if word == "--":
            rest.extend(words[index:])
            break
        if word in ("--json", "-q", "--quiet", "--no-color"):
            flags[word] = True
        elif name in ("--project", "--database"):
            if not value:
                index += 1
                value = words[index] if index < len(words) else ""
            flags[name] = value
        else:
            rest.append(word)
        index += 1
    project, database = flags.get("--project"), flags.get("--database")
    context = Context(
        as_json=bool(flags.get("--json")),
        project=str(project) if project else None,
        database=str(database) if database else None,
        quiet=bool(flags.get("-q") or flags.get("--quiet")),
        color=not flags.get("--no-color"),
    )
    return context, rest


def run_module(context: Context, name: str, module_name: str, words: list[str]) -> int:
    """Import one command module and run the verb that was named."""
    import importlib

    try:
        module = importlib.import_module(f"loopx.cli_commands.{module_name}")
    except ModuleNotFoundError as error:
        if error.name != f"loopx.cli_commands.{module_name}":
            raise missing_extra(name, error) from error
        raise unknown_command(name, ()) from error
    commands: tuple[Command, ...] = module.COMMANDS
    command, words = _choose(name, commands, words, as_json=context.as_json)
    program = f"loopx {name} {command.verb}".strip()
    parser = Parser(prog=program, description=command.help, epilog=command.epilog or None)
    command.setup(parser)
    try:
        namespace = parser.parse_args(words)
        return command.run(context, namespace)
    except SystemExit as stop:  # --help
        return int(stop.code or 0)
    except ModuleNotFoundError as error:
        raise missing_extra(name, error) from error
    finally:
        context.close()


def _choose(name: str, commands: tuple[Command, ...], words: list[str], *, as_json: bool) -> tuple[Command, list[str]]:
    if len(commands) == 1 and not commands[0].verb:
        return commands[0], words
    verbs = {command.verb: command for command in commands}
    if words and words[0] in verbs:
        return verbs[words[0]], words[1:]
    if not words and as_json:
        raise UsageError("verb_missing", f"loopx {name} needs a verb", hint=f"one of: {', '.join(verbs)}")
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: loopx {name} VERB [...]\n")
        for command in commands:
            print(f"  {command.verb:<11} {command.help}")
        raise SystemExit(0 if words else 2)
    raise UsageError("unknown_verb", f"loopx {name} has no verb {words[0]!r}", hint=f"one of: {', '.join(verbs)}")


def unknown_command(name: str, known: tuple[str, ...]) -> UsageError:
    """The error for a command that does not exist, with near names."""
    import difflib

    near = difflib.get_close_matches(name, known, 3)
    return UsageError(
        "unknown_command", f"no command {name!r}", hint=f"did you mean {', '.join(near)}?" if near else "loopx --help"
    )


def missing_extra(name: str, error: ModuleNotFoundError) -> UsageError:
    """The error for a face whose library is not installed."""
    return UsageError(
        "extra_missing",
        f"loopx {name} needs the library {error.name!r}, which is not installed",
        hint="pip install 'loopx-control[all]'",
    )


def add_goal(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """The goal as a positional word, or as `--goal-id G`."""
    parser.add_argument("goal", nargs="?", metavar="GOAL")
    parser.add_argument("--goal-id", dest="goal_id", metavar="G", help="the same as GOAL")
    parser.set_defaults(goal_required=required)


def goal_of(args: argparse.Namespace) -> str:
    """The goal that was named. Raises UsageError (`goal_missing`)."""
    named: str | None = args.goal_id or args.goal
    if not named:
        raise UsageError("goal_missing", "which goal?", hint="name it: GOAL, or --goal-id G; loopx goal list")
    return named


def optional_goal(args: argparse.Namespace) -> str | None:
    named: str | None = args.goal_id or args.goal
    return named


def close_quietly() -> None:
    """After the reader went away, nothing more may be written, not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


__all__ = [
    "Caller",
    "Command",
    "Context",
    "LoopXError",
    "NotFoundError",
    "Parser",
    "add_goal",
    "close_quietly",
    "goal_of",
    "missing_extra",
    "optional_goal",
    "run_module",
    "split_globals",
    "unknown_command",
]
