"""Every row of the recovery table, with real processes: what a crash or a failure leaves is gone on from, never redone.

LoopX is killed with -9 (or ends itself between two commits), and started again.
"""

from __future__ import annotations

import signal
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loopx.contracts.model import Contract
from loopx.contracts.parse import parse_command_line
from loopx.control_plane.errors import ConflictError, LoopXError, NeedsPersonError
from loopx.control_plane.ids import AgentId, TodoId, TurnKey
from loopx.control_plane.turn_driver.journal import Fence, JournalStep, NextDue, SlotSpent, TurnJournal
from loopx.control_plane.work_items.todo import Todo, TodoStatus
from loopx.runtime import goal_service, goal_work, schedule_port, tree_port, turn_ports
from loopx.runtime.evaluation import Evaluator
from loopx.runtime.progress import Observer, ProgressEvent, TurnOpened, silent
from loopx.runtime.turn_runner import TurnRunner
from loopx.store import leases, todos, turns
from loopx.testing import Act, LeakKind, Sandbox, find_leaks
from loopx.workspace import refs
from tests.chaos import child, kit, picture

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


def first_point(zygote: kit.Zygote, folder: str, label: str) -> int:
    """The number of the first point whose label begins like this, in an undisturbed run of the same goal."""
    with Sandbox(folder, files=FILES) as probe:
        goal = probe.goal(WHOLE, checks=CHECKS)
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
    _spoil(box, SPOILT[violation])
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
    _spoil(
        box,
        "INSERT INTO ledger (goal_id, run_index, kind, effect_ref, turn_key, slots, cumulative, at_ms, reason)"
        f" VALUES ('{goal.goal_id}', 1, 'spend', '{key}/quota_spend', '{key}', 1, 1, 1, 'somebody else')",
    )
    with pytest.raises(NeedsPersonError) as caught:
        box.run(goal)
    assert caught.value.data["violation"] == "effect_without_receipt"


def _spoil(box: Sandbox, statement: str) -> None:
    with kit.rows(box.store.path) as connection:
        connection.execute(statement)
        connection.commit()


# -- who may take a turn -----------------------------------------------------------------------------------------


def runner(box: Sandbox, goal_id: str) -> TurnRunner:
    return TurnRunner(
        box.store, box.project, goal_id, AgentId("loopx"), box.events.append, box.env, stopping=lambda: False
    )


def test_a_turn_that_another_process_finished_is_not_taken_and_no_lease_is_left(box: Sandbox) -> None:
    goal = box.goal(WHOLE, checks=CHECKS)
    assert box.run(goal).exit_code == 0
    with pytest.raises(ConflictError) as caught:
        runner(box, goal.goal_id).resume(TurnKey(turn_of(box)["turn_key"]))
    assert caught.value.code == "turn_closed"
    assert find_leaks(box.store) == ()
    assert rows(box, "SELECT 1 FROM events WHERE kind = 'turn_resumed'") == []


def test_a_turn_that_stays_open_may_be_taken_again_by_the_very_same_process(box: Sandbox) -> None:
    """A worker that lives on must not be locked out by its own lease until that runs out."""
    goal = box.goal(WHOLE, checks=CHECKS)
    assert box.run(goal, observer=someone_makes_the_branch(box, goal.goal_id)).exit_code == 11
    assert box.run(goal).exit_code == 11, "stuck as before, and not lease_held"
    box.git("branch", "-D", f"loopx/{goal.goal_id}")
    assert box.run(goal).exit_code == 0


def test_a_live_driver_keeps_its_turn(zygote: kit.Zygote, box: Sandbox) -> None:
    goal = box.goal(SLOW, checks=CHECKS)
    agent = box.agent(SLOW)
    first = zygote.start(**order(box, goal.goal_id))
    kit.until(lambda: agent.has_cued("at-work"), "the agent works")
    with pytest.raises(ConflictError) as caught:
        runner(box, goal.goal_id).resume(TurnKey(turn_of(box)["turn_key"]))
    assert caught.value.code == "lease_held"
    agent.cue("go-on")
    assert zygote.wait(first) == 0
    assert len(agent.started) == 1


def test_an_open_turn_is_recovered_although_the_goal_s_schedule_has_moved_on(zygote: kit.Zygote, box: Sandbox) -> None:
    """A claim is: the lease is free, and the goal is due or has an open turn."""
    goal = box.goal(WHOLE, checks=CHECKS)
    assert zygote.run(**order(box, goal.goal_id, all_boundaries=True, die_after="quota_spend")) == child.DIED
    far = box.store.now_ms() + 10**9
    _spoil(box, f"UPDATE goals SET due_at_ms = {far}, wait_kind = 'outside', wait_until_ms = {far}")
    _spoil(box, f"UPDATE schedules SET next_due_ms = {far}")
    assert box.run(goal).exit_code == 0
    assert len(rows(box, "SELECT * FROM ledger")) == 1


