"""OpenCode, driven as `opencode run --format json` with the prompt on standard input (hosts, C7).

What it knows: permissions and the tool server are given for one run in OPENCODE_CONFIG_CONTENT, which stands above the
project's own file (an agent can edit that one) and leaves the person's providers alone; OpenCode waits out provider
errors in silence, so its error log on stderr is what names the cause; it believes PWD, not the folder it is started in.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from loopx.hosts import allowed, ends, jsonline, launch, probe
from loopx.hosts import env as envs
from loopx.hosts.opencode_stream import OpenCodeParser
from loopx.hosts.protocol import (
    ExitRecord,
    HostEnd,
    LaunchPlan,
    LaunchRequest,
    PermissionMode,
    ProbeResult,
    SignedIn,
    StreamSummary,
)

NAME = "opencode"

_CONFIG = "OPENCODE_CONFIG_CONTENT"
_KEY_VARIABLES = (
    "ANTHROPIC_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_GENERATIVE_AI_API_KEY",
    "GROQ_API_KEY",
    "OPENAI_API_KEY",
    "OPENCODE_API_KEY",
    "OPENROUTER_API_KEY",
    "XAI_API_KEY",
)

FIXES = {
    "auth_failed": "opencode auth login",
    "model_unavailable": "name a model as provider/model, with --model; `opencode models` lists them",
    "bad_arguments": "opencode run --help",
    "tool_denied": "add the command to the goal's checks, or give the goal the permission `bypass`",
    "not_started": "npm install -g opencode-ai",
}


class OpenCodeAdapter:
    """The `opencode` engine word."""

    name = NAME

    def probe(self, env: Sequence[tuple[str, str]], pinned: str | None = None) -> ProbeResult:
        """Executable and signed in, as two verdicts. A provider of the person's own may need no credential at all, so
        the absence of one is unknown, not no."""
        return probe.probe(
            NAME, env, pinned, signed_in=_signed_in, install=FIXES["not_started"], sign_in=FIXES["auth_failed"]
        )

    def plan(self, request: LaunchRequest, base_env: Sequence[tuple[str, str]]) -> LaunchPlan:
        """`opencode run --format json`. Raises EngineError or UsageError before anything runs."""
        argv = [launch.program(NAME, request, base_env), "run", "--format", "json", "--print-logs"]
        argv += ["--log-level", "ERROR"]
        if request.permission is PermissionMode.BYPASS:
            argv.append("--auto")
        if request.model:
            argv += ["-m", request.model]
        if request.resume_session:
            argv += ["-s", request.resume_session]
        argv += request.extra_args
        config = json.dumps(_config(request, envs.lookup((*base_env, *request.env), _CONFIG)))
        return launch.build(argv, request, base_env, added_env=((_CONFIG, config),))

    def parser(self, request: LaunchRequest, now_ms: int) -> OpenCodeParser:
        """A parser for one run."""
        return OpenCodeParser(request, now_ms)

    def classify(self, exit_record: ExitRecord, summary: StreamSummary, tree_changed: bool) -> HostEnd:
        """The typed end; OpenCode exits 0 or 1."""
        return ends.classify(exit_record, summary, tree_changed, fixes=FIXES)


def _config(request: LaunchRequest, own: str | None) -> dict[str, object]:
    """The person's inline configuration, if any, with this run's permissions and tool server on top."""
    config: dict[str, object] = dict(jsonline.decode((own or "").encode()) or {})
    config["permission"] = _permission(request)
    config.setdefault("autoupdate", False)
    if request.mcp is not None:
        server = request.mcp
        entry = {
            "type": "local",
            "command": list(server.argv),
            "environment": {name: f"{{env:{name}}}" for name, _ in server.env},
            "enabled": True,
        }
        config["mcp"] = {**jsonline.child(config, "mcp"), server.name: entry}
    return config


def _permission(request: LaunchRequest) -> dict[str, object]:
    """`deny` rather than `ask`: nobody is there to answer, and an unanswered question ends the whole run."""
    if request.permission is PermissionMode.BYPASS:
        return {"*": "allow", "question": "deny"}
    read_only = request.permission is PermissionMode.READ_ONLY
    bash = {"*": "deny"}
    for command in allowed.commands(request.allow_commands, read_only=read_only):
        bash |= {command: "allow", f"{command} *": "allow"}
    for command in allowed.DENIED_COMMANDS:
        bash |= {command: "deny", f"{command} *": "deny"}
    outside = {"*": "deny"} | {f"{folder}/*": "allow" for folder in launch.writable_folders(request)}
    return {
        "bash": bash,
        "edit": "deny" if read_only else "allow",
        "external_directory": outside,
        "webfetch": "deny",
        "doom_loop": "deny",
        "question": "deny",
    }


def _signed_in(program: str, env: Sequence[tuple[str, str]]) -> SignedIn:
    if any(envs.lookup(env, name) for name in (*_KEY_VARIABLES, "OPENCODE_AUTH_CONTENT")):
        return SignedIn.YES
    from pathlib import Path

    home = Path(envs.lookup(env, "HOME") or Path.home())
    data = Path(envs.lookup(env, "XDG_DATA_HOME") or home / ".local" / "share")
    try:
        stored = jsonline.decode((data / "opencode" / "auth.json").read_bytes().replace(b"\n", b" "))
    except OSError:
        stored = None
    return SignedIn.YES if stored else SignedIn.UNKNOWN
