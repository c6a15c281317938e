"""The steps of a scripted model: what the provider answers, one after another. Values only; `modelserver` plays them
and `wire` spells them out for each provider.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """What one answer costs: `cached` is part of `input`, `reasoning` is part of `output`."""

    input: int = 100
    cached: int = 40
    output: int = 20
    reasoning: int = 5


class Shell(msgspec.Struct, frozen=True, kw_only=True):
    """The model asks for one shell command."""

    command: str
    tokens: Tokens = Tokens()


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """The model asks the host's own file tool to write a file (absolute path)."""

    path: str
    content: str
    tokens: Tokens = Tokens()


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """The model calls a tool of an injected tool server."""

    server: str
    name: str
    arguments: dict[str, Any] = {}
    tokens: Tokens = Tokens()


class Say(msgspec.Struct, frozen=True, kw_only=True):
    """The model says something and ends its turn."""

    text: str
    tokens: Tokens = Tokens()


class Fail(msgspec.Struct, frozen=True, kw_only=True):
    """The provider refuses; the step stays, so every retry gets the same answer, unless `times` is given."""

    status: int
    kind: str
    message: str
    headers: tuple[tuple[str, str], ...] = ()
    extra: tuple[tuple[str, Any], ...] = ()
    times: int = 1_000_000


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """The connection breaks in the middle of the stream, every time."""

    text: str = "I was about to"


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """Headers come, then nothing, until the client or the server goes away."""


Call = Shell | Write | Tool
Spoken = Call | Say
"""Steps that are an answer of the model and cost tokens."""


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """The answer waits until the test calls `release`, so that something can happen in the middle of a run."""

    then: Spoken


Step = Spoken | Fail | Cut | Silence | Hold
