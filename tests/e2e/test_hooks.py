"""The Stop hook: only for its own run, once, and never in a host's way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopx.runtime import agent_service, hooks
from loopx.runtime.session import Session
from loopx.testing.leaks import LeakKind
from tests.e2e import services_kit as kit

pytestmark = pytest.mark.leaves(
    LeakKind.OPEN_TURN, LeakKind.LEASE_OF_NOBODY, reason="turns are held open, as if a host was at work"
)


@pytest.fixture
def world(tmp_path: Path) -> kit.World:
    return kit.World(tmp_path, {})


@pytest.fixture
def session(world: kit.World) -> Iterator[Session]:
    with world.session() as opened:
        yield opened


def _call(world: kit.World, given: object, **env: str) -> dict[str, str]:
    """Run the hook as a host does; its answer."""
    done = subprocess.run(
        hooks.command(),
        input=given if isinstance(given, bytes) else json.dumps(given).encode(),
        env={**world.env, **env},
        cwd=world.root,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout or b"{}")


def _given(world: kit.World, *, active: bool = False) -> dict[str, object]:
    return {"session_id": "s", "cwd": str(world.root), "stop_hook_active": active, "hook_event_name": "Stop"}


def test_a_silent_agent_is_reminded(world: kit.World, session: Session) -> None:
    turn = kit.open_turn(session, kit.goal(session).goal_id)
    answer = _call(world, _given(world), LOOPX_TURN_TOKEN=turn.token)
    assert answer["decision"] == "block"
    assert "complete_todo" in answer["reason"]


def test_it_reminds_once(world: kit.World, session: Session) -> None:
    turn = kit.open_turn(session, kit.goal(session).goal_id)
    assert _call(world, _given(world, active=True), LOOPX_TURN_TOKEN=turn.token) == {}


def test_an_agent_that_said_how_it_ended_may_stop(world: kit.World, session: Session) -> None:
    turn = kit.open_turn(session, kit.goal(session).goal_id)
    agent_service.complete_todo(session.store, turn)
    assert _call(world, _given(world), LOOPX_TURN_TOKEN=turn.token) == {}


def test_other_runs_are_none_of_its_business(world: kit.World, session: Session) -> None:
    """No token, a token of no turn, a token of a turn that is over: the host just stops."""
    turn = kit.open_turn(session, kit.goal(session).goal_id)
    assert _call(world, _given(world)) == {}
    assert _call(world, _given(world), LOOPX_TURN_TOKEN="nobody's") == {}
    kit.close_turn(session, turn)
    assert _call(world, _given(world), LOOPX_TURN_TOKEN=turn.token) == {}


@pytest.mark.parametrize("given", [b"", b"not json", b"[]", b"\xff\xfe", b"{" * 10_000])
def test_it_fails_open(world: kit.World, session: Session, given: bytes) -> None:
    turn = kit.open_turn(session, kit.goal(session).goal_id)
    assert _call(world, given, LOOPX_TURN_TOKEN=turn.token) == {}


def test_a_store_that_is_not_there_blocks_nobody(world: kit.World) -> None:
    assert _call(world, _given(world), LOOPX_TURN_TOKEN="x", LOOPX_DATABASE_URL="/no/such/store.db") == {}


def test_a_host_that_never_closes_its_pipe_is_not_hung_on(world: kit.World) -> None:
    """Nobody writes, nobody closes: the hook leaves by itself, with an answer that lets the host stop."""
    hook = subprocess.Popen(
        hooks.command(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**world.env, "LOOPX_TURN_TOKEN": "x"},
        cwd=world.root,
    )
    try:
        assert hook.stdout is not None
        assert json.loads(hook.stdout.read()) == {}
        assert hook.wait(60) == 0
    finally:
        hook.kill()
        hook.communicate()


def test_what_is_printed_for_a_host_runs(world: kit.World) -> None:
    for host in ("claude", "codex"):
        done = subprocess.run(
            [sys.executable, "-m", "loopx.runtime.hooks", "print", host], capture_output=True, check=True
        )
        settings = json.loads(done.stdout)
        command = settings["hooks"]["Stop"][0]["hooks"][0]["command"]
        ran = subprocess.run(command, shell=True, input=b"{}", env=world.env, capture_output=True, check=True)
        assert json.loads(ran.stdout) == {}


def _place(engine: str, home: Path) -> tuple[str, ...]:
    """Set the hook up as a person does; the options that the CLI needs to run a hook which nobody has looked at."""
    if engine == "claude":
        folder = home / ".claude"
        folder.mkdir(exist_ok=True)
        (folder / "settings.json").write_text(json.dumps(hooks.claude_settings()))
        return ()
    (home / "codex" / "hooks.json").write_text(json.dumps(hooks.codex_hooks()))
    return ("--dangerously-bypass-hook-trust",)


@pytest.mark.parametrize("engine", ["claude", "codex"])
def test_a_real_agent_cli_is_reminded_and_stops(world: kit.World, session: Session, engine: str) -> None:
    from tests.hosts import harness
    from tests.hosts.modelserver import serving
    from tests.hosts.script import Say

    turn = kit.open_turn(session, kit.goal(session).goal_id)
    with serving() as server, harness.rig(engine, server) as rig:
        options = _place(engine, rig.home)
        rig.env = (*rig.env, ("LOOPX_DATABASE_URL", session.store.path), ("PYTHONPATH", os.getcwd()))
        server.extend([Say(text="I think I am done."), Say(text="Really done.")])
        outcome = rig.run(env=(("LOOPX_TURN_TOKEN", turn.token),), extra_args=options)
        asked = json.dumps([request.body for request in server.requests])
    assert "say how this turn ended" in asked, outcome
    assert outcome.summary.final_text == "Really done."
