"""The typed result file: strict, bound to its turn, bounded, and never followed out of its place."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopx.hosts.protocol import Usage
from loopx.hosts.result_file import MAX_BYTES, RejectCode, ResultFileKind, parse, read, usage_of

KEY = "turn-1"


def body(**fields: object) -> bytes:
    return json.dumps({"turn_key": KEY, "kind": "progress", "summary": "s"} | fields).encode()


def test_whole_file() -> None:
    usage = {"input_tokens": 10, "cost_microusd": 5}
    continuation = {"mode": "successor", "todo_ids": ["t-1"]}
    found = parse(body(kind="completion", continuation=continuation, usage=usage), KEY).result
    assert found is not None
    assert found.kind is ResultFileKind.COMPLETION
    assert usage_of(found) == Usage(input_tokens=10, cost_microusd=5), "what is not claimed is unknown"


def test_no_file_is_no_result(tmp_path: Path) -> None:
    nothing = read(str(tmp_path / "none"), KEY)
    assert nothing.result is None
    assert nothing.reject is None
    assert parse(b" \n", KEY).reject is None


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (body(turn_key="turn-0"), RejectCode.FOREIGN_TURN),
        (body(turn_key=""), RejectCode.MALFORMED),
        (b"{", RejectCode.MALFORMED),
        (b"null", RejectCode.MALFORMED),
        (b"[" * 50_000, RejectCode.MALFORMED),
        (b"\xff\xfe{}", RejectCode.MALFORMED),
        (b'{"kind":"progress"}', RejectCode.MALFORMED),
        (body(kind="done"), RejectCode.MALFORMED),
        (body(approve=True), RejectCode.MALFORMED),
        (body(usage={"input_tokens": -1}), RejectCode.MALFORMED),
        (body(usage={"input_tokens": "9"}), RejectCode.MALFORMED),
        (body(usage={"input_tokens": 1.5}), RejectCode.MALFORMED),
        (body(summary="x" * 9000), RejectCode.MALFORMED),
        (body(summary="x" * MAX_BYTES), RejectCode.OVERSIZED),
        (body(kind="question"), RejectCode.QUESTION_MISSING),
        (body(kind="question", question={"text": ""}), RejectCode.MALFORMED),
        (body(question={"text": "Why?"}), RejectCode.QUESTION_UNEXPECTED),
        (body(continuation={"mode": "active_goal"}), RejectCode.CONTINUATION_UNEXPECTED),
        (body(kind="completion", continuation={"mode": "successor"}), RejectCode.CONTINUATION_CONTRADICTORY),
        (
            body(kind="completion", continuation={"mode": "no_followup", "todo_ids": ["t"]}),
            RejectCode.CONTINUATION_CONTRADICTORY,
        ),
    ],
)
def test_refused(raw: bytes, code: RejectCode) -> None:
    found = parse(raw, KEY)
    assert found.result is None
    assert found.reject is code


def test_links_folders_and_pipes_are_not_followed(tmp_path: Path) -> None:
    real = tmp_path / "real.json"
    real.write_bytes(body())
    link = tmp_path / "link.json"
    link.symlink_to(real)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert read(str(real), KEY).result is not None
    for path in (link, pipe, tmp_path):
        assert read(str(path), KEY).reject is RejectCode.NOT_A_FILE


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as handle:
        handle.truncate(10 << 30)
    assert read(str(path), KEY).reject is RejectCode.OVERSIZED


@given(st.binary(max_size=400))
def test_never_raises(raw: bytes) -> None:
    found = parse(raw, KEY)
    assert found.result is None or found.result.turn_key == KEY
