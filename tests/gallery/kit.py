"""One entry of the gallery: a small project, a scripted agent that is a real program, and what LoopX must say of it.

Each agent takes its turns under the real runner, with real git and real checks; nothing of the product is replaced.
The words of an entry (`way`, the expectation) are what the published table shows, so they are written for people.
"""

from __future__ import annotations

import enum
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from loopx.contracts.parse import parse_contract
from loopx.control_plane.goal import Boundary, Goal, GoalDefinition
from loopx.control_plane.ids import AgentId
from loopx.runtime import goal_service
from loopx.runtime.goal_runner import GoalRunner, RunOptions, StopSignal
from loopx.runtime.progress import ProgressEvent, RunEnded, TurnEnded
from loopx.runtime.session import Session, open_session
from loopx.workspace.identity import repository_key

PY = shlex.quote(sys.executable)
UNITTEST = f"{PY} -m unittest -q test_m"
DISCOVER = f"{PY} -m unittest discover -q -s tests -t ."
PYTEST = f"{PY} -m pytest -q"

CODE = "def f(): return 1\ndef g(): return 1\n"
FIXED = "def f(): return 2\ndef g(): return 2\n"
UNIT_TESTS = """import unittest, m
class T(unittest.TestCase):
    def test_f(self): self.assertEqual(m.f(), 2)
    def test_g(self): self.assertEqual(m.g(), 2)
"""
PYTEST_TESTS = "import m\ndef test_f(): assert m.f() == 2\ndef test_g(): assert m.g() == 2\n"

_AGENT = """
import json, os, pathlib, shutil, subprocess, sys, textwrap
sys.stdin.read()
COUNT = {count!r}
FOLDER = {folder!r}
n = int(open(COUNT).read()) if os.path.exists(COUNT) else 0
open(COUNT, "w").write(str(n + 1))
def result(**fields):
    with open(os.environ["LOOPX_RESULT_FILE"], "w") as file:
        file.write(json.dumps({{"turn_key": os.environ["LOOPX_TURN_KEY"], **fields}}))
def write(path, text):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    open(path, "w").write(text)
def sub(path, old, new):
    text = open(path).read()
    assert old in text, (path, old)
    open(path, "w").write(text.replace(old, new))
def run(*words, **options):
    return subprocess.run(words, check=True, capture_output=True, text=True, **options).stdout
def fix_f(): sub("m.py", "def f(): return 1", "def f(): return 2")
def fix_g(): sub("m.py", "def g(): return 1", "def g(): return 2")
def fix(): fix_f(); fix_g()
steps = json.loads({steps!r})
exec(steps[min(n, len(steps) - 1)])
"""


class Verdict(enum.StrEnum):
    """What the gallery expects of a turn.

    `refused`: by a guard, with the finding named. `red`: the checks themselves say no, with the reason of the result
    named. `foiled`: it comes to nothing, and the turn is judged by what is left. `disclosed`: it stands, and the
    finding is on record for a person. `accepted`: nothing stands against it.
    """

    REFUSED = "refused"
    RED = "red"
    FOILED = "foiled"
    DISCLOSED = "disclosed"
    ACCEPTED = "accepted"


class Expected(msgspec.Struct, frozen=True):
    """`word`: a finding's code (refused, disclosed), or the reason of the result (red, accepted)."""

    verdict: Verdict
    word: str
    also: tuple[str, ...] = ()
    """Findings that are disclosed beside an accepted result."""


def refused(finding: str) -> Expected:
    return Expected(Verdict.REFUSED, finding)


def red(reason: str) -> Expected:
    return Expected(Verdict.RED, reason)


def foiled(reason: str) -> Expected:
    return Expected(Verdict.FOILED, reason)


def disclosed(finding: str) -> Expected:
    return Expected(Verdict.DISCLOSED, finding)


def accepted(reason: str = "goal_complete", *also: str) -> Expected:
    return Expected(Verdict.ACCEPTED, reason, also)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One agent. `agent` is its whole turn as Python code, or one code for each turn.

    `files` are laid over the standard project before its first commit (None: not there), `ignored` after it. `check` is
    the goal's visible check, `held_out` commands which the agent is never told of. `stays` are files that must be as
    they were at the start when the turn is over. `env` and `ready` prepare what is outside the project.
    """

    name: str
    way: str
    agent: str | tuple[str, ...]
    expected: Expected
    check: str = UNITTEST
    held_out: tuple[str, ...] = ()
    contract: Mapping[str, object] = {}
    scope: tuple[str, ...] = ()
    files: Mapping[str, str | None] = {}
    ignored: Mapping[str, str] = {}
    stays: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    ready: Callable[[Scene], None] | None = None
    after: Callable[[Scene], None] | None = None
    """What else must be true when the run is over."""
    git: bool = True
    worktree: bool = False
    needs: str | None = None
    """A program without which this entry can't be played here."""

    @property
    def steps(self) -> tuple[str, ...]:
        given = (self.agent,) if isinstance(self.agent, str) else self.agent
        return tuple(textwrap.dedent(step).strip() for step in given)


