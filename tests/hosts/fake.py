"""Tiny programs that pose as an agent CLI: they print recorded lines, then end, hang or misbehave as the test says. For
what a real CLI will not do on demand.
"""

from __future__ import annotations

import json
import os
import shlex
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loopx.hosts.protocol import Deadlines, LaunchRequest
from loopx.hosts.registry import adapter_for
from tests.hosts.harness import Outcome, drive

NOW_MS = 1_796_000_000_000
BLANK = LaunchRequest(run_id="run-1", turn_key="turn-1", goal_id="goal-1", workdir="", spool_dir="", prompt="Do it.")
ENV = (("PATH", os.environ["PATH"]), ("HOME", "/nonexistent"), ("TZ", "UTC"))


def line(**fields: object) -> str:
    """One JSON line, compact like the CLIs print it."""
    return json.dumps(fields, separators=(",", ":"))


def play(
    engine: str,
    tmp_path: Path,
    lines: Sequence[str | bytes],
    *,
    code: int = 0,
    stderr: str = "",
    before: str = "",
    after: str = "",
    **request: object,
) -> Outcome:
    """Runs a program that swallows its prompt, runs `before`, prints `lines`, runs `after` and exits with `code`."""
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    stream = tmp_path / "stream"
    stream.write_bytes(b"".join((one if isinstance(one, bytes) else one.encode()) + b"\n" for one in lines))
    script = tmp_path / "program"
    script.write_text(
        "#!/bin/sh\n"
        "cat > /dev/null\n"
        f"{before}\n"
        f"cat {shlex.quote(str(stream))}\n"
        f"printf %s {shlex.quote(stderr)} >&2\n"
        f"{after}\n"
        f"exit {code}\n"
    )
    script.chmod(0o755)
    fields: dict[str, object] = {
        "run_id": f"run-{uuid.uuid4()}",
        "workdir": str(work),
        "spool_dir": str(tmp_path / "spool"),
        "pinned_program": str(script),
        "deadlines": Deadlines(first_event_s=60, idle_s=60, after_result_s=60, hard_s=120, grace_s=2),
    }
    return drive(adapter_for(engine), msgspec.structs.replace(BLANK, **(fields | request)), ENV, now_ms=NOW_MS)


def claude_result(**fields: object) -> str:
    """Claude Code's last line, with what matters changed."""
    base: dict[str, object] = {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "api_error_status": None,
        "result": "Done.",
        "session_id": "s-1",
        "total_cost_usd": 0.25,
        "usage": {"input_tokens": 1, "output_tokens": 1},
        "modelUsage": {"m": {"inputTokens": 100, "outputTokens": 20, "cacheReadInputTokens": 40}},
        "permission_denials": [],
        "terminal_reason": "completed",
    }
    return line(**(base | fields))


def claude_tool(name: str = "Bash", **arguments: object) -> str:
    """An assistant message that is one tool call."""
    block = {"type": "tool_use", "id": "t-1", "name": name, "input": arguments or {"command": "ls"}}
    message = {"id": "m-1", "model": "claude", "content": [block], "usage": {"input_tokens": 5, "output_tokens": 2}}
    return line(type="assistant", message=message, session_id="s-1")


CLAUDE_INIT = line(type="system", subtype="init", session_id="s-1", model="claude")
CODEX_STARTED = line(type="thread.started", thread_id="t-1")
CODEX_DONE = line(type="turn.completed", usage={"input_tokens": 100, "cached_input_tokens": 40, "output_tokens": 20})


def codex_item(kind: str, **fields: object) -> str:
    """A finished item."""
    return line(type="item.completed", item={"id": f"item-{fields}", "type": kind, **fields})


def codex_command(command: str, output: str = "", exit_code: int = 0) -> str:
    """A finished command."""
    status = "completed" if exit_code == 0 else "failed"
    return codex_item(
        "command_execution", command=command, aggregated_output=output, exit_code=exit_code, status=status
    )
