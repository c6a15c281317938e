"""From an engine word (`codex`, `command:WORDS`, `foreman:codex`) to the adapter that drives it. Adapters are imported
only when they are asked for; nothing here looks at the machine.
"""

from __future__ import annotations

import enum

from loopx.control_plane.errors import UsageError
from loopx.hosts.protocol import HostAdapter


class EngineKind(enum.StrEnum):
    """What stands behind an engine word."""

    EXTERNAL = "external"
    NATIVE = "native"
    FOREMAN = "foreman"


CLIS = ("codex", "claude", "opencode", "gemini")
"""The agent CLIs with an adapter of their own, in the order in which `loopx hosts` shows them."""

_COMMAND = "command:"
_FOREMAN = "foreman:"
_EXTERNAL = "external:"


def kind_of(word: str) -> EngineKind:
    """The kind of an engine word; UsageError `unknown_engine` for any other word."""
    if word == "native":
        return EngineKind.NATIVE
    if word.startswith(_FOREMAN):
        inner = word.removeprefix(_FOREMAN)
        if inner.startswith(_FOREMAN):
            raise _unknown(word)
        kind_of(inner)
        return EngineKind.FOREMAN
    plain = word.removeprefix(_EXTERNAL)
    if plain in CLIS or (plain.startswith(_COMMAND) and plain.removeprefix(_COMMAND).strip()):
        return EngineKind.EXTERNAL
    raise _unknown(word)


def inner_word(word: str) -> str:
    """The engine that a foreman hands its parts to, or the word itself."""
    return word.removeprefix(_FOREMAN)


def adapter_for(word: str) -> HostAdapter:
    """The adapter of an external engine. UsageError `unknown_engine`, or `engine_not_external` for the other kinds."""
    if kind_of(word) is not EngineKind.EXTERNAL:
        raise UsageError(
            "engine_not_external", f"The engine {word} is not an external program.", hint="Ask for its inner engine."
        )
    plain = word.removeprefix(_EXTERNAL)
    if plain.startswith(_COMMAND):
        from loopx.hosts.command import CommandAdapter

        return CommandAdapter(plain.removeprefix(_COMMAND))
    return _cli(plain)


def _cli(name: str) -> HostAdapter:
    if name == "codex":
        from loopx.hosts.codex import CodexAdapter

        return CodexAdapter()
    if name == "claude":
        from loopx.hosts.claude import ClaudeAdapter

        return ClaudeAdapter()
    if name == "opencode":
        from loopx.hosts.opencode import OpenCodeAdapter

        return OpenCodeAdapter()
    if name == "gemini":
        from loopx.hosts.gemini import GeminiAdapter

        return GeminiAdapter()
    raise _unknown(name)


def _unknown(word: str) -> UsageError:
    return UsageError(
        "unknown_engine",
        f"There is no engine called {word!r}.",
        hint=f"Use one of: {', '.join(CLIS)}, native, foreman:ENGINE, command:WORDS.",
        data={"engine": word},
    )
