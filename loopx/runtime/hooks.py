"""A host's Stop hook: an agent that is about to stop without a word is reminded once to say how its turn ended.

The same script serves Claude Code and Codex, whose Stop hooks take and give the same JSON. It acts only for a run
that LoopX launched (the turn's token is in its environment, and that turn is open), never twice in a row
(`stop_hook_active`), and it fails open: whatever goes wrong, it exits 0 within a second and lets the host stop. It is
no guard: the checks decide, whether an agent was reminded or not. A person who wants the reminder sets it up:

    python -m loopx.runtime.hooks stop            # what the host runs
    python -m loopx.runtime.hooks print claude    # for ~/.claude/settings.json
    python -m loopx.runtime.hooks print codex     # for ~/.codex/hooks.json; Codex asks once whether to trust it
"""

from __future__ import annotations

import json
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

LIMIT_S = 0.9
"""After that the hook ends, whatever it waits for: a host must never hang on it."""
_STDIN_BYTES = 1 << 20
TOKEN_VARIABLE = "LOOPX_TURN_TOKEN"
REMINDER = (
    "Before you stop: say how this turn ended, with LoopX's tools or the `loopx` command. complete_todo if the work is "
    "done, ask_person or report_blocker if you are stuck, nominate_no_change if nothing needs to change. If you are "
    "simply not finished yet, stop again: that is fine."
)


def _give_up(number: int, frame: FrameType | None) -> NoReturn:
    os.write(1, b"{}")
    os._exit(0)


def main(words: list[str]) -> int:
    """Answer one hook call on standard input; always 0."""
    if words[:1] == ["print"]:
        print(json.dumps(codex_hooks() if words[1:] == ["codex"] else claude_settings(), indent=2))
        return 0
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        answer = stop(sys.stdin.buffer.read(_STDIN_BYTES), dict(os.environ)) if words[:1] == ["stop"] else {}
        sys.stdout.write(json.dumps(answer))
        sys.stdout.flush()
    except Exception:  # noqa: BLE001  (a hook that fails would block the host; nothing it could say is worth that)
        return 0
    return 0


def stop(given: bytes, env: dict[str, str]) -> dict[str, str]:
    """What the hook answers: a reminder, or nothing, which lets the host stop."""
    token = env.get(TOKEN_VARIABLE)
    if not token:
        return {}
    call = json.loads(given)
    if not isinstance(call, dict) or call.get("stop_hook_active"):
        return {}
    return {"decision": "block", "reason": REMINDER} if _silent(token, call.get("cwd"), env) else {}


def _silent(token: str, cwd: object, env: dict[str, str]) -> bool:
    """Whether this token's turn is open and its agent has claimed nothing yet."""
    import hashlib

    database = env.get("LOOPX_DATABASE_URL") or _database(cwd)
    if not database:
        return False
    import sqlite3

    path = database.removeprefix("sqlite://")
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=0.2)
    try:
        row = connection.execute(
            "SELECT turn_key FROM turns WHERE token_hash = ? AND state = 'open'",
            (hashlib.sha256(token.encode()).hexdigest(),),
        ).fetchone()
        if row is None:
            return False
        said = connection.execute("SELECT 1 FROM turn_claims WHERE turn_key = ? LIMIT 1", row).fetchone()
    finally:
        connection.close()
    return said is None


def _database(cwd: object) -> str:
    from loopx.runtime.project import locate

    return locate(cwd if isinstance(cwd, str) else None).database


def command() -> list[str]:
    """The hook as a command line."""
    return [sys.executable, "-m", "loopx.runtime.hooks", "stop"]


def claude_settings() -> dict[str, object]:
    """The `hooks` part of a Claude Code settings file."""
    import shlex

    hook = {"type": "command", "command": shlex.join(command()), "timeout": 5}
    return {"hooks": {"Stop": [{"hooks": [hook]}]}}


def codex_hooks() -> dict[str, object]:
    """A Codex `hooks.json`."""
    return claude_settings()


if __name__ == "__main__":
    # `_exit`: interpreter shutdown must not take the time that was promised to the host.
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)
