"""Every row of the recovery table, with real processes: what a crash or a failure leaves is gone on from, never redone.

LoopX is killed with -9 (or ends itself between two commits), and started again.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from loopx.control_plane.errors import ConflictError, LoopXError, NeedsPersonError
from loopx.control_plane.ids import TurnKey
from loopx.control_plane.turn_driver.journal import Fence, JournalStep, NextDue, SlotSpent, TurnJournal
from loopx.runtime import schedule_port, tree_port, turn_ports
from loopx.runtime.progress import Observer, ProgressEvent, TurnOpened
from loopx.testing import Act, LeakKind, Sandbox, find_leaks
from loopx.workspace import refs
from tests.chaos import child, kit

FILES = {"n.txt": "0\n"}
CHECKS = ("grep -q -e 1 -e 2 n.txt", "grep -q 2 n.txt")
WHOLE = Act(write={"n.txt": "2\n"})
SLOW = Act(cue="at-work", wait_for="go-on", write={"n.txt": "2\n"})


@pytest.fixture(scope="module")
def zygote() -> Iterator[kit.Zygote]:
    with kit.Zygote() as running:
        yield running


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(str(tmp_path), files=FILES) as sandbox:
        yield sandbox


def rows(box: Sandbox, question: str, *values: object) -> list[dict[str, Any]]:
    return kit.all_of(box.store.path, question, *values)


def turn_of(box: Sandbox) -> dict[str, Any]:
    [turn] = rows(box, "SELECT * FROM turns")
    return turn


def order(box: Sandbox, goal_id: str, **more: Any) -> dict[str, Any]:
    return {"folder": box.folder, "goal_id": goal_id, **more}


# -- during host_execute -----------------------------------------------------------------------------------------


def test_killed_while_the_agent_works_the_next_start_adopts_it(zygote: kit.Zygote, box: Sandbox) -> None:
    goal = box.goal(SLOW, checks=CHECKS)
    agent = box.agent(SLOW)
    first = zygote.start(**order(box, goal.goal_id))
    kit.until(lambda: agent.has_cued("at-work"), "the agent works")
    kit.kill(first)
    assert zygote.wait(first) == -signal.SIGKILL
    assert agent.finished == ()

    second = zygote.start(**order(box, goal.goal_id))
    kit.until(lambda: rows(box, "SELECT 1 FROM events WHERE kind = 'turn_resumed'"), "the second LoopX took over")
    agent.cue("go-on")
    assert zygote.wait(second) == 0
    assert len(agent.started) == 1, "expensive work is never thrown away"
    [run] = rows(box, "SELECT * FROM host_runs")
    assert '"adopted":true' in run["summary"]
    assert len(rows(box, "SELECT * FROM ledger")) == 1


def test_an_agent_that_ended_while_nobody_looked_is_read_from_its_exit_record(zygote: kit.Zygote, box: Sandbox) -> None:
    goal = box.goal(SLOW, checks=CHECKS)
    agent = box.agent(SLOW)
    first = zygote.start(**order(box, goal.goal_id))
    kit.until(lambda: agent.has_cued("at-work"), "the agent works")
    kit.kill(first)
    zygote.wait(first)
    agent.cue("go-on")
    [run] = rows(box, "SELECT spool_dir FROM host_runs")
    kit.until(Path(run["spool_dir"], "exit.json").exists, "the keeper wrote the exit record")

    assert zygote.run(**order(box, goal.goal_id)) == 0
    assert len(agent.started) == 1


def test_a_launch_that_came_to_nothing_is_made_again_with_a_credential_that_works(
    zygote: kit.Zygote, box: Sandbox
) -> None:
    """The first LoopX dies between the intent and the start; its agent's token died with it."""
    goal = box.goal(WHOLE, checks=CHECKS)
    points = Path(box.folder, "points")
    at = first_point(zygote, box.folder + "-probe", "file replace launch.json")
    assert zygote.run(**order(box, goal.goal_id, points=str(points), point=at, side="before")) == child.DIED
    [intent] = rows(box, "SELECT state FROM host_runs")
    assert intent["state"] == "intended"
    token = turn_of(box)["token_hash"]

    assert zygote.run(**order(box, goal.goal_id)) == 0
    attempts = rows(box, "SELECT attempt, end_kind FROM host_runs ORDER BY attempt")
    assert [attempt["end_kind"] for attempt in attempts] == ["never_started", "success"]
    assert turn_of(box)["token_hash"] not in (None, token)
    assert len(box.agent(WHOLE).started) == 1


