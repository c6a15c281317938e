"""No line, however broken, makes a parser raise or makes a run look better than it was (hosts, "robust stream
parsers")."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopx.hosts.protocol import ExitRecord, HostEndKind, HostEvent, LaunchRequest, StopCause
from loopx.hosts.registry import adapter_for
from tests.hosts import fake

ENGINES = ("codex", "claude", "opencode", "gemini", "command:true")

REQUEST = LaunchRequest(run_id="r", turn_key="t", goal_id="g", workdir="/w", spool_dir="/nonexistent", prompt="p")
CLEAN = ExitRecord(
    run_id="r",
    turn_key="t",
    started_at_ms=0,
    ended_at_ms=1,
    handed_over=True,
    exit_code=0,
    signal=None,
    stop=StopCause.NONE,
    result_seen=True,
)

_words = st.sampled_from(
    [
        "type",
        "item",
        "part",
        "error",
        "message",
        "usage",
        "tokens",
        "status",
        "result",
        "text",
        "id",
        "sessionID",
        "session_id",
        "thread_id",
        "subtype",
        "is_error",
        "thread.started",
        "item.completed",
        "item.started",
        "turn.completed",
        "turn.failed",
        "command_execution",
        "file_change",
        "assistant",
        "user",
        "system",
        "init",
        "rate_limit_event",
        "rate_limit_info",
        "resetsAt",
        "rejected",
        "tool_use",
        "tool_result",
        "step_finish",
        "step_start",
        "stats",
        "content",
        "name",
        "input",
        "output",
        "delta",
        "data",
        "statusCode",
        "cache",
        "modelUsage",
        "permission_denials",
        "errors",
        "terminal_reason",
        "state",
        "exit_code",
        "aggregated_output",
        "changes",
        "path",
        "model",
        "error_status",
        "api_retry",
        "tool_name",
        "stop",
        "reason",
    ]
)
_leaves = st.none() | st.booleans() | st.integers() | st.floats() | _words | st.text(max_size=20)
_values = st.recursive(
    _leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_words | st.text(max_size=5), inner, max_size=6),
    max_leaves=25,
)
_objects = st.dictionaries(_words, _values, max_size=8)
_lines = (
    st.binary(max_size=60)
    | _objects.map(lambda value: json.dumps(value).encode())
    | _values.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass"))
)


@pytest.mark.parametrize("engine", ENGINES)
@given(lines=st.lists(_lines, max_size=8), stderr=st.binary(max_size=200))
@settings(max_examples=150, deadline=None)
def test_anything_may_come(engine: str, lines: list[bytes], stderr: bytes) -> None:
    adapter = adapter_for(engine)
    parser = adapter.parser(REQUEST, fake.NOW_MS)
    for line in lines:
        assert all(isinstance(event, HostEvent) for event in parser.feed(line))
    summary = parser.finish(stderr)
    end = adapter.classify(CLEAN, summary, tree_changed=False)
    worked = summary.tool_calls or summary.file_changes
    assert end.kind is not HostEndKind.SUCCESS or worked or engine.startswith("command")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "line",
    [
        b"x" * (1 << 20),
        b'{"type":"' + b"y" * (1 << 20),
        json.dumps({"type": "result", "result": "z" * (1 << 20)}).encode(),
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"type":"result","num_turns":1e999}',
        b"\xff\xfe\xfd",
        b'{"type":"assistant","message":{"content":[null,1,"x",{}]}}',
        b'{"type":"item.completed","item":[]}',
        b'{"type":"turn.completed","usage":{"input_tokens":-1,"output_tokens":"7","cached_input_tokens":true}}',
    ],
    ids=range(10),
)
def test_monsters(engine: str, line: bytes) -> None:
    parser = adapter_for(engine).parser(REQUEST, fake.NOW_MS)
    parser.feed(line)
    usage = parser.finish(b"").usage
    assert usage.input_tokens is None, "a counter that is no count is unknown"


@pytest.mark.parametrize("engine", ENGINES)
def test_unknown_events_and_fields_are_ignored(engine: str) -> None:
    parser = adapter_for(engine).parser(REQUEST, fake.NOW_MS)
    if not engine.startswith("command"):
        assert list(parser.feed(b'{"type":"brand.new","payload":{"deep":[1]}}')) == []
    assert not parser.finish(b"").is_error
