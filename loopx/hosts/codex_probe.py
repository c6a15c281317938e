"""Whether Codex is signed in: its own word, or the credential that its configured provider reads. Reads the person's
`config.toml`, and never changes it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from loopx.hosts import env as envs
from loopx.hosts import probe as probes
from loopx.hosts.protocol import ProbeResult, SignedIn


def probe(env: Sequence[tuple[str, str]], pinned: str | None = None) -> ProbeResult:
    """The two verdicts about Codex."""
    return probes.probe(
        "codex", env, pinned, signed_in=_signed_in, install="npm install -g @openai/codex", sign_in="codex login"
    )


def home(env: Sequence[tuple[str, str]]) -> Path:
    """Where Codex keeps its configuration and sessions."""
    own = envs.lookup(env, "CODEX_HOME")
    return Path(own) if own else Path(envs.lookup(env, "HOME") or os.path.expanduser("~")) / ".codex"


def _signed_in(program: str, env: Sequence[tuple[str, str]]) -> SignedIn:
    provider = _own_provider(env)
    if provider is not None:
        return provider
    if envs.lookup(env, "CODEX_API_KEY"):
        return SignedIn.YES
    # 1 is its no; a version without this command, or one that hangs, has not said anything.
    said = probes.ask([program, "login", "status"], env).exit_code
    return {0: SignedIn.YES, 1: SignedIn.NO}.get(said if said is not None else -1, SignedIn.UNKNOWN)


def _own_provider(env: Sequence[tuple[str, str]]) -> SignedIn | None:
    """A provider of the person's own needs no Codex login: its key is in the variable that it names, or it has none."""
    import tomllib

    try:
        config = tomllib.loads((home(env) / "config.toml").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    name = config.get("model_provider")
    providers = config.get("model_providers")
    table = providers.get(name) if isinstance(providers, dict) and isinstance(name, str) else None
    if not isinstance(table, dict) or table.get("requires_openai_auth") is True:
        return None
    variable = table.get("env_key")
    if not isinstance(variable, str):
        return SignedIn.UNKNOWN
    return SignedIn.YES if envs.lookup(env, variable) else SignedIn.NO
