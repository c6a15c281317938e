"""Gemini CLI, driven as `gemini -p "" --output-format stream-json` with the prompt on standard input (hosts, C6).

What it knows: its exit codes are documented, and above 100 they are an HTTP status modulo 256; its edit mode has no
shell at all unless a policy allows commands, so the allow list goes into a policy file of the spool folder; thoughts
are missing from its output count but not from its total.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from loopx.hosts import allowed, ends, jsonline, launch, probe
from loopx.hosts import env as envs
from loopx.hosts.gemini_stream import GeminiParser
from loopx.hosts.protocol import (
    ExitRecord,
    HostEnd,
    HostEndKind,
    LaunchPlan,
    LaunchRequest,
    PermissionMode,
    ProbeResult,
    SignedIn,
    StreamSummary,
)

NAME = "gemini"

_MODES = {
    PermissionMode.READ_ONLY: "default",
    PermissionMode.WORKSPACE: "auto_edit",
    PermissionMode.BYPASS: "yolo",
}
_MARKERS = (b'{"type":"result","timestamp"',)

EXIT_KINDS: Mapping[int, tuple[HostEndKind, str]] = {
    41: (HostEndKind.AUTH_FAILED, "exit_41_auth"),
    42: (HostEndKind.CONTRACT_REJECTED, "exit_42_input"),
    44: (HostEndKind.PERMISSION_DENIED, "sandbox_unavailable"),
    52: (HostEndKind.WORKER_ERROR, "bad_config"),
    53: (HostEndKind.OUTPUT_BUDGET_EXHAUSTED, "output_budget"),
    54: (HostEndKind.WORKER_ERROR, "exit_54_tool"),
    55: (HostEndKind.PERMISSION_DENIED, "workspace_untrusted"),
    130: (HostEndKind.CANCELLED, "exit_130"),
    401 % 256: (HostEndKind.AUTH_FAILED, "http_401"),
    403 % 256: (HostEndKind.AUTH_FAILED, "http_403"),
    404 % 256: (HostEndKind.WORKER_ERROR, "model_unavailable"),
    429 % 256: (HostEndKind.RATE_LIMITED, "http_429"),
    500 % 256: (HostEndKind.PROVIDER_OVERLOADED, "http_500"),
    503 % 256: (HostEndKind.PROVIDER_OVERLOADED, "http_503"),
}

FIXES = {
    "auth_failed": "run `gemini` once and sign in, or export GEMINI_API_KEY and choose it in ~/.gemini/settings.json",
    "bad_config": "correct ~/.gemini/settings.json",
    "model_unavailable": "name a model that this account has, with --model",
    "bad_arguments": "gemini --help",
    "tool_denied": "add the command to the goal's checks, or give the goal the permission `bypass`",
    "not_started": "npm install -g @google/gemini-cli",
}


class GeminiAdapter:
    """The `gemini` engine word."""

    name = NAME

    def probe(self, env: Sequence[tuple[str, str]], pinned: str | None = None) -> ProbeResult:
        """Executable and signed in, as two verdicts; the second from the configuration, no model is called."""
        return probe.probe(
            NAME, env, pinned, signed_in=_signed_in, install=FIXES["not_started"], sign_in=FIXES["auth_failed"]
        )

    def plan(self, request: LaunchRequest, base_env: Sequence[tuple[str, str]]) -> LaunchPlan:
        """`gemini -p ""` with stream-json output. Raises EngineError or UsageError before anything runs."""
        argv = [launch.program(NAME, request, base_env), "-p", "", "--output-format", "stream-json", "--skip-trust"]
        argv += ["--approval-mode", _MODES[request.permission]]
        files: list[tuple[str, bytes]] = []
        if request.permission is not PermissionMode.BYPASS:
            policy = launch.spool_file(request, "gemini-policy.toml")
            files.append((policy, _policy(request).encode()))
            argv += ["--policy", policy]
            for folder in launch.writable_folders(request):
                argv += ["--include-directories", folder]
        if request.model:
            argv += ["-m", request.model]
        if request.resume_session:
            argv += ["-r", request.resume_session]
        argv += request.extra_args
        return launch.build(argv, request, base_env, files=files, result_markers=_MARKERS)

    def parser(self, request: LaunchRequest, now_ms: int) -> GeminiParser:
        """A parser for one run."""
        return GeminiParser(request, now_ms)

    def classify(self, exit_record: ExitRecord, summary: StreamSummary, tree_changed: bool) -> HostEnd:
        """The typed end; Gemini's exit codes are part of it."""
        return ends.classify(exit_record, summary, tree_changed, exit_kinds=EXIT_KINDS, fixes=FIXES)


def _policy(request: LaunchRequest) -> str:
    read_only = request.permission is PermissionMode.READ_ONLY
    commands = allowed.commands(request.allow_commands, read_only=read_only)
    return "\n".join(
        (
            _rule(300, "deny", allowed.DENIED_COMMANDS),
            _rule(200, "allow", commands),
            _rule(50, "deny", ()),
        )
    )


def _rule(priority: int, decision: str, prefixes: Sequence[str]) -> str:
    """One rule of the policy engine. JSON strings are TOML strings too."""
    lines = ["[[rule]]", 'toolName = "run_shell_command"']
    if prefixes:
        lines.append(f"commandPrefix = {json.dumps(list(prefixes))}")
    return "\n".join([*lines, f'decision = "{decision}"', f"priority = {priority}", ""])


def _signed_in(program: str, env: Sequence[tuple[str, str]]) -> SignedIn:
    """The chosen method's credential; without a chosen method a variable decides, as it does in Gemini itself."""
    home = Path(envs.lookup(env, "GEMINI_CLI_HOME") or envs.lookup(env, "HOME") or Path.home()) / ".gemini"
    method = _method(home)
    has_key = bool(envs.lookup(env, "GEMINI_API_KEY"))
    vertex = bool(envs.lookup(env, "GOOGLE_API_KEY") or envs.lookup(env, "GOOGLE_CLOUD_PROJECT"))
    if method == "gemini-api-key":
        return SignedIn.YES if has_key else SignedIn.UNKNOWN
    if method == "oauth-personal":
        return SignedIn.YES if (home / "oauth_creds.json").exists() else SignedIn.UNKNOWN
    if method:
        return SignedIn.YES if vertex else SignedIn.UNKNOWN
    if has_key or (vertex and envs.lookup(env, "GOOGLE_GENAI_USE_VERTEXAI")):
        return SignedIn.YES
    if envs.lookup(env, "GOOGLE_GENAI_USE_GCA") or envs.lookup(env, "CLOUD_SHELL") or _has_env_file(env, home):
        return SignedIn.UNKNOWN
    return SignedIn.NO


def _has_env_file(env: Sequence[tuple[str, str]], home: Path) -> bool:
    """Whether Gemini would read variables from a file that it finds on its way up, or in the home folder."""
    here = Path(envs.lookup(env, "PWD") or home.parent)
    folders = (here, *here.parents, home.parent)
    return any((folder / name).is_file() for folder in folders for name in (".env", ".gemini/.env"))


def _method(home: Path) -> str:
    try:
        raw = (home / "settings.json").read_bytes().replace(b"\n", b" ")
    except OSError:
        return ""
    settings = jsonline.decode(raw) or {}
    chosen = jsonline.text(jsonline.child(jsonline.child(settings, "security"), "auth"), "selectedType")
    return chosen or jsonline.text(settings, "selectedAuthType")
