"""Plays the demo: drives `loopx run` as a person would, as a process, and kills it with signal 9 in the middle.

It hears the run's own JSON lines and passes them on. It judges nothing itself: what is true is read from the store
afterwards (`proof.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from loopx.control_plane.errors import LoopXError
from loopx.demo.scene import GOAL_ID, OBJECTIVE, Stage
from loopx.runtime.progress import AgentDid, ProgressEvent, RunEnded, TurnOpened

BOUNDS = ("--max-turns", "12", "--max-minutes", "5")


class Killed(msgspec.Struct, frozen=True, kw_only=True, tag="demo_killed"):
    """LoopX was killed with signal 9 while its agent worked."""

    goal_id: str
    turn_key: str
    pid: int


class TakenOver(msgspec.Struct, frozen=True, kw_only=True, tag="demo_taken_over"):
    """A new LoopX process took the open turn over, while the same agent still runs."""

    turn_key: str


DemoEvent = ProgressEvent | Killed | TakenOver
Tell = Callable[[DemoEvent], None]

_decoder = msgspec.json.Decoder(ProgressEvent)


class _Foreign(msgspec.Struct, frozen=True):
    """What every line of a run has."""

    type: str = ""
    ok: bool = True


def play(stage: Stage, tell: Tell) -> RunEnded:
    """Run the goal to its end, through a kill; the run's last word.

    Raises LoopXError (`demo_run_failed`) when a run ends without one.
    """
    killed = _first_run(stage, tell)
    if killed is None:
        raise LoopXError("demo_run_failed", "the run ended before the agent came to its fourth act")
    tell(killed)
    return _second_run(stage, tell, killed)


def _first_run(stage: Stage, tell: Tell) -> Killed | None:
    """Run until the agent is at work in the act in which LoopX dies; None when it never came so far."""
    words = ("run", OBJECTIVE, "--goal-id", GOAL_ID, "--check", stage.check, "--engine", stage.engine)
    process = _start(stage, *words)
    with process:
        for event in _events(process):
            tell(event)
            if isinstance(event, AgentDid) and os.path.exists(os.path.join(stage.cues, "at-work")):
                process.kill()
                process.wait()
                return Killed(goal_id=event.goal_id, turn_key=event.turn_key, pid=process.pid)
    return None


def _second_run(stage: Stage, tell: Tell, killed: Killed) -> RunEnded:
    process = _start(stage, "run", killed.goal_id)
    last: RunEnded | None = None
    with process:
        for event in _events(process):
            if isinstance(event, TurnOpened) and event.turn_key == killed.turn_key:
                tell(TakenOver(turn_key=event.turn_key))
                # Only now may the agent go on: it outlived the process that had started it.
                Path(stage.cues, "go-on").touch()
            tell(event)
            if isinstance(event, RunEnded):
                last = event
    if last is None:
        raise LoopXError("demo_run_failed", f"loopx run ended with status {process.returncode} and no result")
    return last


def environment(stage: Stage) -> dict[str, str]:
    """The person's environment, with the demo's own state folder and nothing of another LoopX."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("LOOPX_")}
    return {**env, "LOOPX_STATE_DIR": stage.state}


def _start(stage: Stage, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "loopx", *words, "--json", *BOUNDS]
    return subprocess.Popen(
        command,
        cwd=stage.project,
        env=environment(stage),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )


def _events(process: subprocess.Popen[bytes]) -> Iterator[ProgressEvent]:
    """The run's events. Raises LoopXError (`demo_run_failed`) for a run that reports an error."""
    if process.stdout is None:
        return
    for line in process.stdout:
        foreign = msgspec.json.decode(line, type=_Foreign)
        if not foreign.ok and not foreign.type:
            raise LoopXError("demo_run_failed", f"loopx run: {line.decode(errors='replace').strip()[:500]}")
        yield _decoder.decode(line)
