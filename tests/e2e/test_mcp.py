"""The agent's tools, by the official client and by a real agent CLI: what they record, and what they refuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from loopx.control_plane.goal import GoalDefinition
from loopx.mcp_server import BY_NAME, TOOLS, schema_of
from loopx.runtime.session import Session
from loopx.store import evidence
from tests.e2e import services_kit as kit

pytestmark = pytest.mark.leaves("open_turn", reason="the tools are used in the middle of a turn")

SURFACE = {
    "get_turn",
    "list_todos",
    "claim_todo",
    "add_todo",
    "complete_todo",
    "add_evidence",
    "ask_person",
    "report_blocker",
    "nominate_no_change",
    "request_capability",
}


@pytest.fixture
def world(tmp_path: Path) -> kit.World:
    return kit.World(tmp_path, {})


@pytest.fixture
def session(world: kit.World) -> Iterator[Session]:
    with world.session() as opened:
        yield opened


def _environment(world: kit.World, token: str) -> dict[str, str]:
    return {**world.env, "LOOPX_TURN_TOKEN": token}


@asynccontextmanager
async def _client(world: kit.World, token: str, **env: str) -> AsyncIterator[ClientSession]:
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "loopx", "mcp", "--project", str(world.root)],
        env={**_environment(world, token), **env},
        cwd=str(world.root),
    )
    async with stdio_client(server) as (read, write), ClientSession(read, write) as client:
        await client.initialize()
        yield client


def _in_client(world: kit.World, token: str, work: Any, **env: str) -> Any:
    async def run() -> Any:
        async with _client(world, token, **env) as client:
            return await work(client)

    return anyio.run(run)


def _text(result: types.CallToolResult) -> str:
    first = result.content[0]
    assert isinstance(first, types.TextContent)
    return first.text


def test_the_tools_are_those_of_the_surface_and_none_that_decides(world: kit.World, session: Session) -> None:
    goal = kit.goal(session)
    turn = kit.open_turn(session, goal.goal_id)

    async def work(client: ClientSession) -> list[str]:
        return [tool.name for tool in (await client.list_tools()).tools]

    assert set(_in_client(world, turn.token, work)) == SURFACE
    words = " ".join(SURFACE)
    assert not any(word in words for word in ("answer", "raise", "grant", "approve", "edit", "settle"))


def test_schemas_are_closed_and_need_no_references() -> None:
    for tool in TOOLS:
        schema = schema_of(tool.arguments)
        assert schema["type"] == "object"
        assert schema["additionalProperties"] is False
        assert "$ref" not in json.dumps(schema)


def test_get_turn_tells_what_an_agent_may_know(world: kit.World, session: Session) -> None:
    goal = kit.goal(session, objective="paint it blue")
    turn = kit.open_turn(session, goal.goal_id)

    async def work(client: ClientSession) -> Any:
        return (await client.call_tool("get_turn", {})).structured_content

    told = _in_client(world, turn.token, work)
    assert told["objective"] == "paint it blue"
    assert told["turn_key"] == turn.turn_key
    assert told["todo"]["todo_id"] == turn.todo_id
    assert told["checks"] == [{"name": "test", "command": f"test -f {kit.WANTED}"}] or told["checks"][0]["command"]
    assert turn.token not in json.dumps(told)


def test_held_out_checks_are_never_told(world: kit.World, session: Session) -> None:
    from loopx.contracts.model import Contract
    from loopx.contracts.parse import parse_command_line
    from loopx.runtime import goal_service

    checks = parse_command_line(["test -f open.txt", "test -f secret.txt"])
    import msgspec

    hidden = (checks[0], msgspec.structs.replace(checks[1], held_out=True))
    definition = GoalDefinition(
        objective="x", contract=goal_service.encode_contract(Contract(checks=hidden)), engines=("command:true",)
    )
    goal = goal_service.create(session.store, session.project, definition, "tree")
    turn = kit.open_turn(session, goal.goal_id)

    async def work(client: ClientSession) -> str:
        return _text(await client.call_tool("get_turn", {}))

    told = _in_client(world, turn.token, work)
    assert "open.txt" in told
    assert "secret.txt" not in told


def test_what_an_agent_says_is_a_claim(world: kit.World, session: Session) -> None:
    """Completion, question, blocker and no-change are recorded, and change nothing by themselves."""
    goal = kit.goal(session)
    turn = kit.open_turn(session, goal.goal_id)

    async def work(client: ClientSession) -> None:
        for name, arguments in (
            ("complete_todo", {"summary": "all green, promise"}),
            ("ask_person", {"question": "Blue or green?", "choices": ["blue", "green"]}),
            ("report_blocker", {"blocker": "no paint"}),
            ("nominate_no_change", {"reason": "it is blue already"}),
            ("add_evidence", {"name": "speed", "metric": 12.5}),
        ):
            result = await client.call_tool(name, arguments)
            assert not result.is_error, _text(result)

    _in_client(world, turn.token, work)
    with session.store.read() as tx:
        said = [row["kind"] for row in tx.all("turns.claims", turn_key=turn.turn_key)]
        brought = evidence.of_turn(tx, turn.turn_key)
        todo = tx.one("todos.get", todo_id=turn.todo_id)
        assert tx.number("gates.any_open", goal_id=goal.goal_id) == 0
    assert said == ["completion", "question", "blocker", "no_change"]
    assert [one.produced for one in brought] == ["claimed"]
    assert todo is not None and todo["status"] == "claimed"
    assert kit.chain_holds(session, goal.goal_id)


def test_an_agent_divides_its_work(world: kit.World, session: Session) -> None:
    goal = kit.goal(session)
    turn = kit.open_turn(session, goal.goal_id)

    async def work(client: ClientSession) -> Any:
        first = (await client.call_tool("add_todo", {"title": "primer"})).structured_content
        second = (
            await client.call_tool("add_todo", {"title": "paint", "depends_on": [first["todo_id"]]})
        ).structured_content
        claimed = await client.call_tool("claim_todo", {"todo_id": first["todo_id"]})
        too_early = await client.call_tool("claim_todo", {"todo_id": second["todo_id"]})
        listed = (await client.call_tool("list_todos", {})).structured_content
        return claimed.is_error, too_early.is_error, [todo["title"] for todo in listed["todos"]]

    claimed, too_early, titles = _in_client(world, turn.token, work)
    assert (claimed, too_early) == (False, True)
    assert {"primer", "paint"} <= set(titles)


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("complete_todo", {"todo_id": "td-of-another"}, "not_your_todo"),
        ("complete_todo", {"successors": ["td-nowhere"]}, "todo_unknown"),
        ("claim_todo", {"todo_id": "td-nowhere"}, "todo_unknown"),
        ("add_todo", {"title": "x", "checks": ["true"]}, "arguments_invalid"),
        ("request_capability", {"name": "deploy"}, "capability_unknown"),
        ("answer_gate", {"gate_id": "g1", "answer": "yes"}, "tool_unknown"),
        ("quota_raise", {"slots": 100}, "tool_unknown"),
    ],
)
def test_refusals_are_answers(
    world: kit.World, session: Session, tool: str, arguments: dict[str, Any], code: str
) -> None:
    goal = kit.goal(session)
    turn = kit.open_turn(session, goal.goal_id)

    async def work(client: ClientSession) -> tuple[bool, str]:
        result = await client.call_tool(tool, arguments)
        return bool(result.is_error), _text(result)

    is_error, text = _in_client(world, turn.token, work)
    assert is_error
    assert text.startswith(f"{code}:")
    with session.store.read() as tx:
        assert tx.number("gates.any_open", goal_id=goal.goal_id) == 0


def test_refused_attempts_are_on_record(world: kit.World, session: Session) -> None:
    goal = kit.goal(session)
    turn = kit.open_turn(session, goal.goal_id)

    async def work(client: ClientSession) -> None:
        await client.call_tool("complete_todo", {"todo_id": "td-of-another"})

    _in_client(world, turn.token, work)
    assert kit.event_bodies(session, goal.goal_id, "agent_refused")[0]["code"] == "not_your_todo"


def test_a_token_dies_with_its_turn(world: kit.World, session: Session) -> None:
    """A call after the turn's end is refused, and the server leaves by itself although its input stays open."""
    goal = kit.goal(session)
    turn = kit.open_turn(session, goal.goal_id)
    server = subprocess.Popen(
        [sys.executable, "-m", "loopx", "mcp", "--project", str(world.root)],
        env=_environment(world, turn.token),
        cwd=world.root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert server.stdin is not None and server.stdout is not None
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }
    server.stdin.write(json.dumps(hello).encode() + b"\n")
    server.stdin.flush()
    answer = json.loads(server.stdout.readline())
    assert answer["result"]["serverInfo"]["name"] == "loopx"
    kit.close_turn(session, turn)
    assert server.wait(timeout=60) == 0
    assert server.stdout.read() == b""
    refused = world.loopx("mcp", LOOPX_TURN_TOKEN=turn.token)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert "token" in refused.stderr


