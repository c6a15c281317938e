"""A real git repository, a scripted agent that is a real program, and the real goal runner: whole goals as stories."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from loopx.contracts.model import Contract
from loopx.contracts.parse import parse_command_line
from loopx.control_plane.goal import Goal, GoalDefinition
from loopx.control_plane.ids import AgentId
from loopx.runtime import goal_service
from loopx.runtime.goal_runner import GoalRunner, RunOptions, StopSignal
from loopx.runtime.progress import ProgressEvent, RunEnded, TurnEnded
from loopx.runtime.session import Session, open_session
from loopx.workspace.identity import repository_key

_AGENT = """
import json, os, sys
PROMPT = sys.stdin.read()
COUNT = {count!r}
n = int(open(COUNT).read()) if os.path.exists(COUNT) else 0
open(COUNT, "w").write(str(n + 1))
open(f"{{COUNT}}.prompt{{n + 1}}", "w").write(PROMPT)
def result(**fields):
    with open(os.environ["LOOPX_RESULT_FILE"], "w") as file:
        file.write(json.dumps({{"turn_key": os.environ["LOOPX_TURN_KEY"], **fields}}))
def sub(path, old, new):
    text = open(path).read()
    open(path, "w").write(text.replace(old, new))
steps = json.loads({steps!r})
exec(steps[min(n, len(steps) - 1)])
"""

CODE = "def f(): return 1\ndef g(): return 1\n"
TESTS = (
    "import unittest, m\n"
    "class T(unittest.TestCase):\n"
    "    def test_f(self): self.assertEqual(m.f(), 2)\n"
    "    def test_g(self): self.assertEqual(m.g(), 2)\n"
)
FIX_F = 'sub("m.py", "def f(): return 1", "def f(): return 2")'
FIX_G = 'sub("m.py", "def g(): return 1", "def g(): return 2")'


class Story:
    """One project with one scripted agent. Each step of the script is the agent's whole turn, as Python code."""

    def __init__(self, folder: Path, *steps: str, git: bool = True) -> None:
        self.root = folder / "project"
        self.state = folder / "state"
        self.count = folder / "count"
        self.agent = folder / "agent.py"
        self.root.mkdir()
        self.agent.write_text(_AGENT.format(count=str(self.count), steps=json.dumps(steps)))
        (self.root / "m.py").write_text(CODE)
        (self.root / "test_m.py").write_text(TESTS)
        if git:
            self.git("init", "-q", "-b", "main")
            self.git("add", "-A")
            self.git("-c", "user.name=T", "-c", "user.email=t@localhost", "commit", "-q", "-m", "start")
        self.env = {**os.environ, "LOOPX_STATE_DIR": str(self.state), "PYTHONDONTWRITEBYTECODE": "1"}
        self.events: list[ProgressEvent] = []

    def git(self, *words: str) -> str:
        env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
        done = subprocess.run(["git", *words], cwd=self.root, check=True, capture_output=True, text=True, env=env)
        return done.stdout.strip()

    @property
    def engine(self) -> str:
        return f"command:{sys.executable} {self.agent}"

    @property
    def check(self) -> str:
        return f"{sys.executable} -m unittest -q test_m"

    @property
    def launches(self) -> int:
        return int(self.count.read_text()) if self.count.exists() else 0

    def prompt(self, number: int) -> str:
        """What the agent read at its launch number so-and-so, from 1."""
        return Path(f"{self.count}.prompt{number}").read_text()

    def session(self) -> Session:
        os.environ["LOOPX_STATE_DIR"] = str(self.state)
        return open_session(str(self.root), create=True)

    def goal(self, session: Session, *, checks: tuple[str, ...] | None = None, **fields: Any) -> Goal:
        contract = Contract(checks=parse_command_line(checks or (self.check,)))
        definition = GoalDefinition(
            objective="make f and g right",
            contract=goal_service.encode_contract(contract),
            engines=(self.engine,),
        )
        definition = msgspec.structs.replace(definition, **fields)
        key = repository_key(self.root)
        return goal_service.create(session.store, session.project, definition, key)

    def run(self, session: Session, goal: Goal, *, max_turns: int | None = 8, **options: Any) -> RunEnded:
        runner = GoalRunner(
            session.store,
            session.project,
            goal.goal_id,
            AgentId("loopx"),
            self.events.append,
            self.env,
            RunOptions(max_turns=max_turns, wait=False, **options),
            StopSignal(),
            session.clock,
        )
        return runner.run()

    @property
    def turns(self) -> list[TurnEnded]:
        return [event for event in self.events if isinstance(event, TurnEnded)]

    @property
    def kinds(self) -> list[str]:
        return [turn.result_kind for turn in self.turns]

    @property
    def reasons(self) -> list[str]:
        return [turn.reason for turn in self.turns]
