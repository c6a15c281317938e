"""`loopx run` and `loopx init` as real processes: the first minute, the story, bad input, stops, two at once."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.e2e.cli_kit import Cli, end, events
from tests.e2e.goal_kit import FIX_F, FIX_G

HANGS = """
import time
open(COUNT + ".at-work", "w").close()
while not os.path.exists(COUNT + ".go-on"): time.sleep(0.05)
"""
LIE = 'print("All tests pass."); result(kind="completion", summary="All tests pass.")'
WEAKEN = 'sub("test_m.py", "self.assertEqual(m.g(), 2)", "pass")'


def _wait_for(path: Path) -> None:
    while not path.exists():
        os.sched_yield()


def _check(cli: Cli) -> str:
    return f"tests={cli.check}"


def test_the_whole_story_is_told_and_ends_with_zero(tmp_path: Path) -> None:
    cli = Cli(tmp_path, FIX_F + '; print("fixed f")', LIE, WEAKEN, FIX_G)

    ran = cli.loopx("run", "make f and g right", "--check", _check(cli), "--engine", cli.engine)

    assert (ran.code, ran.err) == (0, "")
    text = ran.out
    assert "  goal  f-g-right  ·  1 check  ·  agent.py  ·  this run: 24 turns, 2 h (defaults)" in text
    assert re.search(r"baseline  tests  ✗ red  2 of 2 failing {3,}the contract gates something", text)
    assert re.search(r'turn 1  ▰▰▰▰▰▰▰  [\d.]+s  agent.py said: "fixed f"', text)
    assert re.search(r"check ✗ red  1 of 2 failing \(was 2\) {3,}validated_progress · 1 slot", text)
    assert re.search(r"checkpoint [0-9a-f]{6} on loopx/f-g-right", text)
    assert re.search(r'turn 2  ▰▰▱▱▱▱▱  [\d.]+s  agent.py said: "All tests pass."', text)
    assert "validation_failed · nothing spent" in text
    assert "the same failure as before; agent.py is told" in text
    assert "put back: test_m.py   (the agent's copy is kept as evidence)" in text
    assert "check ✓ green  2 of 2, again in a clean snapshot" in text
    assert re.search(r"  done    4 turns · 2 slots · .*in your tree and on loopx/f-g-right +loopx report", text)
    assert "\x1b" not in text
    assert all(len(line) <= 140 for line in text.splitlines())


def test_the_same_run_as_json_ends_with_the_result(tmp_path: Path) -> None:
    cli = Cli(tmp_path, FIX_F, LIE, FIX_G)

    ran = cli.loopx("run", "make f and g right", "--check", _check(cli), "--engine", cli.engine, "--json")

    assert ran.code == 0
    assert all(line["type"] for line in ran.lines)
    last = ran.lines[-1]
    assert (last["type"], last["ok"], last["goal_id"]) == ("result", True, "f-g-right")
    assert (last["disposition"], last["result_kind"], last["exit_code"]) == ("terminal", "validated_completion", 0)
    assert (last["turns"], last["spent_slots"], last["failure"]) == (3, 2, None)
    assert [check["verdict"] for check in last["checks"]] == ["green"]
    kinds = [line["result_kind"] for line in ran.lines if line["type"] == "turn"]
    assert kinds == ["validated_progress", "validation_failed", "validated_completion"]


def test_without_a_check_nothing_is_made_and_programs_of_the_project_are_named(tmp_path: Path) -> None:
    cli = Cli(tmp_path)

    ran = cli.loopx("run", "fix it", "--engine", "codex")

    assert ran.code == 2
    assert ran.err.splitlines()[0] == "  error  no check: without one, LoopX can't tell done from said."
    assert re.fullmatch(r' {9}add {2}--check "CMD" {3}\(found in this project: .+\)', ran.err.splitlines()[1])
    assert not (tmp_path / "state").exists()
    assert not (cli.root / ".loopx").exists()


def test_a_word_that_is_no_goal_is_not_found_and_makes_nothing(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    first = cli.loopx("run", "iso-weeks", "--json")
    assert (first.code, first.error["code"]) == (3, "goal_unknown")
    assert not (tmp_path / "state").exists()

    cli.create(goal_id="iso-week-dates")
    near = cli.loopx("run", "iso-weeks", "--json")

    assert near.code == 3
    assert "iso-week-dates" in near.error["hint"]
    assert [goal["goal_id"] for goal in cli.ok("goal", "list")["goals"]] == ["iso-week-dates"]


def test_one_word_with_a_check_is_an_objective(tmp_path: Path) -> None:
    cli = Cli(tmp_path, f"{FIX_F}; {FIX_G}")

    ran = cli.loopx("run", "repair", "--check", _check(cli), "--engine", cli.engine, "--json")

    assert (ran.code, ran.json["goal_id"]) == (0, "repair")


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--max-turns", "0"), "limit_invalid", "0"),
        (("--minutes", "-5"), "limit_invalid", "-5"),
        (("--max-turns", "many"), "limit_invalid", "many"),
        (("--engine", "codx"), "unknown_engine", "codx"),
        (("--budget", "tokens=0"), "budget_amount_invalid", "0"),
        (("--budget", "tokns=5"), "budget_unit_unknown", "tokns"),
        (("--allowed-slots", "-1"), "policy_field_invalid", "allowed_slots"),
        (("--permission", "root"), "permission_unknown", "root"),
        (("--protected-policy", "never"), "policy_unknown", "never"),
        (("--check", "python3 --version"), "check_version_command", "version"),
        (("--check", "no-such-program-here"), "check_program_missing", "no-such-program-here"),
        (("--check", "if true; then echo"), "check_unreadable", "if true; then echo"),
        (("--goal-id", "Not An Id"), "bad_goal_id", "Not An Id"),
        (("--todo", " "), "title_empty", "title"),
        (("--no-such-flag",), "usage", "--no-such-flag"),
    ],
)
def test_bad_words_are_refused_by_name_before_anything_is_made(
    tmp_path: Path, flags: tuple[str, ...], code: str, said: str
) -> None:
    cli = Cli(tmp_path)

    ran = cli.loopx("run", "make it right", "--check", _check(cli), "--engine", cli.engine, *flags, "--json")

    assert (ran.code, ran.error["code"]) == (2, code)
    assert said in ran.error["message"]
    assert ran.error["hint"]
    assert not (tmp_path / "state").exists()


def test_a_turn_limit_ends_with_twelve_and_the_next_run_goes_on(tmp_path: Path) -> None:
    cli = Cli(tmp_path, FIX_F, FIX_G)

    first = cli.loopx("run", "make it right", "--check", _check(cli), "--engine", cli.engine, "--max-turns", "1")
    assert first.code == 12
    assert "this run's turns are used up" in first.out
    assert "still red: tests" in first.out
    assert "goes on with  loopx run right" in first.out

    second = cli.loopx("run", "right", "--json")
    assert (second.code, second.json["turns"]) == (0, 1)
    assert cli.launches == 2


def test_defaults_come_from_the_projects_file_and_a_flag_wins(tmp_path: Path) -> None:
    cli = Cli(tmp_path, "pass")
    (cli.root / "loopx.toml").write_text(
        f'engine = "{cli.engine}"\nmodel = "small"\nmax_turns = 2\nbudgets = ["turns=9/goal"]\n'
        f'[contract]\nchecks = ["tests={cli.check}"]\n[quota]\nallowed_slots = 7\n'
    )

    ran = cli.loopx("run", "make f and g right", "--no-wait", "--json")
    assert ran.json["turns"] == 2
    shown = cli.ok("goal", "show", "f-g-right")
    assert (shown["model"], shown["allowed_slots"], shown["budgets"]) == ("small", 7, ["turns=9/goal"])
    assert [check["name"] for check in shown["checks"]] == ["tests"]

    cli.ok("goal", "create", "another one", "--model", "large", "--goal-id", "other")
    assert cli.ok("goal", "show", "other")["model"] == "large"


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        ('model = "a\n', "config_malformed", "line 1"),
        ('\n\nengin = "codex"\n', "config_invalid", "line 3: engin"),
        ("max_turns = 0\n", "config_invalid", "line 1: max_turns"),
        ('[quota]\ncompute = "much"\n', "config_invalid", "line 2: quota.compute"),
        ("[quota]\nslots = 3\n", "config_invalid", "line 2: quota.slots"),
        ("[contract]\nchecks = []\n", "config_invalid", "contract"),
        ('budgets = ["tokens=0"]\n', "config_invalid", "line 1: budgets"),
        ('fallback = "yes"\n', "config_invalid", "line 1: fallback"),
    ],
)
def test_a_malformed_project_file_is_named_with_its_line(tmp_path: Path, content: str, code: str, said: str) -> None:
    cli = Cli(tmp_path)
    (cli.root / "loopx.toml").write_text(content)

    ran = cli.loopx("run", "make it right", "--check", _check(cli), "--engine", cli.engine, "--json")

    assert (ran.code, ran.error["code"]) == (2, code)
    assert "loopx.toml" in ran.error["message"]
    assert said in ran.error["message"]
    assert not (tmp_path / "state").exists()


def test_no_engine_here_lists_what_was_looked_for(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()

    ran = cli.loopx("run", "make it right", "--check", _check(cli), "--json", env={"PATH": f"{empty}:/usr/bin:/bin"})

    assert (ran.code, ran.error["code"]) == (13, "no_engine")
    assert "codex is not installed" in ran.error["message"]
    assert not (tmp_path / "state").exists()


def test_a_missing_engine_ends_with_thirteen_and_says_how_to_mend_it(tmp_path: Path) -> None:
    cli = Cli(tmp_path)

    ran = cli.loopx("run", "make it right", "--check", _check(cli), "--engine", "command:/no/such/agent", "--no-wait")

    assert ran.code == 13
    assert "mend it: check the words after `command:`" in ran.out


def test_a_stop_ends_the_agent_keeps_the_tree_and_a_second_one_is_harmless(tmp_path: Path) -> None:
    cli = Cli(tmp_path, FIX_F + HANGS, FIX_G)
    run = cli.start("run", "make it right", "--check", _check(cli), "--engine", cli.engine, "--json")
    events(run, "turn_started")
    _wait_for(Path(f"{cli.count}.at-work"))

    run.send_signal(signal.SIGINT)
    code, lines = end(run, signal.SIGTERM)

    assert code == 130
    assert (lines[-1]["type"], lines[-1]["exit_code"], lines[-1]["ok"]) == ("result", 130, False)
    assert "return 2" in (cli.root / "m.py").read_text()
    again = cli.loopx("run", "right", "--json")
    assert (again.code, again.json["goal_state"]) == (0, "completed")
    assert again.json["total_turns"] == 2


def test_a_killed_run_is_found_again_and_its_agent_is_not_run_twice(tmp_path: Path) -> None:
    cli = Cli(tmp_path, f"{FIX_F}; {FIX_G}" + HANGS)
    run = cli.start("run", "make it right", "--check", _check(cli), "--engine", cli.engine, "--json")
    events(run, "turn_started")
    _wait_for(Path(f"{cli.count}.at-work"))
    run.kill()
    run.communicate()
    Path(f"{cli.count}.go-on").touch()

    again = cli.loopx("run", "right")

    assert again.code == 0
    assert "turn 1 was interrupted before its agent was done; finding its agent again" in again.out
    assert cli.launches == 1


def test_the_second_of_two_runs_names_the_first(tmp_path: Path) -> None:
    cli = Cli(tmp_path, f"{FIX_F}; {FIX_G}" + HANGS)
    run = cli.start("run", "make it right", "--check", _check(cli), "--engine", cli.engine, "--json")
    events(run, "turn_started")
    _wait_for(Path(f"{cli.count}.at-work"))

    second = cli.loopx("run", "right", "--json")

    assert (second.code, second.error["code"]) == (15, "goal_running")
    assert f"process {run.pid}" in second.error["message"]
    assert second.error["data"]["pid"] == run.pid
    Path(f"{cli.count}.go-on").touch()
    code, lines = end(run)
    assert (code, lines[-1]["turns"]) == (0, 1)


def test_a_run_changes_no_goal_in_passing(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    cli.create()

    ran = cli.loopx("run", "fg", "--check", "true", "--json")

    assert (ran.code, ran.error["code"]) == (2, "goal_exists")
    assert ran.error["hint"] == "loopx goal edit fg ..."
    assert cli.ok("goal", "show", "fg")["revision"] == 1


def test_todos_of_a_run_are_worked_in_their_order(tmp_path: Path) -> None:
    claim = 'result(kind="completion", summary="done")'
    cli = Cli(tmp_path, f"{FIX_F}; {claim}", f"{FIX_G}; {claim}")

    ran = cli.loopx(
        "run", "make f and g right", "--check", _check(cli), "--engine", cli.engine,
        "--todo", "mend f", "--todo", "mend g", "--json",
    )  # fmt: skip

    assert (ran.code, ran.json["turns"]) == (0, 2)
    assert "Todo: mend f" in cli.prompt(1)
    assert "Todo: mend g" in cli.prompt(2)
    listed = cli.ok("todo", "list", "f-g-right", "--all")["todos"]
    assert [todo["status"] for todo in listed] == ["done", "done"]


def test_a_held_out_check_decides_and_is_never_told(tmp_path: Path) -> None:
    cli = Cli(tmp_path, FIX_F, FIX_G)
    secret = f"{cli.check}.T.test_g"

    ran = cli.loopx(
        "run", "make f right", "--check", f"shown={cli.check}.T.test_f", "--held-out-check", f"hidden={secret}",
        "--engine", cli.engine, "--json",
    )  # fmt: skip

    assert ran.code == 0
    assert "hidden" not in cli.prompt(1) + cli.prompt(2)
    assert "test_g" not in cli.prompt(2)
    assert {check["name"] for check in ran.json["checks"]} == {"shown", "hidden"}


def test_a_worktree_keeps_the_project_as_it_is(tmp_path: Path) -> None:
    cli = Cli(tmp_path, f"{FIX_F}; {FIX_G}")

    ran = cli.loopx("run", "make it right", "--check", _check(cli), "--engine", cli.engine, "--worktree", "--json")

    assert ran.code == 0
    assert cli.git("status", "--porcelain") == ""
    assert cli.git("show", "loopx/right:m.py").count("return 2") == 2


def test_on_a_terminal_one_line_is_kept_up_to_date(tmp_path: Path) -> None:
    cli = Cli(tmp_path, f"{FIX_F}; {FIX_G}")

    code, text = cli.terminal("run", "make it right", "--check", _check(cli), "--engine", cli.engine)

    assert code == 0
    assert "\r\x1b[2K" in text
    assert "\x1b[32m✓ green\x1b[0m" in text
    settled = re.sub(r"\r\x1b\[2K[^\r\n]*(?=\r\x1b\[2K)", "", text)
    assert "turn 1" in settled
    assert "turn 1  agent.py starts" not in text.replace("\x1b[2m", "")


def test_a_reader_that_goes_away_does_not_fail_the_run(tmp_path: Path) -> None:
    cli = Cli(tmp_path, f"{FIX_F}; {FIX_G}")
    run = cli.start("run", "make it right", "--check", _check(cli), "--engine", cli.engine)
    assert run.stdout is not None
    run.stdout.close()
    assert run.wait(60) == 0
    assert cli.ok("goal", "show", "right")["state"] == "completed"


def test_init_is_idempotent_and_writes_a_file_that_reads_as_nothing(tmp_path: Path) -> None:
    cli = Cli(tmp_path)

    first = cli.ok("init")
    second = cli.ok("init")

    assert first["created"] == [".loopx", "store", "loopx.toml"]
    assert second["created"] == []
    assert cli.git("status", "--porcelain") == "?? loopx.toml"
    lines = (cli.root / "loopx.toml").read_text().splitlines()
    assert all(not line or line.startswith("#") for line in lines)
    assert cli.loopx("goal", "list").code == 0


def test_init_leaves_anothers_folder_alone_and_says_so(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    (cli.root / ".loopx").mkdir()
    (cli.root / ".loopx" / "state.json").write_text("{}")

    ran = cli.loopx("init")

    assert ran.code == 0
    assert "another program's .loopx/" in ran.out
    assert os.listdir(cli.root / ".loopx") == ["state.json"]


def test_a_store_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    import sqlite3

    cli = Cli(tmp_path)
    database = Path(cli.ok("init")["database"])
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    before = database.read_bytes()

    ran = cli.loopx("run", "make it right", "--check", _check(cli), "--engine", cli.engine, "--json")

    assert (ran.code, ran.error["code"]) == (4, "store_newer")
    assert database.read_bytes() == before


def test_an_agent_of_a_turn_can_not_run_goals(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    cli.create()

    ran = cli.loopx("run", "fg", "--json", env={"LOOPX_TURN_TOKEN": "whatever"})

    assert (ran.code, ran.error["code"]) == (11, "person_only")


@pytest.mark.parametrize("noise", ["print(chr(0) * 50)", 'open(os.environ["LOOPX_RESULT_FILE"], "w").write("{")'])
def test_garbage_from_an_agent_is_no_success(tmp_path: Path, noise: str) -> None:
    cli = Cli(tmp_path, noise)

    ran = cli.loopx("run", "make it right", "--check", _check(cli), "--engine", cli.engine, "--no-wait", "--json")

    assert ran.code in (11, 12, 13)
    turns = [line for line in ran.lines if line["type"] == "turn"]
    assert turns
    assert all(turn["slots"] == 0 for turn in turns)


def test_the_final_line_says_what_to_do_next(tmp_path: Path) -> None:
    cli = Cli(tmp_path, 'result(kind="question", question={"text": "Which week?", "choices": ["1", "53"]})')

    ran = cli.loopx("run", "make it right", "--check", _check(cli), "--engine", cli.engine, "--no-wait")

    assert ran.code == 11
    gate = re.search(r"loopx gate answer (g\w+) ANSWER {3}then {2}loopx run right", ran.out)
    assert gate
    assert '"Which week?"' in ran.out
    assert json.loads(cli.loopx("gate", "show", gate[1], "--json").out)["options"] == ["1", "53"]


def test_what_an_agent_writes_into_the_projects_file_during_its_turn_counts_for_nothing(tmp_path: Path) -> None:
    forge = 'open("loopx.toml", "w").write("permission = \\"bypass\\"\\n")'
    cli = Cli(tmp_path, forge + HANGS)
    (cli.root / "loopx.toml").write_text('permission = "read_only"\n')
    cli.create()
    run = cli.start("run", "fg", "--json", "--no-wait", "--max-turns", "1")
    events(run, "turn_started")
    _wait_for(Path(f"{cli.count}.at-work"))

    cli.ok("goal", "create", "another", "--check", "true", "--goal-id", "other")

    assert "bypass" in (cli.root / "loopx.toml").read_text()
    assert cli.ok("goal", "show", "other")["permission"] == "read_only"
    Path(f"{cli.count}.go-on").touch()
    end(run)


def test_the_only_engine_that_is_ready_is_taken_and_of_several_one_must_be_named(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    path = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(tmp_path), "GEMINI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}

    def install(name: str) -> None:
        (programs / name).write_text("#!/bin/sh\necho 1.2.3\n")
        (programs / name).chmod(0o755)

    install("gemini")
    made = cli.ok("goal", "create", "first", "--check", "true", "--goal-id", "first", env=path)
    assert made["goal_id"] == "first"
    assert cli.ok("goal", "show", "first")["engines"] == ["gemini"]

    install("claude")
    ran = cli.loopx("run", "do the second", "--check", "true", "--json", env=path)
    assert (ran.code, ran.error["code"]) == (2, "engine_ambiguous")
    assert "claude, gemini" in ran.error["message"]
