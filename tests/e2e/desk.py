"""A project on a desk: a git repository, a state folder of its own, and the real command line."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from loopx.cli import main
from loopx.contracts.model import Contract
from loopx.contracts.parse import parse_command_line
from loopx.control_plane.goal import GoalDefinition
from loopx.control_plane.quota.policy import Budget, QuotaPolicy
from loopx.runtime import goal_service
from loopx.runtime.session import Session, open_session
from loopx.workspace.identity import repository_key

PYTHON = sys.executable
CHECK = f"{PYTHON} -m unittest -q test_m"
TESTS = """import unittest, m
class T(unittest.TestCase):
    def test_f(self): self.assertEqual(m.f(), 2)
    def test_g(self): self.assertTrue(hasattr(m, "g"))
"""
HALF = "def f(): return 2\n"
WHOLE = "def f(): return 2\ndef g(): pass\n"
AGENT = """import sys
sys.stdin.read()
text = open("m.py").read()
open("m.py", "w").write(text.replace("return 1", "return 2") if "return 1" in text else text + "def g(): pass\\n")
print("did it")
"""


class Said:
    """How one command ended, and what it printed."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)

    @property
    def error(self) -> str:
        return str(self.json["error"]["code"])


class Desk:
    """A repository with two failing tests, and `loopx` run in it."""

    def __init__(self, folder: Path, monkeypatch: Any) -> None:
        self.root = folder / "project"
        self.state = folder / "state"
        self.root.mkdir()
        monkeypatch.setenv("LOOPX_STATE_DIR", str(self.state))
        for name in ("LOOPX_TURN_TOKEN", "LOOPX_DATABASE_URL"):
            monkeypatch.delenv(name, raising=False)
        (self.root / "m.py").write_text("def f(): return 1\n")
        (self.root / "test_m.py").write_text(TESTS)
        (folder / "agent.py").write_text(AGENT)
        self.engine = f"command:{PYTHON} {folder / 'agent.py'}"
        for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "start")):
            self.git(*words)

    def git(self, *words: str) -> str:
        who = ("-c", "user.email=a@example.org", "-c", "user.name=n")
        done = subprocess.run(["git", *who, *words], cwd=self.root, check=True, capture_output=True, text=True)
        return done.stdout

    def loopx(self, *words: str) -> Said:
        """Run a command in this process, as the `loopx` script does."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*words, "--project", str(self.root)])
        return Said(code, out.getvalue(), err.getvalue())

    def json(self, *words: str) -> dict[str, Any]:
        return self.loopx(*words, "--json").json

    def process(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command as a process of its own."""
        return subprocess.run(
            [PYTHON, "-m", "loopx", *words, "--project", str(self.root)],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
        )

    @contextlib.contextmanager
    def session(self) -> Any:
        session: Session = open_session(str(self.root), create=True)
        try:
            yield session
        finally:
            session.close()

    def goal(
        self,
        name: str = "goal",
        *,
        allowed: int | None = None,
        budgets: tuple[Budget, ...] = (),
        engine: str | None = None,
        check: str = CHECK,
    ) -> str:
        contract = Contract(checks=parse_command_line([check]))
        definition = GoalDefinition(
            objective=f"finish {name}",
            contract=goal_service.encode_contract(contract),
            engines=(engine or self.engine,),
            quota=QuotaPolicy(allowed_slots=allowed),
            budgets=budgets,
        )
        with self.session() as session:
            made = goal_service.create(
                session.store, session.project, definition, repository_key(self.root), goal_id=name
            )
        return str(made.goal_id)
