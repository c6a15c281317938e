"""`loopx notify`: who is told, what waits to be sent, and sending it now."""

from __future__ import annotations

import argparse
import os

import msgspec

from loopx.cli_commands.base import Command, Context
from loopx.control_plane.errors import UsageError


class _Item(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    kind: str
    status: str
    attempts: int
    last_error: str


class _Items(msgspec.Struct, frozen=True, kw_only=True):
    items: tuple[_Item, ...]


def _no_flags(parser: argparse.ArgumentParser) -> None:
    """No flags of its own."""


def _send(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.notices import words
    from loopx.runtime.outbox_sender import Sender

    session = context.session()
    sent = Sender(session.store, session.project, words, os.environ).send_due()
    context.emit(sent, lambda: f"  {sent.delivered} delivered · {sent.failed} put off · {sent.held} held back")
    return 0


def _test(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.notices import words
    from loopx.runtime import notifications
    from loopx.runtime.outbox_sender import Sender
    from loopx.store import outbox

    context.require_person("notify test")
    session = context.session()
    if notifications.settings_of(session.store, session.project, None) is None:
        raise UsageError(
            "nobody_to_tell",
            "no [notifications] are set",
            hint='loopx.toml: [notifications] webhook = "https://...", or command = ["notify-send", "LoopX"]',
        )
    store = session.store
    with store.write() as tx:
        outbox.notify(tx, "", f"test:{store.ids.new('n')}", "test", {}, store.now_ms())
    sent = Sender(store, session.project, words, os.environ).send_due()
    context.emit(sent, lambda: f"  {sent.delivered} delivered · {sent.failed} failed: loopx notify list")
    return 0 if not sent.failed else 1


def _list(context: Context, args: argparse.Namespace) -> int:
    with context.session().store.read() as tx:
        rows = tx.all("outbox.latest", limit=args.limit)
    items = tuple(
        _Item(
            key=row["effect_key"],
            kind=row["kind"],
            status=row["status"],
            attempts=row["attempts"],
            last_error=row["last_error"],
        )
        for row in rows
    )
    context.emit(
        _Items(items=items), lambda: "\n".join(_line(item) for item in items) or "  nothing was ever to be sent"
    )
    return 0


def _line(item: _Item) -> str:
    error = f"  {item.last_error}" if item.last_error else ""
    return f"  {item.status:<8} {item.kind:<13} {item.key}{error}"


def _setup_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, default=30, metavar="N")


COMMANDS = (
    Command(verb="list", help="what was, is and failed to be sent", setup=_setup_list, run=_list),
    Command(verb="send", help="send what is due now", setup=_no_flags, run=_send),
    Command(verb="test", help="send a test to every channel", setup=_no_flags, run=_test),
)
