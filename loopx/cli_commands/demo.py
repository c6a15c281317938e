"""`loopx demo`: the whole story in half a minute, without a network or a key."""

from __future__ import annotations

import argparse
import sys

import msgspec

from loopx.cli_commands.base import Command, Context, LoopXError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopx.demo.proof import Point


class DemoResult(msgspec.Struct, frozen=True, kw_only=True, tag="result"):
    """The one line of `loopx demo --json`."""

    goal_id: str
    disposition: str
    result_kind: str | None
    turns: int
    spent_slots: int
    exit_code: int
    proved: bool
    proof: tuple[Point, ...]
    folder: str
    project: str
    state_dir: str
    look_around: tuple[str, ...]


def _setup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", metavar="DIR", help="play in this new or empty folder (default: a temporary one)")
    parser.add_argument("--discard", action="store_true", help="remove the folder at the end; by default it stays")


def _run(context: Context, args: argparse.Namespace) -> int:
    from loopx.demo import play, proof, scene
    from loopx.presentation.renderers.demo import Story, look_around

    quiet = context.as_json or context.quiet
    story = Story(_nothing if quiet else _print, color=context.color)
    stage = scene.build(args.dir)
    story.opening(stage)
    ended = play.play(stage, story.hear)
    proved = proof.prove(stage, ended.goal_id)
    story.closing(stage, proved, ended.goal_id)
    if context.as_json:
        context.emit(
            DemoResult(
                goal_id=ended.goal_id,
                disposition=ended.disposition,
                result_kind=ended.result_kind,
                turns=proved.turns,
                spent_slots=proved.slots,
                exit_code=ended.exit_code,
                proved=proved.holds,
                proof=proved.points,
                folder=stage.folder,
                project=stage.project,
                state_dir=stage.state,
                look_around=look_around(stage, ended.goal_id),
            ),
            str,
        )
    if args.discard:
        _discard(stage.folder)
    if not proved.holds:
        raise LoopXError("demo_unproved", "the store does not prove the story", hint=f"look into {stage.folder}")
    return ended.exit_code


def _discard(folder: str) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def _print(line: str) -> None:
    print(line)
    sys.stdout.flush()


def _nothing(line: str) -> None:
    return None


COMMANDS = (
    Command(
        help="see the whole story in half a minute: an agent, a lie, a cheat, a crash, and the proof",
        setup=_setup,
        run=_run,
    ),
)