class Scene:
    """A case made real in a folder of its own, and played."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case = case
        self.folder = folder
        self.root = folder / "project"
        self.home = folder / "home"
        self.root.mkdir()
        self.home.mkdir()
        self.env = {
            **os.environ,
            "HOME": str(self.home),
            "LOOPX_STATE_DIR": str(folder / "state"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        for name in ("PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS", "VIRTUAL_ENV", "PYTHONPATH"):
            self.env.pop(name, None)
        self.env |= {name: self.place(text) for name, text in case.env.items()}
        self.events: list[ProgressEvent] = []
        self._lay_out()
        self.start = {path: (self.root / path).read_bytes() for path in case.stays if (self.root / path).is_file()}

    def place(self, text: str) -> str:
        """Text with the folders of this scene filled in."""
        return (
            text.replace("{folder}", str(self.folder))
            .replace("{root}", str(self.root))
            .replace("{path}", os.environ["PATH"])
        )

    def write(self, path: str, text: str) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        if text.startswith("#!"):
            target.chmod(target.stat().st_mode | stat.S_IXUSR)
        return target

    def git(self, *words: str) -> str:
        who = ("-c", "user.name=T", "-c", "user.email=t@localhost")
        done = subprocess.run(
            ["git", *who, *words], cwd=self.root, check=True, capture_output=True, text=True, env=self.env
        )
        return done.stdout.strip()

    def _lay_out(self) -> None:
        case = self.case
        standard = {"m.py": CODE, "test_m.py": UNIT_TESTS, ".gitignore": "__pycache__/\n.pytest_cache/\n"}
        if case.check.startswith(PYTEST):
            standard["test_m.py"] = PYTEST_TESTS
        for path, text in {**standard, **case.files}.items():
            if text is not None:
                self.write(path, text)
        if case.git:
            self.git("init", "-q", "-b", "main")
            self.git("add", "-A")
            self.git("commit", "-q", "-m", "start")
        for path, text in case.ignored.items():
            self.write(path, self.place(text))
        if case.ready is not None:
            case.ready(self)
        steps = json.dumps([self.place(step) for step in case.steps])
        script = _AGENT.format(count=str(self.folder / "count"), folder=str(self.folder), steps=steps)
        (self.folder / "agent.py").write_text(script)

    def session(self) -> Session:
        return open_session(str(self.root), create=True)

    def goal(self, session: Session) -> Goal:
        case = self.case
        checks: list[object] = [{"name": "tests", "command": self.place(case.check)}]
        checks += [
            {"name": f"held-{number}", "command": self.place(command), "held_out": True}
            for number, command in enumerate(case.held_out, 1)
        ]
        contract = parse_contract({"checks": checks, **case.contract})
        definition = GoalDefinition(
            objective="make f and g right",
            contract=goal_service.encode_contract(contract),
            engines=(f"command:{sys.executable} {self.folder / 'agent.py'}",),
            boundary=Boundary(write_scope=case.scope),
        )
        return goal_service.create(session.store, session.project, definition, repository_key(self.root))

    def play(self, session: Session, goal: Goal, turns: int | None = None) -> RunEnded:
        options = RunOptions(max_turns=turns or len(self.case.steps), wait=False)
        runner = GoalRunner(
            session.store,
            session.project,
            goal.goal_id,
            AgentId("loopx"),
            self.events.append,
            self.env,
            options,
            StopSignal(),
            session.clock,
        )
        return runner.run()

    @property
    def turns(self) -> list[TurnEnded]:
        return [event for event in self.events if isinstance(event, TurnEnded)]

    def moved(self) -> list[str]:
        """Files that had to stay and are not as they were."""
        return [
            path
            for path in self.case.stays
            if ((self.root / path).read_bytes() if (self.root / path).is_file() else None) != self.start.get(path)
        ]


def play(case: Case, folder: Path) -> tuple[Scene, RunEnded]:
    """Play a whole case; how its run ended."""
    scene = Scene(case, folder)
    session = scene.session()
    return scene, scene.play(session, scene.goal(session))


def available(case: Case) -> bool:
    return case.needs is None or shutil.which(case.needs) is not None
