"""Hosts that mislead, one test for each kind of fault in the field notes (sections B1 to B12 and B18), played by tiny
programs under the real keeper.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from loopx.hosts.protocol import Deadlines, HostEndKind, ProcessEnd, RetryPolicy, StopCause
from tests.hosts.fake import (
    CLAUDE_INIT,
    CODEX_DONE,
    CODEX_STARTED,
    NOW_MS,
    claude_result,
    claude_tool,
    codex_command,
    codex_item,
    line,
    play,
)


def test_identical_actions_are_counted(tmp_path: Path) -> None:
    """B1: thousands of identical tool calls; the breaker needs the longest run of them."""
    calls = [line(type="item.completed", item={"id": f"i{n}", "type": "mcp_tool_call", "tool": "update_goal"})
             for n in range(40)]  # fmt: skip
    outcome = play("codex", tmp_path, [CODEX_STARTED, *calls, codex_command("ls"), CODEX_DONE])
    assert outcome.summary.repeated_action == 40
    assert outcome.summary.tool_calls == 41


@pytest.mark.parametrize("engine", ["codex", "claude"])
def test_words_without_work_are_a_no_op(tmp_path: Path, engine: str) -> None:
    """B1, B2: no tool call, no diff, exit 0, and a last message that says all is done."""
    said = "All tests pass. STATUS: COMPLETE. EXIT_SIGNAL: true"
    codex = [CODEX_STARTED, codex_item("agent_message", text=said), CODEX_DONE]
    claude = [CLAUDE_INIT, claude_result(result=said)]
    outcome = play(engine, tmp_path, codex if engine == "codex" else claude)
    assert outcome.end.kind is HostEndKind.NO_OP
    assert outcome.end.process is ProcessEnd.CLEAN


def test_a_changed_tree_is_work_too(tmp_path: Path) -> None:
    """B2: no tool call is shown, but the tree changed: that is work."""
    outcome = play("codex", tmp_path, [CODEX_STARTED, CODEX_DONE], before="echo x > x.txt")
    assert outcome.end.kind is HostEndKind.SUCCESS


def test_limit_with_subtype_success_and_exit_0(tmp_path: Path) -> None:
    """B7: subtype success, is_error true, exit 0, the text on stdout."""
    text = "You've hit your session limit · resets 3:45pm (Europe/Vilnius)"
    outcome = play("claude", tmp_path, [CLAUDE_INIT, claude_tool(), claude_result(is_error=True, result=text)])
    assert outcome.record.exit_code == 0
    assert outcome.end.kind is HostEndKind.RATE_LIMITED
    assert outcome.end.retry is RetryPolicy.AT_RESET
    assert outcome.end.reset_at_ms is not None
    assert outcome.end.reset_at_ms > NOW_MS


def test_limit_words_in_content_are_content(tmp_path: Path) -> None:
    """B7: the agent reads and writes about limits, sign-in and 429; none of it is the host's own error."""
    prose = "5-hour limit reached ∙ resets 2am. HTTP 429 Too Many Requests. Please run /login. 401 Unauthorized"
    seen = codex_command("cat notes.md", output=prose)
    outcome = play("codex", tmp_path, [CODEX_STARTED, seen, codex_item("agent_message", text=prose), CODEX_DONE])
    assert outcome.end.kind is HostEndKind.SUCCESS
    assert outcome.end.reset_at_ms is None
    message = {"id": "m", "model": "claude", "content": [{"type": "text", "text": prose}]}
    claude = [CLAUDE_INIT, claude_tool(), line(type="assistant", message=message), claude_result(result=prose)]
    (tmp_path / "b").mkdir()
    assert play("claude", tmp_path / "b", claude).end.kind is HostEndKind.SUCCESS


def test_a_timeout_is_not_a_limit(tmp_path: Path) -> None:
    """B7: a host that hangs after reading a file about limits ran into the deadline, not into a limit."""
    seen = codex_command("cat a", output="usage limit reached, try again at 5pm")
    slow = Deadlines(first_event_s=60, idle_s=0.3, hard_s=60, grace_s=1)
    outcome = play("codex", tmp_path, [CODEX_STARTED, seen], after="sleep 600", deadlines=slow)
    assert outcome.record.stop is StopCause.IDLE
    assert outcome.end.kind is HostEndKind.EXECUTOR_TIMEOUT


