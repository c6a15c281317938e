"""`loopx demo` as a newcomer starts it: a real process in an empty home, judged by story, status and store."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

Done = subprocess.CompletedProcess[str]


def _environment(home: Path) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LOOPX_", "XDG_", "GIT_"))}
    return {**env, "HOME": str(home), "TMPDIR": str(home)}


def _loopx(home: Path, *words: str) -> Done:
    command = [sys.executable, "-m", "loopx", *words]
    return subprocess.run(
        command, cwd=home, env=_environment(home), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def _play(home: Path, *words: str) -> dict[str, Any]:
    done = _loopx(home, "demo", "--json", *words)
    assert done.returncode == 0, done.stderr + done.stdout
    lines = done.stdout.splitlines()
    assert len(lines) == 1
    result = json.loads(lines[0])
    assert isinstance(result, dict)
    return result


def test_the_story_ends_terminal_and_is_proved(tmp_path: Path) -> None:
    result = _play(tmp_path)
    assert (result["disposition"], result["result_kind"]) == ("terminal", "validated_completion")
    assert (result["turns"], result["spent_slots"], result["proved"]) == (5, 3, True)
    assert {point["point"]: point["holds"] for point in result["proof"]} == dict.fromkeys(
        ("story", "ledger", "journal", "launches", "guard", "chain", "terminal"), True
    )
    _the_tests_are_green_for_whoever_runs_them(Path(result["project"]))
    _the_ledger_has_one_entry_per_delivery(Path(result["state_dir"]))
    _the_commands_to_look_around_work(tmp_path, result)


def _the_tests_are_green_for_whoever_runs_them(project: Path) -> None:
    words = [sys.executable, "-m", "unittest", "tests.test_dates"]
    done = subprocess.run(words, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "Ran 8 tests" in done.stderr
    assert "skipped" not in done.stderr


def _the_ledger_has_one_entry_per_delivery(state: Path) -> None:
    """Read without any of LoopX's own code."""
    [store] = state.glob("projects/*/loopx.db")
    with sqlite3.connect(store) as connection:
        spent = connection.execute(
            "SELECT t.number, t.result_kind, sum(l.slots) FROM turns t LEFT JOIN ledger l ON l.turn_key = t.turn_key"
            " GROUP BY t.number, t.result_kind ORDER BY t.number"
        ).fetchall()
        hosts = connection.execute("SELECT count(*) FROM host_runs").fetchone()
    assert spent == [
        (1, "validated_progress", 1),
        (2, "validation_failed", None),
        (3, "validation_failed", None),
        (4, "validated_progress", 1),
        (5, "validated_completion", 1),
    ]
    assert hosts == (5,)


def _the_commands_to_look_around_work(home: Path, result: dict[str, Any]) -> None:
    """As printed, in one shell that knows nothing of the demo; `serve` stays, so that it is not among them here."""
    lines = [line for line in result["look_around"] if not line.endswith(" serve")]
    script = "\n".join(["set -eu", *lines])
    env = _environment(home)
    done = subprocess.run(["sh", "-c", script], cwd=home, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert result["goal_id"] in done.stdout
    assert "validated_completion" in done.stdout


def test_it_tells_the_story_to_people(tmp_path: Path) -> None:
    done = _loopx(tmp_path, "demo", "--dir", str(tmp_path / "stage"))
    assert done.returncode == 0, done.stderr + done.stdout
    told = done.stdout
    for word in (
        "5 of 8 failing",
        "3 of 8 failing (was 5)",
        "All 8 tests pass. Done.",
        "nothing spent",
        "tests/test_dates.py",
        "kill -9",
        "8 of 8, again in a clean snapshot",
        "5 turns · 3 slots · terminal",
        "status",
        "turn list",
    ):
        assert word in told
    assert "✗" not in told.partition("proved from the store")[2]
    assert max(map(len, told.splitlines())) < 140
    assert len(told.splitlines()) < 60


def test_discard_leaves_nothing(tmp_path: Path) -> None:
    result = _play(tmp_path, "--discard")
    assert not Path(result["folder"]).exists()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    done = _loopx(tmp_path, "demo", "--json", "--dir", str(tmp_path))
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "folder_not_empty"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("programs", [(), ("python3",)])
def test_without_git_it_says_so(tmp_path: Path, programs: tuple[str, ...]) -> None:
    path = tmp_path / "bin"
    path.mkdir()
    for name in programs:
        (path / name).symlink_to(sys.executable)
    env = {**_environment(tmp_path), "PATH": str(path)}
    done = subprocess.run(
        [sys.executable, "-m", "loopx", "demo", "--json"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "git_missing"
    assert "install git" in error["hint"]
