"""How big a host's own record of a session is, so that a session which has grown too big is not resumed: a fresh one
with a context pack costs less than a host that runs out of memory (field notes, B5). It reads sizes and nothing else.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from glob import escape
from pathlib import Path

from loopx.hosts import codex_probe
from loopx.hosts import env as envs

RESUME_LIMIT_BYTES = 32 * 1024 * 1024
"""A rollout of 362 MB made single lines of 128 MB; this stays far below."""


class Resume(enum.StrEnum):
    """Whether a session may be resumed."""

    FINE = "fine"
    TOO_BIG = "too_big"
    MISSING = "missing"
    """The host has no record of it: a resume would be refused, or quietly become a fresh session."""
    UNKNOWN = "unknown"
    """This host keeps its sessions where a size cannot be told apart; resume and see."""


def transcript_bytes(engine: str, session_id: str, env: Sequence[tuple[str, str]]) -> int | None:
    """The size of a session's record, 0 when there is none, None when this engine's cannot be told."""
    finder = _FINDERS.get(engine)
    if finder is None:
        return None
    total = 0
    for path in finder(session_id, env):
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total


def resume(
    engine: str, session_id: str, env: Sequence[tuple[str, str]], limit_bytes: int = RESUME_LIMIT_BYTES
) -> Resume:
    """The size guard before a resume."""
    size = transcript_bytes(engine, session_id, env)
    if size is None:
        return Resume.UNKNOWN
    if size == 0:
        return Resume.MISSING
    return Resume.TOO_BIG if size > limit_bytes else Resume.FINE


def _codex(session_id: str, env: Sequence[tuple[str, str]]) -> Iterator[Path]:
    return (codex_probe.home(env) / "sessions").glob(f"*/*/*/rollout-*{escape(session_id)}.jsonl*")


def _claude(session_id: str, env: Sequence[tuple[str, str]]) -> Iterator[Path]:
    own = envs.lookup(env, "CLAUDE_CONFIG_DIR")
    home = Path(own) if own else Path(envs.lookup(env, "HOME") or Path.home()) / ".claude"
    return (home / "projects").glob(f"*/{escape(session_id)}.jsonl")


def _gemini(session_id: str, env: Sequence[tuple[str, str]]) -> Iterator[Path]:
    home = Path(envs.lookup(env, "GEMINI_CLI_HOME") or envs.lookup(env, "HOME") or Path.home()) / ".gemini"
    return (home / "tmp").glob(f"*/chats/session-*-{escape(session_id[:8])}.json*")


_FINDERS: Mapping[str, Callable[[str, Sequence[tuple[str, str]]], Iterator[Path]]] = {
    "codex": _codex,
    "claude": _claude,
    "gemini": _gemini,
}
