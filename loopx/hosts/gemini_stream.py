"""Folds Gemini CLI's stream-json lines. Its errors carry the provider's JSON inside a message, whose code is read
like an HTTP status; what it retries in silence is only in its log on stderr.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from loopx.hosts import ends, jsonline
from loopx.hosts.jsonline import Object
from loopx.hosts.protocol import HostEndKind, HostEvent, HostEventKind, LaunchRequest, StreamSummary, Usage
from loopx.hosts.stream import NOTHING, Events, Fold

_DENIED_TYPES = frozenset({"policy_violation", "tool_not_registered", "execution_denied", "permission_denied"})
"""A tool that the approval mode takes away is reported as not registered."""
_OUTSIDE = ("Path not in workspace", "Access denied")
_FILE_TOOLS = frozenset({"write_file", "replace", "edit"})
_RETRYING = re.compile(r"Attempt \d+ failed(?: with status (\d{3}))?[^\n]*")


class GeminiParser:
    """One run of `gemini --output-format stream-json`."""

    def __init__(self, request: LaunchRequest, now_ms: int) -> None:
        self._fold = Fold(request, now_ms)
        self._calls: dict[str, tuple[str, str]] = {}
        self._text = ""
        """The assistant's message so far; it comes in pieces."""

    def feed(self, line: bytes) -> Sequence[HostEvent]:
        """The events of one raw line; never raises."""
        value = jsonline.decode(line)
        if value is None:
            return NOTHING
        kind = jsonline.text(value, "type")
        spoken = self._spoken() if kind != "message" else NOTHING
        return [*spoken, *self._event(kind, value)]

    def _event(self, kind: str, value: Object) -> Events:
        match kind:
            case "init":
                return self._fold.session(jsonline.text(value, "session_id"), jsonline.text(value, "model"))
            case "message":
                return self._message(value)
            case "tool_use":
                return self._tool(value)
            case "tool_result":
                return self._tool_result(value)
            case "error":
                text = jsonline.clip(jsonline.text(value, "message"))
                return (HostEvent(kind=HostEventKind.ERROR, text=text),)
            case "result":
                return self._result(value)
            case _:
                return NOTHING

    def finish(self, stderr_tail: bytes) -> StreamSummary:
        """The summary."""
        fold = self._fold
        self._spoken()
        if not fold.terminal_seen and stderr_tail.strip():
            self._logged(stderr_tail)
        return fold.summary()

    def _logged(self, stderr_tail: bytes) -> None:
        found = list(_RETRYING.finditer(stderr_tail.decode("utf-8", "replace")))
        if found:
            status = found[-1][1]
            self._fold.trouble(found[-1][0], status=int(status) if status else None)
        elif self._fold.session_id is None:
            self._fold.trouble(ends.last_error_line(stderr_tail))

    def _message(self, value: Object) -> Events:
        if jsonline.text(value, "role") != "assistant":
            return NOTHING
        content = jsonline.text(value, "content")
        if jsonline.flag(value, "delta"):
            self._text = (self._text + content)[-16_000:]
            return NOTHING
        return self._fold.message(content)

    def _spoken(self) -> Events:
        said, self._text = self._text, ""
        return self._fold.message(said)

    def _tool(self, value: Object) -> Events:
        name = jsonline.text(value, "tool_name")
        parameters = jsonline.child(value, "parameters")
        said = jsonline.text(parameters, "command") or jsonline.text(parameters, "file_path")
        self._calls[jsonline.text(value, "tool_id")] = (name, said)
        return self._fold.tool(name, parameters, said)

    def _tool_result(self, value: Object) -> Events:
        name, said = self._calls.pop(jsonline.text(value, "tool_id"), ("", ""))
        if jsonline.text(value, "status") == "success":
            return self._fold.changed([said]) if name in _FILE_TOOLS else NOTHING
        error = jsonline.child(value, "error")
        message = jsonline.text(error, "message")
        if jsonline.text(error, "type") in _DENIED_TYPES or message.startswith(_OUTSIDE):
            # The call was counted when it was asked for; it did not happen.
            self._fold.tool_calls -= 1
            return self._fold.denied(name, said)
        return NOTHING

    def _result(self, value: Object) -> Events:
        fold = self._fold
        used = fold.used(_usage(jsonline.child(value, "stats")))
        done = fold.finished(fold.final_text)
        error = jsonline.child(value, "error")
        if jsonline.text(value, "status") != "error" and not error:
            return [*used, *done]
        text = jsonline.text(error, "message")
        failed = fold.failed(text)
        if fold.error_kind is HostEndKind.QUOTA_EXHAUSTED and fold.reset_at_ms is not None:
            # Gemini calls a per-minute or per-day limit a quota too; one that names its end is a limit.
            fold.error_kind, fold.error_code = HostEndKind.RATE_LIMITED, "usage_limit"
        return [*used, *done, *failed]


def _usage(stats: Object) -> Usage:
    """`output_tokens` leaves thoughts out; the total has them."""
    total, given = jsonline.count(stats, "total_tokens"), jsonline.count(stats, "input_tokens")
    said = jsonline.count(stats, "output_tokens")
    thoughts = None if total is None or given is None or said is None else max(0, total - given - said)
    return Usage(
        input_tokens=given,
        cached_input_tokens=jsonline.count(stats, "cached"),
        output_tokens=None if said is None else said + (thoughts or 0),
        reasoning_tokens=thoughts,
    )
