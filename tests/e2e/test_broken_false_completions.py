"""An agent that claims to be done again and again, with red checks: a replan, then a person; never repairs for ever."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.cli_kit import Cli


def test_a_repeated_false_completion_ends_with_a_person(tmp_path: Path) -> None:
    cli = Cli(tmp_path, 'open("m.py", "a").write("# more\\n"); result(kind="completion", summary="done")')
    cli.create()

    ran = cli.loopx("run", "fg", "--no-wait", "--max-turns", "12", "--json")

    assert (ran.code, ran.json["disposition"]) == (11, "user_action_required")
    turns = cli.ok("turn", "list", "fg")["turns"]
    assert [turn["purpose"] for turn in reversed(turns)] == ["work", "repair", "repair", "replan"]