def test_killed_right_after_the_start_of_the_host_it_is_found_again(zygote: kit.Zygote, box: Sandbox) -> None:
    """The intent is on record before anything starts: so whoever comes next looks for the host, and finds it."""
    goal = box.goal(SLOW, checks=CHECKS)
    agent = box.agent(SLOW)
    assert zygote.run(**order(box, goal.goal_id, die_at_start=True)) == child.DIED
    second = zygote.start(**order(box, goal.goal_id))
    kit.until(lambda: agent.has_cued("at-work"), "the agent works")
    agent.cue("go-on")
    assert zygote.wait(second) == 0
    assert len(agent.started) == 1
    assert len(rows(box, "SELECT 1 FROM host_runs")) == 1


def first_point(
    zygote: kit.Zygote,
    folder: str,
    label: str,
    acts: tuple[Act, ...] = (WHOLE,),
    files: dict[str, str] = FILES,
    checks: tuple[str, ...] = CHECKS,
) -> int:
    """The number of the first point whose label begins like this, in an undisturbed run of the same goal."""
    with Sandbox(folder, files=files) as probe:
        goal = probe.goal(*acts, checks=checks)
    points = Path(folder, "points")
    assert zygote.run(folder=folder, goal_id=goal.goal_id, points=str(points)) == 0
    labels = points.read_text().splitlines()
    return 1 + next(index for index, found in enumerate(labels) if found.startswith(label))


# -- after the typed result --------------------------------------------------------------------------------------


def test_a_refused_turn_whose_files_were_to_go_back_writes_and_spends_nothing_on_resume(
    zygote: kit.Zygote, tmp_path: Path
) -> None:
    cheat = Act(write={"check.sh": "true\n"}, claim="completion")
    with Sandbox(str(tmp_path), files={"check.sh": "grep -q 2 n.txt\n", "n.txt": "0\n"}) as box:
        goal = box.goal(cheat, WHOLE, checks=("sh check.sh",))
        assert zygote.run(**order(box, goal.goal_id, all_boundaries=True, die_after="typed_result")) == child.DIED
        assert box.read("check.sh") == "true\n"
        assert zygote.run(**order(box, goal.goal_id, max_turns=0)) == 12
        turn = turn_of(box)
        assert (turn["state"], turn["result_kind"], turn["completed"]) == ("closed", "validation_failed", 2)
        assert box.read("check.sh") == "grep -q 2 n.txt\n"
        assert rows(box, "SELECT * FROM ledger") == []
        assert zygote.run(**order(box, goal.goal_id)) == 0
        assert len(box.agent(cheat, WHOLE).started) == 2


def test_a_restore_that_is_cut_leaves_no_temporary_file_in_the_user_s_tree(zygote: kit.Zygote, tmp_path: Path) -> None:
    cheat = Act(write={"check.sh": "true\n"}, claim="completion")
    files = {"check.sh": "grep -q 2 n.txt\n", "n.txt": "0\n"}
    checks = ("sh check.sh",)
    at = first_point(zygote, str(tmp_path / "probe"), "file replace .loopx-tmp-", (cheat, WHOLE), files, checks)
    with Sandbox(str(tmp_path / "box"), files=files) as box:
        goal = box.goal(cheat, WHOLE, checks=checks)
        points = str(tmp_path / "points")
        assert zygote.run(**order(box, goal.goal_id, points=points, point=at, side="before")) == child.DIED
        assert list(Path(box.root).glob(".loopx-tmp-*"))
        assert zygote.run(**order(box, goal.goal_id)) == 0
        assert list(Path(box.root).glob(".loopx-tmp-*")) == []


def someone_makes_the_branch(box: Sandbox, goal_id: str) -> Observer:
    """While the turn runs, a person takes the name of the goal's branch."""

    def hear(event: ProgressEvent, /) -> None:
        if isinstance(event, TurnOpened) and event.resumed_after is None:
            box.git("branch", f"loopx/{goal_id}")

    return hear


