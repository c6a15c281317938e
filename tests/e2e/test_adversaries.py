"""An agent that wants more than its turn: through its tools and through the command line, with its token, without it
and with somebody else's. Everything is refused, nothing changes, and each attempt is on record.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from loopx.control_plane.ids import AgentId
from loopx.runtime import replaying
from loopx.testing.leaks import LeakKind
from tests.e2e import services_kit as kit
from tests.e2e.cli_kit import Cli
from tests.e2e.test_mcp import _in_client, _text

ATTEMPTS: dict[str, tuple[list[str], str]] = {
    "gate answer": (["gate", "answer", "GATE", "yes"], "person_only"),
    "quota raise": (["quota", "raise", "fg", "--slots", "99"], "person_only"),
    "quota void": (["quota", "void", "fg", "1", "--reason", "x"], "person_only"),
    "goal edit": (["goal", "edit", "fg", "--check", "true"], "person_only"),
    "goal close": (["goal", "close", "fg"], "person_only"),
    "grant add": (["grant", "add", "fg", "--scope", "capability:deploy"], "person_only"),
    "todo supersede": (["todo", "supersede", "TODO"], "person_only"),
    "todo update": (["todo", "update", "TODO", "--check", "true"], "person_only"),
    "turn settle": (["turn", "settle", "fg", "--kind", "completion"], "inside_turn"),
    "capability request": (["capability", "request", "undeclared"], "capability_unknown"),
    "todo complete": (["todo", "complete", "OTHER"], "not_your_todo"),
}
"""What is tried on the command line, and with which code it is refused and recorded."""

AGENT = """
import subprocess, sys
def loopx(words, **changes):
    env = {**os.environ, **changes}
    env = {name: value for name, value in env.items() if value is not None}
    done = subprocess.run([sys.executable, "-m", "loopx", *words, "--json"], env=env, capture_output=True, text=True)
    return [done.returncode, json.loads(done.stdout.splitlines()[-1]).get("error", {}).get("code")]
