"""Capabilities: who may, what exactly runs, that it runs once, and that secrets stay where they belong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loopx.control_plane.errors import ConflictError, LoopXError, UsageError
from loopx.control_plane.quota import decision as decisions
from loopx.control_plane.quota.rules import Rule
from loopx.control_plane.work_items.gate import GateStatus, Grant
from loopx.hosts import supervise
from loopx.runtime import capabilities, project_file
from loopx.runtime.capability_run import RunState, run_granted
from loopx.runtime.session import Session
from loopx.store import capabilities as intents
from loopx.store import facts, gates
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


class Desk:
    """A goal with a turn open, capabilities declared before its start, and what a person and LoopX do about them."""

    def __init__(self, world: kit.World, session: Session, declared: str) -> None:
        self.world = world
        self.session = session
        self.store = session.store
        self.log = world.folder / "log"
        world.write("loopx.toml", declared.replace("LOG", str(self.log)))
        world.commit("declare")
        self.goal = kit.goal(session)
        kit.take_baseline(session, self.goal.goal_id)
        self.turn = kit.open_turn(session, self.goal.goal_id)
        self.env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}

    def ask(self, name: str = "deploy", **values: str) -> capabilities.Requested:
        return capabilities.request(self.store, self.session.project, self.turn, name, values)

    def run(self) -> RunState:
        return run_granted(self.store, self.session.project, self.goal.goal_id, self.env)

    def answer(self, gate_id: str | None, text: str) -> None:
        assert gate_id is not None
        with self.store.write() as tx:
            gates.answer(tx, gates.get(tx, gate_id), text, "ada", self.store.now_ms())

    def intent(self) -> intents.Intent:
        with self.store.read() as tx:
            return intents.latest(tx, self.goal.goal_id, 1)[0]

    def receipt(self) -> dict[str, Any]:
        found = self.intent().receipt
        assert found is not None
        return json.loads(bytes(found))

    def decision(self) -> decisions.QuotaDecision:
        with self.store.read() as tx:
            return decisions.decide(facts.read(tx, self.goal.goal_id, kit.AGENT, self.store.now_ms()))

    def runs(self) -> int:
        """How often the command really ran: each run adds a line."""
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


ASK = '[capabilities.deploy]\nargv = ["sh", "-c", "echo ran >> LOG"]\n'
GRANT = ASK + 'policy = "grant"\n'


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


# -- once ----------------------------------------------------------------------------------------------------------


def test_the_intent_is_on_record_before_and_the_key_is_in_its_environment(world: kit.World, session: Session) -> None:
    """The command itself looks at the store: its intent is `running` there, under the key that it was given."""
    out = world.folder / "seen"
    script = (
        "import os, sqlite3\n"
        f"row = sqlite3.connect({session.store.path!r}).execute("
        "'SELECT status, effect_ref FROM capability_intents').fetchone()\n"
        f"open({str(out)!r}, 'w').write(f\"{{row[0]}} {{row[1] == os.environ['LOOPX_EFFECT_KEY']}}\")\n"
    )
    path = world.folder / "look.py"
    path.write_text(script)
    declared = f'[capabilities.deploy]\nargv = ["{sys.executable}", "{path}"]\npolicy = "grant"\n'
    desk = Desk(world, session, declared)
    desk.ask()
    desk.run()
    assert out.read_text() == "running True"


def test_a_failure_is_a_receipt_and_is_not_tried_again(world: kit.World, session: Session) -> None:
    desk = Desk(world, session, '[capabilities.deploy]\nargv = ["sh", "-c", "echo no >&2; exit 3"]\npolicy = "grant"\n')
    desk.ask()
    assert desk.run() is RunState.RAN
    assert desk.intent().status == "failed"
    assert desk.receipt()["exit_code"] == 3
    assert "no" in desk.receipt()["stderr_tail"]
    assert desk.run() is RunState.NOTHING


def test_a_program_that_is_not_there_is_a_failure(world: kit.World, session: Session) -> None:
    desk = Desk(world, session, '[capabilities.deploy]\nargv = ["/no/such/program"]\npolicy = "grant"\n')
    desk.ask()
    assert desk.run() is RunState.RAN
    assert "ENOENT" in desk.receipt()["error"]


def test_a_command_that_hangs_is_ended(world: kit.World, session: Session) -> None:
    desk = Desk(world, session, '[capabilities.deploy]\nargv = ["sleep", "1000"]\npolicy = "grant"\ntimeout_s = 1\n')
    desk.ask()
    assert desk.run() is RunState.RAN
    assert desk.intent().status == "failed"
    assert desk.receipt()["stopped"] in ("hard", "idle", "first_event")


RUNNER = """
import os, sys
from loopx.runtime.session import open_session
from loopx.runtime.capability_run import run_granted
session = open_session(sys.argv[1])
print("up", flush=True)
print(run_granted(session.store, session.project, sys.argv[2], dict(os.environ)), flush=True)
session.close()
"""


class Slow:
    """A capability that says that it runs, and ends only when it is let."""

    def __init__(self, world: kit.World, session: Session, more: str = "") -> None:
        self.here, self.go = world.folder / "here", world.folder / "go"
        os.mkfifo(self.here)
        os.mkfifo(self.go)
        command = f"echo ran >> LOG; echo here > {self.here}; cat {self.go}"
        self.desk = Desk(
            world, session, f'[capabilities.deploy]\nargv = ["sh", "-c", "{command}"]\npolicy = "grant"\n{more}'
        )
        self.desk.ask()
        self.runner = subprocess.Popen(
            [sys.executable, "-c", RUNNER, str(world.root), self.desk.goal.goal_id],
            env=world.env,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.runner.stdout is not None
        self.runner.stdout.readline()
        assert self.here.read_text() == "here\n"

    def kill(self) -> None:
        self.runner.send_signal(signal.SIGKILL)
        self.runner.communicate()


def test_killed_in_the_middle_the_outcome_is_read_back(world: kit.World, session: Session) -> None:
    """LoopX dies with -9 while the command runs; the command goes on; the next LoopX adopts it. It ran once."""
    slow = Slow(world, session)
    slow.kill()
    assert slow.desk.intent().status == "running"
    assert slow.desk.decision().rule is Rule.CAPABILITY_GRANTED, "what was begun is gone on with"
    slow.go.write_text("done\n")
    assert slow.desk.run() is RunState.RAN
    assert slow.desk.intent().status == "done"
    assert "done" in slow.desk.receipt()["stdout_tail"]
    assert slow.desk.runs() == 1


def test_while_one_process_runs_it_no_other_does(world: kit.World, session: Session) -> None:
    slow = Slow(world, session)
    assert slow.desk.run() is RunState.BUSY
    slow.go.write_text("done\n")
    out, _ = slow.runner.communicate(timeout=60)
    assert out.strip() == "ran"
    assert slow.desk.runs() == 1


def _lose(slow: Slow) -> None:
    """Everything dies at once, as with the machine: LoopX, the keeper and the command; nobody saw the end."""
    slow.kill()
    folder = Path(slow.desk.session.project.spools, f"capability.{slow.desk.intent().intent_id}.1")
    found = msgspec.json.decode((folder / "host.json").read_bytes())
    for who in ("keeper", "host"):
        os.kill(found[who]["pid"], signal.SIGKILL)
    adopted = supervise.adopt(str(folder), f"capability.{slow.desk.intent().intent_id}.1", slow.desk.intent().intent_id)
    assert adopted.state is supervise.RunState.LOST


def test_an_end_that_nobody_saw_is_asked_about_and_never_repeated(world: kit.World, session: Session) -> None:
    slow = Slow(world, session)
    _lose(slow)
    assert slow.desk.run() is RunState.ASKED
    assert slow.desk.run() is RunState.ASKED, "asked once, and waited for"
    assert slow.desk.runs() == 1
    with slow.desk.store.read() as tx:
        open_gates = gates.open_gates(tx, slow.desk.goal.goal_id)
    assert [gate.options for gate in open_gates] == [("done", "again", "failed")]
    slow.desk.answer(open_gates[0].gate_id, "done")
    assert slow.desk.intent().status == "done"
    assert slow.desk.run() is RunState.NOTHING
    assert slow.desk.runs() == 1


def test_a_person_may_have_it_run_again(world: kit.World, session: Session) -> None:
    slow = Slow(world, session)
    _lose(slow)
    slow.desk.run()
    gate_id = slow.desk.intent().gate_id
    slow.desk.answer(gate_id, "again")
    with slow.desk.store.read() as tx:
        assert gates.get(tx, gate_id or "").status is GateStatus.ANSWERED
    _feed(slow)
    assert slow.desk.run() is RunState.RAN
    assert slow.desk.runs() == 2
    assert slow.desk.receipt()["attempt"] == 2


def test_what_is_idempotent_runs_again_by_itself(world: kit.World, session: Session) -> None:
    slow = Slow(world, session, "idempotent = true\n")
    _lose(slow)
    _feed(slow)
    assert slow.desk.run() is RunState.RAN
    assert slow.desk.runs() == 2


def test_a_readback_proves_that_it_happened(world: kit.World, session: Session) -> None:
    slow = Slow(world, session, 'readback = ["grep", "-q", "ran", "LOG"]\n')
    _lose(slow)
    assert slow.desk.run() is RunState.RAN
    assert slow.desk.intent().status == "done"
    assert slow.desk.receipt()["read_back"] is True
    assert slow.desk.runs() == 1


def _feed(slow: Slow) -> None:
    """Let the next run of the command through, whenever it comes."""
    script = f"open({str(slow.here)!r}).read(); open({str(slow.go)!r}, 'w').write('go')"
    subprocess.Popen([sys.executable, "-c", script])


# -- secrets -------------------------------------------------------------------------------------------------------

SECRET = (
    '[capabilities.deploy]\nargv = ["sh", "-c", "echo key is $DEPLOY_KEY; echo $OTHER_KEY >> LOG"]\n'
    'policy = "grant"\nsecrets = ["DEPLOY_KEY"]\n'
    '[capabilities.other]\nargv = ["true"]\nsecrets = ["OTHER_KEY"]\n'
)


def test_a_secret_goes_to_its_command_and_never_into_the_store(world: kit.World, session: Session) -> None:
    desk = Desk(world, session, SECRET)
    desk.env |= {"DEPLOY_KEY": "hunter2-hunter2", "OTHER_KEY": "not-yours"}
    desk.ask()
    desk.run()
    assert desk.receipt()["stdout_tail"] == "key is [redacted]\n"
    assert desk.log.read_text() == "\n", "another capability's secret is not handed over"
    everything = Path(session.store.path).read_bytes() + Path(f"{session.store.path}-wal").read_bytes()
    assert b"hunter2-hunter2" not in everything
    spools = Path(session.project.spools)
    left = [path for path in spools.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    assert left == [], "the raw output goes once the receipt is stored"


def test_a_secret_that_is_not_set_is_asked_for_before_anything_runs(world: kit.World, session: Session) -> None:
    desk = Desk(world, session, SECRET)
    desk.ask()
    assert desk.run() is RunState.ASKED
    assert desk.intent().status == "granted"
    assert desk.runs() == 0
    with desk.store.read() as tx:
        (gate,) = gates.open_gates(tx, desk.goal.goal_id)
    assert "DEPLOY_KEY" in gate.question
    desk.answer(gate.gate_id, "retry")
    desk.env["DEPLOY_KEY"] = "hunter2"
    assert desk.run() is RunState.RAN


# -- a whole goal --------------------------------------------------------------------------------------------------


def test_an_agent_asks_a_person_grants_loopx_runs_and_the_agent_hears_of_it(world: kit.World, session: Session) -> None:
    """Two turns of one goal: in the first the agent asks and stops, in the second its prompt says that it was done."""
    log = world.folder / "log"
    world.write("loopx.toml", ASK.replace("LOG", str(log)))
    world.commit("declare")
    agent = world.agent(
        "import os, subprocess, sys\nprompt = sys.stdin.read()\n"
        "if 'capability deploy: done' in prompt:\n    open('done.txt', 'w').write('x')\n"
        "else:\n    subprocess.run([sys.executable, '-m', 'loopx', 'capability', 'request', 'deploy'], check=True)\n"
    )
    goal = kit.goal(session, engine=agent)
    first = world.loopx("worker", "--once", "--json")
    with session.store.read() as tx:
        found = intents.latest(tx, goal.goal_id, 1)
    assert [one.status for one in found] == ["requested"], first.stdout + first.stderr
    assert not log.exists()
    answered = world.loopx("gate", "answer", found[0].gate_id or "", "yes")
    assert answered.returncode == 0, answered.stderr
    second = world.loopx("run", goal.goal_id, "--json")
    last = json.loads(second.stdout.splitlines()[-1])
    assert last["goal_state"] == "completed", second.stdout
    assert log.read_text() == "ran\n"
    assert kit.chain_holds(session, goal.goal_id)
