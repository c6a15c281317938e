"""The four provider dialects of the scripted model server: how a step of the script is spelled on the wire. Each is one
class with the same few methods; none holds state, and none decides what is answered.
"""

from __future__ import annotations

import itertools
import json
from typing import Any, Protocol
from urllib.parse import urlsplit

from tests.hosts.script import Call, Fail, Say, Shell, Spoken, Tokens, Tool

_ids = itertools.count(1)


def _id(prefix: str) -> str:
    return f"{prefix}_{next(_ids)}"


def aside_answer(body: dict[str, Any]) -> str:
    """An answer that fits any errand: JSON where a schema was asked for, else a few words."""
    config = body.get("generationConfig")
    if isinstance(config, dict) and ("responseJsonSchema" in config or "responseSchema" in config):
        return json.dumps({"reasoning": "scripted", "model_choice": "flash", "complexity_reasoning": "-", "title": "t"})
    return "A scripted title"


def _sse(data: Any, event: str | None = None) -> bytes:
    head = f"event: {event}\n" if event else ""
    text = data if isinstance(data, str) else json.dumps(data)
    return f"{head}data: {text}\n\n".encode()


class Dialect(Protocol):
    """One provider's wire format."""

    def is_aside(self, path: str, body: dict[str, Any]) -> bool: ...
    def unary(self, path: str, body: dict[str, Any]) -> bool: ...
    def whole(self, step: Say) -> dict[str, Any]: ...
    def begin(self, text: str) -> list[bytes]: ...
    def answer(self, step: Spoken, body: dict[str, Any]) -> list[bytes]: ...
    def refusal(self, step: Fail) -> dict[str, Any]: ...


class Responses:
    """`POST /v1/responses` (Codex)."""

    def is_aside(self, path: str, body: dict[str, Any]) -> bool:
        return not body.get("tools")

    def unary(self, path: str, body: dict[str, Any]) -> bool:
        return not body.get("stream", True)

    def whole(self, step: Say) -> dict[str, Any]:
        return {"id": _id("resp"), "output": [self._message(step.text)], "usage": self._usage(step.tokens)}

    def begin(self, text: str) -> list[bytes]:
        return [
            self._event("response.created", response={"id": _id("resp")}),
            self._event("response.output_item.added", output_index=0, item=self._message("")),
            self._event("response.output_text.delta", output_index=0, content_index=0, item_id="m", delta=text),
        ]

    def answer(self, step: Spoken, body: dict[str, Any]) -> list[bytes]:
        response = _id("resp")
        item = self._message(step.text) if isinstance(step, Say) else self._call(step)
        return [
            self._event("response.created", response={"id": response}),
            self._event("response.output_item.done", output_index=0, item=item),
            self._event("response.completed", response={"id": response, "usage": self._usage(step.tokens)}),
        ]

    def refusal(self, step: Fail) -> dict[str, Any]:
        return {"error": {"type": step.kind, "message": step.message, **dict(step.extra)}}

    def _event(self, kind: str, **fields: Any) -> bytes:
        return _sse({"type": kind, **fields}, kind)

    def _message(self, text: str) -> dict[str, Any]:
        return {
            "type": "message",
            "role": "assistant",
            "id": _id("msg"),
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }

    def _call(self, step: Call) -> dict[str, Any]:
        if isinstance(step, Tool):
            return {
                "type": "function_call",
                "id": _id("fc"),
                "call_id": _id("call"),
                "name": step.name,
                "namespace": f"mcp__{step.server}",
                "arguments": json.dumps(step.arguments),
            }
        command = step.command if isinstance(step, Shell) else f"printf %s '{step.content}' > '{step.path}'"
        arguments = json.dumps({"cmd": command})
        return {
            "type": "function_call",
            "id": _id("fc"),
            "call_id": _id("call"),
            "name": "exec_command",
            "arguments": arguments,
        }

    def _usage(self, tokens: Tokens) -> dict[str, Any]:
        return {
            "input_tokens": tokens.input,
            "input_tokens_details": {"cached_tokens": tokens.cached},
            "output_tokens": tokens.output,
            "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
            "total_tokens": tokens.input + tokens.output,
        }


