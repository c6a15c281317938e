"""Runs a host adapter's plan under the real keeper and folds what came out: the path that a turn takes, without a
store.

`Rig` is one real CLI with a home folder of its own, pointed at the scripted model server by the person's own means
(configuration and environment), as a person would point it at a provider of theirs.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from loopx.hosts import spool, supervise
from loopx.hosts.protocol import (
    Deadlines,
    ExitRecord,
    HostAdapter,
    HostEnd,
    HostEvent,
    LaunchPlan,
    LaunchRequest,
    StreamSummary,
)
from loopx.hosts.registry import adapter_for
from tests.hosts import npm
from tests.hosts.modelserver import ModelServer

NOW_MS = 1_796_000_000_000
_runs = itertools.count(1)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one run."""

    plan: LaunchPlan
    record: ExitRecord
    summary: StreamSummary
    end: HostEnd
    events: tuple[HostEvent, ...]
    lines: tuple[bytes, ...]
    stderr: bytes
    tree_changed: bool


def drive(
    adapter: HostAdapter,
    request: LaunchRequest,
    env: Sequence[tuple[str, str]],
    *,
    now_ms: int = NOW_MS,
    should_cancel: Callable[[], bool] | None = None,
) -> Outcome:
    """Plan, start, follow, parse, classify."""
    before = tree_digest(request.workdir)
    plan = adapter.plan(request, env)
    parser = adapter.parser(request, now_ms)
    lines: list[bytes] = []
    events: list[HostEvent] = []

    def on_line(line: bytes) -> None:
        lines.append(line)
        events.extend(parser.feed(line))

    kept = supervise.start(plan, request.run_id, request.turn_key, request.spool_dir)
    record = supervise.follow(kept, on_line, should_cancel, poll_s=0.05)
    stderr = spool.tail(request.spool_dir, "stderr", 65_536)
    summary = parser.finish(stderr)
    changed = tree_digest(request.workdir) != before
    return Outcome(
        plan=plan,
        record=record,
        summary=summary,
        end=adapter.classify(record, summary, changed),
        events=tuple(events),
        lines=tuple(lines),
        stderr=stderr,
        tree_changed=changed,
    )


def tree_digest(folder: str) -> str:
    """Names and contents of every file below `folder`."""
    digest = hashlib.sha256()
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file():
            digest.update(str(path).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


class Rig:
    """One real CLI, one home folder, one work tree; every run gets a spool folder of its own."""

    def __init__(self, engine: str, root: Path, server: ModelServer) -> None:
        self.engine = engine
        self.adapter = adapter_for(engine)
        self.program = npm.program(engine)
        self.root = root
        self.work = root / "work"
        self.home = root / "home"
        self.server = server
        self.work.mkdir()
        self.home.mkdir()
        self.env = (*_bare_env(self.home), *_POINT[engine](self.home, server.url))

    def request(self, prompt: str = "Please do it.", **more: Any) -> LaunchRequest:
        """A request with the rig's folders and program."""
        number = next(_runs)
        fields: dict[str, Any] = {
            "run_id": f"run-{uuid.uuid4()}",
            "turn_key": f"turn-{number}",
            "goal_id": "goal-1",
            "workdir": str(self.work),
            "spool_dir": str(self.root / f"spool-{number}"),
            "prompt": prompt,
            "model": MODELS[self.engine],
            "pinned_program": self.program,
            "deadlines": Deadlines(first_event_s=120, idle_s=120, after_result_s=20, hard_s=240, grace_s=3),
        }
        return msgspec.structs.replace(_BLANK, **(fields | more))

    def run(
        self,
        prompt: str = "Please do it.",
        should_cancel: Callable[[], bool] | None = None,
        now_ms: int = NOW_MS,
        **more: Any,
    ) -> Outcome:
        """One run of the CLI."""
        request = self.request(prompt, **more)
        return drive(self.adapter, request, self.env, should_cancel=should_cancel, now_ms=now_ms)


@contextmanager
def rig(engine: str, server: ModelServer) -> Iterator[Rig]:
    """A rig in a folder of its own outside the system's temporary folder, which Codex treats as a special place."""
    homes = npm.cache().parent / "rigs"
    homes.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix=f"{engine}-", dir=homes))
    try:
        yield Rig(engine, root, server)
    finally:
        shutil.rmtree(root, ignore_errors=True)


MODELS = {
    "codex": "mock-model",
    "claude": "claude-sonnet-4-5",
    "opencode": "mock/m",
    "gemini": "gemini-2.5-flash",
}

_BLANK = LaunchRequest(run_id="", turn_key="", goal_id="", workdir="", spool_dir="", prompt="")


def _bare_env(home: Path) -> tuple[tuple[str, str], ...]:
    return (
        ("PATH", os.environ["PATH"]),
        ("HOME", str(home)),
        ("LANG", "C.UTF-8"),
        ("TZ", "UTC"),
        ("NO_PROXY", "127.0.0.1,localhost"),
    )


def _point_codex(home: Path, url: str) -> tuple[tuple[str, str], ...]:
    folder = home / "codex"
    folder.mkdir()
    (folder / "config.toml").write_text(
        'model_provider = "mock"\n'
        "[model_providers.mock]\n"
        'name = "mock"\n'
        f'base_url = "{url}/v1"\n'
        'wire_api = "responses"\n'
        'env_key = "MOCK_KEY"\n'
        "request_max_retries = 1\n"
        "stream_max_retries = 1\n"
    )
    return (("CODEX_HOME", str(folder)), ("MOCK_KEY", "mock"))


def _point_claude(home: Path, url: str) -> tuple[tuple[str, str], ...]:
    return (
        ("ANTHROPIC_BASE_URL", url),
        ("ANTHROPIC_API_KEY", "mock"),
        ("DISABLE_TELEMETRY", "1"),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        ("CLAUDE_CODE_MAX_RETRIES", "1"),
        ("IS_SANDBOX", "1"),
    )


def _point_opencode(home: Path, url: str) -> tuple[tuple[str, str], ...]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": "mock"},
        "models": {"m": {}},
    }
    folder = home / ".config" / "opencode"
    folder.mkdir(parents=True)
    (folder / "opencode.json").write_text(json.dumps({"provider": {"mock": provider}, "autoupdate": False}))
    return (("OPENCODE_DISABLE_MODELS_FETCH", "1"),)


def _point_gemini(home: Path, url: str) -> tuple[tuple[str, str], ...]:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"maxAttempts": 2},
    }
    folder = home / ".gemini"
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps(settings))
    return (("GEMINI_API_KEY", "mock"), ("GOOGLE_GEMINI_BASE_URL", url))


_POINT = {
    "codex": _point_codex,
    "claude": _point_claude,
    "opencode": _point_opencode,
    "gemini": _point_gemini,
}
