"""Programs that pose as `codex` and `claude` on PATH, for whole goals: they answer the probe, count their launches, and
play one step each time. What a real CLI does on demand is tested with the real one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.e2e.goal_kit import Story

_CLI = """#!{python}
import json, os, sys
NAME, HOME = {name!r}, {home!r}
SAID = lambda word: open(os.path.join(HOME, word)).read() if os.path.exists(os.path.join(HOME, word)) else ""
if sys.argv[1:] == ["--version"]:
    print(NAME + "-cli 9.9.9"); sys.exit(0)
if sys.argv[1:] == ["login", "status"]:
    sys.exit(1 if SAID("signed_out") else 0)
if sys.argv[1:] == ["auth", "status"]:
    print(json.dumps({{"loggedIn": not SAID("signed_out")}})); sys.exit(0)
prompt = sys.stdin.read()
n = int(SAID("count") or 0)
open(os.path.join(HOME, "count"), "w").write(str(n + 1))
kept = {{"argv": sys.argv, "prompt": prompt, "env": dict(os.environ)}}
open(os.path.join(HOME, f"launch{{n + 1}}.json"), "w").write(json.dumps(kept))
def say(**fields): print(json.dumps(fields, separators=(",", ":")), flush=True)
def sub(path, old, new):
    text = open(path).read()
    open(path, "w").write(text.replace(old, new))
def result(**fields):
    with open(os.environ["LOOPX_RESULT_FILE"], "w") as file:
        file.write(json.dumps({{"turn_key": os.environ["LOOPX_TURN_KEY"], **fields}}))
session = {session}
def started(): {started}
def used_tool(): {used_tool}
def done(text="ok", tokens=100): {done}
def failed(text): {failed}
steps = json.loads({steps!r})
exec(steps[min(n, len(steps) - 1)])
"""

_CODEX = {
    "session": 'sys.argv[sys.argv.index("resume") + 1] if "resume" in sys.argv else f"s-{n}"',
    "started": 'say(type="thread.started", thread_id=session)',
    "used_tool": 'say(type="item.completed", item=dict(id=f"i{n}", type="command_execution", command="ls", '
    'aggregated_output="", exit_code=0, status="completed"))',
    "done": 'say(type="item.completed", item=dict(id="m", type="agent_message", text=text)); '
    'say(type="turn.completed", usage=dict(input_tokens=tokens, cached_input_tokens=0, output_tokens=10))',
    "failed": 'say(type="turn.failed", error=dict(message=text)); sys.exit(1)',
}
_CLAUDE = {
    "session": 'sys.argv[sys.argv.index("--resume") + 1] if "--resume" in sys.argv else f"s-{n}"',
    "started": 'say(type="system", subtype="init", session_id=session, model="claude")',
    "used_tool": 'say(type="assistant", session_id=session, message=dict(id="m1", model="claude", '
    'content=[dict(type="tool_use", id="t", name="Bash", input=dict(command="ls"))]))',
    "done": 'say(type="result", subtype="success", is_error=False, result=text, session_id=session, '
    "total_cost_usd=0.25, usage=dict(input_tokens=tokens, output_tokens=10), permission_denials=[], "
    'terminal_reason="completed")',
    "failed": 'say(type="result", subtype="success", is_error=True, result=text, session_id=session, '
    'terminal_reason="api_error"); sys.exit(1)',
}
_SPEECH = {"codex": _CODEX, "claude": _CLAUDE}

FIX_BOTH = (
    'started(); sub("m.py", "def f(): return 1", "def f(): return 2"); '
    'sub("m.py", "def g(): return 1", "def g(): return 2"); used_tool(); done()'
)


class Bench(Story):
    """A story whose agents are the programs in `bin`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "pass")
        self.bin = folder / "bin"
        self.bin.mkdir()
        (folder / "home").mkdir()
        self.folder = folder
        self.env |= {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(folder / "home"), "TZ": "UTC"}
        for name in ("CODEX_HOME", "CODEX_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "CLAUDE_CONFIG_DIR"):
            self.env.pop(name, None)

    def cli(self, name: str, *steps: str) -> Cli:
        """Install a program that plays `steps`, one a launch, the last one for ever."""
        home = self.folder / name
        home.mkdir(exist_ok=True)
        path = self.bin / name
        path.write_text(
            _CLI.format(python=sys.executable, name=name, home=str(home), steps=json.dumps(steps), **_SPEECH[name])
        )
        path.chmod(0o755)
        return Cli(home)


class Cli:
    """One such program, looked at from outside."""

    def __init__(self, home: Path) -> None:
        self.home = home

    @property
    def launches(self) -> int:
        """How often it was given a prompt."""
        count = self.home / "count"
        return int(count.read_text()) if count.exists() else 0

    def launch(self, number: int) -> dict[str, Any]:
        """What it got at its launch number so-and-so, from 1: `argv`, `prompt`, `env`."""
        found: dict[str, Any] = json.loads((self.home / f"launch{number}.json").read_text())
        return found

    def sign_out(self) -> None:
        (self.home / "signed_out").write_text("yes")

    def sign_in(self) -> None:
        (self.home / "signed_out").unlink()