told = json.loads(open(COUNT + ".told").read())
words = [[told.get(word, word) for word in line] for line in told["attempts"]]
said = [loopx(line) for line in words]
bare = [loopx(line, LOOPX_TURN_TOKEN=None) for line in words if line[:2] == ["gate", "answer"]]
foreign = loopx(["todo", "list"], LOOPX_TURN_TOKEN=told["token"])
open(COUNT + ".said", "w").write(json.dumps([said, bare, foreign]))
"""


def _refusals(cli: Cli, goal_id: str = "fg") -> list[dict[str, Any]]:
    events = cli.ok("log", goal_id, "--limit", "1000")["events"]
    return [event["body"] for event in events if event["kind"] in ("agent_refused", "capability_refused")]


@pytest.mark.leaves(LeakKind.OPEN_TURN, LeakKind.LEASE_OF_NOBODY, reason="the other turn is held open")
def test_on_the_command_line_every_attempt_is_refused_and_recorded(tmp_path: Path) -> None:
    cli = Cli(tmp_path, AGENT)
    cli.create("--todo", "first", "--todo", "second", "--todo", "third")
    first, second, _ = (todo["todo_id"] for todo in cli.ok("todo", "list", "fg")["todos"])
    gate = cli.ok("gate", "ask", "fg", "Ship it?", "--option", "yes", "--todo", second)["gate_id"]
    with contextlib.closing(cli.session()) as session:
        theirs = kit.open_turn(session, "fg", agent=AgentId("bob"))
    told = {"GATE": gate, "TODO": first, "OTHER": second, "token": theirs.token}
    attempts = [words for words, _ in ATTEMPTS.values()]
    Path(f"{cli.count}.told").write_text(json.dumps({**told, "attempts": attempts}))
    before = cli.ok("goal", "show", "fg")

    cli.loopx("run", "fg", "--no-wait", "--max-turns", "1")

    said, bare, foreign = json.loads(Path(f"{cli.count}.said").read_text())
    assert {name: code for name, (_, code) in zip(ATTEMPTS, said, strict=True)} == {
        name: code for name, (_, code) in ATTEMPTS.items()
    }
    assert all(status for status, _ in said)
    assert bare == [[11, "person_only"]], "without its token it is an agent all the same"
    assert foreign[1] == "token_foreign"

    recorded = [(body.get("what"), body["code"]) for body in _refusals(cli) if "code" in body]
    for name, (_, code) in ATTEMPTS.items():
        assert (name, code) in recorded, f"{name}: {recorded}"
    assert recorded.count(("gate answer", "person_only")) == 2
    assert ("todo list", "token_foreign") in recorded, "on record with the turn that tried"

    after = cli.ok("goal", "show", "fg")
    assert (after["revision"], after["state"]) == (before["revision"], before["state"])
    assert {one["gate_id"]: one["status"] for one in cli.ok("gate", "list", "fg")["gates"]}[gate] == "open"
    statuses = {todo["todo_id"]: todo["status"] for todo in cli.ok("todo", "list", "fg")["todos"]}
    assert sorted(statuses.values()) == ["claimed", "open", "open"], "bob's own, and the others"
    assert cli.ok("grant", "list", "fg")["grants"] == []


@pytest.mark.leaves(LeakKind.OPEN_TURN, LeakKind.LEASE_OF_NOBODY, reason="the tools are used in the middle of a turn")
def test_over_the_tools_every_attempt_is_refused_and_recorded(tmp_path: Path) -> None:
    world = kit.World(tmp_path, {})
    with world.session() as session:
        goal = kit.goal(session)
        turn = kit.open_turn(session, goal.goal_id)
        attempts = {
            "answer_gate": ({"gate_id": "g1", "answer": "yes"}, "tool_unknown"),
            "quota_raise": ({"slots": 99}, "tool_unknown"),
            "edit_check": ({"check": "true"}, "tool_unknown"),
            "request_capability": ({"name": "undeclared"}, "capability_unknown"),
            "complete_todo": ({"todo_id": "td-of-another"}, "not_your_todo"),
            "claim_todo": ({"todo_id": "td-nowhere"}, "todo_unknown"),
            "add_todo": ({"title": "x", "checks": ["true"]}, "arguments_invalid"),
        }

        async def work(client: Any) -> dict[str, str]:
            answers = {name: await client.call_tool(name, given) for name, (given, _) in attempts.items()}
            assert all(answer.is_error for answer in answers.values())
            return {name: _text(answer).split(":")[0] for name, answer in answers.items()}

        codes = {name: code for name, (_, code) in attempts.items()}
        assert _in_client(world, turn.token, work) == codes
        recorded = {
            str(body["what"]): body["code"] for body in kit.event_bodies(session, goal.goal_id, "agent_refused")
        }
        assert recorded == codes
        assert replaying.replay(session.store, goal.goal_id).agrees


def test_an_edit_of_the_settings_by_an_agent_grants_it_nothing(tmp_path: Path) -> None:
    """It writes itself a capability with the policy `grant`, asks for it, and a person is asked, with that in sight."""
    log = tmp_path / "log"
    declared = f'[capabilities.deploy]\\nargv = ["sh", "-c", "echo ran >> {log}"]\\npolicy = "grant"\\n'
    script = f"""
import subprocess, sys
open("loopx.toml", "w").write('{declared}')
done = subprocess.run([sys.executable, "-m", "loopx", "capability", "request", "deploy", "--json"],
                      capture_output=True, text=True)
open(COUNT + ".said", "w").write(done.stdout)
"""
    cli = Cli(tmp_path, script)
    cli.create()

    cli.loopx("run", "fg", "--no-wait", "--max-turns", "1")

    assert json.loads(Path(f"{cli.count}.said").read_text())["status"] == "requested"
    [gate] = cli.ok("gate", "list", "fg")["gates"]
    assert gate["kind"] == "capability" and "declared or changed by an agent" in gate["question"]
    assert not log.exists()
    cli.ok("gate", "answer", gate["gate_id"], "no")
    cli.loopx("run", "fg", "--no-wait", "--max-turns", "1")
    assert not log.exists()
