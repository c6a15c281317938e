"""Any program as an engine, run for real under the keeper: prompt, identity, exit, typed result."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import msgspec
import pytest

from loopx.control_plane.errors import UsageError
from loopx.hosts.command import CommandAdapter
from loopx.hosts.protocol import HostEndKind, ProcessEnd, StopCause, Usage
from tests.hosts import fake
from tests.hosts.harness import Outcome, drive


def run(tmp_path: Path, script: str, **request: object) -> Outcome:
    """Runs `sh -c SCRIPT` as the engine."""
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    fields = {"run_id": f"run-{tmp_path}", "workdir": str(work), "spool_dir": str(tmp_path / "spool")} | request
    adapter = CommandAdapter(shlex.join(["sh", "-c", script]))
    return drive(adapter, msgspec.structs.replace(fake.BLANK, **fields), fake.ENV)


def test_prompt_and_identity(tmp_path: Path) -> None:
    script = (
        'cat > prompt.txt; cmp prompt.txt "$LOOPX_PROMPT_FILE" && '
        'printf "%s %s %s" "$LOOPX_GOAL_ID" "$LOOPX_TURN_KEY" "$PWD" > id.txt; echo done'
    )
    outcome = run(tmp_path, script, prompt="long " * 100_000)
    assert outcome.end.kind is HostEndKind.SUCCESS
    assert (tmp_path / "work" / "id.txt").read_text() == f"goal-1 turn-1 {tmp_path}/work"
    assert outcome.summary.final_text == "done"
    assert outcome.summary.usage == Usage(), "unknown, not 0"


def test_exit_0_without_any_work_is_a_no_op(tmp_path: Path) -> None:
    assert run(tmp_path, "echo All done").end.kind is HostEndKind.NO_OP


def test_exit_code_is_the_programs_own_error(tmp_path: Path) -> None:
    outcome = run(tmp_path, "echo x > x.txt; echo 'boom: it failed' >&2; exit 3")
    assert outcome.end.kind is HostEndKind.WORKER_ERROR
    assert outcome.end.code == "exit_3"
    assert outcome.end.process is ProcessEnd.WORKER_ERROR
    assert outcome.end.detail == "boom: it failed"


def test_nothing_is_read_out_of_its_words(tmp_path: Path) -> None:
    said = "usage limit reached, resets 5pm; 401 Unauthorized; No conversation found"
    outcome = run(tmp_path, f"echo x > x.txt; echo '{said}'; echo '{said}' >&2")
    assert outcome.end.kind is HostEndKind.SUCCESS
    assert outcome.end.reset_at_ms is None


def test_typed_result(tmp_path: Path) -> None:
    body = json.dumps(
        {"turn_key": "turn-1", "kind": "no_change", "summary": "Nothing to do", "usage": {"input_tokens": 7}}
    )
    outcome = run(tmp_path, f"printf %s '{body}' > \"$LOOPX_RESULT_FILE\"")
    assert outcome.end.kind is HostEndKind.SUCCESS, "it used its one tool"
    assert outcome.summary.final_text == "Nothing to do"
    assert outcome.summary.usage == Usage(input_tokens=7)


def test_reported_error_beats_exit_0(tmp_path: Path) -> None:
    body = json.dumps({"turn_key": "turn-1", "kind": "error", "summary": "could not"})
    outcome = run(tmp_path, f"printf %s '{body}' > \"$LOOPX_RESULT_FILE\"; echo x > x.txt")
    assert outcome.end.kind is HostEndKind.WORKER_ERROR
    assert outcome.end.code == "result_error"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ('{"turn_key": "turn-0", "kind": "completion"}', "result_foreign_turn"),
        ("DONE!!!", "result_malformed"),
        ('{"turn_key": "turn-1", "kind": "approved"}', "result_malformed"),
        ("x" * 70_000, "result_oversized"),
    ],
    ids=["of another turn", "garbage", "unknown kind", "oversized"],
)
def test_forged_results_are_rejected(tmp_path: Path, content: str, code: str) -> None:
    forged = tmp_path / "forged"
    forged.write_text(content)
    outcome = run(tmp_path, f'cp {forged} "$LOOPX_RESULT_FILE"; echo x > x.txt')
    assert outcome.end.kind is HostEndKind.CONTRACT_REJECTED
    assert outcome.end.code == code
    assert outcome.summary.usage == Usage()


def test_stale_result_of_a_crashed_run_is_rejected(tmp_path: Path) -> None:
    """B3: a signal left by an earlier run must not end this one."""
    outbox = tmp_path / "out" / "result.json"
    outbox.parent.mkdir()
    outbox.write_text('{"turn_key": "turn-0", "kind": "completion"}')
    outcome = run(tmp_path, "echo x > x.txt", env=(("LOOPX_RESULT_FILE", str(outbox)),))
    assert outcome.end.kind is HostEndKind.CONTRACT_REJECTED


def test_cancel(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    adapter = CommandAdapter("sh -c 'echo started; exec sleep 600'")
    fields = {"run_id": f"run-{tmp_path}", "workdir": str(work), "spool_dir": str(tmp_path / "spool")}
    outcome = drive(adapter, msgspec.structs.replace(fake.BLANK, **fields), fake.ENV, should_cancel=lambda: True)
    assert outcome.end.kind is HostEndKind.CANCELLED
    assert outcome.record.stop is StopCause.CANCELLED


def test_words_are_split_and_not_run_by_a_shell() -> None:
    assert CommandAdapter("agent 'two words' $HOME ;").argv == ("agent", "two words", "$HOME", ";")
    for bad in ("", "  ", "agent 'open"):
        with pytest.raises(UsageError) as refused:
            CommandAdapter(bad)
        assert refused.value.code == "bad_engine_command"
