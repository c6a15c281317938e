"""`loopx check`, `loopx evidence` and `loopx handoff` as real processes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.e2e.cli_kit import Cli
from tests.e2e.goal_kit import FIX_F, FIX_G


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    found = Cli(tmp_path, FIX_F, FIX_G)
    found.create("--held-out-check", "secret=test -e secret.txt")
    return found


def test_check_run_prints_each_check_and_ends_with_fourteen_while_one_is_red(cli: Cli) -> None:
    ran = cli.loopx("check", "run", "fg")

    assert ran.code == 14
    assert re.search(r"✗ red  tests {3,}2 of 2 failing", ran.out)
    assert re.search(r"✗ red  secret", ran.out)
    assert "red     2 of 2 checks" in ran.out
    answer = cli.loopx("check", "run", "fg", "--json")
    assert (answer.code, answer.json["ok"], answer.json["green"]) == (14, True, False)
    assert [(check["name"], check["verdict"]) for check in answer.json["checks"]] == [
        ("tests", "red"),
        ("secret", "red"),
    ]


def test_check_run_looks_at_the_tree_as_it_is_every_time(cli: Cli) -> None:
    assert cli.loopx("check", "run", "fg", "--name", "secret").code == 14
    (cli.root / "secret.txt").write_text("")
    assert cli.ok("check", "run", "fg", "--name", "secret")["green"]
    (cli.root / "secret.txt").unlink()
    assert cli.loopx("check", "run", "fg", "--name", "secret").code == 14
    assert cli.ok("evidence", "list", "fg")["evidence"] == []


def test_an_unknown_check_is_not_found(cli: Cli) -> None:
    ran = cli.loopx("check", "run", "fg", "--name", "test", "--json")

    assert (ran.code, ran.error["code"]) == (3, "check_unknown")


def test_held_out_checks_are_kept_from_the_agent_of_a_turn(tmp_path: Path) -> None:
    script = """
import subprocess, sys
def loopx(*words, drop=False):
    env = dict(os.environ)
    if drop: env.pop("LOOPX_TURN_TOKEN")
    done = subprocess.run([sys.executable, "-m", "loopx", *words, "--json"], env=env, capture_output=True, text=True)
    return done.stdout
open(COUNT + ".told", "w").write("".join(
    loopx(*words, drop=drop) for drop in (False, True)
    for words in (["check", "list", "fg"], ["check", "run", "fg"], ["goal", "show", "fg"], ["evidence", "list", "fg"],
                  ["handoff", "fg"], ["check", "run", "fg", "--name", "secret"])))
"""
    cli = Cli(tmp_path, script, script)
    cli.create("--held-out-check", "secret=test -e hidden-thing.txt")

    cli.loopx("run", "fg", "--max-turns", "2", "--no-wait")

    told = Path(f"{cli.count}.told").read_text()
    assert "tests" in told
    assert "hidden-thing" not in told
    assert '"secret"' not in told
    assert told.count("has no check 'secret'") == 2


def test_check_list_shows_what_each_check_said_last(cli: Cli) -> None:
    cli.loopx("run", "fg", "--max-turns", "1")

    checks = cli.ok("check", "list", "fg")["checks"]

    assert [(check["name"], check["last"]["verdict"], check["held_out"]) for check in checks] == [
        ("tests", "red", False),
        ("secret", "red", True),
    ]
    assert re.search(r"check +tests +✗ red  1 of 2 failing", cli.loopx("check", "list", "fg").out)


def test_evidence_says_what_proved_what_and_who_said_so(cli: Cli) -> None:
    cli.loopx("run", "fg", "--max-turns", "1")
    added = cli.ok("evidence", "add", "fg", "ticket", "--link", "https://example.org/1")

    found = cli.ok("evidence", "list", "fg")["evidence"]

    by_name = {one["name"]: one for one in found}
    assert by_name["tests"]["produced"] == "verified"
    assert (by_name["tests"]["kind"], by_name["tests"]["verdict"]) == ("check", "red")
    assert by_name["tests"]["tree_hash"]
    assert "output" not in by_name["tests"]["body"]
    assert (by_name["ticket"]["produced"], by_name["ticket"]["kind"]) == ("claimed", "link")
    shown = cli.ok("evidence", "show", added["evidence_id"])
    assert shown["body"] == {"link": "https://example.org/1", "by": "ada"}
    assert "FAIL" in cli.loopx("evidence", "show", by_name["tests"]["evidence_id"]).out
    turn = by_name["tests"]["turn_key"]
    of_turn = cli.ok("evidence", "list", "fg", "--turn", turn)["evidence"]
    assert {one["turn_key"] for one in of_turn} == {turn}
    missing = cli.loopx("evidence", "show", "evnone", "--json")
    assert (missing.code, missing.error["code"]) == (3, "evidence_unknown")


def test_evidence_is_paged(cli: Cli) -> None:
    for number in range(5):
        cli.ok("evidence", "add", "fg", f"note {number}", "--text", "x")

    first = cli.ok("evidence", "list", "fg", "--limit", "3")
    rest = cli.ok("evidence", "list", "fg", "--limit", "3", "--after", first["next_after"])

    assert [one["name"] for one in first["evidence"] + rest["evidence"]] == [f"note {number}" for number in range(5)]
    assert rest["next_after"] is None


def test_a_handoff_fits_sixteen_lines_whatever_the_goal_holds(cli: Cli) -> None:
    cli.loopx("run", "fg", "--max-turns", "1")
    for number in range(9):
        cli.ok("todo", "add", "fg", f"slice {number}", "--check", "true")
        cli.ok("gate", "ask", "fg", f"question {number}?", "--option", "yes")

    ran = cli.loopx("handoff", "fg")

    assert ran.code == 0
    lines = ran.out.splitlines()
    assert len(lines) <= 16
    assert lines[0].startswith("  fg   active")
    text = ran.out
    assert "turn 1: validated_progress" in text
    assert "✗ red  tests  1 of 2 failing" in text
    assert "slice 0" in text
    assert '"question' in text
    assert re.search(r"^    next +loopx ", lines[-1])
    packet = json.loads(cli.loopx("handoff", "fg", "--json").out)
    assert (packet["open_todos"], packet["spent_slots"], packet["turns"]) == (9, 1, 1)
    assert packet["next_command"]


def test_the_next_command_of_a_handoff_is_accepted(cli: Cli) -> None:
    gate = cli.ok("gate", "ask", "fg", "Really?")["gate_id"]
    packet = cli.ok("handoff", "fg")
    assert gate in packet["next_command"]
    assert cli.loopx(*packet["next_command"][1:]).code in (0, 11)
