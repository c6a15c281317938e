"""What the store says about the demo, read back after everything ended: the only judge of whether the story is true."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable

import msgspec

from loopx.control_plane.goal import GoalState
from loopx.control_plane.turn_driver.journal import Turn, TurnState
from loopx.control_plane.turn_driver.transaction import MATERIAL_RESULT_KINDS, PHASES, LoopXTurnResultKind
from loopx.demo import scene
from loopx.demo.scene import Stage
from loopx.runtime import project as projects
from loopx.runtime.session import open_session
from loopx.store import events, goals, hosts, turns
from loopx.store.connection import Tx

_STORY = (
    LoopXTurnResultKind.VALIDATED_PROGRESS,
    LoopXTurnResultKind.VALIDATION_FAILED,
    LoopXTurnResultKind.VALIDATION_FAILED,
    LoopXTurnResultKind.VALIDATED_PROGRESS,
    LoopXTurnResultKind.VALIDATED_COMPLETION,
)


class ProofPoint(enum.StrEnum):
    """What is proved."""

    STORY = "story"
    LEDGER = "ledger"
    JOURNAL = "journal"
    CHAIN = "chain"
    LAUNCHES = "launches"
    GUARD = "guard"
    TERMINAL = "terminal"


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was asked of the store, whether it holds, and the numbers."""

    point: ProofPoint
    holds: bool
    count: int = 0
    turns: tuple[int, ...] = ()
    others: tuple[int, ...] = ()


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. `slots` as the ledger has them; `killed_turn_adopted`: its host was found again, not started again."""

    points: tuple[Point, ...]
    turns: int
    slots: int

    @property
    def holds(self) -> bool:
        return all(point.holds for point in self.points)


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the points are judged on."""

    turns: tuple[Turn, ...]
    spends: tuple[str, ...]
    phases: dict[str, tuple[str, ...]]
    host_runs: int
    adopted: tuple[int, ...]
    events: int
    broken_link: int | None
    goal_state: str
    launches: int
    tests_unharmed: bool

    @property
    def material(self) -> tuple[Turn, ...]:
        return tuple(turn for turn in self.turns if turn.result_kind in MATERIAL_RESULT_KINDS)

    @property
    def refused(self) -> tuple[Turn, ...]:
        return tuple(turn for turn in self.turns if turn.result_kind not in MATERIAL_RESULT_KINDS)


def prove(stage: Stage, goal_id: str) -> Proof:
    """Read the store and judge each point. Raises StoreError when there is no store."""
    found = _read(stage, goal_id)
    points = tuple(judge(found) for judge in _JUDGES)
    return Proof(points=points, turns=len(found.turns), slots=len(found.spends))


def database(stage: Stage) -> str:
    """The demo's store."""
    project_id = projects.locate(stage.project).project_id
    return os.path.join(stage.state, "projects", project_id, projects.STORE_NAME)


def _read(stage: Stage, goal_id: str) -> _Found:
    session = open_session(stage.project, database(stage))
    try:
        with session.store.read() as tx:
            return _collect(tx, stage, goal_id)
    finally:
        session.close()


def _collect(tx: Tx, stage: Stage, goal_id: str) -> _Found:
    all_turns = tuple(reversed(turns.page(tx, goal_id)))
    row = goals.row_of(tx, goal_id)
    runs = [run for turn in all_turns for run in hosts.of_turn(tx, turn.turn_key)]
    journals = {turn.turn_key: turns.load_journal(tx, turn.turn_key) for turn in all_turns}
    ledger = tx.all("ledger.page", goal_id=goal_id, after=0, limit=1000)
    return _Found(
        turns=all_turns,
        spends=tuple(str(entry["turn_key"]) for entry in ledger if entry["kind"] == "spend" and entry["slots"] == 1),
        phases={
            turn.turn_key: tuple(str(one["phase"]) for one in tx.all("turns.phases", turn_key=turn.turn_key))
            for turn in all_turns
        },
        host_runs=len(runs),
        adopted=tuple(
            journal.turn.number for journal in journals.values() if journal.host is not None and journal.host.adopted
        ),
        events=int(row["event_seq"]),
        broken_link=events.broken_link(tx, goal_id),
        goal_state=str(row["state"]),
        launches=scene.launches(stage),
        tests_unharmed=scene.test_file_as_at_the_start(stage),
    )


def _story(found: _Found) -> Point:
    kinds = tuple(turn.result_kind for turn in found.turns)
    return Point(point=ProofPoint.STORY, holds=kinds == _STORY, count=len(kinds))


def _ledger(found: _Found) -> Point:
    wanted = tuple(turn.turn_key for turn in found.material)
    return Point(
        point=ProofPoint.LEDGER,
        holds=found.spends == wanted,
        count=len(found.spends),
        turns=_numbers(found.material),
        others=_numbers(found.refused),
    )


def _journal(found: _Found) -> Point:
    whole = tuple(str(phase) for phase in PHASES)
    settled = all(found.phases[turn.turn_key] == whole for turn in found.material)
    stopped = all(found.phases[turn.turn_key] == whole[:2] for turn in found.refused)
    closed = all(turn.state is TurnState.CLOSED for turn in found.turns)
    return Point(
        point=ProofPoint.JOURNAL,
        holds=settled and stopped and closed,
        count=len(whole),
        turns=_numbers(found.material),
        others=_numbers(found.refused),
    )


def _chain(found: _Found) -> Point:
    return Point(point=ProofPoint.CHAIN, holds=found.broken_link is None, count=found.events)


def _launches(found: _Found) -> Point:
    once = found.launches == found.host_runs == len(found.turns)
    return Point(
        point=ProofPoint.LAUNCHES, holds=once and found.adopted == (4,), count=found.launches, turns=found.adopted
    )


def _guard(found: _Found) -> Point:
    restored = tuple(turn.number for turn in found.turns if turn.result is not None and turn.result.restore is not None)
    return Point(point=ProofPoint.GUARD, holds=found.tests_unharmed and restored == (3,), turns=restored)


def _terminal(found: _Found) -> Point:
    return Point(point=ProofPoint.TERMINAL, holds=found.goal_state == GoalState.COMPLETED)


def _numbers(some: tuple[Turn, ...]) -> tuple[int, ...]:
    return tuple(turn.number for turn in some)


_JUDGES: tuple[Callable[[_Found], Point], ...] = (_story, _ledger, _journal, _launches, _guard, _chain, _terminal)
