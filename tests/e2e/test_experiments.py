"""The four settlement experiments, each by really ending the process between two commits and starting it again.

A: progress against completion. B: interrupted after the writeback, only the spend is added, under the same
`effect_ref`. C: interrupted after the spend, only the scheduling is added. D: a failing closeout becomes
`terminal_closeout_failed`, and only the closeout is added.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopx.control_plane.turn_driver.transaction import PHASES, LoopXTurnPhase
from loopx.testing import Act, Sandbox, find_leaks
from tests.chaos import child, kit, picture

CHECKS = ("grep -q -e 1 -e 2 n.txt", "grep -q 2 n.txt")
HALF = Act(write={"n.txt": "1\n"})
WHOLE = Act(write={"n.txt": "2\n"})


@pytest.fixture(scope="module")
def zygote() -> Iterator[kit.Zygote]:
    with kit.Zygote() as running:
        yield running


class Lab:
    """One goal in a sandbox, run by processes that die as ordered."""

    def __init__(self, zygote: kit.Zygote, folder: Path, *acts: Act) -> None:
        self._zygote = zygote
        self.folder = folder
        with Sandbox(str(folder), files={"n.txt": "0\n"}) as sandbox:
            self.goal_id = sandbox.goal(*acts, checks=CHECKS).goal_id
        self.database = picture.database_of(folder)

    def run(self, **order: Any) -> int:
        """A LoopX with a commit after every phase."""
        return self._zygote.run(folder=str(self.folder), goal_id=self.goal_id, all_boundaries=True, **order)

    def rows(self, question: str, *values: object) -> list[dict[str, Any]]:
        return kit.all_of(self.database, question, *values)

    def turn(self, number: int = 1) -> dict[str, Any]:
        [found] = self.rows("SELECT * FROM turns WHERE number = ?", number)
        return found

    def phases(self, number: int = 1) -> list[dict[str, Any]]:
        return self.rows("SELECT * FROM turn_phases WHERE turn_key = ? ORDER BY ordinal", self.turn(number)["turn_key"])

    def ledger(self) -> list[dict[str, Any]]:
        return self.rows("SELECT * FROM ledger ORDER BY run_index")

    def commits(self) -> list[str]:
        with Sandbox(str(self.folder)) as sandbox:
            log = sandbox.git("log", "--format=%(trailers:key=LoopX-Effect,valueonly)", f"loopx/{self.goal_id}", "--")
        return [line for line in log.splitlines() if line]

    def starts(self) -> int:
        return len((self.folder / "agent" / "started").read_text().split())


@pytest.fixture
def lab(zygote: kit.Zygote, tmp_path: Path) -> Lab:
    return Lab(zygote, tmp_path, WHOLE)


def test_a_progress_continues_the_frontier_and_completion_enters_the_closeout(
    zygote: kit.Zygote, tmp_path: Path
) -> None:
    lab = Lab(zygote, tmp_path, HALF, WHOLE)
    assert lab.run(max_turns=1) == 12

    first = lab.turn(1)
    assert (first["result_kind"], first["completed"], first["closeout"]) == ("validated_progress", 7, "none")
    [goal] = lab.rows("SELECT state FROM goals")
    [todo] = lab.rows("SELECT status FROM todos")
    assert (goal["state"], todo["status"]) == ("active", "open"), "unfinished work goes on"

    assert lab.run() == 0
    second = lab.turn(2)
    assert (second["result_kind"], second["completed"], second["closeout"]) == ("validated_completion", 7, "done")
    [goal] = lab.rows("SELECT state FROM goals")
    [todo] = lab.rows("SELECT status, continuation_kind FROM todos")
    assert (goal["state"], todo["status"], todo["continuation_kind"]) == ("completed", "done", "no_followup")
    assert [entry["slots"] for entry in lab.ledger()] == [1, 1], "both are settled, and both are paid for"
    assert find_leaks(lab.database) == ()


def test_b_interrupted_after_the_writeback_only_the_spend_is_added(lab: Lab) -> None:
    assert lab.run(die_after="durable_writeback") == child.DIED
    turn, before = lab.turn(), lab.phases()
    assert [phase["phase"] for phase in before] == list(PHASES[:4])
    assert lab.ledger() == []
    [commit] = lab.commits()

    assert lab.run() == 0
    [entry] = lab.ledger()
    assert entry["effect_ref"] == f"{turn['turn_key']}/quota_spend"
    assert entry["run_index"] == 1
    assert lab.phases()[:4] == before, "neither the host nor the writeback was done again"
    assert lab.commits() == [commit]
    assert lab.starts() == 1
    assert find_leaks(lab.database) == ()


@pytest.mark.parametrize("last", ["quota_spend", "scheduler_apply"])
def test_c_interrupted_after_the_spend_only_the_scheduling_is_added(lab: Lab, last: str) -> None:
    assert lab.run(die_after=last) == child.DIED
    done = PHASES.index(LoopXTurnPhase(last)) + 1
    before, ledger = lab.phases(), lab.ledger()
    assert [phase["phase"] for phase in before] == list(PHASES[:done])
    assert len(ledger) == 1

    assert lab.run() == 0
    after = lab.phases()
    assert after[:done] == before
    assert [phase["phase"] for phase in after] == list(PHASES)
    assert lab.ledger() == ledger, "nothing is spent again"
    assert lab.starts() == 1
    [schedule] = lab.rows("SELECT revision, applied_revision, acked_revision FROM schedules")
    assert len(set(schedule.values())) == 1
    assert find_leaks(lab.database) == ()


def test_d_a_failing_closeout_is_named_and_only_the_closeout_is_added(lab: Lab) -> None:
    assert lab.run(fail_closeout=True) == 11
    turn = lab.turn()
    assert (turn["state"], turn["completed"], turn["result_kind"], turn["failed_phase"], turn["closeout"]) == (
        "open",
        7,
        "terminal_closeout_failed",
        "terminal_closeout",
        "failed",
    )
    assert turn["intended_kind"] == "validated_completion", "the failure does not replace what the turn was about"
    [goal] = lab.rows("SELECT state FROM goals")
    assert goal["state"] == "active"
    [event] = lab.rows("SELECT body FROM events WHERE kind = 'turn_stuck'")
    assert '"no_closeout"' in event["body"]
    before, ledger = lab.phases(), lab.ledger()
    assert len(ledger) == 1

    assert lab.run(fail_closeout=True) == 11, "it fails again, and nothing else is done"
    assert (lab.phases(), lab.ledger(), lab.starts()) == (before, ledger, 1)

    assert lab.run() == 0
    assert (lab.phases(), lab.ledger(), lab.starts()) == (before, ledger, 1)
    turn = lab.turn()
    assert (turn["state"], turn["result_kind"], turn["failed_phase"], turn["closeout"]) == (
        "closed",
        "validated_completion",
        None,
        "done",
    )
    [goal] = lab.rows("SELECT state FROM goals")
    assert goal["state"] == "completed"
    assert find_leaks(lab.database) == ()


@pytest.mark.parametrize("last", PHASES)
def test_interrupted_after_any_phase_the_prefix_stays_and_the_rest_is_added(lab: Lab, last: LoopXTurnPhase) -> None:
    assert lab.run(die_after=last) == child.DIED
    before = lab.phases()
    assert before, "the phase was committed before the process ended"
    assert lab.run() == 0
    assert lab.phases()[: len(before)] == before
    assert lab.starts() == 1
    assert len(lab.ledger()) == 1
    assert len(lab.commits()) == 1
    assert find_leaks(lab.database) == ()
