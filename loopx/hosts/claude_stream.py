"""Folds Claude Code's stream-json lines. Errors are believed only from the fields by which Claude Code reports its own
(the result object, a `<synthetic>` message, retry notices, rate-limit events), never from what the model wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loopx.hosts import ends, jsonline, resets
from loopx.hosts import usage as usages
from loopx.hosts.jsonline import Object
from loopx.hosts.protocol import HostEndKind, HostEvent, HostEventKind, LaunchRequest, StreamSummary, Usage
from loopx.hosts.stream import NOTHING, Events, Fold

Kind = HostEndKind

_ERROR_WORDS: Mapping[str, tuple[Kind, str]] = {
    "authentication_failed": (Kind.AUTH_FAILED, "sign_in_lapsed"),
    "oauth_org_not_allowed": (Kind.AUTH_FAILED, "oauth_org_not_allowed"),
    "billing_error": (Kind.QUOTA_EXHAUSTED, "out_of_credits"),
    "rate_limit": (Kind.RATE_LIMITED, "usage_limit"),
    "overloaded": (Kind.PROVIDER_OVERLOADED, "overloaded"),
    "model_not_found": (Kind.WORKER_ERROR, "model_unavailable"),
    "max_output_tokens": (Kind.OUTPUT_BUDGET_EXHAUSTED, "output_budget"),
}

_TERMINAL_REASONS: Mapping[str, tuple[Kind, str]] = {
    "blocking_limit": (Kind.RATE_LIMITED, "usage_limit"),
    "rapid_refill_breaker": (Kind.OUTPUT_BUDGET_EXHAUSTED, "rapid_refill_breaker"),
    "prompt_too_long": (Kind.OUTPUT_BUDGET_EXHAUSTED, "context_exhausted"),
    "max_turns": (Kind.OUTPUT_BUDGET_EXHAUSTED, "output_budget"),
    "budget_exhausted": (Kind.OUTPUT_BUDGET_EXHAUSTED, "output_budget"),
    "malformed_tool_use_exhausted": (Kind.OUTPUT_BUDGET_EXHAUSTED, "malformed_tool_use"),
    "structured_output_retry_exhausted": (Kind.CONTRACT_REJECTED, "structured_output"),
    "turn_setup_failed": (Kind.WORKER_ERROR, "turn_setup_failed"),
    "image_error": (Kind.CONTRACT_REJECTED, "image_error"),
    "aborted_streaming": (Kind.TRANSPORT_LOST, "aborted"),
    "aborted_tools": (Kind.UNKNOWN, "aborted"),
    "background_requested": (Kind.UNKNOWN, "background_requested"),
    "tool_deferred": (Kind.PERMISSION_DENIED, "tool_deferred"),
    "tool_deferred_unavailable": (Kind.PERMISSION_DENIED, "tool_deferred"),
}
"""How a run ended early, whatever `subtype` says. `completed` and reasons of newer versions are not here."""

_SUBTYPES: Mapping[str, tuple[Kind, str]] = {
    "error_max_turns": (Kind.OUTPUT_BUDGET_EXHAUSTED, "output_budget"),
    "error_max_budget_usd": (Kind.OUTPUT_BUDGET_EXHAUSTED, "output_budget"),
    "error_max_structured_output_retries": (Kind.CONTRACT_REJECTED, "structured_output"),
}

_FILE_TOOLS = {"Edit": "file_path", "MultiEdit": "file_path", "Write": "file_path", "NotebookEdit": "notebook_path"}
_WORDS_BEATEN_BY_TEXT = frozenset({"server_error", "unknown", "invalid_request", ""})
"""Claude Code's own words that say too little: the status and the message know better."""


