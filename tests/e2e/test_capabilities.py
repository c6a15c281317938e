"""Capabilities: who may ask, who decides, and what exactly would run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopx.control_plane.errors import ConflictError, LoopXError, UsageError
from loopx.control_plane.quota.rules import Rule
from loopx.control_plane.work_items.gate import Grant
from loopx.runtime import capabilities, project_file
from loopx.runtime.capability_run import RunState
from loopx.runtime.session import Session
from loopx.store import gates
from loopx.testing.leaks import LeakKind
from tests.e2e import services_kit as kit
from tests.e2e.capability_kit import ASK, GRANT, Desk

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


# -- who may -------------------------------------------------------------------------------------------------------


def test_asking_runs_nothing_until_a_person_says_yes(world: kit.World, session: Session) -> None:
    desk = Desk(world, session, ASK)
    asked = desk.ask()
    assert asked.status == "requested"
    assert desk.run() is RunState.NOTHING
    assert desk.decision().rule is Rule.GATE_BLOCKS
    with desk.store.read() as tx:
        question = gates.get(tx, asked.gate_id or "").question
    assert f"echo ran >> {desk.log}" in question, "the person sees exactly what would run"
    desk.answer(asked.gate_id, "yes")
    assert desk.decision().rule is Rule.CAPABILITY_GRANTED
    assert desk.run() is RunState.RAN
    assert desk.runs() == 1
    assert desk.intent().status == "done"
    assert desk.receipt()["exit_code"] == 0
    assert desk.run() is RunState.NOTHING


def test_no_is_final(world: kit.World, session: Session) -> None:
    desk = Desk(world, session, ASK)
    desk.answer(desk.ask().gate_id, "no")
    assert desk.intent().status == "refused"
    assert desk.run() is RunState.NOTHING
    assert "capability_refused" in kit.event_kinds(session, desk.goal.goal_id)
    assert desk.ask().status == "refused", "the same request in the same turn is the same request"


def test_a_question_that_expires_is_a_no(world: kit.World, session: Session) -> None:
    desk = Desk(world, session, ASK)
    asked = desk.ask()
    with desk.store.write() as tx:
        gate = gates.get(tx, asked.gate_id or "")
        gates._decide_capability(tx, gate, None, "expiry", desk.store.now_ms())
    assert desk.intent().status == "refused"


def test_the_policy_may_grant_at_once(world: kit.World, session: Session) -> None:
    desk = Desk(world, session, GRANT)
    assert desk.ask().status == "granted"
    assert desk.run() is RunState.RAN
    assert desk.runs() == 1


def test_always_is_a_standing_grant_for_the_next_request(world: kit.World, session: Session) -> None:
    desk = Desk(world, session, ASK)
    desk.answer(desk.ask().gate_id, "always")
    with desk.store.read() as tx:
        assert gates.live_grant(tx, desk.goal.goal_id, "capability:deploy", desk.store.now_ms()) is not None
    kit.close_turn(session, desk.turn)
    desk.turn = kit.open_turn(session, desk.goal.goal_id)
    assert desk.ask().status == "granted"


def test_a_grant_that_is_over_grants_nothing(world: kit.World, session: Session) -> None:
    desk = Desk(world, session, ASK)
    now = desk.store.now_ms()
    with desk.store.write() as tx:
        grant = Grant(
            grant_id="gr1",
            goal_id=desk.goal.goal_id,
            scope="capability:deploy",
            answer="yes",
            granted_by="ada",
            created_at_ms=now - 10_000,
            expires_at_ms=now - 1,
        )
        gates.add_grant(tx, grant)
    assert desk.ask().status == "requested"


def test_never_is_refused_and_recorded(world: kit.World, session: Session) -> None:
    desk = Desk(world, session, ASK + 'policy = "never"\n')
    assert desk.ask().status == "refused"
    assert desk.run() is RunState.NOTHING
    refused = kit.event_bodies(session, desk.goal.goal_id, "capability_refused")
    assert refused[0]["capability"] == "deploy"


def test_what_is_not_declared_is_refused_and_recorded(world: kit.World, session: Session) -> None:
    desk = Desk(world, session, ASK)
    with pytest.raises(LoopXError) as caught:
        desk.ask("launch-missiles")
    assert caught.value.code == "capability_unknown"
    assert kit.event_bodies(session, desk.goal.goal_id, "capability_refused")[0]["reason"] == "unknown"


def test_a_turn_that_is_over_asks_for_nothing(world: kit.World, session: Session) -> None:
    desk = Desk(world, session, GRANT)
    kit.close_turn(session, desk.turn)
    with pytest.raises(ConflictError):
        desk.ask()


def test_only_the_asking_todo_waits(world: kit.World, session: Session) -> None:
    """With other work open, the question holds back its own todo and nothing else."""
    desk = Desk(world, session, ASK)
    kit.add_todo(session, desk.goal.goal_id, "something else")
    asked = desk.ask()
    with desk.store.read() as tx:
        assert gates.get(tx, asked.gate_id or "").todos == (desk.turn.todo_id,)
    kit.close_turn(session, desk.turn)
    decision = desk.decision()
    assert decision.should_run
    assert decision.selected_todo is not None and decision.selected_todo.title == "something else"


# -- what exactly runs ---------------------------------------------------------------------------------------------

PUSH = (
    '[capabilities.push]\nargv = ["sh", "-c", "echo \\"$1\\" >> LOG", "sh", "{branch}"]\n'
    'parameters = { branch = "[a-z0-9/-]{1,20}" }\npolicy = "grant"\n'
)


def test_parameters_fill_words_and_never_make_any(world: kit.World, session: Session) -> None:
    desk = Desk(world, session, PUSH)
    asked = desk.ask("push", branch="fix/login")
    assert asked.command[-1] == "fix/login"
    desk.run()
    assert desk.log.read_text() == "fix/login\n"


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({}, "parameter_missing"),
        ({"branch": "x; rm -rf /"}, "parameter_refused"),
        ({"branch": "$(id)"}, "parameter_refused"),
        ({"branch": "ok\n"}, "parameter_refused"),
        ({"branch": ""}, "parameter_refused"),
        ({"branch": "ok", "force": "1"}, "parameter_unknown"),
    ],
)
def test_bad_parameters_are_refused(world: kit.World, session: Session, values: dict[str, str], code: str) -> None:
    desk = Desk(world, session, PUSH)
    with pytest.raises(UsageError) as caught:
        desk.ask("push", **values)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("declared", "names"),
    [
        ("[capabilities.x]\n", "argv"),
        ("[capabilities.x]\nargv = []\n", "argv"),
        ('[capabilities.x]\nargv = ["true"]\npolcy = "ask"\n', "polcy"),
        ('[capabilities.x]\nargv = ["true"]\npolicy = "maybe"\n', "policy"),
        ('[capabilities.x]\nargv = ["{branch}"]\n', "branch"),
        ('[capabilities.x]\nargv = ["true"]\nparameters = { a = "x" }\n', "a"),
        ('[capabilities.x]\nargv = ["{a}"]\nparameters = { a = "(" }\n', "a"),
        ('[capabilities.x]\nargv = ["true"]\ntimeout_s = 0\n', "timeout_s"),
        ('[capabilities."X Y"]\nargv = ["true"]\n', "X Y"),
        ("[capabilities\n", "loopx.toml"),
    ],
)
def test_bad_declarations_name_the_field(declared: str, names: str) -> None:
    with pytest.raises(UsageError) as caught:
        capabilities.parse(declared.encode())
    assert names in caught.value.message


def test_the_preview_is_what_runs(world: kit.World, session: Session) -> None:
    desk = Desk(world, session, PUSH)
    shown = json.loads(world.loopx("capability", "preview", "push", "branch=fix/login", "--json").stdout)
    assert tuple(shown["command"]) == desk.ask("push", branch="fix/login").command


# -- the file is not the agent's -----------------------------------------------------------------------------------


def test_a_declaration_that_an_agent_wrote_is_always_asked_about(world: kit.World, session: Session) -> None:
    """Edited in the middle of a turn: `grant` is worth nothing until a person has seen exactly this command."""
    desk = Desk(world, session, ASK)
    world.write("loopx.toml", '[capabilities.deploy]\nargv = ["sh", "-c", "echo evil"]\npolicy = "grant"\n')
    asked = desk.ask()
    assert asked.status == "requested"
    with desk.store.read() as tx:
        gate = gates.get(tx, asked.gate_id or "")
    assert "echo evil" in gate.question
    assert "always" not in gate.options
    assert desk.run() is RunState.NOTHING


def test_a_standing_grant_does_not_cover_what_an_agent_changed(world: kit.World, session: Session) -> None:
    desk = Desk(world, session, ASK)
    desk.answer(desk.ask().gate_id, "always")
    world.write("loopx.toml", '[capabilities.deploy]\nargv = ["sh", "-c", "echo evil"]\n')
    assert desk.ask().status == "requested"


def test_what_an_agent_left_alone_stays_trusted(world: kit.World, session: Session) -> None:
    """Another table changed; this declaration is word for word what the person wrote."""
    desk = Desk(world, session, GRANT)
    text = (world.root / "loopx.toml").read_text()
    world.write("loopx.toml", text + '[capabilities.other]\nargv = ["true"]\npolicy = "grant"\n')
    assert desk.ask().status == "granted"
    assert desk.ask("other").status == "requested"


def test_a_persons_edit_between_turns_is_trusted(world: kit.World, session: Session) -> None:
    """A real turn ends, a person edits the file, and what the next turn asks for is judged by the new words."""
    world.write("loopx.toml", ASK.replace("LOG", str(world.folder / "log")))
    world.commit("declare")
    goal = kit.goal(session, engine=world.agent("import sys\nsys.stdin.read()\nopen('a', 'w').write('x')\n"))
    assert world.loopx("worker", "--once").returncode == 0
    world.write("loopx.toml", GRANT.replace("LOG", str(world.folder / "log")))
    file = project_file.read(session.store, session.project, goal.goal_id)
    assert file.is_trusted
    assert file.now == (world.root / "loopx.toml").read_bytes()
