"""One turn of one goal, as a process of its own: what a worker starts, and what may die without taking others along.

It prints progress as JSON lines. Asked to end (SIGTERM), it lets go at once and leaves the host to its keeper: the
turn stays open, and whoever comes next adopts it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

import msgspec

from loopx.control_plane.errors import LoopXError
from loopx.control_plane.ids import AgentId
from loopx.runtime.goal_runner import GoalRunner, RunOptions, StopSignal
from loopx.runtime.progress import ProgressEvent
from loopx.runtime.session import open_session

DETACHED = 75
"""The exit status of a run that let go because it was asked to."""
ERROR_TAG = "error"


class Detached(BaseException):
    """Raised where the process stands when it is asked to end; not an error, and nothing catches it but `main`."""


class RunError(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """Why the run could not be made; the last line then, instead of a result."""

    goal_id: str
    code: str
    message: str
    hint: str
    exit_code: int


def _detach(number: int, frame: FrameType | None) -> NoReturn:
    raise Detached


def _tell(event: ProgressEvent | RunError, /) -> None:
    """A worker that is gone hears nothing; the turn goes on all the same."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
        sys.stdout.buffer.flush()


def main(words: list[str]) -> int:
    """Run the goal that is named; its exit status as of `loopx run`."""
    parser = argparse.ArgumentParser(prog="loopx worker run")
    parser.add_argument("--project", required=True)
    parser.add_argument("--database", required=True)
    parser.add_argument("--agent", required=True)
    parser.add_argument("goal")
    args = parser.parse_args(words)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _detach)
    try:
        return _run(args)
    except Detached:
        return DETACHED
    except LoopXError as error:
        _tell(
            RunError(
                goal_id=args.goal,
                code=error.code,
                message=error.message,
                hint=error.hint,
                exit_code=error.exit_code,
            )
        )
        return error.exit_code


def _run(args: argparse.Namespace) -> int:
    session = open_session(args.project, args.database)
    try:
        options = RunOptions(max_turns=1, max_minutes=None, wait=False, probe=False, explicit=False)
        runner = GoalRunner(
            session.store,
            session.project,
            args.goal,
            AgentId(args.agent),
            _tell,
            dict(os.environ),
            options,
            StopSignal(),
            session.clock,
        )
        return runner.run().exit_code
    finally:
        session.close()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # A broken pipe must not turn a finished turn into a failed one at the very end.
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code)
