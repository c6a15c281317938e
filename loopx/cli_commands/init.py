"""`loopx init`: set a project up: its id in `.loopx/`, a commented `loopx.toml`, the store. Doing it again is fine."""

from __future__ import annotations

import argparse
import os

import msgspec

from loopx.cli_commands.base import Command, Context


class Initialised(msgspec.Struct, frozen=True, kw_only=True):
    """`loopx init --json`. `foreign`: another program's `.loopx/` is here, and was left alone."""

    project_id: str
    root: str
    database: str
    config: str
    created: tuple[str, ...]
    foreign: bool


def _setup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-config", action="store_true", help="write no loopx.toml")


def _run(context: Context, args: argparse.Namespace) -> int:
    from loopx.presentation.renderers.projects import initialised_text
    from loopx.runtime import config, project

    context.require_person("init")
    before = project.locate(context.project_dir, context.database)
    config.read(before.root)
    stored = os.path.exists(before.database)
    session = context.session(create=True)
    place = session.project
    made = [name for name, there in ((".loopx", before.initialised or before.foreign), ("store", stored)) if not there]
    if not args.no_config and config.write_template(place.root):
        made.append(config.NAME)
    answer = Initialised(
        project_id=place.project_id,
        root=place.root,
        database=place.database,
        config=os.path.join(place.root, config.NAME),
        created=tuple(made),
        foreign=place.foreign,
    )
    context.emit(answer, lambda: initialised_text(place, answer.created))
    return 0


COMMANDS = (Command(help="set up this project", setup=_setup, run=_run),)
