"""The real Gemini CLI against the scripted model server: every case of the matrix, and what only Gemini does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loopx.hosts.protocol import Deadlines, HostEndKind, PermissionMode, SignedIn
from tests.hosts import cases, harness
from tests.hosts.harness import Rig
from tests.hosts.modelserver import serving
from tests.hosts.script import Fail, Say, Shell, Write

pytestmark = pytest.mark.real_cli

PATIENCE = Deadlines(first_event_s=30, idle_s=20, hard_s=60, grace_s=2)


@pytest.fixture
def rig() -> Iterator[Rig]:
    with serving() as server, harness.rig("gemini", server) as ready:
        yield ready


def test_edit_and_finish(rig: Rig) -> None:
    outcome = cases.edit_and_finish(rig)
    assert outcome.summary.usage.reasoning_tokens == rig.server.totals().reasoning
    assert outcome.summary.usage.cost_microusd is None
    assert outcome.summary.model == harness.MODELS["gemini"]


def test_false_done(rig: Rig) -> None:
    cases.false_done(rig)


def test_asks_a_person(rig: Rig) -> None:
    outbox = rig.root / "outbox"
    outbox.mkdir()
    cases.ask_a_person(rig, str(outbox / "result.json"))


def test_limit_with_reset(rig: Rig) -> None:
    """Gemini shows the provider's retry delay in its error."""
    detail = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{cases.RESET_S}s"}
    message = f"You exceeded your current quota. Please retry in {cases.RESET_S}s."
    refusal = Fail(status=429, kind="RESOURCE_EXHAUSTED", message=message, extra=(("details", [detail]),))
    cases.rate_limited(rig, refusal, reset_known=True)


@pytest.mark.parametrize(
    ("status", "word", "message", "kind"),
    [
        (401, "UNAUTHENTICATED", "API key not valid", HostEndKind.AUTH_FAILED),
        (400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", HostEndKind.AUTH_FAILED),
        (404, "NOT_FOUND", "models/nope is not found for API version v1beta", HostEndKind.WORKER_ERROR),
    ],
)
def test_refusals(rig: Rig, status: int, word: str, message: str, kind: HostEndKind) -> None:
    outcome = cases.refused(rig, Fail(status=status, kind=word, message=message), kind)
    assert outcome.end.bad_setup is (status == 404)


@pytest.mark.parametrize("status", [503, 529])
def test_overloaded(rig: Rig, status: int) -> None:
    """Gemini retries a 5xx in silence, longer than a test should wait: the deadline ends it and the log names it."""
    refusal = Fail(status=status, kind="UNAVAILABLE", message="The model is overloaded.")
    cases.refused(rig, refusal, HostEndKind.PROVIDER_OVERLOADED, deadlines=PATIENCE)


def test_no_credential(rig: Rig) -> None:
    rig.env = tuple(pair for pair in rig.env if pair[0] != "GEMINI_API_KEY")
    outcome = rig.run()
    assert outcome.record.exit_code == 41
    assert outcome.end.kind is HostEndKind.AUTH_FAILED, cases.explain(outcome)


def test_connection_cut(rig: Rig) -> None:
    cases.cut_mid_stream(rig)


def test_silence(rig: Rig) -> None:
    cases.silence(rig, 15)


def test_denied_tool(rig: Rig) -> None:
    rig.server.extend([Shell(command="curl http://example.invalid"), Say(text="Deployed.")])
    outcome = rig.run()
    assert outcome.record.exit_code == 0
    assert outcome.end.kind is HostEndKind.PERMISSION_DENIED, cases.explain(outcome)


def test_outside_the_work_tree_is_a_denial(rig: Rig) -> None:
    elsewhere = rig.home / "escaped.txt"
    rig.server.extend([Write(path=str(elsewhere), content="x"), Say(text="Done.")])
    outcome = rig.run()
    assert not elsewhere.exists()
    assert outcome.end.kind is HostEndKind.PERMISSION_DENIED, cases.explain(outcome)


def test_read_only(rig: Rig) -> None:
    rig.server.extend([Write(path=str(rig.work / "w.txt"), content="w"), Say(text="Done.")])
    outcome = rig.run(permission=PermissionMode.READ_ONLY)
    assert list(rig.work.iterdir()) == []
    assert outcome.end.kind is HostEndKind.PERMISSION_DENIED, cases.explain(outcome)


def test_bypass(rig: Rig) -> None:
    rig.server.extend([Shell(command="env > made.txt"), Say(text="Done.")])
    outcome = rig.run(permission=PermissionMode.BYPASS)
    assert (rig.work / "made.txt").exists(), cases.explain(outcome)


def test_file_tool_is_a_file_change(rig: Rig) -> None:
    rig.server.extend([Write(path=str(rig.work / "w.txt"), content="w"), Say(text="Done.")])
    outcome = rig.run()
    assert outcome.summary.file_changes == 1, cases.explain(outcome)
    assert outcome.end.kind is HostEndKind.SUCCESS


def test_resume(rig: Rig) -> None:
    cases.resumed(rig)


def test_dead_resume(rig: Rig) -> None:
    outcome = cases.dead_resume(rig, "9f4ec5d2-cf4d-4920-a66d-701625f69810")
    assert outcome.record.exit_code == 42
    assert rig.server.requests == []


def test_cancel(rig: Rig) -> None:
    cases.cancelled(rig)


def test_kill_9_and_adoption(rig: Rig) -> None:
    cases.killed_and_adopted(rig)


def test_probe(rig: Rig) -> None:
    found = rig.adapter.probe(rig.env, rig.program)
    assert found.version == "0.61.0"
    assert found.signed_in is SignedIn.YES
    (rig.home / ".gemini" / "settings.json").write_text("{}")
    without = tuple(pair for pair in rig.env if pair[0] != "GEMINI_API_KEY")
    assert rig.adapter.probe(without, rig.program).signed_in is SignedIn.NO