def test_a_writeback_that_fails_is_tried_again_from_the_same_receipt(box: Sandbox) -> None:
    """The goal's branch is checked out somewhere: the checkpoint can't move it, and nothing is spent before it can."""
    goal = box.goal(WHOLE, checks=CHECKS)
    end = box.run(goal, observer=someone_makes_the_branch(box, goal.goal_id))
    assert (end.exit_code, end.reason) == (11, "settlement_stuck:durable_writeback")
    turn = turn_of(box)
    assert (turn["state"], turn["completed"], turn["result_kind"]) == ("open", 3, "writeback_failed")
    [event] = rows(box, "SELECT body FROM events WHERE kind = 'turn_stuck'")
    assert "branch" in event["body"], "why is on record, for people"
    assert rows(box, "SELECT * FROM ledger") == []
    assert find_leaks(box.store, open_turns=True) == ()

    box.git("branch", "-m", f"loopx/{goal.goal_id}", "mine")
    assert box.run(goal).exit_code == 0
    turn = turn_of(box)
    assert (turn["completed"], turn["result_kind"], turn["failed_phase"]) == (7, "validated_completion", None)
    assert len(box.agent(WHOLE).started) == 1
    assert len(rows(box, "SELECT * FROM ledger")) == 1


class ConflictOnce:
    """A journal port whose first spend finds that the ledger moved."""

    def __init__(self, whole: Any, conflicts: int) -> None:
        self._whole = whole
        self._conflicts = conflicts
        self.spends = 0

    def load(self, turn_key: TurnKey) -> TurnJournal:
        return self._whole.load(turn_key)

    def commit(self, turn_key: TurnKey, fence: Fence, steps: Sequence[JournalStep]) -> TurnJournal:
        if any(isinstance(step, SlotSpent) for step in steps):
            self.spends += 1
            if self.spends <= self._conflicts:
                raise ConflictError("spend_conflict", "the ledger moved")
        return self._whole.commit(turn_key, fence, steps)


@pytest.mark.parametrize("conflicts", [1, 2, 3])
def test_a_spend_conflict_is_read_back_and_never_deducted_twice(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch, conflicts: int
) -> None:
    goal = box.goal(WHOLE, checks=CHECKS)
    ports: list[ConflictOnce] = []
    whole = turn_ports.ObservedJournal

    def conflicting(*args: Any) -> ConflictOnce:
        ports.append(ConflictOnce(whole(*args), conflicts if not ports else 0))
        return ports[-1]

    monkeypatch.setattr(turn_ports, "ObservedJournal", conflicting)
    end = box.run(goal)
    if conflicts > 1:
        assert (end.exit_code, end.reason) == (11, "settlement_stuck:quota_spend")
        turn = turn_of(box)
        assert (turn["completed"], turn["result_kind"]) == (4, "quota_spend_failed")
        assert turn["intended_kind"] == "validated_completion"
        end = box.run(goal)
    assert end.exit_code == 0
    [entry] = rows(box, "SELECT * FROM ledger")
    assert entry["effect_ref"] == f"{turn_of(box)['turn_key']}/quota_spend"
    assert len(box.agent(WHOLE).started) == 1


