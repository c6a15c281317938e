"""`loopx doctor`: what is wrong, and with --repair the little that is provably safe to mend."""

from __future__ import annotations

import argparse

import msgspec

from loopx.cli_commands.base import Command, Context
from loopx.control_plane.errors import StoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopx.runtime.care import Finding
    from loopx.runtime.mending import Mended

CHECKED = (
    "pages",
    "references",
    "event chains",
    "books",
    "journals",
    "counts",
    "claims",
    "processes",
    "spools",
    "room",
    "file system",
)


class _Examined(msgspec.Struct, frozen=True, kw_only=True):
    """`loopx doctor --json`. `healthy`: nothing bad is left."""

    healthy: bool
    findings: tuple[Finding, ...]
    mended: tuple[Mended, ...]
    checked: tuple[str, ...]
    database: str
    sqlite: str
    exit_code: int


def _setup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repair", action="store_true", help="mend what is provably safe; the rest is only named")


def _run(context: Context, args: argparse.Namespace) -> int:
    import sqlite3

    from loopx.presentation.renderers.doctor_text import doctor_text
    from loopx.presentation.renderers.paint import Paint
    from loopx.runtime import care
    from loopx.runtime.project import locate

    if args.repair:
        _require_person(context)
    project = locate(context.project_dir, context.database)
    findings = care.surroundings(project)
    mended: tuple[Mended, ...] = ()
    exit_code = 0
    try:
        store = context.session().store
        findings += care.examine(store, project)
        if args.repair:
            from loopx.runtime import mending

            mended = mending.mend(store, project, tuple(findings))
            healed = {(one.code, one.subject) for one in mended if one.done}
            findings = [one for one in findings if (one.code, one.subject) not in healed]
    except StoreError as error:
        findings += care.unreadable(project, error)
        exit_code = 0 if error.code == "store_missing" else error.exit_code
    bad = any(one.severity is care.Severity.BAD for one in findings)
    payload = _Examined(
        healthy=not bad,
        findings=tuple(findings),
        mended=mended,
        checked=CHECKED,
        database=project.database,
        sqlite=sqlite3.sqlite_version,
        exit_code=exit_code or (11 if bad else 0),
    )
    context.emit(payload, lambda: doctor_text(findings, mended, CHECKED, Paint(color=context.color)))
    return payload.exit_code


def _require_person(context: Context) -> None:
    """A damaged store can't tell who runs inside a turn; the token alone still does."""
    try:
        context.require_person("repairing the store")
    except StoreError:
        return


COMMANDS = (
    Command(
        help="find what is wrong, and what is safe to repair",
        setup=_setup,
        run=_run,
        epilog="exits 0 in order, 11 when something needs a person, 4 when the store can't be read",
    ),
)