class ClaudeParser:
    """One run of `claude -p --output-format stream-json --verbose`."""

    def __init__(self, request: LaunchRequest, now_ms: int) -> None:
        self._fold = Fold(request, now_ms)
        self._message_usage: dict[str, Usage] = {}
        self._file_calls: dict[str, str] = {}
        self._error_word = ""

    def feed(self, line: bytes) -> Sequence[HostEvent]:
        """The events of one raw line; never raises."""
        value = jsonline.decode(line)
        if value is None:
            return self._cut_result(line)
        match jsonline.text(value, "type"):
            case "system":
                return self._system(value)
            case "assistant":
                return self._assistant(value)
            case "user":
                return self._user(value)
            case "rate_limit_event":
                return self._rate_limit(jsonline.child(value, "rate_limit_info"))
            case "result":
                return self._result(value)
            case _:
                return NOTHING

    def finish(self, stderr_tail: bytes) -> StreamSummary:
        """The summary; without a result, usage is what the messages said until then (the least that was used)."""
        fold = self._fold
        if not fold.terminal_seen and stderr_tail.strip():
            fold.trouble(ends.last_error_line(stderr_tail))
        if not usages.is_known(fold.usage):
            for one in self._message_usage.values():
                fold.used(usages.add(fold.usage, one))
        return fold.summary()

    def _system(self, value: Object) -> Events:
        match jsonline.text(value, "subtype"):
            case "init":
                return self._fold.session(jsonline.text(value, "session_id"), jsonline.text(value, "model"))
            case "api_retry":
                word = jsonline.text(value, "error")
                status = jsonline.count(value, "error_status")
                found = _ERROR_WORDS.get(word) or ((None, "") if status else (Kind.TRANSPORT_LOST, "connection_lost"))
                said = f"retrying: {word or 'unknown'}"
                return self._fold.trouble(said, kind=found[0], code=found[1], status=status)
            case "permission_denied":
                return self._fold.denied(jsonline.text(value, "tool_name"), jsonline.text(value, "message"))
            case _:
                return NOTHING

    def _assistant(self, value: Object) -> Events:
        message = jsonline.child(value, "message")
        blocks = jsonline.children(message, "content")
        if jsonline.text(message, "model") == "<synthetic>":
            self._error_word = jsonline.text(value, "error") or self._error_word
            return NOTHING
        self._count(message)
        self._fold.recovered()
        events: list[HostEvent] = []
        for block in blocks:
            kind = jsonline.text(block, "type")
            if kind == "text" and not value.get("parent_tool_use_id"):
                events += self._fold.message(jsonline.text(block, "text"))
            elif kind == "tool_use":
                events += self._tool(block)
        return events

    def _tool(self, block: Object) -> Events:
        name = jsonline.text(block, "name")
        arguments = jsonline.child(block, "input")
        if name in _FILE_TOOLS:
            self._file_calls[jsonline.text(block, "id")] = jsonline.text(arguments, _FILE_TOOLS[name])
        said = jsonline.text(arguments, "command") or jsonline.text(arguments, "file_path")
        return self._fold.tool(name, arguments, said)

    def _user(self, value: Object) -> Events:
        events: list[HostEvent] = []
        for block in jsonline.children(jsonline.child(value, "message"), "content"):
            path = self._file_calls.pop(jsonline.text(block, "tool_use_id"), None)
            if (
                jsonline.text(block, "type") == "tool_result"
                and path is not None
                and not jsonline.flag(block, "is_error")
            ):
                events += self._fold.changed([path])
        return events

    def _rate_limit(self, info: Object) -> Events:
        """`rejected` is the limit itself; `allowed_warning` only says when it would reset."""
        reset = resets.from_unix(jsonline.count(info, "resetsAt"), self._fold.now_ms)
        status = jsonline.text(info, "status")
        if status == "rejected":
            broke = jsonline.text(info, "errorCode") == "credits_required"
            kind = Kind.QUOTA_EXHAUSTED if broke else Kind.RATE_LIMITED
            self._fold.trouble("", kind=kind, code="out_of_credits" if broke else "usage_limit")
            return self._fold.limit(reset, jsonline.text(info, "rateLimitType"))
        return (HostEvent(kind=HostEventKind.LIMIT, reset_at_ms=reset, text=status),) if status else NOTHING

    def _result(self, value: Object) -> Events:
        fold = self._fold
        events: list[HostEvent] = [*fold.session(jsonline.text(value, "session_id"))]
        events += self._denials(value)
        events += fold.used(_usage(value))
        error = self._error_of(value)
        if error is None:
            fold.recovered()
            return [*events, *fold.finished(jsonline.text(value, "result"))]
        text, kind, code, status = error
        fold.finished()
        return [*events, *fold.failed(text, kind=kind, code=code, status=status)]

    def _denials(self, value: Object) -> Events:
        """The result lists every denial, also those that had an event of their own."""
        listed = jsonline.children(value, "permission_denials")
        events: list[HostEvent] = []
        for denial in listed[self._fold.denials :]:
            said = jsonline.text(jsonline.child(denial, "tool_input"), "command")
            events += self._fold.denied(jsonline.text(denial, "tool_name"), said)
        return events

    def _error_of(self, value: Object) -> tuple[str, Kind | None, str, int | None] | None:
        status = jsonline.count(value, "api_error_status")
        reason = jsonline.text(value, "terminal_reason")
        subtype = jsonline.text(value, "subtype")
        typed = _TERMINAL_REASONS.get(reason) or _SUBTYPES.get(subtype)
        if not (jsonline.flag(value, "is_error") or status or typed or subtype.startswith("error")):
            return None
        text = jsonline.text(value, "result") or " ".join(jsonline.texts(value, "errors"))
        word = self._error_word if self._error_word not in _WORDS_BEATEN_BY_TEXT else ""
        found = typed or _ERROR_WORDS.get(word)
        return (text, *found, status or None) if found else (text, None, "", status or None)

    def _count(self, message: Object) -> None:
        counters = jsonline.child(message, "usage")
        if counters:
            self._message_usage[jsonline.text(message, "id")] = _sum(
                counters, "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens"
            )

    def _cut_result(self, line: bytes) -> Events:
        """A result whose text was so long that the keeper cut the line: its first fields still stand."""
        if not line.startswith(b'{"type":"result"'):
            return NOTHING
        self._fold.finished()
        if jsonline.salvage(line, "is_error") == "false":
            self._fold.recovered()
            return NOTHING
        status = jsonline.salvage(line, "api_error_status")
        return self._fold.failed("", status=int(status) if status and status.isdigit() else None)


def _usage(value: Object) -> Usage:
    """`modelUsage` (sub-agents and compaction included) where it says anything, else the main loop's own."""
    per_model = [one for one in jsonline.child(value, "modelUsage").values() if isinstance(one, dict)]
    total = Usage()
    for one in per_model:
        total = usages.add(
            total, _sum(one, "inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens", "outputTokens")
        )
    if not usages.is_known(total):
        names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
        total = _sum(jsonline.child(value, "usage"), *names)
    return usages.merge(total, Usage(cost_microusd=jsonline.dollars(value, "total_cost_usd")))


def _sum(counters: Object, fresh: str, read: str, written: str, output: str) -> Usage:
    """Claude counts cached input apart from `input`; here it is part of it."""
    plain = jsonline.count(counters, fresh)
    cached = jsonline.count(counters, read)
    created = jsonline.count(counters, written)
    return Usage(
        input_tokens=None if plain is None else plain + (cached or 0) + (created or 0),
        cached_input_tokens=cached,
        output_tokens=jsonline.count(counters, output),
    )
