"""The demo's story for people: what the agent did, what LoopX made of it, what the store proves. It decides nothing."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import assert_never

from loopx.demo.play import DemoEvent, Killed, TakenOver
from loopx.demo.proof import Point, Proof, ProofPoint
from loopx.demo.scene import OBJECTIVE, Stage
from loopx.runtime.progress import AgentDid, BaselineTaken, CheckSummary, RunEnded, TurnEnded, TurnOpened

_SCRIPT = {
    1: ("takes an honest step", ""),
    2: ("lies", "LoopX ran the checks itself and did not believe it"),
    3: ("cheats: it marks the three failing tests as skipped", ""),
    4: ("works on, and LoopX is killed while it does", ""),
    5: ("finishes", ""),
}
_INDENT = " " * 11
_WIDE = 56


class Story:
    """Turns the demo's events into lines, as they come."""

    def __init__(self, write: Callable[[str], None], *, color: bool) -> None:
        self._write = write
        self._color = color
        self._failing: int | None = None
        self._heard: set[str] = set()

    def opening(self, stage: Stage) -> None:
        """What will be seen, before anything starts."""
        self._lines(
            "",
            f"  {self._bold('loopx demo')}   a real repository and a scripted agent; no network, no key",
            "",
            f'  objective  "{OBJECTIVE}"',
            f"  check      {stage.check}",
            f"  in         {stage.project}",
        )

    def hear(self, event: DemoEvent) -> None:
        """Tell one event; most say nothing to people here."""
        match event:
            case BaselineTaken():
                self._lines(f"  baseline   {self._check(event.checks[0])}", "")
            case TurnOpened() if event.resumed_after is None:
                self._heard.clear()
                self._lines(f"  turn {event.number}     the agent {_SCRIPT.get(event.number, ('works', ''))[0]}")
            case AgentDid() if event.text and event.text not in self._heard:
                # Whoever adopts an agent hears its words from the start once more; people need not.
                self._heard.add(event.text)
                self._lines(f'{_INDENT}  it says: "{event.text}"')
            case Killed():
                self._lines(
                    f"{_INDENT}  kill -9 {event.pid}: the LoopX process that started the agent is gone",
                    f"{_INDENT}  loopx run {event.goal_id}: a new process takes the turn over",
                )
            case TakenOver():
                self._lines(f"{_INDENT}  and finds the same agent still at work; it is not started again")
            case TurnEnded():
                self._lines(*self._turn(event), "")
            case RunEnded():
                self._lines(
                    f"  {self._bold('done')}       {event.total_turns} turns · {event.spent_slots} slots · "
                    f"{event.disposition} · in the tree and on {event.branch}"
                )
            case _:
                pass

    def _turn(self, ended: TurnEnded) -> Iterator[str]:
        words = f"{ended.result_kind} · {'1 slot' if ended.slots == 1 else 'nothing spent'}"
        for path in ended.restored:
            yield self._columns(f"guard {self._red('✗ refused')}  {path}", words)
            yield f"{_INDENT}green only with the agent's tests, red with yours: the file was put back"
            return
        yield self._columns(self._check(ended.checks[0], confirmed=ended.confirmed_in_snapshot), words)
        said = _SCRIPT.get(ended.number, ("", ""))[1]
        if said:
            yield f"{_INDENT}{said}"
        if ended.checkpoint:
            yield f"{_INDENT}checkpoint {ended.checkpoint[:7]} on loopx/{ended.goal_id}"

    def _check(self, check: CheckSummary, *, confirmed: bool = False) -> str:
        failed, total = check.failed or 0, check.total or 0
        if check.verdict == "green":
            again = ", again in a clean snapshot" if confirmed else ""
            return f"check {self._green('✓ green')}  {total - failed} of {total}{again}"
        before = f" (was {self._failing})" if self._failing not in (None, failed) else ""
        self._failing = failed
        return f"check {self._red('✗ red')}    {failed} of {total} failing{before}"

    def _columns(self, left: str, right: str) -> str:
        plain = len(left) - (9 if self._color else 0)
        return f"{_INDENT}{left}{' ' * max(2, _WIDE - plain)}{right}"

    def closing(self, stage: Stage, proof: Proof, goal_id: str) -> None:
        """What the store proves, and where to look around."""
        mark = {True: self._green("✓"), False: self._red("✗")}
        self._lines("", "  proved from the store, after everything ended")
        self._lines(*(f"    {mark[point.holds]} {_point(point)}" for point in proof.points))
        self._lines("", "  look around", *(f"    {line}" for line in look_around(stage, goal_id)), "")

    def _lines(self, *lines: str) -> None:
        for line in lines:
            self._write(line)

    def _bold(self, text: str) -> str:
        return f"\033[1m{text}\033[0m" if self._color else text

    def _green(self, text: str) -> str:
        return f"\033[32m{text}\033[0m" if self._color else text

    def _red(self, text: str) -> str:
        return f"\033[31m{text}\033[0m" if self._color else text


def look_around(stage: Stage, goal_id: str) -> tuple[str, ...]:
    """Commands that work as printed, in a shell that knows nothing of this demo."""
    program = _program()
    return (
        f"cd {shlex.quote(stage.project)}",
        f"export LOOPX_STATE_DIR={shlex.quote(stage.state)}",
        f"{program} status",
        f"{program} turn list {goal_id}",
        *([f"{program} serve"] if find_spec("loopx.cli_commands.serve") else []),
        f"git log --oneline loopx/{goal_id}",
    )


def _program() -> str:
    """`loopx` where the shell would find this very one, else its whole path."""
    own = os.path.join(os.path.dirname(sys.executable), "loopx")
    found = shutil.which("loopx")
    if found is not None and os.path.realpath(found) == os.path.realpath(own):
        return "loopx"
    return shlex.quote(own) if os.path.exists(own) else f"{shlex.quote(sys.executable)} -m loopx"


def _point(point: Point) -> str:
    some, others = _listed(point.turns), _listed(point.others)
    match point.point:
        case ProofPoint.STORY:
            return f"{point.count} turns: progress, a refused claim, a refused cheat, progress, completion"
        case ProofPoint.LEDGER:
            return f"{point.count} slots in the ledger: one each for turns {some}, none for {others}"
        case ProofPoint.JOURNAL:
            return f"journal: all {point.count} phases in order for turns {some}; {others} stopped before writeback"
        case ProofPoint.LAUNCHES:
            return f"{point.count} starts of the agent for {point.count} turns: turn {some} was adopted, not run again"
        case ProofPoint.GUARD:
            return f"the tests are as they were: turn {some}'s edit was undone, and kept as evidence"
        case ProofPoint.CHAIN:
            return f"{point.count} events, each chained to the one before by its hash; no link broken"
        case ProofPoint.TERMINAL:
            return "the goal is completed, and nothing is left to do"
        case _:
            assert_never(point.point)


def _listed(numbers: tuple[int, ...]) -> str:
    if len(numbers) < 2:
        return str(numbers[0]) if numbers else "none"
    return f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
