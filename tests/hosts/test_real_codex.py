"""The real Codex CLI against the scripted model server: every case of the matrix, and what only Codex does."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopx.hosts.protocol import HostEndKind, McpServer, PermissionMode, SignedIn
from tests.hosts import cases, harness, mcp_stub
from tests.hosts.harness import Rig
from tests.hosts.modelserver import serving
from tests.hosts.script import Fail, Say, Shell


@pytest.fixture
def rig() -> Iterator[Rig]:
    with serving() as server, harness.rig("codex", server) as ready:
        yield ready


def test_edit_and_finish(rig: Rig) -> None:
    outcome = cases.edit_and_finish(rig)
    assert outcome.summary.usage_is_running_total


@pytest.mark.real_cli
def test_false_done(rig: Rig) -> None:
    cases.false_done(rig)


@pytest.mark.real_cli
def test_asks_a_person_from_inside_the_sandbox(rig: Rig) -> None:
    """The outbox is outside the work tree, so the adapter must open exactly that folder to the sandbox."""
    outbox = rig.root / "outbox"
    outbox.mkdir()
    cases.ask_a_person(rig, str(outbox / "result.json"))


@pytest.mark.real_cli
def test_usage_limit_with_reset(rig: Rig) -> None:
    """Codex turns the body's `resets_at` into a clock time in its own zone (UTC here)."""
    resets_at = int(time.time()) + cases.RESET_S
    extra = (("plan_type", "plus"), ("resets_at", resets_at), ("resets_in_seconds", cases.RESET_S))
    headers = (("x-codex-primary-used-percent", "100"), ("x-codex-primary-reset-at", str(resets_at)))
    refusal = Fail(status=429, kind="usage_limit_reached", message="limit", extra=extra, headers=headers)
    cases.rate_limited(rig, refusal, reset_known=True)


@pytest.mark.real_cli
def test_plain_429_has_no_reset(rig: Rig) -> None:
    """Codex keeps `Retry-After` to itself: the reset is unknown, and nothing is made up."""
    refusal = Fail(status=429, kind="rate_limit_exceeded", message="Rate limit", headers=(("Retry-After", "1"),))
    cases.rate_limited(rig, refusal, reset_known=False)


@pytest.mark.real_cli
@pytest.mark.parametrize(
    ("status", "word", "kind"),
    [
        (401, "invalid_api_key", HostEndKind.AUTH_FAILED),
        (429, "insufficient_quota", HostEndKind.QUOTA_EXHAUSTED),
        (404, "model_not_found", HostEndKind.WORKER_ERROR),
        (503, "server_is_overloaded", HostEndKind.PROVIDER_OVERLOADED),
        (529, "overloaded_error", HostEndKind.PROVIDER_OVERLOADED),
    ],
)
def test_refusals(rig: Rig, status: int, word: str, kind: HostEndKind) -> None:
    outcome = cases.refused(rig, Fail(status=status, kind=word, message="Refused by script"), kind)
    assert outcome.end.bad_setup is (status == 404)


@pytest.mark.real_cli
def test_full_context_wants_a_fresh_session(rig: Rig) -> None:
    refusal = Fail(status=400, kind="x", message="too big", extra=(("code", "context_length_exceeded"),))
    outcome = cases.refused(rig, refusal, HostEndKind.OUTPUT_BUDGET_EXHAUSTED)
    assert outcome.end.code == "context_exhausted"


@pytest.mark.real_cli
def test_connection_cut(rig: Rig) -> None:
    cases.cut_mid_stream(rig)


@pytest.mark.real_cli
def test_silence(rig: Rig) -> None:
    cases.silence(rig, 3)


@pytest.mark.real_cli
def test_denied_by_the_sandbox_is_never_a_success(rig: Rig) -> None:
    """Codex 0.171 prints no event for a command that its sandbox refused, so there is nothing to name: a no-op."""
    rig.server.extend([Shell(command="echo x > denied.txt"), Say(text="Written.")])
    outcome = rig.run(permission=PermissionMode.READ_ONLY)
    assert not (rig.work / "denied.txt").exists()
    assert outcome.end.kind is HostEndKind.NO_OP, cases.explain(outcome)


@pytest.mark.real_cli
def test_command_rejected_by_policy_is_a_denial(rig: Rig) -> None:
    """A command that Codex itself refuses is only in its log on stderr."""
    rig.server.extend([Shell(command="rm -rf /tmp/loopx-not-there"), Say(text="Removed.")])
    outcome = rig.run()
    assert outcome.end.kind is HostEndKind.PERMISSION_DENIED, cases.explain(outcome)


