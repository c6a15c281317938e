"""Whole goals from their first turn to their end, with the real runner, real git and a real program as the agent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopx.control_plane.errors import UsageError
from loopx.control_plane.goal import Boundary, GoalState, TreeMode
from loopx.control_plane.quota.policy import QuotaPolicy
from loopx.runtime.session import Session
from loopx.store import events, gates, goals, ledger
from tests.e2e.goal_kit import FIX_F, FIX_G, Story

FIX_BOTH = f"{FIX_F}; {FIX_G}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("LOOPX_STATE_DIR", str(tmp_path / "state"))
    yield tmp_path


def _books_balance(session: Session, goal_id: str) -> None:
    with session.store.read() as tx:
        assert events.broken_link(tx, goal_id) is None
        window = 10**12
        now = session.store.now_ms()
        assert ledger.spent_in_window(tx, goal_id, window, now) == ledger.recount(tx, goal_id, window, now)
        assert tx.one("turns.open_of_goal", goal_id=goal_id) is None


def test_a_lie_and_a_weakened_test_are_refused_and_honest_work_ends_terminal(folder: Path) -> None:
    weaken = 'sub("test_m.py", "self.assertEqual(m.g(), 2)", "pass")'
    story = Story(folder, FIX_F, 'result(kind="completion", summary="all done")', weaken, FIX_G)
    session = story.session()
    goal = story.goal(session)

    end = story.run(session, goal)

    assert (end.disposition, end.exit_code, end.goal_state) == ("terminal", 0, "completed")
    assert story.kinds == ["validated_progress", "validation_failed", "validation_failed", "validated_completion"]
    assert story.reasons == ["measured_progress", "false_completion", "guard_refused", "goal_complete"]
    assert [turn.slots for turn in story.turns] == [1, 0, 0, 1]
    assert story.turns[2].restored == ("test_m.py",)
    assert story.turns[3].confirmed_in_snapshot
    assert end.spent_slots == 2
    assert "test_m.py" in story.prompt(4)
    _books_balance(session, goal.goal_id)


def test_an_agent_that_does_nothing_is_repaired_replanned_and_then_a_person_is_asked(folder: Path) -> None:
    story = Story(folder, 'print("I am on it")')
    session = story.session()
    goal = story.goal(session)

    end = story.run(session, goal)

    assert end.exit_code == 11
    assert story.launches == 4
    assert set(story.kinds) == {"validation_failed"}
    assert end.spent_slots == 0
    with session.store.read() as tx:
        [gate] = gates.open_gates(tx, goal.goal_id)
    assert gate.kind == "breaker"

    again = story.run(session, goal)
    assert again.exit_code == 11
    assert story.launches == 4, "an unanswered breaker launches nothing"


def test_activity_without_outcome_meets_the_hand_off_floor(folder: Path) -> None:
    story = Story(folder, 'open("notes.txt", "a").write("hello\\n")')
    session = story.session()
    goal = story.goal(session)

    end = story.run(session, goal)

    assert story.reasons[:3] == ["surface_change"] * 3
    assert end.exit_code == 11
    assert story.launches == 4, "three turns, one replan that brought no delta, then a person"


def test_a_question_becomes_one_gate_and_the_answer_goes_on(folder: Path) -> None:
    ask = 'result(kind="question", summary="?", question={"text": "Drop v1?", "choices": ["yes", "no"]})'
    story = Story(folder, ask, FIX_BOTH)
    session = story.session()
    goal = story.goal(session)

    end = story.run(session, goal)
    assert (end.exit_code, end.question) == (11, "Drop v1?")
    assert story.run(session, goal).exit_code == 11
    assert story.launches == 1

    with session.store.write() as tx:
        gate = gates.get(tx, str(end.gate_id))
        gates.answer(tx, gate, "yes", "anna", session.store.now_ms())
    assert story.run(session, goal).exit_code == 0
    assert "Drop v1? -> yes" in story.prompt(2)


def test_a_forged_result_of_another_turn_is_refused(folder: Path) -> None:
    forge = (
        'open(os.environ["LOOPX_RESULT_FILE"], "w").write(json.dumps({"turn_key": "t-other", "kind": "completion"}))'
    )
    story = Story(folder, forge, FIX_BOTH)
    session = story.session()
    goal = story.goal(session)

    assert story.run(session, goal).exit_code == 0
    assert story.kinds == ["validation_failed", "validated_completion"]
    assert story.turns[0].failure == "contract_rejected"


def test_an_agent_that_dies_waits_for_its_backoff_and_an_explicit_run_goes_on(folder: Path) -> None:
    story = Story(folder, "os.kill(os.getpid(), 9)", FIX_BOTH)
    session = story.session()
    goal = story.goal(session)

    first = story.run(session, goal)
    assert (first.exit_code, story.kinds) == (10, ["host_failure"])
    assert story.run(session, goal).exit_code == 0


def test_an_agent_that_dies_after_finishing_still_passes(folder: Path) -> None:
    story = Story(folder, f"{FIX_BOTH}; os.kill(os.getpid(), 9)")
    session = story.session()
    goal = story.goal(session)

    assert story.run(session, goal).exit_code == 0
    assert story.kinds == ["validated_completion"]


def test_files_outside_the_write_scope_are_put_back(folder: Path) -> None:
    story = Story(folder, f'{FIX_BOTH}; open("other.txt", "w").write("x")', "pass")
    session = story.session()
    goal = story.goal(session, boundary=Boundary(write_scope=("m.py",)))

    story.run(session, goal, max_turns=1)

    assert story.reasons == ["guard_refused"]
    assert not (story.root / "other.txt").exists()


def test_the_users_branch_index_and_dirty_files_are_never_touched(folder: Path) -> None:
    story = Story(folder, FIX_BOTH)
    (story.root / "m.py").write_text((story.root / "m.py").read_text() + "# staged\n")
    story.git("add", "m.py")
    (story.root / "m.py").write_text((story.root / "m.py").read_text() + "# not staged\n")
    (story.root / "untracked.txt").write_text("mine")
    index = hashlib.sha256((story.root / ".git" / "index").read_bytes()).hexdigest()
    head = story.git("rev-parse", "HEAD")
    session = story.session()
    goal = story.goal(session)

    assert story.run(session, goal).exit_code == 0

    assert hashlib.sha256((story.root / ".git" / "index").read_bytes()).hexdigest() == index
    assert (story.git("rev-parse", "HEAD"), story.git("branch", "--show-current")) == (head, "main")
    assert (story.root / "untracked.txt").read_text() == "mine"
    assert story.git("show", "--stat", "--format=", f"loopx/{goal.goal_id}").startswith("m.py")


def test_a_worktree_of_its_own_leaves_the_project_alone(folder: Path) -> None:
    story = Story(folder, FIX_BOTH)
    session = story.session()
    goal = story.goal(session, tree_mode=TreeMode.WORKTREE)

    assert story.run(session, goal).exit_code == 0
    assert "return 1" in (story.root / "m.py").read_text()
    assert "return 2" in story.git("show", f"loopx/{goal.goal_id}:m.py")


def test_outside_git_a_goal_works_all_the_same(folder: Path) -> None:
    story = Story(folder, FIX_F, FIX_G, git=False)
    session = story.session()
    goal = story.goal(session)

    assert story.run(session, goal).exit_code == 0
    assert not (story.root / ".git").exists()


def test_a_person_may_edit_tests_between_turns(folder: Path) -> None:
    story = Story(folder, FIX_F, 'sub("m.py", "def g(): return 1", "def g(): return 3")')
    session = story.session()
    goal = story.goal(session)
    assert story.run(session, goal, max_turns=1).exit_code == 12

    tests = story.root / "test_m.py"
    tests.write_text(tests.read_text().replace("m.g(), 2", "m.g(), 3"))

    assert story.run(session, goal).exit_code == 0
    assert story.kinds == ["validated_progress", "validated_completion"]


def test_a_repository_in_the_middle_of_a_merge_is_refused(folder: Path) -> None:
    story = Story(folder, FIX_BOTH)
    (story.root / ".git" / "MERGE_HEAD").write_text(story.git("rev-parse", "HEAD"))
    session = story.session()
    goal = story.goal(session)

    with pytest.raises(UsageError, match="merge"):
        story.run(session, goal)
    assert story.launches == 0


def test_a_check_whose_program_is_missing_is_named_before_anything_is_paid_for(folder: Path) -> None:
    story = Story(folder, FIX_BOTH)
    session = story.session()
    goal = story.goal(session, checks=("no-such-runner --all",))

    with pytest.raises(UsageError, match="no-such-runner"):
        story.run(session, goal)
    assert story.launches == 0


def test_a_throttled_goal_launches_nothing(folder: Path) -> None:
    story = Story(folder, FIX_F, FIX_G)
    session = story.session()
    goal = story.goal(session, quota=QuotaPolicy(allowed_slots=1))

    end = story.run(session, goal)

    assert (end.exit_code, end.spent_slots, story.launches) == (10, 1, 1)


def test_a_completed_goal_stays_closed(folder: Path) -> None:
    story = Story(folder, FIX_BOTH)
    session = story.session()
    goal = story.goal(session)
    story.run(session, goal)

    from loopx.control_plane.errors import NotNowError

    with pytest.raises(NotNowError, match="completed"):
        story.run(session, goal)
    with session.store.read() as tx:
        assert goals.get(tx, goal.goal_id).state is GoalState.COMPLETED
