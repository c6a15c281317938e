"""Eight processes want the same thing at the same instant, round after round: one winner each time, and a right sum."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopx.control_plane.ids import GoalId, TodoId
from loopx.control_plane.work_items.todo import Todo
from loopx.store import ledger, todos
from loopx.testing import Act, Sandbox, find_leaks
from tests.chaos import kit

RACERS = 8
ROUNDS = 10
MANY_ROUNDS = 200


@pytest.fixture(scope="module")
def zygote() -> Iterator[kit.Zygote]:
    with kit.Zygote() as running:
        yield running


@pytest.fixture(params=[pytest.param(ROUNDS, id="some"), pytest.param(MANY_ROUNDS, id="all", marks=pytest.mark.chaos)])
def rounds(request: pytest.FixtureRequest) -> int:
    return int(request.param)


class Track:
    """Where the racers meet: each round begins for all of them with one file."""

    def __init__(self, zygote: kit.Zygote, folder: Path, rounds: int) -> None:
        self._zygote = zygote
        self.folder = folder
        self.rounds = rounds
        with Sandbox(str(folder / "box"), files={"n.txt": "0\n"}) as sandbox:
            self.goal_id = GoalId(sandbox.goal(Act(), checks=("grep -q 2 n.txt",)).goal_id)
            self.database = sandbox.store.path
            with sandbox.store.write() as tx:
                for number in range(rounds):
                    todo = Todo(todo_id=TodoId(f"td-{number}"), goal_id=self.goal_id, title=f"todo {number}")
                    todos.insert(tx, todo)

    def race(self, kind: str) -> list[list[Any]]:
        """What each racer answers, round by round."""
        meet = self.folder / kind
        meet.mkdir()
        pids = [
            self._zygote.start(
                folder=str(self.folder / "box"),
                goal_id=self.goal_id,
                race=kind,
                racer=racer,
                rounds=self.rounds,
                meet=str(meet),
            )
            for racer in range(RACERS)
        ]
        for number in range(self.rounds):
            kit.until(lambda number=number: len(list(meet.glob(f"ready-{number}-*"))) == RACERS, "all are ready")
            (meet / f"go-{number}").touch()
        assert [self._zygote.wait(pid) for pid in pids] == [0] * RACERS
        answers = [json.loads((meet / f"answers-{racer}").read_text()) for racer in range(RACERS)]
        return [list(answer) for answer in zip(*answers, strict=True)]


@pytest.fixture
def track(zygote: kit.Zygote, tmp_path: Path, rounds: int) -> Track:
    return Track(zygote, tmp_path, rounds)


@pytest.mark.timeout(1800)
def test_eight_claim_one_todo(track: Track) -> None:
    for number, answers in enumerate(track.race("claim")):
        won = [racer for racer, answer in enumerate(answers) if answer == "claimed"]
        assert len(won) == 1, f"round {number}: {answers}"
        assert set(answers) <= {"claimed", "lease_held", "todo_taken"}, answers
        todo = kit.one_of(track.database, "SELECT * FROM todos WHERE todo_id = ?", f"td-{number}")
        assert (todo["status"], todo["claimed_by"]) == ("claimed", f"racer-{won[0]}")
        lease = kit.one_of(track.database, "SELECT * FROM leases WHERE resource = ?", f"todo:td-{number}")
        assert (lease["owner"], lease["epoch"]) == (f"racer-{won[0]}", 1)
    assert find_leaks(track.database) == ()


@pytest.mark.timeout(1800)
def test_eight_spend_one_effect(track: Track) -> None:
    for number, answers in enumerate(track.race("spend_same")):
        assert collections.Counter(answers) == {"spent": 1, "replayed": RACERS - 1}, f"round {number}: {answers}"
    _sum_is(track, track.rounds)


@pytest.mark.timeout(1800)
def test_eight_append_at_one_run_index(track: Track) -> None:
    for number, answers in enumerate(track.race("spend_at_index")):
        assert collections.Counter(answers) == {"spent": 1, "spend_conflict": RACERS - 1}, f"round {number}: {answers}"
    _sum_is(track, track.rounds)


@pytest.mark.timeout(1800)
def test_eight_different_spends_are_all_in_the_sum(track: Track) -> None:
    for number, answers in enumerate(track.race("spend_each")):
        assert answers == ["spent"] * RACERS, f"round {number}: {answers}"
    _sum_is(track, track.rounds * RACERS)


@pytest.mark.leaves("open_turn", reason="turns are started and not run")
@pytest.mark.timeout(1800)
def test_eight_start_one_turn(track: Track) -> None:
    for number, answers in enumerate(track.race("start_turn")):
        started = [answer for answer in answers if answer.startswith("t-")]
        assert len(started) == 1, f"round {number}: {answers}"
        assert set(answers) - set(started) <= {"turn_open", "lease_held", "stale_revision"}, answers
    turns = kit.all_of(track.database, "SELECT number FROM turns ORDER BY number")
    assert [turn["number"] for turn in turns] == list(range(1, track.rounds + 1))


def _sum_is(track: Track, slots: int) -> None:
    entries = kit.all_of(track.database, "SELECT * FROM ledger ORDER BY run_index")
    assert [entry["run_index"] for entry in entries] == list(range(1, slots + 1))
    with Sandbox(str(track.folder / "box")) as sandbox, sandbox.store.read() as tx:
        now = sandbox.store.now_ms()
        assert ledger.spent_in_window(tx, track.goal_id, 1 << 50, now) == slots
        assert ledger.recount(tx, track.goal_id, 1 << 50, now) == slots
    assert find_leaks(track.database) == ()