def test_a_baseline_that_comes_late_replaces_nothing(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped while it took the baseline wakes when the goal has long been completed."""
    goal = box.goal(WHOLE, checks=CHECKS)
    late = goal_work.open_goal(box.store, box.project, goal.goal_id)
    whole = Evaluator.baseline

    def slow(self: Evaluator, tree_hash: str) -> Any:
        taken = whole(self, tree_hash)
        monkeypatch.undo()
        assert box.run(goal).exit_code == 0
        return taken

    monkeypatch.setattr(Evaluator, "baseline", slow)
    taken = goal_work.take_baseline(box.store, late, box.env, silent, lambda: False, lambda: None)
    before = rows(box, "SELECT contract_state, baseline, evaluation FROM goals")
    assert before[0]["contract_state"] == "green"
    assert goal_work.baseline_of(box.store, goal.goal_id) == taken
    assert len(rows(box, "SELECT 1 FROM events WHERE kind = 'baseline_taken'")) == 1


def test_a_contract_that_is_edited_while_its_baseline_is_taken_gets_a_baseline_of_its_own(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    goal = box.goal(WHOLE, checks=CHECKS)
    whole = Evaluator.baseline
    other = Contract(checks=parse_command_line(("test -e n.txt", *CHECKS)))

    def edits(self: Evaluator, tree_hash: str) -> Any:
        taken = whole(self, tree_hash)
        monkeypatch.undo()
        changed = msgspec.structs.replace(goal.definition, contract=goal_service.encode_contract(other))
        goal_service.edit(box.store, goal.goal_id, changed, ("checks",))
        return taken

    monkeypatch.setattr(Evaluator, "baseline", edits)
    with pytest.raises(ConflictError) as caught:
        box.run(goal)
    assert caught.value.code == "stale_revision"
    assert goal_work.baseline_of(box.store, goal.goal_id) is None
    assert box.run(goal).exit_code == 0
    baseline = goal_work.baseline_of(box.store, goal.goal_id)
    assert baseline is not None
    assert len(baseline.evaluation.results) == 3


def test_a_goal_to_which_a_todo_was_added_meanwhile_is_not_closed(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frontier was terminal when it was looked at; the close must find nothing newer."""
    box.write("n.txt", "2\n")
    goal = box.goal(WHOLE, checks=CHECKS)
    with box.store.write() as tx:
        [own] = todos.unended(tx, goal.goal_id)
        todos.set_status(tx, own, TodoStatus.SUPERSEDED, box.store.now_ms())
    whole = tree_port.WorkTree.capture
    added: list[str] = []

    def adds(self: tree_port.WorkTree) -> str:
        found = whole(self)
        if not added and rows(box, "SELECT baseline FROM goals")[0]["baseline"] and closing_now():
            added.append("td-new")
            todo = Todo(todo_id=TodoId("td-new"), goal_id=goal.goal_id, title="one more thing")
            with box.store.write() as tx:
                todos.insert(tx, todo)
        return found

    monkeypatch.setattr(tree_port.WorkTree, "capture", adds)
    box.run(goal, max_turns=0)
    assert added
    [row] = rows(box, "SELECT state FROM goals")
    [todo] = rows(box, "SELECT status FROM todos WHERE todo_id = 'td-new'")
    assert (row["state"], todo["status"]) == ("active", "open")


def closing_now() -> bool:
    """Whether the goal is about to be closed."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "close_terminal_goal":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def test_an_owner_s_name_is_no_fence(box: Sandbox) -> None:
    """A worker that restarts under the same name has another epoch, and the old one can write nothing."""
    goal = box.goal(WHOLE, checks=CHECKS)
    with box.store.write() as tx:
        first = leases.acquire(tx, "turn:x:loopx", "worker-1", 1000, 1_000)
        second = leases.acquire(tx, "turn:x:loopx", "worker-1", 1000, 3_000)
    assert second > first
    with box.store.write() as tx:
        assert not leases.renew(tx, "turn:x:loopx", first, 1000, 3_500)
        assert leases.renew(tx, "turn:x:loopx", second, 1000, 3_500)
        leases.release(tx, "turn:x:loopx", first)
        held = leases.get(tx, "turn:x:loopx")
        assert held is not None
        assert held.expires_at_ms == 4_500, "nor can it give the lease away"
        with pytest.raises(ConflictError):
            leases.acquire(tx, "turn:x:loopx", "worker-1", 1000, 3_600)
    assert turns.turn_resource(goal.goal_id, "loopx").startswith("turn:")
    assert picture.database_of(Path(box.folder)) == box.store.path
    assert sqlite3.sqlite_version_info >= (3, 35)
