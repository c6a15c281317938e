"""`loopx capability`: what only LoopX may do for an agent: declared, previewed, asked for, and what became of it."""

from __future__ import annotations

import argparse
import shlex

import msgspec

from loopx.cli_commands.base import Command, Context, add_goal, optional_goal
from loopx.control_plane.errors import NotFoundError, UsageError


class _Declared(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    argv: tuple[str, ...]
    policy: str
    secrets: tuple[str, ...]
    parameters: dict[str, str]
    trusted: bool


class _Intent(msgspec.Struct, frozen=True, kw_only=True):
    intent_id: str
    goal_id: str
    capability: str
    status: str
    command: tuple[str, ...]
    gate_id: str | None
    receipt: msgspec.Raw


class _List(msgspec.Struct, frozen=True, kw_only=True):
    capabilities: tuple[_Declared, ...]
    intents: tuple[_Intent, ...]


class _Preview(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    command: tuple[str, ...]
    policy: str
    secrets: tuple[str, ...]
    trusted: bool


def _setup_list(parser: argparse.ArgumentParser) -> None:
    add_goal(parser, required=False)


def _setup_named(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("values", nargs="*", metavar="PARAMETER=VALUE")
    parser.add_argument("--reason", default="", help="why it is wanted")


def _values(args: argparse.Namespace) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for word in args.values:
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError("parameter_malformed", f"{word!r} is no PARAMETER=VALUE", hint="branch=fix/login")
        pairs[name] = value
    return pairs


def _goal(context: Context, args: argparse.Namespace) -> str | None:
    caller = context.caller()
    return caller.goal_id if caller is not None else optional_goal(args)


def _list(context: Context, args: argparse.Namespace) -> int:
    from loopx.runtime import capabilities
    from loopx.store import capabilities as rows

    session = context.session()
    goal_id = _goal(context, args)
    found = capabilities.declared(session.store, session.project, goal_id)
    with session.store.read() as tx:
        if goal_id is not None:
            intents = rows.latest(tx, goal_id)
        else:
            intents = tuple(rows.from_row(row) for row in tx.all("capabilities.latest_of_all", limit=20))
    listed = _List(
        capabilities=tuple(
            _Declared(
                name=name,
                argv=one.capability.argv,
                policy=one.capability.policy,
                secrets=one.capability.secrets,
                parameters=one.capability.parameters,
                trusted=one.trusted,
            )
            for name, one in found.items()
        ),
        intents=tuple(
            _Intent(
                intent_id=one.intent_id,
                goal_id=one.goal_id,
                capability=one.capability,
                status=one.status,
                command=one.command,
                gate_id=one.gate_id,
                receipt=one.receipt or msgspec.Raw(b"null"),
            )
            for one in intents
        ),
    )
    context.emit(listed, lambda: _text(listed))
    return 0


def _text(listed: _List) -> str:
    lines = ["  declared"] if listed.capabilities else ["  none is declared in loopx.toml"]
    for one in listed.capabilities:
        changed = "" if one.trusted else "  · changed since the goal's start: always asked"
        lines.append(f"    {one.name:<16} {one.policy:<6} {shlex.join(one.argv)}{changed}")
    if listed.intents:
        lines += ["", "  asked for"]
    for intent in listed.intents:
        lines.append(f"    {intent.capability:<16} {intent.status:<10} {shlex.join(intent.command)}")
    return "\n".join(lines)


def _preview(context: Context, args: argparse.Namespace) -> int:
    from loopx.runtime import capabilities

    session = context.session()
    caller = context.caller()
    found = capabilities.declared(session.store, session.project, caller.goal_id if caller else None)
    one = found.get(args.name)
    if one is None:
        raise NotFoundError("capability_unknown", f"no capability {args.name!r}", hint="loopx capability list")
    shown = _Preview(
        name=args.name,
        command=capabilities.preview(one.capability, _values(args)),
        policy=one.capability.policy,
        secrets=one.capability.secrets,
        trusted=one.trusted,
    )
    context.emit(shown, lambda: _preview_text(shown))
    return 0


def _preview_text(shown: _Preview) -> str:
    lines = [f"  runs      {shlex.join(shown.command)}", f"  policy    {shown.policy}"]
    if shown.secrets:
        lines.append(f"  secrets   {', '.join(shown.secrets)} (by name; their values are never shown)")
    if not shown.trusted:
        lines.append("  changed since the goal's start: a person is always asked")
    return "\n".join(lines)


def _request(context: Context, args: argparse.Namespace) -> int:
    from loopx.runtime import capabilities

    caller = context.caller()
    if caller is None:
        raise UsageError(
            "agent_only", "a capability is asked for by the agent of a turn", hint="run the command yourself instead"
        )
    session = context.session()
    asked = capabilities.request(session.store, session.project, caller, args.name, _values(args), args.reason)
    context.emit(asked, lambda: f"  {asked.status}  {shlex.join(asked.command)}")
    return 0


COMMANDS = (
    Command(verb="list", help="what is declared, and what was asked for", setup=_setup_list, run=_list),
    Command(verb="preview", help="exactly what would run", setup=_setup_named, run=_preview),
    Command(verb="request", help="ask for one, as the agent of a turn", setup=_setup_named, run=_request),
)
