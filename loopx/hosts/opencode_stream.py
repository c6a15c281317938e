"""Folds `opencode run --format json` lines. Tokens come per step and are added up; the end is a step that finished for
another reason than tool calls (or, in newer versions, `done`); a refused tool call can end a run without either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from loopx.hosts import ends, jsonline, resets
from loopx.hosts import usage as usages
from loopx.hosts.jsonline import Object
from loopx.hosts.protocol import HostEndKind, HostEvent, LaunchRequest, StreamSummary, Usage
from loopx.hosts.stream import NOTHING, Events, Fold

_ERROR_NAMES: Mapping[str, tuple[HostEndKind, str]] = {
    "ProviderAuthError": (HostEndKind.AUTH_FAILED, "sign_in_lapsed"),
    "ProviderModelNotFoundError": (HostEndKind.WORKER_ERROR, "model_unavailable"),
    "ContextOverflowError": (HostEndKind.OUTPUT_BUDGET_EXHAUSTED, "context_exhausted"),
    "MessageOutputLengthError": (HostEndKind.OUTPUT_BUDGET_EXHAUSTED, "output_budget"),
    "MessageAbortedError": (HostEndKind.UNKNOWN, "aborted"),
    "StructuredOutputError": (HostEndKind.CONTRACT_REJECTED, "structured_output"),
}

_DENIALS = ("The user has specified a rule which prevents you", "The user rejected permission")
"""How OpenCode's own tool error begins when a permission refused the call; there is no field for it."""

_FILE_TOOLS = {"edit": "filePath", "write": "filePath", "multiedit": "filePath", "patch": "", "apply_patch": ""}
_LOGGED = re.compile(r'message="stream error".*? small=false .*?error\.error="((?:[^"\\]|\\.){1,600})"')
_ENDING_REASONS = frozenset({"stop", "length", "content-filter", "other", "unknown", "error"})


class OpenCodeParser:
    """One run of `opencode run --format json --print-logs`."""

    def __init__(self, request: LaunchRequest, now_ms: int) -> None:
        self._fold = Fold(request, now_ms)
        self._last_refused = False

    def feed(self, line: bytes) -> Sequence[HostEvent]:
        """The events of one raw line; never raises."""
        value = jsonline.decode(line)
        if value is None:
            return NOTHING
        events: list[HostEvent] = [*self._fold.session(jsonline.text(value, "sessionID"))]
        return [*events, *self._event(value)]

    def _event(self, value: Object) -> Events:
        part = jsonline.child(value, "part")
        match jsonline.text(value, "type"):
            case "text":
                self._fold.recovered()
                return self._fold.message(jsonline.text(part, "text"))
            case "tool_use":
                return self._tool(part)
            case "step_start":
                self._last_refused = False
                return NOTHING
            case "step_finish":
                return self._step(part)
            case "error":
                return self._error(jsonline.child(value, "error"))
            case "done":
                return self._fold.finished(self._fold.final_text)
            case _:
                return NOTHING

    def finish(self, stderr_tail: bytes) -> StreamSummary:
        """The summary. stderr holds what OpenCode was silently retrying, and why it did not start."""
        fold = self._fold
        if not fold.terminal_seen and self._last_refused and not fold.is_error:
            fold.terminal_seen = True
        if not fold.terminal_seen and not fold.is_error:
            self._logged(stderr_tail)
        return fold.summary()

    def _logged(self, stderr_tail: bytes) -> None:
        text = stderr_tail.decode("utf-8", "replace")
        found = _LOGGED.findall(text)
        if found:
            self._fold.trouble(found[-1])
            return
        plain = "\n".join(line for line in text.splitlines() if not line.startswith("timestamp="))
        if plain.strip():
            self._fold.trouble(ends.last_error_line(plain.encode()))

    def _tool(self, part: Object) -> Events:
        name = jsonline.text(part, "tool")
        state = jsonline.child(part, "state")
        arguments = jsonline.child(state, "input")
        said = jsonline.text(arguments, "command") or jsonline.text(arguments, "filePath")
        self._fold.recovered()
        status = jsonline.text(state, "status")
        error = jsonline.text(state, "error")
        self._last_refused = status == "error" and error.startswith(_DENIALS)
        if self._last_refused:
            return self._fold.denied(name, said)
        events = [*self._fold.tool(name, arguments, said)]
        if status == "completed" and name in _FILE_TOOLS:
            events += self._fold.changed([jsonline.text(arguments, _FILE_TOOLS[name])])
        return events

    def _step(self, part: Object) -> Events:
        used = self._fold.used(usages.add(self._fold.usage, _usage(part)))
        self._fold.recovered()
        reason = jsonline.text(part, "reason")
        if reason not in _ENDING_REASONS:
            return used
        if reason == "length":
            said = self._fold.failed("", kind=HostEndKind.OUTPUT_BUDGET_EXHAUSTED, code="output_budget")
            return [*used, *self._fold.finished(), *said]
        return [*used, *self._fold.finished(self._fold.final_text)]

    def _error(self, error: Object) -> Events:
        data = jsonline.child(error, "data")
        text = jsonline.text(data, "message") or jsonline.text(error, "message") or jsonline.text(error, "name")
        found = _ERROR_NAMES.get(jsonline.text(error, "name"))
        status = jsonline.count(data, "statusCode")
        headers = jsonline.child(data, "responseHeaders")
        reset = _retry_after(jsonline.text(headers, "retry-after"), self._fold.now_ms)
        if reset is not None:
            self._fold.limit(reset)
        said = f"{text} {jsonline.text(data, 'responseBody')}".strip()
        kind, code = found or (None, "")
        return self._fold.failed(said, kind=kind, code=code, status=status)


def _retry_after(value: str, now_ms: int) -> int | None:
    return resets.from_seconds(int(value), now_ms) if value.isdigit() else None


def _usage(part: Object) -> Usage:
    """OpenCode counts cached input apart from `input`, and reasoning apart from `output`."""
    tokens = jsonline.child(part, "tokens")
    cache = jsonline.child(tokens, "cache")
    read, written = jsonline.count(cache, "read"), jsonline.count(cache, "write")
    plain, said = jsonline.count(tokens, "input"), jsonline.count(tokens, "output")
    reasoning = jsonline.count(tokens, "reasoning")
    cost = jsonline.dollars(part, "cost")
    return Usage(
        input_tokens=None if plain is None else plain + (read or 0) + (written or 0),
        cached_input_tokens=read,
        output_tokens=None if said is None else said + (reasoning or 0),
        reasoning_tokens=reasoning,
        # A price that OpenCode does not know is printed as 0, which is not a price.
        cost_microusd=cost or None,
    )