def test_an_apply_that_fails_leaves_writeback_and_spend_committed(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    goal = box.goal(WHOLE, checks=CHECKS)

    def fails(self: object, journal: TurnJournal) -> NextDue:
        raise LoopXError("no_cadence", "the next occurrence can't be computed")

    with monkeypatch.context() as patched:
        patched.setattr(schedule_port.GoalSchedule, "next_due", fails)
        with pytest.raises(LoopXError, match="next occurrence"):
            box.run(goal)
    turn = turn_of(box)
    assert (turn["completed"], turn["state"]) == (5, "open")
    before = rows(box, "SELECT * FROM turn_phases ORDER BY ordinal")
    ledger = rows(box, "SELECT * FROM ledger")
    assert len(ledger) == 1

    assert box.run(goal).exit_code == 0
    assert rows(box, "SELECT * FROM turn_phases ORDER BY ordinal")[:5] == before
    assert rows(box, "SELECT * FROM ledger") == ledger
    assert len(box.agent(WHOLE).started) == 1


def test_a_checkpoint_whose_record_was_lost_is_found_by_its_trailer(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    goal = box.goal(WHOLE, checks=CHECKS)
    whole = tree_port.WorkTree.checkpoint

    class Died(BaseException):
        pass

    def makes_and_dies(self: tree_port.WorkTree, *args: Any) -> None:
        whole(self, *args)
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(tree_port.WorkTree, "checkpoint", makes_and_dies)
        with pytest.raises(Died):
            box.run(goal)
    made = box.git("rev-parse", f"loopx/{goal.goal_id}")
    assert turn_of(box)["completed"] == 3
    assert box.run(goal).exit_code == 0
    assert box.git("rev-parse", f"loopx/{goal.goal_id}") == made
    assert turn_of(box)["checkpoint"] == made


@pytest.mark.parametrize("ref", ["refs/heads/loopx/checks-green", "refs/loopx/base/checks-green"])
def test_a_lock_that_a_killed_git_left_on_our_own_ref_stops_nobody(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch, ref: str
) -> None:
    monkeypatch.setattr(refs, "LOCK_S", 0.1)
    goal = box.goal(WHOLE, checks=CHECKS, goal_id="checks-green")
    lock = Path(box.root, ".git", f"{ref}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    assert box.run(goal).exit_code == 0
    assert not lock.exists()


# -- a journal that contradicts itself ---------------------------------------------------------------------------

SPOILT = {
    "phase_without_receipt": "DELETE FROM turn_phases WHERE ordinal = 2",
    "effect_without_receipt": "UPDATE turns SET completed = 3",
    "foreign_effect": "UPDATE turn_phases SET effect_ref = 'another/turn' WHERE ordinal = 1",
    "result_without_kind": "UPDATE turns SET intended_kind = NULL",
    "no_spend_kind_settled": "UPDATE turns SET intended_kind = 'wait'",
    "closeout_before_spend": "UPDATE turns SET closeout = 'done'",
}


@pytest.mark.leaves(LeakKind.OPEN_TURN, LeakKind.UNBALANCED_BOOKS, reason="the journal is spoilt on purpose")
@pytest.mark.parametrize("violation", SPOILT)
def test_an_inconsistent_journal_is_blocked_with_the_violation_named(
    zygote: kit.Zygote, box: Sandbox, violation: str
) -> None:
    goal = box.goal(WHOLE, checks=CHECKS)
    assert zygote.run(**order(box, goal.goal_id, all_boundaries=True, die_after="durable_writeback")) == child.DIED
    spoil(box, SPOILT[violation])
    before = [rows(box, f"SELECT * FROM {table}") for table in ("ledger", "turn_phases", "host_runs")]
    for _ in range(2):
        with pytest.raises(NeedsPersonError) as caught:
            box.run(goal)
        assert caught.value.code == "journal_blocked"
        assert caught.value.data["violation"] == violation
    turn = turn_of(box)
    assert (turn["state"], turn["violation"]) == ("blocked", violation)
    assert [rows(box, f"SELECT * FROM {table}") for table in ("ledger", "turn_phases", "host_runs")] == before
    assert not [leak for leak in find_leaks(box.store) if leak.kind is LeakKind.LEASE_OF_NOBODY]
    assert rows(box, "SELECT 1 FROM leases WHERE resource LIKE 'turn:%' AND expires_at_ms > 0") == []


@pytest.mark.leaves(LeakKind.OPEN_TURN, LeakKind.UNBALANCED_BOOKS, reason="the ledger is spoilt on purpose")
def test_a_spend_that_no_phase_tells_of_blocks_the_turn(zygote: kit.Zygote, box: Sandbox) -> None:
    goal = box.goal(WHOLE, checks=CHECKS)
    assert zygote.run(**order(box, goal.goal_id, all_boundaries=True, die_after="durable_writeback")) == child.DIED
    key = turn_of(box)["turn_key"]
    spoil(
        box,
        "INSERT INTO ledger (goal_id, run_index, kind, effect_ref, turn_key, slots, cumulative, at_ms, reason)"
        f" VALUES ('{goal.goal_id}', 1, 'spend', '{key}/quota_spend', '{key}', 1, 1, 1, 'somebody else')",
    )
    with pytest.raises(NeedsPersonError) as caught:
        box.run(goal)
    assert caught.value.data["violation"] == "effect_without_receipt"


def spoil(box: Sandbox, statement: str) -> None:
    with kit.rows(box.store.path) as connection:
        connection.execute(statement)
        connection.commit()
