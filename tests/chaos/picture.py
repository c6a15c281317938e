"""One comparable picture of everything that a goal left behind: store, branch, work tree and the agent's own log.

What differs from run to run (keys, instants, hashes over them) is left out; everything else is in, so that two equal
pictures mean that nothing was lost and nothing was done twice.
"""

from __future__ import annotations

import collections
import subprocess
from pathlib import Path
from typing import Any

from tests.chaos import kit

GOAL = (
    "state, contract_state, contract_tree, base_tree, run_index, turn_count, floor_streak, idle_streak, failure_streak,"
    " host_failure_streak, replan_tried, wait_kind, health"
)
TURNS = (
    "number, purpose, route, state, completed, intended_kind, result_kind, failed_phase, closeout, slots, outcome,"
    " tree_before, tree_after"
)
RESUMED = frozenset({"turn_resumed"})
"""Events that only tell of a death."""


def of(folder: Path, goal_id: str) -> dict[str, Any]:
    """The picture. The goal must have run in a sandbox in this folder."""
    database = database_of(folder)

    def rows(question: str, *values: object) -> list[dict[str, Any]]:
        return kit.all_of(database, question, *values)

    numbers = {row["turn_key"]: row["number"] for row in rows("SELECT turn_key, number FROM turns")}

    def plain(text: str | None) -> str | None:
        for key, number in numbers.items():
            text = text.replace(key, f"turn {number}") if text else text
        return text

    return {
        "goal": rows(f"SELECT {GOAL} FROM goals WHERE goal_id = ?", goal_id),
        "todos": rows("SELECT title, status, continuation_kind, done_by, reason FROM todos ORDER BY todo_id"),
        "turns": rows(f"SELECT {TURNS} FROM turns ORDER BY number"),
        "phases": sorted(
            (numbers[row["turn_key"]], row["ordinal"], row["phase"], plain(row["effect_ref"]))
            for row in rows("SELECT * FROM turn_phases")
        ),
        "ledger": [
            (row["run_index"], row["kind"], row["slots"], row["cumulative"], plain(row["effect_ref"]))
            for row in rows("SELECT * FROM ledger ORDER BY run_index")
        ],
        "spent": rows("SELECT unit, SUM(amount) AS n FROM meters WHERE unit = 'turns' GROUP BY unit"),
        "schedule": rows("SELECT state, revision, applied_revision, acked_revision, misses FROM schedules"),
        "evidence": sorted(
            (numbers.get(row["turn_key"], 0), row["kind"], row["name"], str(row["verdict"]), str(row["tree_hash"]))
            for row in rows("SELECT * FROM evidence")
        ),
        "events": dict(
            collections.Counter(row["kind"] for row in rows("SELECT kind FROM events") if row["kind"] not in RESUMED)
        ),
        "gates": rows("SELECT kind, question, status FROM gates ORDER BY gate_id"),
        "outbox": [(row["kind"], plain(row["effect_key"])) for row in rows("SELECT * FROM outbox ORDER BY outbox_id")],
        "hosts": [
            (numbers[row["turn_key"]], row["state"], row["end_kind"])
            for row in rows("SELECT * FROM host_runs WHERE end_kind IS NOT 'never_started' ORDER BY started_at_ms")
        ],
        "reserved": rows("SELECT COUNT(*) AS n FROM reservations"),
        "branch": _git(folder, "log", "--format=%T %s", f"loopx/{goal_id}", "--"),
        "user": _git(folder, "log", "--format=%T %s", "HEAD", "--"),
        "tree": _git(folder, "status", "--porcelain"),
        "files": {path.name: path.read_text() for path in sorted((folder / "project").iterdir()) if path.is_file()},
    }


def database_of(folder: Path) -> str:
    [found] = (folder / "state" / "projects").glob("*/loopx.db")
    return str(found)


def _git(folder: Path, *words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=folder / "project", capture_output=True, text=True, check=False)
    return done.stdout.splitlines()
