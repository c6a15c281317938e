"""Agents that go round in circles: the same failure, action or question. Warned, replanned, then a person is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loopx.hosts.protocol import HostEvent, HostEventKind
from loopx.runtime import gate_service
from loopx.runtime.host_port import ActionGuard
from loopx.store import gates
from tests.e2e.engine_kit import Bench
from tests.e2e.goal_kit import FIX_F, FIX_G, Story

FIX_BOTH = f"{FIX_F}; {FIX_G}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("LOOPX_STATE_DIR", str(tmp_path / "state"))
    yield tmp_path


def _tool(text: str) -> HostEvent:
    return HostEvent(kind=HostEventKind.TOOL_CALL, tool="Bash", text=text)


def _tripped(*events: HostEvent) -> bool:
    guard = ActionGuard()
    for event in events:
        guard.see(event)
    return guard.tripped


def test_the_same_action_again_and_again_trips_the_breaker_also_in_short_cycles() -> None:
    again = [_tool("update_goal")] * 40
    assert _tripped(*again)
    assert not _tripped(*again[:39])
    assert _tripped(*[_tool(word) for word in "ab" * 40])
    assert _tripped(*[_tool(word) for word in "abc" * 40])
    assert not _tripped(*[_tool(word) for word in "ab" * 20])
    assert not _tripped(*[_tool(str(number)) for number in range(500)])


def test_running_the_same_tests_after_each_edit_is_work() -> None:
    edit = HostEvent(kind=HostEventKind.FILE_CHANGE, paths=("m.py",))
    assert not _tripped(*[_tool("pytest"), edit] * 100)
    talk = HostEvent(kind=HostEventKind.MESSAGE, text="again")
    assert _tripped(*[_tool("pytest"), talk] * 40), "what is merely said is no progress"


def test_a_host_that_repeats_itself_is_ended_and_the_next_attempt_is_told(folder: Path) -> None:
    bench = Bench(folder)
    stuck = "started()\nfor n in range(60): used_tool()\nimport time; time.sleep(600)"
    fixed = 'started(); sub("m.py", "return 1", "return 2"); used_tool(); done()'
    codex = bench.cli("codex", stuck, fixed)
    session = bench.session()
    goal = bench.goal(session, engines=("codex",))

    end = bench.run(session, goal)

    assert (end.exit_code, codex.launches) == (0, 2)
    assert bench.reasons == ["execution_failed", "goal_complete"]
    assert "identical_actions" in bench.turns[0].findings
    assert "did the same thing again and again" in codex.launch(2)["prompt"]


def test_the_same_failure_is_told_then_replanned_then_asked_about(folder: Path) -> None:
    story = Story(folder, 'result(kind="completion", summary="done")')
    session = story.session()
    goal = story.goal(session)

    end = story.run(session, goal, max_turns=12)

    assert (end.exit_code, end.spent_slots) == (11, 0)
    assert set(story.reasons[:-1]) == {"false_completion"}
    assert "same failure as before" not in story.prompt(1)
    assert "same failure as before" in story.prompt(3)
    assert "Plan it anew" in story.prompt(story.launches)
    with session.store.read() as tx:
        assert [gate.kind for gate in gates.open_gates(tx, goal.goal_id)] == ["breaker"]


def test_a_question_that_was_answered_is_not_asked_again(folder: Path) -> None:
    ask = 'result(kind="question", summary="?", question={"text": "Drop v1?", "choices": ["yes", "no"]})'
    story = Story(folder, ask, ask, FIX_BOTH)
    session = story.session()
    goal = story.goal(session)
    assert story.run(session, goal).exit_code == 11
    with session.store.write() as tx:
        [gate] = gates.open_gates(tx, goal.goal_id)
        gates.answer(tx, gate, "no", "anna", session.store.now_ms())

    assert story.run(session, goal).exit_code == 0

    assert story.kinds == ["user_action_required", "validation_failed", "validated_completion"]
    assert "Drop v1? -> no" in story.prompt(3)
    with session.store.read() as tx:
        assert gates.open_gates(tx, goal.goal_id) == ()


def test_a_question_whose_standing_answer_was_revoked_is_asked_again(folder: Path) -> None:
    ask = 'result(kind="question", summary="?", question={"text": "Drop v1?", "choices": ["yes", "no"]})'
    story = Story(folder, ask, ask)
    session = story.session()
    goal = story.goal(session)
    assert story.run(session, goal).exit_code == 11
    with session.store.read() as tx:
        [gate] = gates.open_gates(tx, goal.goal_id)
    answered = gate_service.answer(session.store, gate.gate_id, "no", "anna", always=True)
    assert answered.grant_id is not None
    gate_service.revoke(session.store, answered.grant_id, "anna")

    assert story.run(session, goal).exit_code == 11

    with session.store.read() as tx:
        assert [gate.question for gate in gates.open_gates(tx, goal.goal_id)] == ["Drop v1?"]


def test_the_newest_answer_is_told_however_old_its_question(folder: Path) -> None:
    story = Story(folder, "pass")
    session = story.session()
    goal = story.goal(session)
    store = session.store
    asked = [gate_service.ask(store, str(goal.goal_id), f"Question {n}?", (), ()).gate_id for n in range(5)]
    with store.write() as tx:
        for later, gate_id in enumerate(reversed(asked)):
            gates.answer(tx, gates.get(tx, gate_id), "yes", "anna", store.now_ms() + later)

    story.run(session, goal, max_turns=1)

    told = [n for n in range(5) if f"Question {n}? -> yes" in story.prompt(1)]
    assert told == [0, 1, 2]


def test_another_question_is_asked(folder: Path) -> None:
    steps = [f'result(kind="question", summary="?", question={{"text": "Drop v{n}?"}})' for n in (1, 2)]
    story = Story(folder, *steps)
    session = story.session()
    goal = story.goal(session)
    story.run(session, goal)
    with session.store.write() as tx:
        [gate] = gates.open_gates(tx, goal.goal_id)
        gates.answer(tx, gate, "no", "anna", session.store.now_ms())

    end = story.run(session, goal)
    assert (end.exit_code, end.question) == (11, "Drop v2?")
