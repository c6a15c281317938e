"""Capabilities that run: once whatever dies meanwhile, with their own secrets only, and heard of afterwards."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from loopx.control_plane.quota.rules import Rule
from loopx.control_plane.work_items.gate import GateStatus
from loopx.hosts import supervise
from loopx.runtime.capability_run import RunState
from loopx.runtime.session import Session
from loopx.store import capabilities as intents
from loopx.store import gates
from loopx.testing.leaks import LeakKind
from tests.e2e import services_kit as kit
from tests.e2e.capability_kit import ASK, Desk

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
        handle = os.pidfd_open(found[who]["pid"])
        os.killpg(found[who]["pgid"], signal.SIGKILL)
        select.select([handle], [], [])
        os.close(handle)
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
