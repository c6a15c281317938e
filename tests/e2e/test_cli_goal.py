"""`loopx goal` as real processes: made, listed, shown, edited, moved, stopped while it runs, discarded."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.e2e.cli_kit import Cli, end, events
from tests.e2e.goal_kit import CODE, FIX_F, FIX_G

HANGS = """
open(COUNT + ".at-work", "w").close()
import time
while not os.path.exists(COUNT + ".go-on"): time.sleep(0.05)
"""


def _wait_for(path: Path) -> None:
    while not path.exists():
        os.sched_yield()


def test_a_goal_is_made_and_shown_as_it_was_asked_for(tmp_path: Path) -> None:
    cli = Cli(tmp_path)

    made = cli.ok(
        "goal", "create", "make f and g right", "--check", f"tests={cli.check}", "--held-out-check", "hidden=true",
        "--engine", cli.engine, "--fallback", "claude", "--model", "m1", "--budget", "tokens=2M/goal",
        "--scope", "m.py", "--protect", "data/**", "--protected-policy", "refuse", "--no-snapshot",
        "--allowed-slots", "9", "--permission", "read_only", "--check-timeout", "5m",
    )  # fmt: skip

    assert (made["goal_id"], made["state"], made["revision"]) == ("f-g-right", "active", 1)
    shown = cli.ok("goal", "show", "f-g-right")
    assert shown["engines"] == [cli.engine, "claude"]
    assert (shown["fallback"], shown["model"], shown["permission"]) == (True, "m1", "read_only")
    assert (shown["write_scope"], shown["protected"], shown["protected_policy"]) == (["m.py"], ["data/**"], "refuse")
    assert (shown["confirm_in_snapshot"], shown["allowed_slots"]) == (False, 9)
    assert shown["budgets"] == ["tokens=2000000/goal"]
    assert [(check["name"], check["held_out"], check["timeout_s"]) for check in shown["checks"]] == [
        ("tests", False, 300),
        ("hidden", True, 120),
    ]
    text = cli.loopx("goal", "show", "f-g-right").out
    assert 'objective  "make f and g right"' in text
    assert "next       loopx run f-g-right" in text


def test_a_taken_id_is_a_conflict_and_a_made_one_steps_aside(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    cli.create(goal_id="fg")

    taken = cli.loopx("goal", "create", "other", "--check", "true", "--goal-id", "fg", "--json")
    assert (taken.code, taken.error["code"]) == (15, "goal_exists")

    first = cli.ok("goal", "create", "mend the parser", "--check", "true")
    second = cli.ok("goal", "create", "mend the parser", "--check", "true")
    assert (first["goal_id"], second["goal_id"]) == ("mend-parser", "mend-parser-2")


def test_lists_are_paged_and_filtered(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    for name in ("a", "b", "c", "d"):
        cli.create(goal_id=name)
    cli.ok("goal", "pause", "c")

    page = cli.ok("goal", "list", "--limit", "2")
    assert ([goal["goal_id"] for goal in page["goals"]], page["next_after"]) == (["a", "b"], "b")
    rest = cli.ok("goal", "list", "--limit", "2", "--after", "b")
    assert ([goal["goal_id"] for goal in rest["goals"]], rest["next_after"]) == (["c", "d"], None)
    paused = cli.ok("goal", "list", "--state", "paused", "--limit", "1")
    assert [goal["goal_id"] for goal in paused["goals"]] == ["c"]
    assert "more:  loopx goal list --after b" in cli.loopx("goal", "list", "--limit", "2").out


def test_a_mistyped_goal_is_not_found_by_any_verb_and_nothing_changes(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    cli.create(goal_id="weeks")

    for words in (
        ("goal", "show", "weaks"),
        ("goal", "edit", "weaks", "--model", "x"),
        ("goal", "pause", "weaks"),
        ("goal", "stop", "weaks"),
        ("goal", "reopen", "weaks"),
        ("goal", "discard", "weaks"),
        ("todo", "add", "weaks", "title"),
        ("todo", "list", "weaks"),
        ("todo", "claim", "weaks", "--next"),
        ("gate", "ask", "weaks", "really?"),
        ("gate", "list", "weaks"),
        ("grant", "list", "weaks"),
        ("check", "run", "weaks"),
        ("check", "list", "weaks"),
        ("evidence", "list", "weaks"),
        ("evidence", "add", "weaks", "name", "--text", "x"),
        ("handoff", "weaks"),
    ):
        ran = cli.loopx(*words, "--json")
        assert (words, ran.code, ran.error["code"]) == (words, 3, "goal_unknown")
        assert "weeks" in ran.error["hint"]
    assert [goal["goal_id"] for goal in cli.ok("goal", "list")["goals"]] == ["weeks"]


def test_an_edit_makes_a_revision_and_a_stale_one_is_refused(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    cli.create()

    assert cli.ok("goal", "edit", "fg", "--model", "m2", "--allowed-slots", "3")["revision"] == 2
    stale = cli.loopx("goal", "edit", "fg", "--model", "m3", "--revision", "1", "--json")
    assert (stale.code, stale.error["code"]) == (15, "stale_revision")
    assert cli.ok("goal", "edit", "fg", "--budget", "tokens=5/goal")["revision"] == 3
    assert cli.ok("goal", "edit", "fg", "--budget", "tokens=unlimited/goal")["revision"] == 4
    shown = cli.ok("goal", "show", "fg")
    assert (shown["model"], shown["allowed_slots"], shown["budgets"]) == ("m2", 3, [])


def test_edited_checks_are_run_anew_before_the_next_turn(tmp_path: Path) -> None:
    cli = Cli(tmp_path, FIX_F, FIX_G)
    cli.create()
    assert cli.loopx("run", "fg", "--max-turns", "1").code == 12

    cli.ok("goal", "edit", "fg", "--check", f"g={cli.check}.T.test_g")
    ran = cli.loopx("run", "fg", "--json")

    assert ran.code == 0
    baselines = [line for line in ran.lines if line["type"] == "baseline"]
    assert [[check["name"] for check in line["checks"]] for line in baselines] == [["g"]]
    assert [check["name"] for check in ran.json["checks"]] == ["g"]


def test_checks_are_not_edited_under_a_turn_that_runs(tmp_path: Path) -> None:
    cli = Cli(tmp_path, f"{FIX_F}; {FIX_G}" + HANGS)
    cli.create()
    run = cli.start("run", "fg", "--json")
    events(run, "turn_started")
    _wait_for(Path(f"{cli.count}.at-work"))

    ran = cli.loopx("goal", "edit", "fg", "--check", "true", "--json")
    assert (ran.code, ran.error["code"]) == (15, "turn_open")
    assert cli.ok("goal", "edit", "fg", "--allowed-slots", "5")["revision"] == 2

    Path(f"{cli.count}.go-on").touch()
    assert end(run)[0] == 0


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (("--check", " "), "check_empty"),
        (("--check", "a=true", "--check", "a=false"), "check_duplicate"),
        (("--breaker", "0"), "number_invalid"),
        (("--outcome-floor", "0"), "policy_field_invalid"),
        (("--compute", "-1"), "policy_field_invalid"),
        (("--turn-timeout", "soon"), "check_timeout"),
        (("--objective", "  "), "objective_empty"),
        ((), "nothing_to_edit"),
    ],
)
def test_a_bad_edit_is_refused_and_leaves_the_goal_alone(tmp_path: Path, flags: tuple[str, ...], code: str) -> None:
    cli = Cli(tmp_path)
    cli.create()

    ran = cli.loopx("goal", "edit", "fg", *flags, "--json")

    assert (ran.code, ran.error["code"]) == (2, code)
    assert cli.ok("goal", "show", "fg")["revision"] == 1


def test_dollars_can_not_be_bounded_where_the_engine_tells_none(tmp_path: Path) -> None:
    cli = Cli(tmp_path)

    ran = cli.loopx("goal", "create", "x", "--check", "true", "--engine", "codex", "--budget", "usd=5/goal", "--json")

    assert (ran.code, ran.error["code"]) == (2, "budget_unit_unmetered")


def test_every_state_has_a_way_on(tmp_path: Path) -> None:
    cli = Cli(tmp_path, "pass")
    cli.create()

    assert cli.ok("goal", "pause", "fg")["state"] == "paused"
    paused = cli.loopx("run", "fg", "--no-wait")
    assert (paused.code, "loopx goal resume fg" in paused.out) == (10, True)
    assert cli.ok("goal", "stop", "fg")["state"] == "stopped"
    stopped = cli.loopx("run", "fg", "--json")
    assert (stopped.code, stopped.error["hint"]) == (10, "loopx goal resume fg")
    assert cli.ok("goal", "resume", "fg")["state"] == "active"
    assert cli.ok("goal", "close", "fg", "--reason", "not wanted")["state"] == "cancelled"
    closed = cli.loopx("run", "fg", "--json")
    assert (closed.code, closed.error["hint"]) == (10, "loopx goal reopen fg")
    refused = cli.loopx("goal", "pause", "fg", "--json")
    assert (refused.code, refused.error["code"]) == (15, "goal_closed")
    assert cli.ok("goal", "reopen", "fg")["state"] == "active"
    open_already = cli.loopx("goal", "reopen", "fg", "--json")
    assert (open_already.code, open_already.error["code"]) == (15, "goal_open")


def test_stop_ends_the_turn_of_a_living_run(tmp_path: Path) -> None:
    cli = Cli(tmp_path, FIX_F + HANGS)
    cli.create()
    run = cli.start("run", "fg", "--json")
    events(run, "turn_started")
    _wait_for(Path(f"{cli.count}.at-work"))

    stopped = cli.ok("goal", "stop", "fg")

    assert (stopped["state"], stopped["running"]) == ("stopped", run.pid)
    code, lines = end(run)
    assert (code, lines[-1]["goal_state"]) == (130, "stopped")
    assert "return 2" in (cli.root / "m.py").read_text()


def test_stop_ends_the_agent_of_a_run_that_was_killed(tmp_path: Path) -> None:
    cli = Cli(tmp_path, 'open(COUNT + ".pid", "w").write(str(os.getpid()))\n' + HANGS)
    cli.create()
    run = cli.start("run", "fg", "--json")
    events(run, "turn_started")
    _wait_for(Path(f"{cli.count}.at-work"))
    agent = int(Path(f"{cli.count}.pid").read_text())
    run.kill()
    run.communicate()

    stopped = cli.ok("goal", "stop", "fg")

    assert stopped["ended_turn"]
    assert not Path(f"/proc/{agent}").exists()
    Path(f"{cli.count}.go-on").touch()
    cli.ok("goal", "resume", "fg")
    again = cli.loopx("run", "fg", "--no-wait", "--max-turns", "1", "--json")
    assert [line["number"] for line in again.lines if line["type"] == "turn"] == [2]


def test_pause_lets_the_running_turn_finish(tmp_path: Path) -> None:
    cli = Cli(tmp_path, FIX_F + HANGS)
    cli.create()
    run = cli.start("run", "fg", "--no-wait", "--json")
    events(run, "turn_started")
    _wait_for(Path(f"{cli.count}.at-work"))

    cli.ok("goal", "pause", "fg")
    Path(f"{cli.count}.go-on").touch()

    code, lines = end(run)
    assert code == 10
    assert [line["result_kind"] for line in lines if line["type"] == "turn"] == ["validated_progress"]


def test_discard_puts_the_tree_back_and_ends_the_goal(tmp_path: Path) -> None:
    cli = Cli(tmp_path, FIX_F)
    (cli.root / "notes.txt").write_text("mine, from before")
    cli.create()
    assert cli.loopx("run", "fg", "--max-turns", "1").code == 12
    assert (cli.root / "m.py").read_text() != CODE

    done = cli.ok("goal", "discard", "fg")

    assert (done["goal_id"], done["state"]) == ("fg", "cancelled")
    assert (cli.root / "m.py").read_text() == CODE
    assert (cli.root / "notes.txt").read_text() == "mine, from before"
    assert cli.git("show", "loopx/fg:m.py") != CODE.strip()


def test_discard_refuses_what_others_changed_since(tmp_path: Path) -> None:
    cli = Cli(tmp_path, FIX_F)
    cli.create()
    assert cli.loopx("run", "fg", "--max-turns", "1").code == 12
    (cli.root / "mine.txt").write_text("new")

    refused = cli.loopx("goal", "discard", "fg", "--json")
    assert (refused.code, refused.error["code"]) == (15, "tree_changed")
    assert (cli.root / "mine.txt").exists()

    cli.ok("goal", "discard", "fg", "--force")
    assert (cli.root / "m.py").read_text() == CODE


def test_discard_of_a_goal_that_never_ran_has_nothing_to_put_back(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    cli.create()

    ran = cli.loopx("goal", "discard", "fg", "--json")

    assert (ran.code, ran.error["code"]) == (3, "base_missing")


def test_goals_are_a_persons_to_change(tmp_path: Path) -> None:
    attempts = [
        ["goal", "edit", "fg", "--check", "true"],
        ["goal", "close", "fg"],
        ["goal", "create", "y", "--check", "true"],
        ["goal", "discard", "fg"],
        ["run", "fg"],
        ["todo", "supersede", "fg", "x"],
        ["grant", "add", "fg", "--scope", "capability:push"],
    ]
    script = f"""
import subprocess, sys
codes = []
for words in {attempts!r}:
    for drop in (False, True):
        env = dict(os.environ)
        if drop: env.pop("LOOPX_TURN_TOKEN")
        codes.append(subprocess.run([sys.executable, "-m", "loopx", *words], env=env, capture_output=True).returncode)
open(COUNT + ".codes", "w").write(json.dumps(codes))
"""
    cli = Cli(tmp_path, script)
    cli.create()

    cli.loopx("run", "fg", "--max-turns", "1", "--no-wait")

    codes = json.loads(Path(f"{cli.count}.codes").read_text())
    assert codes == [11] * (2 * len(attempts))
    assert cli.ok("goal", "show", "fg")["revision"] == 1
