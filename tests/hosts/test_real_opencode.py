"""The real OpenCode against the scripted model server: every case of the matrix, and what only OpenCode does.

OpenCode 1.18 sets itself up in a new home folder for some seconds before its first event, and it waits out provider
errors (429, 5xx, broken connections) in silence, however long; there the keeper's deadline ends the run, and
OpenCode's error log says why.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest

from loopx.hosts.protocol import Deadlines, HostEndKind, McpServer, PermissionMode, SignedIn, StopCause
from tests.hosts import cases, harness, mcp_stub
from tests.hosts.harness import Rig
from tests.hosts.modelserver import serving
from tests.hosts.script import Fail, Say, Shell, Step, Write

pytestmark = pytest.mark.real_cli

PATIENCE = Deadlines(first_event_s=25, idle_s=25, hard_s=60, grace_s=2)


@pytest.fixture
def rig() -> Iterator[Rig]:
    with serving() as server, harness.rig("opencode", server) as ready:
        yield ready


def test_edit_and_finish(rig: Rig) -> None:
    outcome = cases.edit_and_finish(rig)
    assert outcome.summary.usage.reasoning_tokens == rig.server.totals().reasoning
    assert outcome.summary.usage.cost_microusd is None, "an unknown price is unknown, not 0"
    assert not (rig.work / "opencode.json").exists()


def test_false_done(rig: Rig) -> None:
    cases.false_done(rig)


def test_asks_a_person(rig: Rig) -> None:
    outbox = rig.root / "outbox"
    outbox.mkdir()
    cases.ask_a_person(rig, str(outbox / "result.json"))


def test_limit_is_named_by_its_log(rig: Rig) -> None:
    """OpenCode sleeps until `Retry-After` without an event and without showing it: the reset stays unknown."""
    headers = (("retry-after", str(cases.RESET_S)),)
    refusal = Fail(status=429, kind="rate_limit_exceeded", message="Rate limit reached", headers=headers)
    cases.rate_limited(rig, refusal, reset_known=False, deadlines=PATIENCE)


def test_401(rig: Rig) -> None:
    refusal = Fail(status=401, kind="invalid_api_key", message="Incorrect API key")
    cases.refused(rig, refusal, HostEndKind.AUTH_FAILED)


def test_529(rig: Rig) -> None:
    refusal = Fail(status=529, kind="overloaded_error", message="Overloaded")
    cases.refused(rig, refusal, HostEndKind.PROVIDER_OVERLOADED, deadlines=PATIENCE)


def test_connection_cut(rig: Rig) -> None:
    cases.cut_mid_stream(rig, deadlines=PATIENCE)


def test_silence(rig: Rig) -> None:
    outcome = cases.silence(rig, 25)
    assert outcome.record.stop is StopCause.FIRST_EVENT


def test_denied_tool(rig: Rig) -> None:
    rig.server.extend([Shell(command="curl http://example.invalid"), Say(text="Deployed.")])
    outcome = rig.run()
    assert outcome.record.exit_code == 0
    assert outcome.end.kind is HostEndKind.PERMISSION_DENIED, cases.explain(outcome)


def test_denials_do_not_end_the_run(rig: Rig) -> None:
    """Elsewhere than the work tree, and a command off the list: refused, and the agent goes on."""
    elsewhere = str(rig.home / "escaped.txt")
    refused: list[Step] = [Write(path=elsewhere, content="x"), Shell(command="curl http://x.invalid")]
    rig.server.extend([*refused, cases.EDIT, Say(text="Done.")])
    outcome = rig.run()
    assert not (rig.home / "escaped.txt").exists()
    assert outcome.summary.denials == 2
    assert outcome.end.kind is HostEndKind.SUCCESS, cases.explain(outcome)


def test_the_projects_own_file_cannot_widen_permissions(rig: Rig) -> None:
    (rig.work / "opencode.json").write_text(json.dumps({"permission": {"bash": "allow"}}))
    rig.server.extend([Shell(command="env > leaked.txt"), Say(text="Done.")])
    rig.run()
    assert not (rig.work / "leaked.txt").exists()


def test_bypass(rig: Rig) -> None:
    rig.server.extend([Shell(command="env > made.txt"), Say(text="Done.")])
    outcome = rig.run(permission=PermissionMode.BYPASS)
    assert (rig.work / "made.txt").exists(), cases.explain(outcome)


def test_resume(rig: Rig) -> None:
    cases.resumed(rig)


def test_dead_resume(rig: Rig) -> None:
    cases.dead_resume(rig, "ses_000000000000000000000000")
    assert rig.server.requests == []


def test_cancel(rig: Rig) -> None:
    cases.cancelled(rig)


def test_kill_9_and_adoption(rig: Rig) -> None:
    cases.killed_and_adopted(rig)


def test_file_tool_is_a_file_change(rig: Rig) -> None:
    rig.server.extend([Write(path=str(rig.work / "w.txt"), content="w"), Say(text="Done.")])
    outcome = rig.run()
    assert outcome.summary.file_changes == 1, cases.explain(outcome)


def test_tool_server_is_injected_for_one_run(rig: Rig) -> None:
    server = McpServer(
        name="loopx", argv=(sys.executable, mcp_stub.__file__), env=(("LOOPX_TURN_TOKEN", "tok-123456789"),)
    )
    rig.server.extend([mcp_stub.call("loopx", "get_turn"), Say(text="Read the turn.")])
    outcome = rig.run(mcp=server)
    assert "token is tok-123456789" in json.dumps(rig.server.requests[-1].body), cases.explain(outcome)
    assert "tok-123456789" not in dict(outcome.plan.env)["OPENCODE_CONFIG_CONTENT"]


def test_probe(rig: Rig) -> None:
    found = rig.adapter.probe(rig.env, rig.program)
    assert found.version == "1.18.33"
    assert found.signed_in is SignedIn.UNKNOWN, "a provider of the person's own may need no credential"
    signed_in = rig.adapter.probe((*rig.env, ("OPENAI_API_KEY", "x")), rig.program)
    assert signed_in.signed_in is SignedIn.YES
