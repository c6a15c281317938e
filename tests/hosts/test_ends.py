"""The order in which an end is decided, as a table over the keeper's record and the stream's summary."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from loopx.hosts import ends, transcripts
from loopx.hosts import env as envs
from loopx.hosts.ends import classify, last_error_line
from loopx.hosts.gemini import EXIT_KINDS
from loopx.hosts.protocol import ExitRecord, HostEndKind, RetryPolicy, StopCause, StreamSummary
from loopx.hosts.redact import redact
from loopx.hosts.transcripts import Resume

RECORD = ExitRecord(
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
GOOD = StreamSummary(terminal_seen=True, tool_calls=2)
K = HostEndKind


def record(**changes: object) -> ExitRecord:
    return msgspec.structs.replace(RECORD, **changes)


def summary(**changes: object) -> StreamSummary:
    return msgspec.structs.replace(GOOD, **changes)


@pytest.mark.parametrize(
    ("rec", "summ", "tree", "kind", "code"),
    [
        (RECORD, GOOD, False, K.SUCCESS, ""),
        (RECORD, summary(tool_calls=0), True, K.SUCCESS, ""),
        (RECORD, summary(tool_calls=0), False, K.NO_OP, ""),
        (RECORD, summary(terminal_seen=False), True, K.UNKNOWN, "no_terminal_event"),
        (record(exit_code=None, signal=9), summary(terminal_seen=False), True, K.UNKNOWN, "signal_9"),
        (record(exit_code=2), GOOD, True, K.WORKER_ERROR, "exit_2"),
        (record(exit_code=None, signal=15), GOOD, True, K.UNKNOWN, "signal_15"),
        (record(exit_code=None, signal=15, stop=StopCause.AFTER_RESULT), GOOD, True, K.SUCCESS, ""),
        (record(exit_code=None, taken_over=True), GOOD, True, K.SUCCESS, ""),
        (RECORD, summary(is_error=True, error_kind=K.RATE_LIMITED), True, K.RATE_LIMITED, ""),
        (RECORD, summary(error_kind=K.TRANSPORT_LOST), True, K.SUCCESS, ""),
        (RECORD, summary(is_error=True), True, K.WORKER_ERROR, ""),
        (RECORD, summary(denials=1), False, K.PERMISSION_DENIED, "tool_denied"),
        (RECORD, summary(denials=1), True, K.SUCCESS, ""),
        (RECORD, summary(denials=1, file_changes=1), False, K.SUCCESS, ""),
        (record(stop=StopCause.CANCELLED, exit_code=None, signal=15), GOOD, True, K.CANCELLED, ""),
        (record(stop=StopCause.CANCELLED, handed_over=False), summary(terminal_seen=False), False, K.CANCELLED, ""),
        (record(stop=StopCause.HARD), summary(terminal_seen=False), True, K.EXECUTOR_TIMEOUT, "hard_deadline"),
        (record(stop=StopCause.OUTPUT_FLOOD), GOOD, True, K.OUTPUT_BUDGET_EXHAUSTED, "output_flood"),
        (record(stop=StopCause.DISK_FLOOR), GOOD, True, K.OUTPUT_BUDGET_EXHAUSTED, "disk_floor"),
        (record(handed_over=False, start_error="exec:ENOENT"), StreamSummary(), False, K.NOT_STARTED, "exec:ENOENT"),
        (record(handed_over=False, exit_code=41), StreamSummary(), False, K.AUTH_FAILED, "exit_41_auth"),
        (record(handed_over=False), StreamSummary(error_kind=K.RATE_LIMITED), False, K.RATE_LIMITED, ""),
        (record(exit_code=53), summary(terminal_seen=False), True, K.OUTPUT_BUDGET_EXHAUSTED, "output_budget"),
        (record(exit_code=55), summary(terminal_seen=False), False, K.PERMISSION_DENIED, "workspace_untrusted"),
        (record(exit_code=173), summary(terminal_seen=False), False, K.RATE_LIMITED, "http_429"),
    ],
)
def test_order(rec: ExitRecord, summ: StreamSummary, tree: bool, kind: HostEndKind, code: str) -> None:
    end = classify(rec, summ, tree, exit_kinds=EXIT_KINDS)
    assert (end.kind, end.code) == (kind, code)
    assert end.process is ends.END_RULES[kind].process


def test_a_limit_without_a_reset_backs_off() -> None:
    limited = summary(is_error=True, error_kind=K.RATE_LIMITED)
    assert classify(RECORD, limited, False).retry is RetryPolicy.BACKOFF
    known = msgspec.structs.replace(limited, reset_at_ms=5)
    assert classify(RECORD, known, False).retry is RetryPolicy.AT_RESET
    empty = msgspec.structs.replace(known, error_kind=K.QUOTA_EXHAUSTED)
    assert classify(RECORD, empty, False).retry is RetryPolicy.AT_RESET
    assert classify(RECORD, msgspec.structs.replace(empty, reset_at_ms=None), False).retry is RetryPolicy.AFTER_PERSON


def test_a_reset_belongs_to_a_limit_only() -> None:
    assert classify(RECORD, summary(reset_at_ms=5), True).reset_at_ms is None


def test_detail_is_short() -> None:
    said = summary(is_error=True, error_kind=K.WORKER_ERROR, error_text="line\n" * 500)
    assert len(classify(RECORD, said, False).detail) <= 500


@pytest.mark.parametrize(
    ("tail", "line"),
    [
        (b"", ""),
        (b"Error: Session not found\n\nStack backtrace:\n   0: <unknown>\n", "Error: Session not found"),
        (b"warming up\nError: it broke\n    at f (x.js:1)\nNode.js v20\n", "Error: it broke"),
        (b"just words\nmore words\n", "more words"),
        (b"\xff\xfe broken utf-8 but invalid api key\n", "\ufffd\ufffd broken utf-8 but invalid api key"),
    ],
)
def test_last_error_line(tail: bytes, line: str) -> None:
    assert last_error_line(tail) == line


@pytest.mark.parametrize(
    "secret",
    [
        "sk-ant-api03-abcdefgh12345678",
        "AIzaSyA1234567890abcdefghijklmnop",
        "ghp_abcdefghijklmnop1234",
        "eyJhbGciOiJIUzI1.eyJzdWIiOiIx.c2lnbmF0dXJl",
    ],
)
def test_redact(secret: str) -> None:
    assert secret not in redact(f"key {secret} was refused")
    assert redact("Bearer abcdefgh12345") == "Bearer [redacted]"
    assert redact("http://user:pass@host/") == "http://[redacted]@host/"
    assert redact("an ordinary sentence, with sk and keys") == "an ordinary sentence, with sk and keys"


def test_accounts_are_told_apart() -> None:
    one = (("HOME", "/home/a"), ("CODEX_HOME", "/x"))
    assert envs.account_key("codex", one) == envs.account_key("codex", (*one, ("PATH", "/bin")))
    assert envs.account_key("codex", one) != envs.account_key("codex", (("HOME", "/home/a"), ("CODEX_HOME", "/y")))
    assert envs.account_key("codex", one) != envs.account_key("claude", one)
    assert "/x" not in envs.account_key("codex", one)


def test_size_guard_before_a_resume(tmp_path: Path) -> None:
    env = (("HOME", str(tmp_path)),)
    codex = tmp_path / ".codex" / "sessions" / "2026" / "11" / "30"
    claude = tmp_path / ".claude" / "projects" / "-work"
    gemini = tmp_path / ".gemini" / "tmp" / "work" / "chats"
    for folder in (codex, claude, gemini):
        folder.mkdir(parents=True)
    (codex / "rollout-2026-11-30T00-00-00-0199-aa.jsonl").write_text("x" * 100)
    (claude / "0199-aa.jsonl").write_text("x" * 100)
    (gemini / "session-2026-11-30T00-00-0199-aaa.jsonl").write_text("x" * 100)
    for engine, session in (("codex", "0199-aa"), ("claude", "0199-aa"), ("gemini", "0199-aaa-bbbb")):
        assert transcripts.resume(engine, session, env) is Resume.FINE
        assert transcripts.resume(engine, session, env, limit_bytes=99) is Resume.TOO_BIG
        assert transcripts.resume(engine, "other-id", env) is Resume.MISSING
        assert transcripts.resume(engine, "*", env) is Resume.MISSING, "an id is never a pattern"
    assert transcripts.resume("opencode", "ses_1", env) is Resume.UNKNOWN