@pytest.mark.real_cli
def test_work_tree_only(rig: Rig) -> None:
    """`workspace-write` is the default: a write elsewhere in the home folder does not happen."""
    target = rig.home / "escaped.txt"
    rig.server.extend([Shell(command=f"echo x > {target}"), cases.EDIT, Say(text="Done.")])
    outcome = rig.run()
    assert not target.exists()
    assert outcome.end.kind is HostEndKind.SUCCESS, cases.explain(outcome)


@pytest.mark.real_cli
def test_bypass_writes_anywhere(rig: Rig) -> None:
    target = rig.home / "escaped.txt"
    rig.server.extend([Shell(command=f"echo x > {target}"), Say(text="Done.")])
    outcome = rig.run(permission=PermissionMode.BYPASS)
    assert target.exists()
    assert outcome.end.kind is HostEndKind.SUCCESS


@pytest.mark.real_cli
def test_no_sandbox_on_this_machine_is_a_setting(rig: Rig, tmp_path: Path) -> None:
    """With user namespaces used up, every command fails in its first line; the end names the cause and a fix."""
    unshare = shutil.which("unshare")
    closed = "echo 0 > /proc/sys/user/max_user_namespaces"
    if unshare is None or subprocess.run([unshare, "-Ur", "sh", "-c", closed], capture_output=True).returncode:
        pytest.skip("closing user namespaces for one process needs unshare(1) and an unprivileged user namespace")
    wrapper = tmp_path / "codex"
    wrapper.write_text(f'#!/bin/sh\nexec {unshare} -Ur sh -c \'{closed}; exec "$0" "$@"\' {rig.program} "$@"\n')
    wrapper.chmod(0o755)
    rig.server.extend([cases.EDIT, Say(text="Done.")])
    outcome = rig.run(pinned_program=str(wrapper))
    assert outcome.end.kind is HostEndKind.PERMISSION_DENIED, cases.explain(outcome)
    assert outcome.end.code == "sandbox_unavailable"
    assert outcome.end.bad_setup
    assert "bypass" in outcome.end.fix


@pytest.mark.real_cli
def test_resume_counts_its_own_tokens(rig: Rig) -> None:
    _, second = cases.resumed(rig)
    assert second.summary.usage.input_tokens == rig.server.totals().input, "Codex reports the thread's total"


@pytest.mark.real_cli
def test_dead_resume(rig: Rig) -> None:
    cases.dead_resume(rig, "01a22dde-5a97-7751-93dd-7eee550a6bdd")
    assert rig.server.requests == []


@pytest.mark.real_cli
def test_cancel(rig: Rig) -> None:
    cases.cancelled(rig)


@pytest.mark.real_cli
def test_kill_9_and_adoption(rig: Rig) -> None:
    cases.killed_and_adopted(rig)


@pytest.mark.real_cli
def test_file_tool_is_a_file_change(rig: Rig) -> None:
    patch = "apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: new.txt\n+hello\n*** End Patch\nEOF"
    rig.server.extend([Shell(command=patch), Say(text="Patched.")])
    outcome = rig.run()
    assert outcome.summary.file_changes == 1
    assert outcome.end.kind is HostEndKind.SUCCESS


@pytest.mark.real_cli
def test_long_prompt_on_standard_input(rig: Rig) -> None:
    rig.server.extend([cases.EDIT, Say(text="Done.")])
    outcome = rig.run("word " * 100_000)
    assert outcome.record.handed_over
    assert outcome.end.kind is HostEndKind.SUCCESS, cases.explain(outcome)
    assert json.dumps(rig.server.requests[0].body).count("word ") >= 100_000


@pytest.mark.real_cli
def test_tool_server_is_injected_for_one_run(rig: Rig) -> None:
    """The server answers a call with the turn's token from its environment; the token is on no command line."""
    server = McpServer(
        name="loopx", argv=(sys.executable, mcp_stub.__file__), env=(("LOOPX_TURN_TOKEN", "tok-123456789"),)
    )
    rig.server.extend([mcp_stub.call("loopx", "get_turn"), Say(text="Read the turn.")])
    outcome = rig.run(mcp=server)
    assert outcome.summary.tool_calls == 1, cases.explain(outcome)
    assert "tok-123456789" not in " ".join(outcome.plan.argv)
    assert "token is tok-123456789" in json.dumps(rig.server.requests[-1].body)


@pytest.mark.real_cli
def test_probe(rig: Rig) -> None:
    found = rig.adapter.probe(rig.env, rig.program)
    assert found.version == "0.171.0"
    assert found.signed_in is SignedIn.YES
    without = tuple(pair for pair in rig.env if pair[0] != "MOCK_KEY")
    assert rig.adapter.probe(without, rig.program).signed_in is SignedIn.NO
    (rig.home / "codex" / "config.toml").write_text("")
    signed_out = rig.adapter.probe(rig.env, rig.program)
    assert signed_out.signed_in is SignedIn.NO
    assert signed_out.fix == "codex login"
