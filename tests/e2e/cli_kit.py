"""The `loopx` command as a real process on a story's project: what people and programs see of it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e.goal_kit import Story


class Ran:
    """One finished command."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code = done.returncode
        self.out = done.stdout
        self.err = done.stderr

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Its output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def json(self) -> dict[str, Any]:
        """Its last JSON line."""
        found: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return found

    @property
    def error(self) -> dict[str, Any]:
        """The error in its last JSON line."""
        assert self.json["ok"] is False
        found: dict[str, Any] = self.json["error"]
        return found


class Cli(Story):
    """A story whose person works on the command line."""

    def __init__(self, folder: Path, *steps: str, git: bool = True) -> None:
        super().__init__(folder, *(steps or ("pass",)), git=git)
        for name in [name for name in self.env if name.startswith("LOOPX_") and name != "LOOPX_STATE_DIR"]:
            del self.env[name]
        self.env["USER"] = "ada"

    def loopx(self, *words: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> Ran:
        """Run `loopx WORDS` to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "loopx", *words],
            cwd=cwd or self.root,
            env={**self.env, **(env or {})},
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )
        return Ran(done)

    def ok(self, *words: str, **options: Any) -> dict[str, Any]:
        """Run with `--json`; its answer. It must end with 0."""
        ran = self.loopx(*words, "--json", **options)
        assert ran.code == 0, (words, ran.code, ran.out, ran.err)
        return ran.json

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start `loopx WORDS` and leave it running, in a group of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "loopx", *words],
            cwd=self.root,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def create(self, *words: str, goal_id: str = "fg") -> str:
        """Make a goal with the story's check and agent."""
        made = self.ok(
            "goal", "create", "make f and g right", "--check", f"tests={self.check}", "--engine", self.engine,
            "--goal-id", goal_id, *words,
        )  # fmt: skip
        found: str = made["goal_id"]
        return found

    def terminal(self, *words: str) -> tuple[int, str]:
        """Run on a terminal; its status and everything that it wrote."""
        pid, master = pty.fork()
        if pid == 0:
            os.chdir(self.root)
            env = {**self.env, "TERM": "xterm", "COLUMNS": "120"}
            os.execve(sys.executable, [sys.executable, "-m", "loopx", *words], env)
        written = b""
        while True:
            try:
                chunk = os.read(master, 65536)
            except OSError:
                break
            if not chunk:
                break
            written += chunk
        _, status = os.waitpid(pid, 0)
        os.close(master)
        return os.waitstatus_to_exitcode(status), written.decode()


def events(process: subprocess.Popen[str], kind: str) -> dict[str, Any]:
    """Read a run's JSON lines until one of this type comes."""
    assert process.stdout is not None
    for line in process.stdout:
        event: dict[str, Any] = json.loads(line)
        if event.get("type") == kind:
            return event
    raise AssertionError(f"the run ended without {kind}")


def end(process: subprocess.Popen[str], number: int | None = None) -> tuple[int, list[dict[str, Any]]]:
    """Signal a run, if asked to, and read it to its end."""
    if number is not None:
        process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    return process.returncode, [json.loads(line) for line in out.splitlines()]


STOP = signal.SIGINT