class Messages:
    """`POST /v1/messages` (Claude Code). Anthropic counts uncached input apart, and does not split reasoning off."""

    def is_aside(self, path: str, body: dict[str, Any]) -> bool:
        return not body.get("tools")

    def unary(self, path: str, body: dict[str, Any]) -> bool:
        return not body.get("stream")

    def whole(self, step: Say) -> dict[str, Any]:
        return {**self._start(step.tokens), "content": [{"type": "text", "text": step.text}], "stop_reason": "end_turn"}

    def begin(self, text: str) -> list[bytes]:
        return [
            _sse({"type": "message_start", "message": self._start(None)}, "message_start"),
            self._block({"type": "text", "text": ""}),
            self._delta({"type": "text_delta", "text": text}),
        ]

    def answer(self, step: Spoken, body: dict[str, Any]) -> list[bytes]:
        if isinstance(step, Say):
            block: dict[str, Any] = {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": step.text}
            stop = "end_turn"
        else:
            name, arguments = self._tool(step)
            block = {"type": "tool_use", "id": _id("toolu"), "name": name, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
            stop = "tool_use"
        ending = {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}}
        return [
            _sse({"type": "message_start", "message": self._start(step.tokens)}, "message_start"),
            self._block(block),
            self._delta(delta),
            _sse({"type": "content_block_stop", "index": 0}, "content_block_stop"),
            _sse({**ending, "usage": {"output_tokens": step.tokens.output}}, "message_delta"),
            _sse({"type": "message_stop"}, "message_stop"),
        ]

    def refusal(self, step: Fail) -> dict[str, Any]:
        return {"type": "error", "error": {"type": step.kind, "message": step.message, **dict(step.extra)}}

    def _tool(self, step: Call) -> tuple[str, dict[str, Any]]:
        if isinstance(step, Tool):
            return f"mcp__{step.server}__{step.name}", step.arguments
        if isinstance(step, Shell):
            return "Bash", {"command": step.command, "description": "scripted"}
        return "Write", {"file_path": step.path, "content": step.content}

    def _start(self, tokens: Tokens | None) -> dict[str, Any]:
        read = tokens.cached if tokens else 0
        fresh = (tokens.input - tokens.cached) if tokens else 0
        output = tokens.output if tokens else 0
        return {
            "id": _id("msg"),
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-5",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {
                "input_tokens": fresh,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": read,
                "output_tokens": output,
            },
        }

    def _block(self, block: dict[str, Any]) -> bytes:
        return _sse({"type": "content_block_start", "index": 0, "content_block": block}, "content_block_start")

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _sse({"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta")


class Chat:
    """`POST /v1/chat/completions` (OpenCode)."""

    def is_aside(self, path: str, body: dict[str, Any]) -> bool:
        return not body.get("tools")

    def unary(self, path: str, body: dict[str, Any]) -> bool:
        return not body.get("stream")

    def whole(self, step: Say) -> dict[str, Any]:
        message = {"role": "assistant", "content": step.text}
        return {
            "id": _id("chat"),
            "object": "chat.completion",
            "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": self._usage(step.tokens),
        }

    def begin(self, text: str) -> list[bytes]:
        return [self._chunk({"role": "assistant", "content": text})]

    def answer(self, step: Spoken, body: dict[str, Any]) -> list[bytes]:
        if isinstance(step, Say):
            delta: dict[str, Any] = {"role": "assistant", "content": step.text}
            finish = "stop"
        else:
            name, arguments = self._tool(step)
            function = {"name": name, "arguments": json.dumps(arguments)}
            call = {"index": 0, "id": _id("call"), "type": "function", "function": function}
            delta = {"role": "assistant", "content": None, "tool_calls": [call]}
            finish = "tool_calls"
        return [
            self._chunk(delta),
            self._chunk({}, finish),
            self._chunk(None, usage=self._usage(step.tokens)),
            _sse("[DONE]"),
        ]

    def refusal(self, step: Fail) -> dict[str, Any]:
        return {"error": {"type": step.kind, "message": step.message, "code": step.kind, **dict(step.extra)}}

    def _tool(self, step: Call) -> tuple[str, dict[str, Any]]:
        if isinstance(step, Tool):
            return f"{step.server}_{step.name}", step.arguments
        if isinstance(step, Shell):
            return "bash", {"command": step.command, "description": "scripted"}
        return "write", {"filePath": step.path, "content": step.content}

    def _chunk(self, delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> bytes:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
        return _sse({"id": "chat_1", "object": "chat.completion.chunk", "model": "m", "choices": choices, **more})

    def _usage(self, tokens: Tokens) -> dict[str, Any]:
        return {
            "prompt_tokens": tokens.input,
            "completion_tokens": tokens.output,
            "total_tokens": tokens.input + tokens.output,
            "prompt_tokens_details": {"cached_tokens": tokens.cached},
            "completion_tokens_details": {"reasoning_tokens": tokens.reasoning},
        }


class Gemini:
    """`POST /v1beta/models/MODEL:streamGenerateContent?alt=sse` and the unary `:generateContent`."""

    def is_aside(self, path: str, body: dict[str, Any]) -> bool:
        return not body.get("tools")

    def unary(self, path: str, body: dict[str, Any]) -> bool:
        return urlsplit(path).path.endswith(":generateContent")

    def whole(self, step: Say) -> dict[str, Any]:
        return self._candidate([{"text": step.text}], "STOP", step.tokens)

    def begin(self, text: str) -> list[bytes]:
        return [_sse(self._candidate([{"text": text}], None, None))]

    def answer(self, step: Spoken, body: dict[str, Any]) -> list[bytes]:
        if isinstance(step, Say):
            part: dict[str, Any] = {"text": step.text}
        else:
            name, arguments = self._tool(step)
            part = {"functionCall": {"name": name, "args": arguments}}
        return [_sse(self._candidate([part], "STOP", step.tokens))]

    def refusal(self, step: Fail) -> dict[str, Any]:
        error = {"code": step.status, "message": step.message, "status": step.kind, **dict(step.extra)}
        return {"error": error}

    def _tool(self, step: Call) -> tuple[str, dict[str, Any]]:
        if isinstance(step, Tool):
            return f"mcp_{step.server}_{step.name}", step.arguments
        if isinstance(step, Shell):
            return "run_shell_command", {"command": step.command, "description": "scripted"}
        return "write_file", {"file_path": step.path, "content": step.content}

    def _candidate(self, parts: list[dict[str, Any]], finish: str | None, tokens: Tokens | None) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        if finish:
            candidate["finishReason"] = finish
        body: dict[str, Any] = {"candidates": [candidate], "modelVersion": "gemini-2.5-flash", "responseId": _id("r")}
        if tokens:
            body["usageMetadata"] = {
                "promptTokenCount": tokens.input,
                "cachedContentTokenCount": tokens.cached,
                "candidatesTokenCount": tokens.output - tokens.reasoning,
                "thoughtsTokenCount": tokens.reasoning,
                "totalTokenCount": tokens.input + tokens.output,
            }
        return body


def dialect_of(path: str) -> Dialect | None:
    """The dialect that a path belongs to, or None for side paths (token counting, telemetry)."""
    route = urlsplit(path).path
    if route.endswith("/responses"):
        return Responses()
    if route.endswith("/messages"):
        return Messages()
    if route.endswith("/chat/completions"):
        return Chat()
    if route.endswith((":streamGenerateContent", ":generateContent")):
        return Gemini()
    return None
