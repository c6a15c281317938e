"""Codex CLI, driven as `codex exec --json` with the prompt on standard input (hosts, C1).

What it knows: the thread's running usage total (deltas are the caller's), that a command refused by the sandbox
leaves no event at all, and that a sandbox which cannot work on this machine shows only in a command's first output
line. Such a goal must say `bypass`, or run where user namespaces (or Landlock and seccomp) are available. It never
touches the person's Codex configuration: everything is passed for the one run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from loopx.hosts import codex_probe, ends, jsonline, launch
from loopx.hosts.jsonline import Object
from loopx.hosts.protocol import (
    ExitRecord,
    HostEnd,
    HostEndKind,
    HostEvent,
    HostEventKind,
    LaunchPlan,
    LaunchRequest,
    McpServer,
    PermissionMode,
    ProbeResult,
    StreamSummary,
    Usage,
)
from loopx.hosts.stream import NOTHING, Events, Fold

NAME = "codex"

_SANDBOX = {
    PermissionMode.READ_ONLY: ("-s", "read-only"),
    PermissionMode.WORKSPACE: ("-s", "workspace-write"),
    PermissionMode.BYPASS: ("--dangerously-bypass-approvals-and-sandbox",),
}
_MARKERS = (b'"type":"turn.completed"', b'"type":"turn.failed"')
_SANDBOX_BROKEN = re.compile(
    r"^\s*(?:bwrap: |codex-linux-sandbox|error (?:running|applying) .{0,60}sandbox|landlockrestrict|"
    r".{0,60}\bSandbox\((?:LandlockRestrict|SeccompInstall))",
    re.I,
)
_REJECTED = re.compile(rb"codex_core::\S+: error=.{0,200}?(?:[Rr]ejected|approval required|denied)")

FIXES = {
    "sandbox_unavailable": "allow user namespaces on this machine, or give the goal the permission `bypass`",
    "model_unavailable": "name a model that this account has, with --model",
    "bad_arguments": "codex exec --help",
    "auth_failed": "codex login",
    "session_missing": "a fresh session is started by itself",
    "not_started": "npm install -g @openai/codex",
}


class CodexAdapter:
    """The `codex` engine word."""

    name = NAME

    def probe(self, env: Sequence[tuple[str, str]], pinned: str | None = None) -> ProbeResult:
        """Executable and signed in, as two verdicts; runs `codex --version` and `codex login status`."""
        return codex_probe.probe(env, pinned)

    def plan(self, request: LaunchRequest, base_env: Sequence[tuple[str, str]]) -> LaunchPlan:
        """`codex exec --json [options] [resume ID] -`. Raises EngineError or UsageError before anything runs."""
        argv = [launch.program(NAME, request, base_env), "exec", "--json", "--skip-git-repo-check"]
        argv += ["-C", request.workdir, *_permission(request)]
        if request.model:
            argv += ["-m", request.model]
        if request.mcp is not None:
            argv += _mcp(request.mcp)
        argv += request.extra_args
        if request.resume_session:
            argv += ["resume", request.resume_session]
        return launch.build([*argv, "-"], request, base_env, result_markers=_MARKERS)

    def parser(self, request: LaunchRequest, now_ms: int) -> CodexParser:
        """A parser for one run."""
        return CodexParser(request, now_ms)

    def classify(self, exit_record: ExitRecord, summary: StreamSummary, tree_changed: bool) -> HostEnd:
        """The typed end; Codex exits 0 or 1 and says nothing by the number."""
        return ends.classify(exit_record, summary, tree_changed, fixes=FIXES)


def _permission(request: LaunchRequest) -> list[str]:
    words = list(_SANDBOX[request.permission])
    if request.permission is PermissionMode.BYPASS:
        return words
    words += ["-c", 'approval_policy="never"']
    if request.permission is PermissionMode.WORKSPACE:
        for folder in launch.writable_folders(request):
            words += ["--add-dir", folder]
    return words


def _mcp(server: McpServer) -> list[str]:
    """The server for this run only. Values of variables (the turn's token) stay off the command line."""
    base = f"mcp_servers.{server.name}"
    settings = {
        f"{base}.command": server.argv[0],
        f"{base}.args": list(server.argv[1:]),
        f"{base}.env_vars": [name for name, _ in server.env],
        f"{base}.default_tools_approval_mode": "approve",
        # Without it Codex asks the model before the server is up, and the agent is told of no tools.
        f"{base}.required": True,
        f"{base}.startup_timeout_sec": launch.MCP_START_S,
    }
    words: list[str] = []
    for key, value in settings.items():
        words += ["-c", f"{key}={json.dumps(value)}"]
    return words


class CodexParser:
    """Folds `codex exec --json` lines."""

    def __init__(self, request: LaunchRequest, now_ms: int) -> None:
        self._fold = Fold(request, now_ms)
        self._sandbox_failures = 0
        self._commands_that_ran = 0
        self._seen: set[str] = set()

    def feed(self, line: bytes) -> Sequence[HostEvent]:
        """The events of one raw line; never raises."""
        value = jsonline.decode(line)
        if value is None:
            return NOTHING
        match jsonline.text(value, "type"):
            case "thread.started":
                return self._started(value)
            case "item.started" | "item.updated" | "item.completed":
                return self._item(value)
            case "turn.completed":
                return self._completed(value)
            case "turn.failed":
                self._fold.terminal_seen = True
                return self._fold.failed(jsonline.text(jsonline.child(value, "error"), "message"))
            case "error":
                return self._fold.trouble(jsonline.text(value, "message"))
            case _:
                return NOTHING

    def finish(self, stderr_tail: bytes) -> StreamSummary:
        """The summary; stderr is read only for what the stream cannot say."""
        fold = self._fold
        if not fold.terminal_seen and not fold.is_error and stderr_tail:
            fold.trouble(ends.last_error_line(stderr_tail))
        if fold.terminal_seen and not fold.is_error:
            for _ in _REJECTED.finditer(stderr_tail[-65_536:]):
                fold.denied("exec_command")
            if self._sandbox_failures and not self._commands_that_ran:
                fold.error_code = "sandbox_unavailable"
        return fold.summary()

    def _started(self, value: Object) -> Events:
        return self._fold.session(jsonline.text(value, "thread_id"))

    def _completed(self, value: Object) -> Events:
        counters = jsonline.child(value, "usage")
        usage = Usage(
            input_tokens=jsonline.count(counters, "input_tokens"),
            cached_input_tokens=jsonline.count(counters, "cached_input_tokens"),
            output_tokens=jsonline.count(counters, "output_tokens"),
            reasoning_tokens=jsonline.count(counters, "reasoning_output_tokens"),
        )
        used = self._fold.used(usage, running_total=True)
        self._fold.recovered()
        return [*used, *self._fold.finished(self._fold.final_text)]

    def _item(self, value: Object) -> Events:
        item = jsonline.child(value, "item")
        done = jsonline.text(value, "type") == "item.completed"
        match jsonline.text(item, "type"):
            case "agent_message":
                self._fold.recovered()
                return self._fold.message(jsonline.text(item, "text")) if done else NOTHING
            case "command_execution":
                return self._command(item, done)
            case "file_change":
                return self._files(item, done)
            case "mcp_tool_call" | "collab_tool_call":
                return self._call(item)
            case "web_search":
                return self._once(item, "web_search", jsonline.text(item, "query"))
            case "error" if done:
                return (HostEvent(kind=HostEventKind.ERROR, text=jsonline.clip(jsonline.text(item, "message"))),)
            case _:
                return NOTHING

    def _command(self, item: Object, done: bool) -> Events:
        command = jsonline.text(item, "command")
        events = self._once(item, "exec_command", command)
        if not done:
            return events
        if jsonline.text(item, "status") == "declined":
            return [*events, *self._fold.denied("exec_command", command)]
        output = jsonline.text(item, "aggregated_output")
        if item.get("exit_code") != 0 and _SANDBOX_BROKEN.search(output[:400]):
            self._sandbox_failures += 1
            text = jsonline.clip(output, 400)
            denied = HostEndKind.PERMISSION_DENIED
            return [*events, HostEvent(kind=HostEventKind.ERROR, text=text, error=denied)]
        self._commands_that_ran += 1
        return events

    def _files(self, item: Object, done: bool) -> Events:
        paths = [jsonline.text(change, "path") for change in jsonline.children(item, "changes")]
        events = self._once(item, "apply_patch", ", ".join(paths))
        match jsonline.text(item, "status"):
            case "completed" if done:
                self._commands_that_ran += 1
                return [*events, *self._fold.changed(paths)]
            case "declined" if done:
                return [*events, *self._fold.denied("apply_patch", ", ".join(paths))]
            case _:
                return events

    def _call(self, item: Object) -> Events:
        name = f"{jsonline.text(item, 'server')}.{jsonline.text(item, 'tool')}".strip(".")
        return self._once(item, name, jsonline.canonical(item.get("arguments")))

    def _once(self, item: Object, name: str, text: str) -> Events:
        """An item is started, updated and completed: it is one call."""
        key = jsonline.text(item, "id")
        if key and key in self._seen:
            return NOTHING
        self._seen.add(key)
        self._fold.recovered()
        return self._fold.tool(name, text, text)