def test_another_turns_token_is_refused_and_recorded(world: kit.World, session: Session) -> None:
    goal = kit.goal(session)
    turn = kit.open_turn(session, goal.goal_id)
    done = world.loopx("mcp", LOOPX_TURN_TOKEN=turn.token, LOOPX_TURN_KEY="turn-of-somebody-else")
    assert done.returncode == 2
    assert kit.event_bodies(session, goal.goal_id, "agent_refused")[0]["code"] == "token_foreign"


def test_no_token_no_tools(world: kit.World, session: Session) -> None:
    kit.goal(session)
    done = world.loopx("mcp", "--json")
    assert (done.returncode, done.stdout) == (2, "")


def test_the_real_codex_cli_uses_the_tools(world: kit.World, session: Session) -> None:
    """A whole turn by Codex: it reads the turn, edits a file, says that it is done; LoopX verifies and closes."""
    from loopx.runtime.goal_runner import GoalRunner, RunOptions, StopSignal
    from loopx.runtime.progress import silent
    from tests.hosts import harness
    from tests.hosts.modelserver import serving
    from tests.hosts.script import Say, Shell, Tool

    with serving() as server, harness.rig("codex", server) as rig:
        goal = kit.goal(session, engine="codex", model=harness.MODELS["codex"])
        server.extend(
            [
                Tool(server="loopx", name="get_turn"),
                Shell(command=f"echo yes > {kit.WANTED}"),
                Tool(server="loopx", name="complete_todo"),
                Say(text="Done."),
            ]
        )
        env = dict(rig.env)
        env["PATH"] = f"{os.path.dirname(rig.program)}{os.pathsep}{env['PATH']}"
        runner = GoalRunner(
            session.store,
            session.project,
            goal.goal_id,
            kit.AGENT,
            silent,
            env,
            RunOptions(),
            StopSignal(),
            session.clock,
        )
        ended = runner.run()
        asked = json.dumps([request.body for request in server.requests])
    assert (ended.goal_state, ended.exit_code) == ("completed", 0), ended
    assert f"test -f {kit.WANTED}" in asked, "Codex was told the turn by the tool"
    claimed = kit.event_bodies(session, goal.goal_id, "agent_claimed")
    assert [one["kind"] for one in claimed] == ["completion"]


def test_every_tool_has_a_description_that_fits_a_line() -> None:
    assert all(len(tool.description) <= 110 for tool in BY_NAME.values())
