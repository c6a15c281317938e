"""A runner of your own around LoopX: ask, work, settle. Each settlement is judged, committed and charged exactly once.

Run it with `python examples/embed_settle.py`. It makes a small project in a temporary folder with its own state, and is
your runner there: `loopx quota should-run` says whether it may work; it changes files as it likes; `loopx turn settle`
runs the checks, commits and charges what they prove, and is safe to repeat. What the checks deny is refused.

`goal create --baseline` puts the start on record, before any work: what comes later is judged against it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

BROKEN = "def area(a, b):\n    return a + b\n\n\ndef twice(a):\n    return a\n"
TESTS = """import unittest

from shapes import area, twice


class Shapes(unittest.TestCase):
    def test_area(self):
        self.assertEqual(area(2, 3), 6)

    def test_twice(self):
        self.assertEqual(twice(4), 8)
"""


class LoopX:
    """The command line, as a program uses it: one JSON object in answer, and a status that means something."""

    def __init__(self, project: Path, state: Path) -> None:
        self._project = project
        self._env = {**os.environ, "LOOPX_STATE_DIR": str(state)}

    def __call__(self, *words: str) -> tuple[int, dict[str, Any]]:
        command = [sys.executable, "-m", "loopx", *words, "--json"]
        done = subprocess.run(command, cwd=self._project, env=self._env, capture_output=True, text=True, check=False)
        answer: dict[str, Any] = json.loads(done.stdout)
        return done.returncode, answer


def make_project(root: Path) -> None:
    """A git repository with two failing tests."""
    root.mkdir()
    (root / "shapes.py").write_text(BROKEN)
    (root / "test_shapes.py").write_text(TESTS)
    (root / ".gitignore").write_text("__pycache__/\n")
    identity = ("-c", "user.name=Example", "-c", "user.email=example@example.invalid")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-q", "-m", "Shapes")):
        subprocess.run(["git", *words], cwd=root, check=True)


def work(root: Path, old: str, new: str) -> None:
    """What your agent would do."""
    path = root / "shapes.py"
    path.write_text(path.read_text().replace(old, new))


def main() -> int:
    """Ends with 0 when the ledger says what was delivered."""
    with tempfile.TemporaryDirectory(prefix="loopx-example-") as folder:
        root = Path(folder, "project")
        make_project(root)
        loopx = LoopX(root, Path(folder, "state"))
        check = f"{sys.executable} -m unittest -q test_shapes"
        loopx("goal", "create", "make the shapes right", "--check", check, "--goal-id", "shapes", "--baseline")

        may, decision = loopx("quota", "should-run", "shapes")
        print(f"may it run? status {may}, {decision['state']}")

        work(root, "return a + b", "return a * b")
        _, first = loopx("turn", "settle", "shapes", "--effect-key", "job-1", "--summary", "area is right")
        print(f"job-1: {first['result_kind']}, {first['spent_slots']} slot")

        _, again = loopx("turn", "settle", "shapes", "--effect-key", "job-1", "--summary", "area is right")
        print(f"job-1 again: the same turn, replayed {again['replayed']}")

        _, lie = loopx("turn", "settle", "shapes", "--effect-key", "job-2", "--kind", "completion")
        print(f"job-2: {lie['result_kind']} ({lie['reason']}), {lie['spent_slots']} slots")

        work(root, "return a\n", "return 2 * a\n")
        _, last = loopx("turn", "settle", "shapes", "--effect-key", "job-3", "--kind", "completion")
        print(f"job-3: {last['result_kind']}, {last['spent_slots']} slot")

        _, ledger = loopx("quota", "ledger", "shapes")
        spent = {entry["turn_key"] for entry in ledger["entries"]}
        print(f"ledger: {len(ledger['entries'])} slots for 2 deliveries")
        return 0 if spent == {first["turn_key"], last["turn_key"]} and again["turn_key"] == first["turn_key"] else 1


if __name__ == "__main__":
    sys.exit(main())