def test_limit_event_rejected(tmp_path: Path) -> None:
    """B7: the typed event gives the instant."""
    resets_at = NOW_MS // 1000 + 7200
    info = {"status": "rejected", "resetsAt": resets_at, "rateLimitType": "five_hour"}
    event = line(type="rate_limit_event", rate_limit_info=info)
    result = claude_result(is_error=True, api_error_status=429, result="limit")
    outcome = play("claude", tmp_path, [CLAUDE_INIT, event, result], code=1)
    assert outcome.end.kind is HostEndKind.RATE_LIMITED
    assert outcome.end.reset_at_ms == resets_at * 1000


def test_a_warning_is_no_limit(tmp_path: Path) -> None:
    """B7: a warning at 90 % with a reset instant does not stop anything."""
    info = {"status": "allowed_warning", "resetsAt": NOW_MS // 1000 + 60, "utilization": 0.9}
    event = line(type="rate_limit_event", rate_limit_info=info)
    outcome = play("claude", tmp_path, [CLAUDE_INIT, event, claude_tool(), claude_result()])
    assert outcome.end.kind is HostEndKind.SUCCESS
    assert outcome.end.reset_at_ms is None


def test_already_limited_at_launch_is_a_wait(tmp_path: Path) -> None:
    """B7: the first thing a host says is that the limit is reached: not a failed attempt."""
    said = "You've hit your usage limit. Try again in 2 hours 5 minutes."
    failed = line(type="turn.failed", error={"message": said})
    outcome = play("codex", tmp_path, [CODEX_STARTED, failed], code=1)
    assert outcome.end.kind is HostEndKind.RATE_LIMITED
    assert outcome.end.reset_at_ms == NOW_MS + 125 * 60_000


def test_unknown_wording_is_not_guessed(tmp_path: Path) -> None:
    """B7: words that no table knows: the worker's own error, no reset, no wait made up."""
    failed = line(type="turn.failed", error={"message": "The flux is misaligned"})
    outcome = play("codex", tmp_path, [CODEX_STARTED, failed], code=1)
    assert outcome.end.kind is HostEndKind.WORKER_ERROR
    assert outcome.end.reset_at_ms is None
    assert outcome.end.detail == "The flux is misaligned"


@pytest.mark.parametrize(
    "said",
    [
        "Your refresh token was already used. Please log out and sign in again.",
        "unexpected status 401 Unauthorized: token expired",
        "OAuth token has expired",
        "Not logged in · Please run /login",
    ],
)
def test_lapsed_sign_in_is_one_typed_end(tmp_path: Path, said: str) -> None:
    """B8: one kind, whatever the wording, and the fix says what to run."""
    outcome = play("codex", tmp_path, [CODEX_STARTED, line(type="turn.failed", error={"message": said})], code=1)
    assert outcome.end.kind is HostEndKind.AUTH_FAILED
    assert outcome.end.auth_lapsed
    assert outcome.end.retry is RetryPolicy.AFTER_PERSON
    assert outcome.end.fix == "codex login"


def test_hang_after_the_result(tmp_path: Path) -> None:
    """B9: the result was seen, then the program hangs: it is ended, and the outcome is the result's."""
    slow = Deadlines(first_event_s=60, idle_s=60, after_result_s=0.3, hard_s=60, grace_s=1)
    lines = [CLAUDE_INIT, claude_tool(), claude_result()]
    outcome = play("claude", tmp_path, lines, after="sleep 600", deadlines=slow)
    assert outcome.record.stop is StopCause.AFTER_RESULT
    assert outcome.end.kind is HostEndKind.SUCCESS


def test_hang_at_start(tmp_path: Path) -> None:
    """B9: nothing is ever printed."""
    slow = Deadlines(first_event_s=0.3, idle_s=60, hard_s=60, grace_s=1)
    outcome = play("claude", tmp_path, [], after="sleep 600", deadlines=slow)
    assert outcome.record.stop is StopCause.FIRST_EVENT
    assert outcome.end.kind is HostEndKind.EXECUTOR_TIMEOUT
    assert outcome.end.code == "first_event_deadline"


def test_still_retrying_at_the_deadline_is_the_providers_doing(tmp_path: Path) -> None:
    """B7, B9: the last thing before the deadline was a retry of an overloaded provider."""
    retry = line(type="system", subtype="api_retry", attempt=9, error_status=529, error="overloaded")
    slow = Deadlines(first_event_s=60, idle_s=0.3, hard_s=60, grace_s=1)
    outcome = play("claude", tmp_path, [CLAUDE_INIT, retry], after="sleep 600", deadlines=slow)
    assert outcome.end.kind is HostEndKind.PROVIDER_OVERLOADED
    assert outcome.end.retry is RetryPolicy.BACKOFF


def test_a_retry_that_worked_is_history(tmp_path: Path) -> None:
    """B9: reconnects on the way do not spoil a run that went on."""
    notice = line(type="error", message="Reconnecting... 1/5 (stream disconnected before completion)")
    outcome = play("codex", tmp_path, [CODEX_STARTED, notice, codex_command("ls"), CODEX_DONE])
    assert outcome.end.kind is HostEndKind.SUCCESS


def test_end_without_a_terminal_event(tmp_path: Path) -> None:
    """C1: an interrupted turn prints neither of Codex's terminal events; exit 0 proves nothing."""
    outcome = play("codex", tmp_path, [CODEX_STARTED, codex_command("ls")])
    assert outcome.record.exit_code == 0
    assert outcome.end.kind is HostEndKind.UNKNOWN
    assert outcome.end.process is ProcessEnd.DIED


def test_killed_from_outside(tmp_path: Path) -> None:
    """B9: an out-of-memory kill."""
    outcome = play("codex", tmp_path, [CODEX_STARTED], after="kill -9 $$")
    assert outcome.end.kind is HostEndKind.UNKNOWN
    assert outcome.end.process is ProcessEnd.DIED
    assert outcome.end.code == "signal_9"


def test_dead_resume_prints_a_fresh_id(tmp_path: Path) -> None:
    """B12: a resume of a dead id prints another id, then fails: the id is to be dropped."""
    lines = [line(type="system", subtype="init", session_id="fresh", model="m")]
    stderr = "No conversation found with session ID: dead"
    outcome = play("claude", tmp_path, lines, code=1, stderr=stderr, resume_session="dead")
    assert outcome.end.kind is HostEndKind.SESSION_MISSING
    assert outcome.end.retry is RetryPolicy.FRESH_SESSION


@pytest.mark.parametrize("engine", ["codex", "claude"])
def test_dead_resume_that_did_nothing_in_a_fresh_session(tmp_path: Path, engine: str) -> None:
    """B12: another id comes back and the run ends politely without work."""
    codex = [CODEX_STARTED, codex_item("agent_message", text="Hello! What shall I do?"), CODEX_DONE]
    claude = [CLAUDE_INIT, claude_result(result="Hello! What shall I do?")]
    outcome = play(engine, tmp_path, codex if engine == "codex" else claude, resume_session="other")
    assert outcome.end.kind is HostEndKind.SESSION_MISSING
    assert outcome.end.code == "session_replaced"


def test_replaced_session_that_worked_goes_on_there(tmp_path: Path) -> None:
    """B12: some versions give a resumed session a new id; work is work, and the new id is handed back."""
    outcome = play("claude", tmp_path, [CLAUDE_INIT, claude_tool(), claude_result()], resume_session="older")
    assert outcome.end.kind is HostEndKind.SUCCESS
    assert outcome.summary.session_id == "s-1"


def test_session_id_in_use(tmp_path: Path) -> None:
    """B4, B12: a session id that another process holds."""
    outcome = play("claude", tmp_path, [], code=1, stderr="Error: Session ID abc-1 is already in use.")
    assert outcome.end.kind is HostEndKind.SESSION_MISSING
    assert outcome.end.retry is RetryPolicy.FRESH_SESSION


def test_cost_of_a_run_that_hit_a_limit_is_kept(tmp_path: Path) -> None:
    """B18: what was used before the limit was used."""
    result = claude_result(is_error=True, api_error_status=429, result="limit reached")
    outcome = play("claude", tmp_path, [CLAUDE_INIT, claude_tool(), result], code=1)
    usage = outcome.summary.usage
    assert (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens) == (140, 40, 20)
    assert usage.cost_microusd == 250_000


def test_cost_of_a_run_that_was_cut_off_is_kept(tmp_path: Path) -> None:
    """B18: no result line: what the messages counted is the least that was used; money stays unknown."""
    outcome = play("claude", tmp_path, [CLAUDE_INIT, claude_tool(), claude_tool()], after="kill -9 $$")
    assert outcome.summary.usage.input_tokens == 5, "one message, printed twice, is counted once"
    assert outcome.summary.usage.cost_microusd is None


def test_host_caps_are_a_budget(tmp_path: Path) -> None:
    """C4: the host's own cap on turns or money."""
    result = claude_result(subtype="error_max_turns", is_error=True, terminal_reason="max_turns")
    outcome = play("claude", tmp_path, [CLAUDE_INIT, claude_tool(), result], code=1)
    assert outcome.end.kind is HostEndKind.OUTPUT_BUDGET_EXHAUSTED


def test_a_result_that_the_keeper_had_to_cut(tmp_path: Path) -> None:
    """B5: one event larger than any line cap: its first fields decide, nothing crashes."""
    huge = claude_result(result="x" * (5 << 20))
    outcome = play("claude", tmp_path, [CLAUDE_INIT, claude_tool(), huge])
    assert outcome.record.truncated_lines == 1
    assert outcome.end.kind is HostEndKind.SUCCESS


def test_garbage_around_a_good_stream(tmp_path: Path) -> None:
    """B5, B10: binary, broken UTF-8, half lines and nulls between the events change nothing."""
    junk: list[str | bytes] = [
        b"\xff\xfe\x00garbage",
        "{",
        "null",
        "[]",
        '{"type":null}',
        '{"type":"item.completed"}',
        "",
    ]
    lines = [*junk, CODEX_STARTED, *junk, codex_command("ls"), *junk, CODEX_DONE, *junk]
    outcome = play("codex", tmp_path, lines)
    assert outcome.end.kind is HostEndKind.SUCCESS
    assert outcome.summary.usage.input_tokens == 100


def test_sandbox_that_cannot_work_here(tmp_path: Path) -> None:
    """C1: every command fails in its first line, then the agent gives up politely."""
    broken = "bwrap: Creating new namespace failed: Operation not permitted\n"
    lines = [CODEX_STARTED, codex_command("ls", broken, 1), codex_command("pwd", broken, 1), CODEX_DONE]
    outcome = play("codex", tmp_path, lines)
    assert outcome.end.kind is HostEndKind.PERMISSION_DENIED
    assert outcome.end.bad_setup
    assert outcome.end.code == "sandbox_unavailable"


def test_one_failing_command_is_not_a_broken_sandbox(tmp_path: Path) -> None:
    broken = "bwrap: something\n"
    lines = [CODEX_STARTED, codex_command("ls", broken, 1), codex_command("pwd"), CODEX_DONE]
    assert play("codex", tmp_path, lines).end.kind is HostEndKind.SUCCESS


def test_program_that_is_not_there(tmp_path: Path) -> None:
    """B9: a program that cannot be entered was never handed the task."""
    outcome = play("command:/nonexistent/agent", tmp_path, [], pinned_program=None)
    assert outcome.end.kind is HostEndKind.NOT_STARTED
    assert not outcome.end.handed_over
    assert outcome.end.retry is RetryPolicy.AFTER_PERSON
    assert outcome.end.code == "exec:ENOENT"


def test_secrets_stay_out_of_the_detail(tmp_path: Path) -> None:
    said = "Incorrect API key provided: sk-proj-abcdefgh12345678"
    outcome = play("codex", tmp_path, [CODEX_STARTED, line(type="turn.failed", error={"message": said})], code=1)
    assert "abcdefgh" not in outcome.end.detail
    assert outcome.end.kind is HostEndKind.AUTH_FAILED


def test_reset_across_midnight(tmp_path: Path) -> None:
    """B11: it is 00:53 UTC, and "resets 12:30am (UTC)" is past: the next night's."""
    result = claude_result(is_error=True, result="You've hit your limit · resets 12:30am (UTC)")
    outcome = play("claude", tmp_path, [CLAUDE_INIT, result])
    expected = datetime.fromtimestamp(NOW_MS / 1000, UTC).replace(hour=0, minute=30, second=0) + timedelta(days=1)
    assert outcome.end.reset_at_ms == round(expected.timestamp() * 1000)


def test_stream_is_told_as_it_goes(tmp_path: Path) -> None:
    """B17: events in the common vocabulary, in order, with what a person wants to see."""
    lines = [CODEX_STARTED, codex_command("pytest -q"), codex_item("agent_message", text="Fixed."), CODEX_DONE]
    outcome = play("codex", tmp_path, lines)
    assert [event.kind for event in outcome.events] == ["session", "tool_call", "message", "usage", "result"]
    assert outcome.events[1].text == "pytest -q"
