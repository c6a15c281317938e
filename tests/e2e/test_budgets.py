"""Budgets that really stop work: what a turn counts as, what its host may use, and what nobody reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loopx.control_plane.quota.policy import BudgetUnit
from loopx.hosts.protocol import HostEvent, HostEventKind, Usage
from loopx.runtime.allowance import Allowance
from loopx.store import meters
from tests.e2e.desk import PYTHON, Desk

IDLE = "import sys; sys.stdin.read(); print('nothing done')"
TALKS = """import json, os, sys
sys.stdin.read()
open("m.py", "a").write("\\n# more\\n")
usage = json.loads(open(sys.argv[1]).read())
body = {"turn_key": os.environ["LOOPX_TURN_KEY"], "kind": "progress", "summary": "did it", "usage": usage}
open(os.environ["LOOPX_RESULT_FILE"], "w").write(json.dumps(body))
"""
SLOW = "import sys, time; sys.stdin.read(); time.sleep(60)"


def engine(folder: Path, text: str, *words: str) -> str:
    (folder / "engine.py").write_text(text)
    return " ".join([f"command:{PYTHON}", str(folder / "engine.py"), *words])


def create(desk: Desk, word: str, *budgets: str) -> None:
    options = [part for budget in budgets for part in ("--budget", budget)]
    said = desk.loopx("goal", "create", "finish", "--goal-id", "goal", "--check", "false", "--engine", word, *options)
    assert said.code == 0, said.err


def budget(desk: Desk) -> dict[str, object]:
    (line,) = desk.json("quota", "status", "goal")["budgets"]
    return dict(line)


def test_every_turn_counts_whether_it_delivered_or_not(desk: Desk, tmp_path: Path) -> None:
    create(desk, engine(tmp_path, IDLE), "turns=2/goal")
    for used in (1, 2):
        desk.loopx("turn", "run-once", "goal")
        assert budget(desk)["used"] == used
    assert desk.json("quota", "ledger", "goal")["total_slots"] == 0
    packet = desk.json("quota", "should-run", "goal")
    assert (packet["rule"], packet["reason"]) == ("absolute_cap", "turns per goal: 2 used of 2")
    assert desk.loopx("run", "goal").code == 12
    assert desk.loopx(*packet["next_command"][1:]).code == 0
    assert desk.loopx("quota", "should-run", "-q", "goal").code == 0


def test_what_an_engine_reports_is_what_is_charged(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "usage.json").write_text(json.dumps({"input_tokens": 900, "output_tokens": 100}))
    create(desk, engine(tmp_path, TALKS, str(tmp_path / "usage.json")), "tokens=5k/goal")
    desk.loopx("turn", "run-once", "goal")
    line = budget(desk)
    assert (line["used"], line["estimated"], line["reserved"]) == (1000, 0, 0)


def test_an_engine_that_reports_nothing_is_stopped_and_says_why(desk: Desk, tmp_path: Path) -> None:
    create(desk, engine(tmp_path, IDLE), "tokens=5k/goal")
    desk.loopx("turn", "run-once", "goal")
    report = desk.json("quota", "status", "goal")
    (line,) = report["budgets"]
    assert (line["used"], line["estimated"]) == (5000, 5000)
    assert [one["unit"] for one in report["used"]] == ["turns", "launches", "wall_ms"]
    packet = desk.json("quota", "should-run", "goal")
    assert packet["rule"] == "absolute_cap"
    assert packet["reason"].endswith("(5000 charged because the engine reported none)")
    commands = [one["command"][-1] for one in desk.json("why", "goal")["explanation"]["changes"]]
    assert commands == ["tokens=10000/goal", "tokens=unlimited/goal"]
    assert desk.loopx("quota", "raise", "goal", "--budget", commands[1]).code == 0
    assert desk.loopx("quota", "should-run", "-q", "goal").code == 0


def test_silence_after_reports_is_charged_as_a_usual_turn(desk: Desk, tmp_path: Path) -> None:
    usage = tmp_path / "usage.json"
    usage.write_text(json.dumps({"input_tokens": 900, "output_tokens": 100}))
    create(desk, engine(tmp_path, TALKS, str(usage)), "tokens=5k/1d")
    desk.loopx("turn", "run-once", "goal")
    usage.write_text("{}")
    desk.loopx("turn", "run-once", "goal")
    line = budget(desk)
    assert (line["used"], line["estimated"]) == (2000, 1000)
    usage.write_text(json.dumps({"input_tokens": 4000}))
    desk.loopx("turn", "run-once", "goal")
    packet = desk.json("quota", "should-run", "goal")
    assert (packet["rule"], packet["state"]) == ("window_used_up", "throttled")
    assert packet["wake_after"] is not None


def test_wall_clock_of_a_turn_ends_its_host(desk: Desk, tmp_path: Path) -> None:
    create(desk, engine(tmp_path, SLOW), "wall=1s/turn")
    desk.loopx("turn", "run-once", "goal")
    assert "executor_timeout" in json.dumps(desk.json("turn", "show", "goal", "1"))


def test_a_run_far_above_the_usual_is_announced_once(desk: Desk, tmp_path: Path) -> None:
    usage = tmp_path / "usage.json"
    usage.write_text(json.dumps({"input_tokens": 90_000}))
    create(desk, engine(tmp_path, TALKS, str(usage)))
    with desk.session() as session, session.store.write() as tx:
        for number in range(6):
            meters.record(tx, "goal", f"run{number}", {BudgetUnit.TOKENS: 5_000}, session.store.now_ms())
    desk.loopx("run", "goal", "--max-turns", "1")
    with desk.session() as session, session.store.read() as tx:
        sent = [row["effect_key"] for row in tx.all("outbox.page", after="", limit=10)]
    assert [key.partition(":")[0] for key in sent].count("spike") == 1


def test_a_codex_goal_has_no_dollar_budget(desk: Desk) -> None:
    words = ("goal", "create", "x", "--check", "false", "--engine", "codex", "--budget", "usd=5", "--json")
    said = desk.loopx(*words)
    assert (said.code, said.error, said.json["error"]["data"]["field"]) == (2, "budget_unit_unmetered", "unit")


def used(running_total: bool = False, **counters: int) -> HostEvent:
    return HostEvent(kind=HostEventKind.USAGE, usage=Usage(**counters), running_total=running_total)


def test_the_allowance_is_spent_from_the_event_that_reaches_it() -> None:
    watch = Allowance({BudgetUnit.TOKENS: 100}, None, resumed=False)
    watch.see(used(input_tokens=60, output_tokens=39))
    assert not watch.spent
    watch.see(used(input_tokens=60, output_tokens=40))
    assert watch.spent


def test_a_sessions_earlier_use_is_not_this_turns() -> None:
    watch = Allowance({BudgetUnit.TOKENS: 100}, Usage(input_tokens=1000, output_tokens=0), resumed=True)
    watch.see(used(True, input_tokens=1099, output_tokens=0))
    assert not watch.spent
    watch.see(used(True, input_tokens=1100, output_tokens=0))
    assert watch.spent


@pytest.mark.parametrize("before", [None, Usage()])
def test_what_is_unknown_ends_nothing(before: Usage | None) -> None:
    watch = Allowance({BudgetUnit.MICROUSD: 1}, before, resumed=before is not None)
    watch.see(used(input_tokens=10**9))
    assert not watch.spent
