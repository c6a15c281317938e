"""The real Claude Code against the scripted model server: every case of the matrix, and what only Claude Code does."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopx.hosts.protocol import HostEndKind, McpServer, PermissionMode, SignedIn
from tests.hosts import cases, harness, mcp_stub
from tests.hosts.harness import Rig
from tests.hosts.modelserver import serving
from tests.hosts.script import Fail, Say, Shell, Write


@pytest.fixture
def rig() -> Iterator[Rig]:
    with serving() as server, harness.rig("claude", server) as ready:
        yield ready


def test_edit_and_finish(rig: Rig) -> None:
    outcome = cases.edit_and_finish(rig)
    assert not outcome.summary.usage_is_running_total
    assert outcome.summary.usage.cost_microusd
    assert outcome.summary.model == harness.MODELS["claude"]


@pytest.mark.real_cli
def test_false_done(rig: Rig) -> None:
    cases.false_done(rig)


@pytest.mark.real_cli
def test_asks_a_person_with_its_file_tool(rig: Rig) -> None:
    """Claude Code asks before a shell redirection with a variable, so the agent uses its file tool on the outbox."""
    outbox = rig.root / "outbox"
    outbox.mkdir()
    path = str(outbox / "result.json")
    body = json.dumps({"turn_key": "turn-ask", "kind": "question", "question": {"text": "Drop v1?"}})
    cases.ask_a_person(rig, path, Write(path=path, content=body))


@pytest.mark.real_cli
def test_subscription_limit_with_reset(rig: Rig) -> None:
    """With a subscription's token the unified headers become a typed event with the reset instant."""
    rig.env = (
        *(pair for pair in rig.env if pair[0] != "ANTHROPIC_API_KEY"),
        ("CLAUDE_CODE_OAUTH_TOKEN", "sk-ant-oat01-scripted-0000000000000000"),
    )
    headers = (
        ("anthropic-ratelimit-unified-status", "rejected"),
        ("anthropic-ratelimit-unified-reset", str(int(time.time()) + cases.RESET_S)),
        ("anthropic-ratelimit-unified-representative-claim", "five_hour"),
        ("retry-after", str(cases.RESET_S)),
    )
    refusal = Fail(status=429, kind="rate_limit_error", message="limit", headers=headers)
    outcome = cases.rate_limited(rig, refusal, reset_known=True)
    assert any(event.kind == "limit" for event in outcome.events)


@pytest.mark.real_cli
def test_api_key_limit_has_no_reset(rig: Rig) -> None:
    """With an API key Claude Code shows neither `retry-after` nor a reset: unknown, and nothing is made up."""
    headers = (("retry-after", str(cases.RESET_S)),)
    refusal = Fail(status=429, kind="rate_limit_error", message="would exceed your rate limit", headers=headers)
    cases.rate_limited(rig, refusal, reset_known=False)


@pytest.mark.real_cli
@pytest.mark.parametrize(
    ("status", "word", "message", "kind"),
    [
        (401, "authentication_error", "invalid x-api-key", HostEndKind.AUTH_FAILED),
        (400, "invalid_request_error", "Your credit balance is too low to go on.", HostEndKind.QUOTA_EXHAUSTED),
        (400, "invalid_request_error", "messages.0: no", HostEndKind.CONTRACT_REJECTED),
        (404, "not_found_error", "model: nope", HostEndKind.WORKER_ERROR),
        (529, "overloaded_error", "Overloaded", HostEndKind.PROVIDER_OVERLOADED),
    ],
)
def test_refusals(rig: Rig, status: int, word: str, message: str, kind: HostEndKind) -> None:
    outcome = cases.refused(rig, Fail(status=status, kind=word, message=message), kind)
    assert outcome.end.bad_setup is (status == 404)


@pytest.mark.real_cli
def test_not_signed_in(rig: Rig) -> None:
    rig.env = tuple(pair for pair in rig.env if pair[0] != "ANTHROPIC_API_KEY")
    outcome = rig.run()
    assert outcome.end.kind is HostEndKind.AUTH_FAILED, cases.explain(outcome)
    assert "setup-token" in outcome.end.fix
    assert rig.server.requests == []


@pytest.mark.real_cli
def test_connection_cut(rig: Rig) -> None:
    cases.cut_mid_stream(rig)


@pytest.mark.real_cli
def test_silence(rig: Rig) -> None:
    cases.silence(rig, 4)


@pytest.mark.real_cli
def test_denied_tool(rig: Rig) -> None:
    """Exit 0, subtype success, a confident last message: the denial and the untouched tree decide."""
    rig.server.extend([Shell(command="curl http://example.invalid"), Say(text="Deployed.")])
    outcome = rig.run()
    assert outcome.record.exit_code == 0
    assert outcome.end.kind is HostEndKind.PERMISSION_DENIED, cases.explain(outcome)
    assert outcome.end.bad_setup
    assert outcome.end.fix


