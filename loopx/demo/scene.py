"""The demo's stage: a folder with a real git repository whose tests fail, and the agent that will work on it.

It writes files and makes one commit, all inside one folder. It runs no agent and opens no store.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from loopx.control_plane.errors import UsageError

OBJECTIVE = "make the date parser accept ISO week dates"
GOAL_ID = "iso-week-dates"
MODULE = "dates.py"
TESTS = "tests/test_dates.py"

_DATES = '''"""Dates as people write them."""

import datetime


def parse(text):
    """The date that `text` names: a calendar date, or an ISO week date such as 2026-W08-3."""
    text = text.strip()
    year, month, day = text.split("-")
    return datetime.date(int(year), int(month), int(day))
'''

_TESTS = """import datetime
import unittest

from dates import parse


class CalendarDates(unittest.TestCase):
    def test_calendar_date(self):
        self.assertEqual(parse("2026-02-18"), datetime.date(2026, 2, 18))

    def test_spaces_around(self):
        self.assertEqual(parse(" 2026-02-18 "), datetime.date(2026, 2, 18))

    def test_no_such_day(self):
        with self.assertRaises(ValueError):
            parse("2026-02-30")


class WeekDates(unittest.TestCase):
    def test_week_date(self):
        self.assertEqual(parse("2026-W08-3"), datetime.date(2026, 2, 18))

    def test_week_that_begins_in_the_year_before(self):
        self.assertEqual(parse("2026-W01-1"), datetime.date(2025, 12, 29))

    def test_lower_case(self):
        self.assertEqual(parse("2026-w08-3"), datetime.date(2026, 2, 18))

    def test_without_a_day_it_is_monday(self):
        self.assertEqual(parse("2026-W08"), datetime.date(2026, 2, 16))

    def test_compact(self):
        self.assertEqual(parse("2026W083"), datetime.date(2026, 2, 18))
"""

_FILES = {
    MODULE: _DATES,
    TESTS: _TESTS,
    "tests/__init__.py": "",
    ".gitignore": "__pycache__/\n",
}
_GIT = ("git", "-c", "user.name=Demo", "-c", "user.email=demo@example.invalid", "-c", "commit.gpgsign=false")


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """Where everything of one demo is."""

    folder: str

    @property
    def project(self) -> str:
        """The git repository."""
        return os.path.join(self.folder, "project")

    @property
    def state(self) -> str:
        """The demo's own state folder; the user's is not touched."""
        return os.path.join(self.folder, "state")

    @property
    def agent(self) -> str:
        return os.path.join(self.folder, "agent.py")

    @property
    def cues(self) -> str:
        """Files by which the agent and the demo wait for each other, outside the work tree."""
        return os.path.join(self.folder, "cues")

    @property
    def check(self) -> str:
        """The contract's only check."""
        return f"{_python()} -m unittest tests.test_dates"

    @property
    def engine(self) -> str:
        """The engine word of the scripted agent."""
        return f"command:{_python()} {shlex.quote(self.agent)}"


def build(folder: str | None = None) -> Stage:
    """Make the stage in a new folder, or in `folder`, which must be empty or not exist.

    Raises UsageError: `git_missing`, `folder_not_empty`, `git_failed`.
    """
    if shutil.which("git") is None:
        raise UsageError("git_missing", "the demo needs git", hint="install git, e.g. apt-get install git")
    if folder is None:
        folder = tempfile.mkdtemp(prefix="loopx-demo-")
    elif os.path.isdir(folder) and os.listdir(folder):
        raise UsageError("folder_not_empty", f"{folder} has something in it", hint="name a new or an empty folder")
    stage = Stage(folder=os.path.realpath(folder))
    for name, content in _FILES.items():
        path = Path(stage.project, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    os.makedirs(stage.cues)
    shutil.copyfile(os.path.join(os.path.dirname(__file__), "agent.py"), stage.agent)
    for words in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-q", "-m", "A date parser, and its tests")):
        _git(stage, *words)
    return stage


def test_file_as_at_the_start(stage: Stage) -> bool:
    """Whether the protected tests are what they were before any agent came."""
    return Path(stage.project, TESTS).read_text(encoding="utf-8") == _TESTS


def launches(stage: Stage) -> int:
    """How many times the agent's program was really started, by its own count."""
    try:
        with open(os.path.join(stage.cues, "launches"), encoding="utf-8") as file:
            return len(file.read().split())
    except FileNotFoundError:
        return 0


def _git(stage: Stage, *words: str) -> None:
    # Neither a hook nor a template of the user's has a part in the demo.
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_TEMPLATE_DIR": ""}
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        env.pop(name, None)
    done = subprocess.run([*_GIT, *words], cwd=stage.project, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UsageError("git_failed", f"git {words[0]}: {done.stderr.strip()[:300]}", hint="git --version")


def _python() -> str:
    """A short word for a Python, where there is one: the commands are shown to people, and run by them."""
    return "python3" if shutil.which("python3") else shlex.quote(sys.executable)
