"""`loopx status`, `why`, `log`: one screen in its order, one reason everywhere, and the history."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loopx import status
from loopx.control_plane.ids import GoalId
from loopx.control_plane.quota.policy import Budget, BudgetScope, BudgetUnit
from loopx.control_plane.turn_driver.journal import GateDraft
from loopx.control_plane.work_items.gate import GateKind
from loopx.runtime import goal_service
from loopx.store import gates, meters
from loopx.testing import LeakKind
from tests.e2e.desk import Desk
from tests.store.kit import make_goal, open_store


def ask(desk: Desk, goal: str, question: str, gate_id: str = "gate01") -> None:
    with desk.session() as session, session.store.write() as tx:
        draft = GateDraft(kind=GateKind.QUESTION, question=question, dedupe_key=question, options=("yes", "no"))
        gates.ask(tx, GoalId(goal), gate_id, draft, session.store.now_ms())


def a_desk_with_everything(desk: Desk) -> None:
    desk.goal("asked")
    desk.goal("ready")
    desk.goal("full", allowed=0)
    desk.goal("paused")
    desk.goal("capped", budgets=(Budget(unit=BudgetUnit.TURNS, scope=BudgetScope.GOAL, limit=1),))
    desk.goal("done", check=f"{sys.executable} -c pass")
    ask(desk, "asked", "Drop support for v1 webhooks?")
    with desk.session() as session:
        from loopx.control_plane.goal import GoalState

        goal_service.move(session.store, "paused", GoalState.PAUSED, "person")
        with session.store.write() as tx:
            meters.record(tx, "capped", "e", {BudgetUnit.TURNS: 1}, session.store.now_ms())
            tx.run("goals.set_capped", goal_id="capped", capped=1)
            tx.run("goals.close", goal_id="done", now_ms=session.store.now_ms())


def test_the_screen_is_in_its_order_and_each_line_has_its_command(desk: Desk) -> None:
    a_desk_with_everything(desk)
    out = desk.loopx("status").out
    places = [out.index(title) for title in ("needs you", "waiting", "since ")]
    assert places == sorted(places)
    assert '"Drop support for v1 webhooks?"  blocks the goal' in out
    assert "loopx gate answer gate01 yes|no" in out
    assert "loopx quota raise capped --budget turns=2/goal" in out
    assert "loopx goal resume paused" in out
    assert "ready; nothing runs it" in out and "loopx run ready" in out
    assert "✓ done" in out
    lines = [line for line in out.splitlines() if line.strip()]
    assert len(lines) == len(set(lines))


def test_the_answer_is_the_same_on_every_surface(desk: Desk) -> None:
    a_desk_with_everything(desk)
    overview = {line["goal_id"]: line for line in desk.json("status")["goals"]}
    for goal in ("asked", "ready", "full", "paused", "capped", "done"):
        packet, why = desk.json("quota", "should-run", goal), desk.json("why", goal)
        plan, alone = desk.json("turn", "plan", goal), desk.json("status", goal)["goals"][0]
        for one in (packet, why, plan["decision"], overview[goal], alone):
            answer = [one[name] for name in ("should_run", "state", "effective_action", "rule", "reason")]
            assert answer == [packet[name] for name in ("should_run", "state", "effective_action", "rule", "reason")]


def test_every_next_command_is_accepted_as_it_is_printed(desk: Desk) -> None:
    a_desk_with_everything(desk)
    for line in desk.json("status")["goals"]:
        words = line["next_command"]
        if words[1] == "run":
            # It would run an engine until the goal's end.
            words = ["loopx", "turn", "plan", words[2]]
        assert desk.loopx(*words[1:]).code == 0, words


def test_the_sections_have_their_goals(desk: Desk) -> None:
    a_desk_with_everything(desk)
    sections = {line["goal_id"]: line["section"] for line in desk.json("status")["goals"]}
    assert sections == {
        "asked": "needs_you",
        "capped": "needs_you",
        "ready": "waiting",
        "full": "waiting",
        "paused": "waiting",
        "done": "since",
    }


def test_what_was_done_before_is_not_since(desk: Desk) -> None:
    desk.goal("done")
    with desk.session() as session, session.store.write() as tx:
        tx.run("goals.close", goal_id="done", now_ms=session.store.now_ms() - 7_200_000)
    assert desk.json("status", "--since", "1h")["goals"] == []
    assert [line["goal_id"] for line in desk.json("status", "--since", "3h")["goals"]] == ["done"]
    assert desk.loopx("status", "--since", "never", "--json").error == "since_invalid"


def test_one_goal_fits_in_eight_kilobytes_whatever_it_holds(desk: Desk) -> None:
    desk.goal(check=f"{sys.executable} -c 'import sys; sys.exit(1)' # {'x' * 300}")
    desk.loopx("turn", "run-once", "goal")
    with desk.session() as session:
        from loopx.control_plane.ids import TodoId
        from loopx.control_plane.work_items.todo import Todo
        from loopx.store import todos

        for number in range(40):
            with session.store.write() as tx:
                title = 'ü\x1b[31m"' * 200
                todo = Todo(
                    todo_id=TodoId(session.store.ids.new("td")),
                    goal_id=GoalId("goal"),
                    title=title,
                    created_at_ms=number,
                )
                todos.insert(tx, todo)
    ask(desk, "goal", "why? " * 400)
    said = desk.loopx("status", "goal", "--json")
    assert said.code == 0
    assert len(said.out.encode()) <= 8 * 1024
    assert "\x1b" not in desk.loopx("status", "goal").out


def test_a_goal_alone_shows_its_checks_and_turns(desk: Desk) -> None:
    desk.goal()
    desk.loopx("turn", "run-once", "goal")
    one = desk.json("status", "goal")
    (check,) = one["checks"]
    assert (check["verdict"], check["failed"], check["total"]) == ("red", 1, 2)
    assert [turn["result_kind"] for turn in one["turns"]] == ["validated_progress"]
    out = desk.loopx("status", "goal").out
    assert "1 of 2 failing" in out and "fewer failures than before" in out


def test_a_running_turn_says_what_its_agent_does_and_since_when(desk: Desk) -> None:
    gate = desk.root.parent / "go"
    (desk.root.parent / "agent.py").write_text(
        "import os, sys, time\n"
        "sys.stdin.read(); print('looking at the parser', flush=True)\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.02)\n"
    )
    desk.goal()
    running = subprocess.Popen(
        [sys.executable, "-m", "loopx", "turn", "run-once", "goal", "--json", "--project", str(desk.root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        line = _await_words(desk)
        assert line["section"] == "running"
        assert line["turn"]["driven"] and line["turn"]["last_event_ms"] > 0
        assert line["turn"]["doing_text"] == "looking at the parser"
        assert "looking at the parser" in desk.loopx("status").out
    finally:
        gate.write_text("")
        running.communicate(timeout=60)


def _await_words(desk: Desk) -> dict[str, object]:
    for _ in range(600):
        (line,) = desk.json("status")["goals"]
        turn = line["turn"]
        if turn is not None and turn["doing_text"]:
            return line
        time.sleep(0.05)
    raise AssertionError("the turn never said anything")


@pytest.mark.leaves(LeakKind.OPEN_TURN, reason="its driver is killed and not run again")
def test_a_turn_that_nobody_drives_needs_you(desk: Desk) -> None:
    from tests.e2e.test_cli_turn import interrupt

    desk.goal()
    interrupt(desk, "quota_spend")
    (line,) = desk.json("status")["goals"]
    assert (line["section"], line["turn"]["driven"], line["next_command"]) == (
        "needs_you",
        False,
        ["loopx", "run", "goal"],
    )
    assert "turn 1 was interrupted after the spend" in desk.loopx("status").out


def test_why_names_the_rule_and_what_would_change_it(desk: Desk) -> None:
    desk.goal("full", allowed=0)
    why = desk.json("why", "full")
    assert (why["rule"], why["state"]) == ("window_used_up", "throttled")
    assert why["explanation"]["changes"][0]["command"][:3] == ["loopx", "quota", "raise"]
    out = desk.loopx("why", "full").out
    assert "should not run now: throttled" in out
    assert "spent >= allowed in this window" in out
    assert "what would change it" in out


def test_why_at_a_turn_makes_its_decision_again(desk: Desk) -> None:
    desk.goal()
    desk.loopx("turn", "run-once", "goal")
    why = desk.json("why", "goal", "--at", "1")
    assert (why["agrees"], why["rule"], why["last_result"]) == (True, "ready", "validated_progress")
    assert desk.json("why", "goal", "--at", why["turn_key"]) == why
    assert desk.loopx("why", "goal", "--at", "9").code == 3


def test_the_log_tells_what_changed_in_order(desk: Desk) -> None:
    desk.goal()
    desk.loopx("turn", "run-once", "goal")
    kinds = [event["kind"] for event in desk.json("log", "goal", "--since", "1h")["events"]]
    assert kinds[0] == "goal_created" and "quota_spent" in kinds
    assert kinds == [event["kind"] for event in desk.json("log")["events"]]
    assert [event["kind"] for event in desk.json("log", "--limit", "1")["events"]] == [kinds[-1]]
    assert "slot spent" in desk.loopx("log", "goal").out
    assert desk.loopx("log", "gaol").code == 3


def test_an_empty_project_says_how_to_begin(desk: Desk) -> None:
    with desk.session():
        pass
    assert "no goal yet" in desk.loopx("status").out


def test_the_hot_commands_import_nothing_heavy(desk: Desk) -> None:
    """A budget of modules instead of milliseconds: it means the same on every machine."""
    desk.goal()
    heavy = (
        "loopx.hosts",
        "loopx.workspace",
        "loopx.contracts",
        "loopx.loops",
        "rich",
        "asyncio",
        "subprocess",
        "dateutil",
    )
    for words in (["quota", "should-run", "goal", "--json"], ["status", "--json"], ["status", "goal", "--json"]):
        program = (
            "import sys, json; from loopx.cli import main; code = main(sys.argv[1:]);"
            "print(json.dumps(sorted(sys.modules)), file=sys.stderr); sys.exit(code)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, *words, "--project", str(desk.root)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        loaded = json.loads(done.stderr.splitlines()[-1])
        assert [name for name in loaded if name.startswith(heavy)] == [], words


def _statements_of_a_look(folder: Path, goals_there: int) -> int:
    """How many statements one look at everything asks, with so many goals."""
    folder.mkdir()
    store = open_store(folder)
    for number in range(goals_there):
        make_goal(store, f"goal-{number:04d}", todo=False)
    asked: list[str] = []
    with store.connection.raw_read() as connection:
        connection.set_trace_callback(asked.append)
    seen = status.overview(store, since_ms=0)
    with store.connection.raw_read() as connection:
        connection.set_trace_callback(None)
    store.close()
    assert len(seen.goals) == min(goals_there, 12) and seen.counts == {"active": goals_there}
    return len(asked)


def test_a_look_costs_the_same_with_many_goals_as_with_some(tmp_path: Path) -> None:
    some, many = _statements_of_a_look(tmp_path / "some", 40), _statements_of_a_look(tmp_path / "many", 400)
    assert some == many