@pytest.mark.real_cli
def test_a_denial_beside_progress_is_no_failure(rig: Rig) -> None:
    rig.server.extend([Shell(command="curl http://example.invalid"), cases.EDIT, Say(text="Done.")])
    outcome = rig.run()
    assert outcome.summary.denials == 1
    assert outcome.end.kind is HostEndKind.SUCCESS, cases.explain(outcome)


@pytest.mark.real_cli
def test_the_goals_checks_are_allowed(rig: Rig) -> None:
    tool = rig.work / "check.sh"
    tool.write_text("#!/bin/sh\necho checked > proof.txt\n")
    tool.chmod(0o755)
    rig.server.extend([Shell(command="./check.sh --all"), Say(text="Done.")])
    outcome = rig.run(allow_commands=("./check.sh",))
    assert (rig.work / "proof.txt").exists(), cases.explain(outcome)


@pytest.mark.real_cli
def test_read_only(rig: Rig) -> None:
    rig.server.extend([Write(path=str(rig.work / "w.txt"), content="w"), cases.EDIT, Say(text="Done.")])
    outcome = rig.run(permission=PermissionMode.READ_ONLY)
    assert list(rig.work.iterdir()) == []
    assert outcome.end.kind is HostEndKind.PERMISSION_DENIED, cases.explain(outcome)


@pytest.mark.real_cli
def test_bypass(rig: Rig) -> None:
    rig.server.extend([Shell(command="env > made.txt; true"), Say(text="Done.")])
    outcome = rig.run(permission=PermissionMode.BYPASS)
    assert (rig.work / "made.txt").exists(), cases.explain(outcome)


@pytest.mark.real_cli
@pytest.mark.skipif(os.geteuid() != 0, reason="Claude Code refuses full bypass only to root")
def test_bypass_as_root_is_refused_by_name(rig: Rig) -> None:
    rig.env = tuple(pair for pair in rig.env if pair[0] != "IS_SANDBOX")
    outcome = rig.run(permission=PermissionMode.BYPASS)
    assert outcome.end.kind is HostEndKind.PERMISSION_DENIED, cases.explain(outcome)
    assert outcome.end.code == "bypass_refused_as_root"


@pytest.mark.real_cli
def test_file_tool_is_a_file_change(rig: Rig) -> None:
    rig.server.extend([Write(path=str(rig.work / "w.txt"), content="w"), Say(text="Done.")])
    outcome = rig.run()
    assert outcome.summary.file_changes == 1
    assert outcome.end.kind is HostEndKind.SUCCESS


@pytest.mark.real_cli
def test_resume_counts_from_the_process(rig: Rig) -> None:
    """The second process's counters start again, so they are the second run's own without a delta."""
    first, second = cases.resumed(rig)
    assert not second.summary.usage_is_running_total
    assert second.summary.usage.cost_microusd is not None
    assert first.summary.usage.cost_microusd is not None
    assert second.summary.usage.cost_microusd < 2 * first.summary.usage.cost_microusd


@pytest.mark.real_cli
def test_dead_resume(rig: Rig) -> None:
    cases.dead_resume(rig, "9f4ec5d2-cf4d-4920-a66d-701625f69810")
    assert rig.server.requests == []


@pytest.mark.real_cli
def test_cancel(rig: Rig) -> None:
    cases.cancelled(rig)


@pytest.mark.real_cli
def test_kill_9_and_adoption(rig: Rig) -> None:
    cases.killed_and_adopted(rig)


@pytest.mark.real_cli
def test_nested_session_variables_do_not_reach_it(rig: Rig) -> None:
    rig.env = (*rig.env, ("CLAUDECODE", "1"), ("CLAUDE_CODE_ENTRYPOINT", "cli"), ("CLAUDE_CODE_SESSION_ID", "outer"))
    cases.edit_and_finish(rig)


@pytest.mark.real_cli
def test_tool_server_is_injected_for_one_run(rig: Rig) -> None:
    """The token is in no file and on no command line: the settings name the variable."""
    server = McpServer(
        name="loopx", argv=(sys.executable, mcp_stub.__file__), env=(("LOOPX_TURN_TOKEN", "tok-123456789"),)
    )
    rig.server.extend([mcp_stub.call("loopx", "get_turn"), Say(text="Read the turn.")])
    outcome = rig.run(mcp=server)
    assert outcome.summary.denials == 0, cases.explain(outcome)
    assert "token is tok-123456789" in json.dumps(rig.server.requests[-1].body)
    assert "tok-123456789" not in " ".join(outcome.plan.argv)
    assert all(b"tok-123456789" not in content for _, content in outcome.plan.files)


@pytest.mark.real_cli
def test_probe(rig: Rig, tmp_path: Path) -> None:
    found = rig.adapter.probe(rig.env, rig.program)
    assert found.version == "2.1.197"
    assert found.signed_in is SignedIn.YES
    signed_out = tuple(pair for pair in rig.env if pair[0] != "ANTHROPIC_API_KEY")
    lost = rig.adapter.probe(signed_out, rig.program)
    assert lost.signed_in is SignedIn.NO
    assert "setup-token" in lost.fix
