"""Claude Code, driven as `claude -p --output-format stream-json` with the prompt on standard input (hosts, C4).

What it knows: `subtype` says success over a refused request, so `is_error`, `api_error_status` and `terminal_reason`
are read instead; `modelUsage` holds sub-agents too and counts from the process's start, also after a resume; the
allow list goes into a settings file of the spool folder. Full bypass as root is Claude Code's to refuse, and it does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from loopx.hosts import allowed, ends, jsonline, launch, probe
from loopx.hosts.claude_stream import ClaudeParser
from loopx.hosts.protocol import (
    ExitRecord,
    HostEnd,
    LaunchPlan,
    LaunchRequest,
    McpServer,
    PermissionMode,
    ProbeResult,
    SignedIn,
    StreamSummary,
)

NAME = "claude"

_MODES = {PermissionMode.READ_ONLY: "dontAsk", PermissionMode.WORKSPACE: "acceptEdits"}
_READ_TOOLS = ("Glob", "Grep", "LS", "Read", "TodoWrite")
_WORK_TOOLS = (*_READ_TOOLS, "Edit", "MultiEdit", "NotebookEdit", "Task", "Write")
_MARKERS = (b'"type":"result","subtype"',)

FIXES = {
    "auth_failed": "claude setup-token, then export CLAUDE_CODE_OAUTH_TOKEN; or claude /login",
    "bypass_refused_as_root": "run as another user, or give the goal the permission `workspace`",
    "model_unavailable": "name a model that this account has, with --model",
    "bad_arguments": "claude --help",
    "tool_denied": "add the command to the goal's checks or arguments, or give the goal the permission `bypass`",
    "not_started": "npm install -g @anthropic-ai/claude-code",
}


class ClaudeAdapter:
    """The `claude` engine word."""

    name = NAME

    def probe(self, env: Sequence[tuple[str, str]], pinned: str | None = None) -> ProbeResult:
        """Executable and signed in, as two verdicts; runs `claude --version` and `claude auth status`."""
        return probe.probe(
            NAME, env, pinned, signed_in=_signed_in, install=FIXES["not_started"], sign_in=FIXES["auth_failed"]
        )

    def plan(self, request: LaunchRequest, base_env: Sequence[tuple[str, str]]) -> LaunchPlan:
        """`claude -p` with stream-json output. Raises EngineError or UsageError before anything runs."""
        argv = [launch.program(NAME, request, base_env), "-p", "--output-format", "stream-json", "--verbose"]
        files: list[tuple[str, bytes]] = []
        if request.permission is PermissionMode.BYPASS:
            argv.append("--dangerously-skip-permissions")
        else:
            settings = launch.spool_file(request, "claude-settings.json")
            files.append((settings, json.dumps(_settings(request), indent=1).encode()))
            argv += ["--permission-mode", _MODES[request.permission], "--settings", settings]
            for folder in launch.writable_folders(request):
                argv += ["--add-dir", folder]
        if request.model:
            argv += ["--model", request.model]
        if request.mcp is not None:
            servers = launch.spool_file(request, "claude-mcp.json")
            files.append((servers, json.dumps(_servers(request.mcp), indent=1).encode()))
            argv += ["--mcp-config", servers]
        if request.resume_session:
            argv += ["--resume", request.resume_session]
        argv += request.extra_args
        patience = (("MCP_CONNECT_TIMEOUT_MS", str(launch.MCP_START_S * 1000)),) if request.mcp is not None else ()
        return launch.build(argv, request, base_env, added_env=patience, files=files, result_markers=_MARKERS)

    def parser(self, request: LaunchRequest, now_ms: int) -> ClaudeParser:
        """A parser for one run."""
        return ClaudeParser(request, now_ms)

    def classify(self, exit_record: ExitRecord, summary: StreamSummary, tree_changed: bool) -> HostEnd:
        """The typed end; the exit code is not reliable here and is read last."""
        return ends.classify(exit_record, summary, tree_changed, fixes=FIXES)


def _settings(request: LaunchRequest) -> dict[str, object]:
    read_only = request.permission is PermissionMode.READ_ONLY
    commands = allowed.commands(request.allow_commands, read_only=read_only)
    allow = [*(_READ_TOOLS if read_only else _WORK_TOOLS)]
    for command in commands:
        rule = command.replace("(", "\\(").replace(")", "\\)")
        allow += [f"Bash({rule})", f"Bash({rule}:*)"]
    if request.mcp is not None:
        allow.append(f"mcp__{request.mcp.name}")
    deny = [f"Bash({command}:*)" for command in allowed.DENIED_COMMANDS]
    if read_only:
        deny += ["Edit", "Write", "NotebookEdit"]
    return {"permissions": {"allow": allow, "deny": deny}}


def _servers(server: McpServer) -> dict[str, object]:
    """Values of variables (the turn's token) are named, not written: Claude Code fills them in from its environment."""
    entry = {
        "type": "stdio",
        # The model is asked only once the server is up, and is told of its tools from the start.
        "alwaysLoad": True,
        "command": server.argv[0],
        "args": list(server.argv[1:]),
        "env": {name: f"${{{name}}}" for name, _ in server.env},
    }
    return {"mcpServers": {server.name: entry}}


def _signed_in(program: str, env: Sequence[tuple[str, str]]) -> SignedIn:
    answer = probe.ask([program, "auth", "status"], env)
    if answer.exit_code is None:
        return SignedIn.UNKNOWN
    status = jsonline.decode(" ".join(answer.output.split()).encode())
    if status is not None and isinstance(status.get("loggedIn"), bool):
        return SignedIn.YES if status["loggedIn"] else SignedIn.NO
    return SignedIn.YES if answer.exit_code == 0 else SignedIn.UNKNOWN
