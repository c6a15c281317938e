"""The environment of a host process. The user's own variables pass through, so that an engine keeps its sign-in, its
home folder and its provider's address; what ties a process to *another* agent's session, or to another LoopX turn, is
dropped. It never reads `os.environ` itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Env = tuple[tuple[str, str], ...]

SESSION_VARIABLES = frozenset(
    {
        "CLAUDECODE",
        "CLAUDE_CODE_AGENT",
        "CLAUDE_CODE_CHILD_SESSION",
        "CLAUDE_CODE_CONTAINER_ID",
        "CLAUDE_CODE_DIAGNOSTICS_FILE",
        "CLAUDE_CODE_ENTRYPOINT",
        "CLAUDE_CODE_ENVIRONMENT_KIND",
        "CLAUDE_CODE_EXECPATH",
        "CLAUDE_CODE_REMOTE",
        "CLAUDE_CODE_REMOTE_SESSION_ID",
        "CLAUDE_CODE_RESUME_FROM_SESSION",
        "CLAUDE_CODE_RESUME_PROMPT",
        "CLAUDE_CODE_SESSION_ACCESS_TOKEN",
        "CLAUDE_CODE_SESSION_ID",
        "CLAUDE_CODE_SESSION_KIND",
        "CLAUDE_CODE_SESSION_NAME",
        "CLAUDE_CODE_SSE_PORT",
        "CLAUDE_CODE_SUBAGENT_MODEL",
        "CLAUDE_CODE_SUPERVISED",
        "CLAUDE_CODE_TASK_LIST_ID",
        "CLAUDE_CODE_TMUX_SESSION",
        "CLAUDE_CODE_WORKER_EPOCH",
        "CLAUDE_PROJECT_DIR",
        "CODEX_CI",
        "CODEX_INTERNAL_ORIGINATOR_OVERRIDE",
        "CODEX_MANAGED_BY_BUN",
        "CODEX_MANAGED_BY_NPM",
        "CODEX_MANAGED_PACKAGE_ROOT",
        "CODEX_NETWORK_PROXY_ACTIVE",
        "CODEX_SANDBOX",
        "CODEX_SANDBOX_NETWORK_DISABLED",
        "CODEX_SESSION_ID",
        "CODEX_THREAD_ID",
        "GEMINI_CLI",
        "GEMINI_CLI_ACTIVE_APPROVAL_MODE",
        "GEMINI_CLI_IDE_PID",
        "GEMINI_CLI_IDE_SERVER_PORT",
        "GEMINI_CLI_IDE_WORKSPACE_PATH",
        "GEMINI_CLI_NO_RELAUNCH",
        "GEMINI_CLI_SESSION_ID",
        "OPENCODE",
        "OPENCODE_CLIENT",
        "OPENCODE_PID",
        "OPENCODE_RUN_ID",
        "OPENCODE_SESSION_ID",
        "OPENCODE_WORKSPACE_ID",
    }
)
"""Set by an agent CLI in the shells that it starts; inherited, they make a second one refuse, or join the first."""

TURN_VARIABLES = frozenset(
    {
        "LOOPX_AGENT_ID",
        "LOOPX_GOAL_ID",
        "LOOPX_MODEL",
        "LOOPX_PROMPT_FILE",
        "LOOPX_REPLAN_FILE",
        "LOOPX_RESULT_FILE",
        "LOOPX_RUN_ID",
        "LOOPX_TURN_KEY",
        "LOOPX_TURN_TOKEN",
    }
)
"""Bound to one turn: an outer turn's are dropped, and the request brings this turn's own."""

_ACCOUNT_HOMES = {
    "codex": ("CODEX_HOME", "CODEX_API_KEY", "OPENAI_API_KEY"),
    "claude": ("CLAUDE_CONFIG_DIR", "CLAUDE_CODE_OAUTH_TOKEN", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "opencode": ("XDG_DATA_HOME", "OPENCODE_AUTH_CONTENT"),
    "gemini": ("GEMINI_CLI_HOME", "GEMINI_API_KEY", "GOOGLE_API_KEY"),
}


def host_env(base: Sequence[tuple[str, str]], *added: Iterable[tuple[str, str]]) -> Env:
    """`base` without session variables and without an outer turn's, then each of `added`; later ones win."""
    merged = {name: value for name, value in base if name not in SESSION_VARIABLES | TURN_VARIABLES}
    for group in added:
        merged.update(group)
    return tuple(sorted(merged.items()))


def lookup(env: Iterable[tuple[str, str]], name: str) -> str | None:
    """The last value of `name`, or None; an empty value counts as absent."""
    found: str | None = None
    for key, value in env:
        if key == name:
            found = value
    return found or None


def account_key(engine: str, env: Sequence[tuple[str, str]]) -> str:
    """Which account a launch signs in with, as a short digest: launches with the same key are staggered (B8)."""
    from hashlib import sha256

    names = ("HOME", *_ACCOUNT_HOMES.get(engine, ()))
    parts = [engine, *(f"{name}={lookup(env, name) or ''}" for name in names)]
    return f"{engine}:{sha256(chr(0).join(parts).encode()).hexdigest()[:16]}"
