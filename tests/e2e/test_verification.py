"""Verification from the goal's start to its end: held-out checks, starved and flaky ones, evidence, second runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from loopx.contracts.model import CheckResult
from loopx.contracts.parse import parse_contract
from loopx.control_plane.goal import Goal
from loopx.control_plane.ids import TodoId
from loopx.control_plane.turn_driver.journal import EvidenceKind, Producer, TurnResult
from loopx.control_plane.work_items.todo import Todo
from loopx.runtime import goal_service, goal_work, second_run, standing
from loopx.runtime.evaluation import Evaluator
from loopx.runtime.judge_port import ContractJudge
from loopx.runtime.progress import BaselineTaken, silent
from loopx.runtime.seen import JudgedGoal
from loopx.runtime.session import Session
from loopx.runtime.turn_ports import TurnWiring
from loopx.store import evidence, todos, turns
from tests.e2e.goal_kit import FIX_F, FIX_G, Story

FIX_BOTH = f"{FIX_F}; {FIX_G}"
PY = sys.executable
SECRET = "held-back-4711"
HELD_OUT = f'{PY} -c \'import m; assert m.f() == 2, "{SECRET}"; assert hasattr(m, "h"), "{SECRET}"\''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("LOOPX_STATE_DIR", str(tmp_path / "state"))
    yield tmp_path


def _goal(story: Story, session: Session, *checks: dict[str, object], **contract: object) -> Goal:
    made = parse_contract({"checks": list(checks), **contract})
    return story.goal(session, contract=goal_service.encode_contract(made))


def _tests(story: Story, **fields: object) -> dict[str, object]:
    return {"name": "tests", "command": story.check, **fields}


def _results(session: Session, goal: Goal) -> list[tuple[str, CheckResult]]:
    with session.store.read() as tx:
        found = evidence.latest(tx, goal.goal_id, 200)
    return [
        (one.name, msgspec.json.decode(one.body, type=CheckResult))
        for one in reversed(found)
        if one.kind is EvidenceKind.CHECK and one.turn_key is not None
    ]


def _visible_to_agents(story: Story) -> str:
    """Everything that an agent was handed or can find in the project: prompts, result files, caches, commits."""
    text = [path.read_bytes() for path in story.root.parent.glob("count.prompt*")]
    text += [path.read_bytes() for path in story.root.rglob("*") if path.is_file()]
    return b"\n".join(text).decode(errors="replace") + story.git("log", "--all", "-p", "--format=%B")


def test_a_held_out_check_gates_completion_only_and_nothing_of_it_is_told(folder: Path) -> None:
    story = Story(folder, FIX_F, FIX_G, 'open("m.py", "a").write("def h(): pass\\n")')
    session = story.session()
    held = {"name": SECRET, "command": HELD_OUT, "held_out": True}
    goal = _goal(story, session, _tests(story), held)

    first = story.run(session, goal, max_turns=1)
    assert (first.exit_code, story.reasons) == (12, ["measured_progress"])
    assert [name for name, result in _results(session, goal) if result.held_out] == [], "not asked before its time"

    end = story.run(session, goal)
    assert (end.exit_code, story.reasons) == (0, ["measured_progress", "measured_progress", "goal_complete"])
    asked = [result.verdict for _, result in _results(session, goal) if result.held_out]
    assert asked == ["red", "green"]
    assert "not reached" in story.prompt(3)
    assert SECRET not in _visible_to_agents(story)
    assert SECRET not in "".join(str(turn.findings) for turn in story.turns)


def test_a_held_out_pytest_run_leaves_no_trace_in_the_project(folder: Path) -> None:
    story = Story(folder, FIX_BOTH)
    hidden = folder / "hidden" / "test_hidden_name.py"
    hidden.parent.mkdir()
    hidden.write_text("import m\ndef test_hidden_name(): assert m.h() == 3\n")
    story.env |= {"PYTHONPATH": str(story.root), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    session = story.session()
    held = {"name": "hidden", "command": f"{PY} -m pytest -q {hidden}", "held_out": True}
    goal = _goal(story, session, _tests(story), held, confirm_in_snapshot=False)

    end = story.run(session, goal, max_turns=1)

    assert (end.goal_state, story.reasons) == ("active", ["measured_progress"])
    assert "hidden" not in _visible_to_agents(story)
    assert not (story.root / ".pytest_cache").exists()


def test_a_completion_that_only_the_snapshot_contradicts_says_where_it_is_red(folder: Path) -> None:
    hide = 'open("m.py", "w").write("from n import f, g\\n"); open("n.py", "w").write("def f(): return 2\\ng = f\\n")'
    story = Story(folder, hide, FIX_BOTH)
    (story.root / ".git" / "info" / "exclude").write_text("n.py\n")
    session = story.session()
    goal = _goal(story, session, _tests(story))

    story.run(session, goal, max_turns=1)
    assert (story.reasons, story.turns[0].slots) == (["unproved_change"], 0)
    assert not story.turns[0].confirmed_in_snapshot

    story.run(session, goal, max_turns=1)
    assert "in a clean copy of the tree: tests red" in story.prompt(2)


def test_a_flaky_check_is_recorded_and_never_silently_green(folder: Path) -> None:
    story = Story(folder, FIX_BOTH, "pass")
    coin = folder / "coin"
    coin.write_text("")
    code = f"import os, m; p = r'{coin}'; n = os.path.getsize(p); open(p, 'a').write('x'); assert m.f() == 2 and n % 2"
    flip = f'{PY} -c "{code}"'
    session = story.session()
    goal = _goal(story, session, {"name": "flip", "command": flip, "flaky_retries": 1}, confirm_in_snapshot=False)

    end = story.run(session, goal, max_turns=1)

    assert end.goal_state == "active"
    [(name, result)] = _results(session, goal)
    assert (name, result.verdict, result.attempts) == ("flip", "flaky", ("red", "green"))
    assert [check.verdict for check in story.turns[0].checks] == ["flaky"]


def _judged_again(story: Story, session: Session, goal: Goal, *left_ms: int | None) -> TurnResult:
    """The goal's last turn judged once more, each evaluation with so much of a session's clock (the last one stays)."""
    with session.store.read() as tx:
        last = turns.last_of_goal(tx, goal.goal_id)
    assert last is not None
    journal = session.store.load(last.turn_key)
    assert journal.host is not None
    work = goal_work.open_goal(session.store, session.project, goal.goal_id)
    given = list(left_ms)

    def left() -> int | None:
        return given.pop(0) if len(given) > 1 else given[0]

    def evaluator(known: JudgedGoal) -> Evaluator:
        common = (session.store, work.tree, known.contract, story.env, silent, goal.goal_id, "again")
        return Evaluator(*common, left, lambda: False)

    wiring = TurnWiring(session.store, session.project, work, story.env, silent, lambda: False, lambda: None)
    out = 0 if given[-1] is not None else None
    judge = ContractJudge(
        wiring.known, work.tree, evaluator, story.env, session.store.now_ms, lambda: False, lambda: out
    )
    return judge.judge(journal, journal.host)


def test_a_starved_baseline_is_recorded_as_that_and_its_neighbours_are_judged(folder: Path) -> None:
    story = Story(folder, FIX_F)
    session = story.session()
    goal = _goal(story, session, _tests(story), {"name": "slow", "command": "true; sleep 60"}, workers=2)
    work = goal_work.open_goal(session.store, session.project, goal.goal_id)
    goal_work.take_baseline(session.store, work, story.env, silent, lambda: False, lambda: 4000)
    with session.store.read() as tx:
        known = {one.name: one.verdict for one in evidence.latest(tx, goal.goal_id, 10)}
    assert known == {"baseline: tests": "red", "baseline: slow": "starved"}


def test_checks_that_a_sessions_clock_ended_wait_for_the_next_one_and_accuse_nobody(folder: Path) -> None:
    story = Story(folder, f'{FIX_F}; result(kind="completion", summary="done")')
    session = story.session()
    goal = _goal(story, session, _tests(story), confirm_in_snapshot=False)
    story.run(session, goal, max_turns=1)
    assert story.reasons == ["false_completion"]

    result = _judged_again(story, session, goal, 0)

    assert (result.kind, result.reason, result.contract) == ("wait", "budget_wait", "unknown")
    assert result.wait is not None
    assert result.wait.until_ms is not None
    assert result.wait.until_ms <= session.store.now_ms()
    assert (result.gate, result.restore) == (None, None)


def test_a_second_run_that_cannot_finish_neither_accepts_nor_refuses(folder: Path) -> None:
    story = Story(folder, f"{FIX_BOTH}; sub('test_m.py', 'm.g(), 2', 'm.g(), 2, 0')")
    session = story.session()
    goal = _goal(story, session, _tests(story))
    story.run(session, goal, max_turns=1)
    assert story.reasons == ["goal_complete"]

    starved = _judged_again(story, session, goal, None, 0)
    assert (starved.kind, starved.reason, starved.contract) == ("wait", "budget_wait", "unknown")
    assert "second_run_incomplete" in starved.findings
    assert (starved.restore, starved.gate) == (None, None)

    confirming = _judged_again(story, session, goal, None, None, 0)
    assert (confirming.kind, confirming.contract) == ("wait", "unknown")


def test_where_no_copy_can_be_made_the_turn_is_tried_again_and_nobody_is_refused(folder: Path) -> None:
    """Something takes the place of the folder in which copies are made, as a full disk would."""
    block = "p = next(pathlib.Path({state!r}).glob('projects/*/trees')) / 'snapshots'; shutil.rmtree(p); p.touch()"
    state = str(folder / "state")
    tidy = "sub('test_m.py', 'm.g(), 2', 'm.g(), 2, 0')"
    story = Story(folder, f"import pathlib, shutil; {FIX_BOTH}; {tidy}; {block.format(state=state)}", "pass")
    session = story.session()
    goal = _goal(story, session, _tests(story))

    end = story.run(session, goal, max_turns=1)

    assert (end.goal_state, story.kinds) == ("active", ["host_failure"])
    assert "second_run_incomplete" in story.turns[0].findings
    assert "m.g(), 2, 0" in (story.root / "test_m.py").read_text()

    [blocked] = (folder / "state").glob("projects/*/trees/snapshots")
    blocked.unlink()
    assert story.run(session, goal).exit_code == 0


def test_baselines_differentials_and_json_are_judged_through_a_whole_run(folder: Path) -> None:
    story = Story(folder, FIX_F, FIX_G)
    (story.root / "size.py").write_text("print(len(open('m.py').read()))\n")
    (story.root / "facts.py").write_text("import json, m\nprint(json.dumps({'f': m.f(), 'g': m.g()}))\n")
    session = story.session()
    goal = _goal(
        story,
        session,
        _tests(story),
        {"name": "size", "command": f"{PY} size.py", "kind": "baseline"},
        {
            "name": "no-growth",
            "command": f"{PY} size.py",
            "kind": "differential",
            "against": "size",
            "compare": "not_higher",
        },
        {"name": "facts", "command": f"{PY} facts.py", "expect": "$json:/g=2", "primary": True},
        workers=3,
    )

    assert story.run(session, goal).exit_code == 0
    assert story.reasons == ["measured_progress", "goal_complete"]
    last = {name: result.verdict for name, result in _results(session, goal) if ":" not in name}
    assert last == {"tests": "green", "no-growth": "green", "facts": "green"}


def test_a_differential_check_refuses_what_grew(folder: Path) -> None:
    grow = 'open("m.py", "a").write("# " + "x" * 500 + "\\n"); result(kind="completion", summary="done")'
    story = Story(folder, f"{FIX_BOTH}; {grow}")
    (story.root / "size.py").write_text("print(len(open('m.py').read()))\n")
    session = story.session()
    goal = _goal(
        story,
        session,
        _tests(story),
        {"name": "size", "command": f"{PY} size.py", "kind": "baseline"},
        {
            "name": "small",
            "command": f"{PY} size.py",
            "kind": "differential",
            "against": "size",
            "compare": "not_higher",
        },
    )

    story.run(session, goal, max_turns=1)
    assert story.reasons == ["green_turned_red"]


def test_a_todos_own_checks_are_guarded_like_the_goals(folder: Path) -> None:
    story = Story(
        folder, 'sub("test_own.py", "self.fail()", "pass"); result(kind="completion", summary="done")', "pass"
    )
    (story.root / "test_own.py").write_text(
        "import unittest\nclass T(unittest.TestCase):\n    def test_own(self): self.fail()\n"
    )
    session = story.session()
    goal = _goal(story, session, _tests(story))
    own = parse_contract({"checks": [{"name": "tests", "command": f"{PY} -m unittest -q test_own"}]}).checks
    todo = Todo(
        todo_id=TodoId("td-own"),
        goal_id=goal.goal_id,
        title="the own part",
        checks=msgspec.Raw(msgspec.json.encode(own)),
        created_at_ms=session.store.now_ms(),
    )
    with session.store.write() as tx:
        todos.insert(tx, todo)

    story.run(session, goal, max_turns=1)

    assert story.reasons == ["guard_refused"]
    assert story.turns[0].restored == ("test_own.py",)
    with session.store.read() as tx:
        assert todos.get(tx, "td-own").status != "done"


def test_evidence_says_who_produced_it_and_names_the_commit(folder: Path) -> None:
    story = Story(folder, f'{FIX_BOTH}; result(kind="completion", summary="both are right now")')
    session = story.session()
    goal = _goal(story, session, _tests(story))
    assert story.run(session, goal).exit_code == 0

    with session.store.read() as tx:
        found = [one for one in evidence.latest(tx, goal.goal_id, 100) if one.turn_key is not None]
    checks = [one for one in found if one.kind is EvidenceKind.CHECK]
    assert {one.produced for one in checks} == {Producer.VERIFIED}
    assert {one.commit_sha for one in checks} == {story.git("rev-parse", f"loopx/{goal.goal_id}")}
    said = [one for one in found if one.produced is Producer.CLAIMED]
    assert [one.name for one in said if one.name.startswith("claim")] == ["claim: completion"]
    assert all(one.commit_sha is None for one in said)


def test_a_persons_edit_survives_an_agents_refused_edit_of_the_same_file(folder: Path) -> None:
    story = Story(folder, FIX_F, 'sub("test_m.py", "m.g(), 2", "m.g(), 1")')
    session = story.session()
    goal = _goal(story, session, _tests(story))
    story.run(session, goal, max_turns=1)
    tests = story.root / "test_m.py"
    tests.write_text(f"# a person's note\n{tests.read_text()}")
    mine = tests.read_text()

    story.run(session, goal, max_turns=1)

    assert story.reasons[-1] == "guard_refused"
    assert tests.read_text() == mine


def test_a_test_that_the_check_itself_rewrote_is_no_persons_edit(folder: Path) -> None:
    rewrite = "p = __import__('pathlib').Path('test_m.py'); p.write_text(p.read_text().replace('m.g(), 2', 'm.g(), 1'))"
    story = Story(folder, f'{FIX_F}; open("m.py", "a").write("{rewrite}\\n")', "pass")
    session = story.session()
    goal = _goal(story, session, _tests(story))

    story.run(session, goal, max_turns=1)

    assert story.reasons == ["guard_refused"]
    assert "m.g(), 2" in (story.root / "test_m.py").read_text()


NEEDS_ENV = f"{PY} -c 'import m; assert m.f() == m.g() == int(open(\".env\").read())'"


def _with_ignored_file(story: Story) -> None:
    (story.root / ".git" / "info" / "exclude").write_text(".env\n__pycache__/\n")
    (story.root / ".env").write_text("2")


def test_a_goal_whose_checks_need_ignored_files_is_disclosed_and_confirmed_in_place(folder: Path) -> None:
    story = Story(folder, FIX_BOTH)
    _with_ignored_file(story)
    session = story.session()
    goal = _goal(story, session, {"name": "env", "command": NEEDS_ENV})

    end = story.run(session, goal)

    [taken] = [event for event in story.events if isinstance(event, BaselineTaken)]
    assert taken.not_snapshotable
    assert (end.exit_code, story.turns[0].confirmed_in_snapshot) == (0, False)


def test_where_no_copy_can_tell_the_second_run_is_in_place_and_undone(folder: Path) -> None:
    story = Story(folder, f"{FIX_BOTH}; sub('test_m.py', 'import unittest, m', 'import unittest, m  # tidy')")
    _with_ignored_file(story)
    session = story.session()
    goal = _goal(story, session, _tests(story), {"name": "env", "command": NEEDS_ENV})

    assert story.run(session, goal).exit_code == 0
    assert "test_edited test_m.py" in story.turns[0].findings
    assert "# tidy" in (story.root / "test_m.py").read_text()


def test_a_second_run_in_place_that_was_killed_is_healed_when_the_tree_is_opened_again(folder: Path) -> None:
    story = Story(folder, "pass")
    session = story.session()
    goal = _goal(story, session, _tests(story))
    work = goal_work.open_goal(session.store, session.project, goal.goal_id)
    repository, start = work.tree.repository, work.tree.capture()
    (story.root / "test_m.py").write_text("agent's\n")
    (story.root / "new.py").write_text("agent's too\n")
    now = work.tree.capture()
    swap = second_run.Swap(start=start, now=now, paths=("test_m.py", "new.py"))

    record = second_run._record(repository)
    with second_run.swapped(repository, swap):
        assert "agent" not in (story.root / "test_m.py").read_text()
        assert not (story.root / "new.py").exists()
        assert second_run.heal(repository) == (), "what still goes on is nobody else's to heal"
        left = record.read_bytes()
    assert (work.tree.capture(), record.exists()) == (now, False)

    (story.root / "test_m.py").write_text(story.git("show", "HEAD:test_m.py") + "\n")
    (story.root / "new.py").unlink()
    record.write_bytes(left)
    again = goal_work.open_goal(session.store, session.project, goal.goal_id)
    assert again.tree.capture() == now
    assert not record.exists()


def test_a_file_that_a_person_edited_after_the_crash_is_left_alone(folder: Path) -> None:
    story = Story(folder, "pass")
    session = story.session()
    goal = _goal(story, session, _tests(story))
    work = goal_work.open_goal(session.store, session.project, goal.goal_id)
    repository, start = work.tree.repository, work.tree.capture()
    (story.root / "test_m.py").write_text("agent's\n")
    swap = second_run.Swap(start=start, now=work.tree.capture(), paths=("test_m.py",))
    second_run._record(repository).write_bytes(msgspec.json.encode(swap))
    (story.root / "test_m.py").write_text("a person's\n")

    assert second_run.heal(repository) == ()
    assert (story.root / "test_m.py").read_text() == "a person's\n"


def test_a_goal_is_closed_outside_turns_only_after_held_out_checks_and_a_clean_copy(folder: Path) -> None:
    story = Story(folder, "pass")
    session = story.session()
    held = {"name": "held", "command": HELD_OUT, "held_out": True}
    goal = _goal(story, session, _tests(story), held)
    work = goal_work.open_goal(session.store, session.project, goal.goal_id)
    baseline = goal_work.take_baseline(session.store, work, story.env, silent, lambda: False, lambda: None)

    def state() -> str:
        return standing.look(session.store, work, baseline, story.env, silent).contract

    assert state() == "red"
    (story.root / "m.py").write_text("def f(): return 2\ndef g(): return 2\n")
    assert state() == "red"
    (story.root / "m.py").write_text("def f(): return 2\ndef g(): return 2\ndef h(): pass\n")
    assert state() == "green"
    (story.root / "m.py").write_text("def f(): return 2\ndef g(): return 1\ndef h(): pass\n")
    (story.root / "test_m.py").write_text("import unittest\n")
    assert state() == "unknown"


def test_green_results_are_kept_by_their_inputs_and_red_ones_are_asked_again(folder: Path) -> None:
    ran = folder / "ran"
    story = Story(folder, 'print("thinking")')
    session = story.session()
    goal = _goal(
        story,
        session,
        {"name": "green", "command": f"echo green >> {ran}"},
        {"name": "red", "command": f"echo red >> {ran}; exit 1"},
        confirm_in_snapshot=False,
    )

    story.run(session, goal, max_turns=2)

    assert ran.read_text().split() == ["green", "red", "green", "red", "red"], "baseline, first turn, second turn"
