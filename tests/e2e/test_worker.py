"""The worker: real processes, real children, real signals. What is due runs, nothing else does, and nothing is lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loopx.control_plane.goal import GoalState
from loopx.control_plane.ids import GoalId
from loopx.control_plane.quota.policy import QuotaPolicy
from loopx.control_plane.scheduler.schedule import ScheduleOwner
from loopx.runtime import goal_service, waking
from loopx.runtime.session import Session
from loopx.runtime.worker import Options, Worker, WorkerSlept
from loopx.runtime.worker_books import Books, Ended
from loopx.store import goals, schedules
from loopx.testing.leaks import LeakKind
from tests.e2e import services_kit as kit
from tests.e2e.worker_kit import Running, lines_of

pytestmark = pytest.mark.leaves(
    LeakKind.OPEN_TURN, LeakKind.LEASE_OF_NOBODY, reason="turns are held open, as if a host was at work"
)

DONE_AGENT = 'import sys\nsys.stdin.read()\nopen("done.txt", "w").write("x")\n'


@pytest.fixture
def world(tmp_path: Path) -> kit.World:
    return kit.World(tmp_path, {})


@pytest.fixture
def session(world: kit.World) -> Iterator[Session]:
    with world.session() as opened:
        yield opened


def _row(session: Session, goal_id: str) -> Any:
    with session.store.read() as tx:
        return goals.row_of(tx, goal_id)


@pytest.fixture
def started(world: kit.World) -> Iterator[Any]:
    workers: list[Running] = []

    def start(*words: str) -> Running:
        workers.append(Running(world, *words))
        return workers[-1]

    yield start
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.kill()
        worker.process.communicate()


# -- what runs -----------------------------------------------------------------------------------------------------


def test_once_runs_what_is_due_to_its_end(world: kit.World, session: Session) -> None:
    """A goal that takes several turns is finished, one child per turn, and the worker ends by itself."""
    agent = world.agent(
        'import os, sys\nsys.stdin.read()\nname = "a.txt" if not os.path.exists("a.txt") else "b.txt"\n'
        'open(name, "w").write("x")\n'
    )
    goal = kit.goal(session, engine=agent, checks=("test -f a.txt", "test -f b.txt"))
    done = world.loopx("worker", "--once", "--json")
    lines = lines_of(done.stdout)
    assert done.returncode == 0, done.stderr
    assert _row(session, goal.goal_id)["state"] == GoalState.COMPLETED
    assert [line["number"] for line in lines if line["type"] == "turn"] == [1, 2]
    last = lines[-1]
    assert (last["type"], last["turns"], last["spent_slots"], last["exit_code"]) == ("result", 2, 2, 0)
    assert sum(1 for line in lines if line["type"] == "run_started") == 2
    assert kit.chain_holds(session, goal.goal_id)


def test_many_goals_in_trees_of_their_own_at_once(world: kit.World, session: Session) -> None:
    """Two agents that each wait for the other to have started can only both finish if they really run at once."""
    meeting = world.folder / "meeting"
    meeting.mkdir()
    agent = world.agent(
        "import os, pathlib, sys, time\nsys.stdin.read()\n"
        f'place = pathlib.Path({str(meeting)!r})\nplace.joinpath(os.environ["LOOPX_GOAL_ID"]).touch()\n'
        "while len(list(place.iterdir())) < 2:\n    time.sleep(0.01)\n"
        'open("done.txt", "w").write("x")\n'
    )
    ids = [kit.goal(session, engine=agent, name=name, worktree=True).goal_id for name in ("one", "two")]
    done = world.loopx("worker", "--once", "--max", "2")
    assert [_row(session, goal_id)["state"] for goal_id in ids] == ["completed", "completed"], done.stdout


def test_one_goal_at_a_time_in_one_tree(world: kit.World, session: Session) -> None:
    """Goals that share the project's tree take turns: no turn starts while another's host may be writing there."""
    log = world.folder / "log"
    agent = world.agent(
        f"import os, sys\nsys.stdin.read()\nlog = open({str(log)!r}, 'a')\nlog.write('start ')\nlog.flush()\n"
        "open(os.environ['LOOPX_GOAL_ID'] + '.txt', 'w').write('x')\nlog.write('end ')\nlog.flush()\n"
    )
    for name in ("one", "two", "three"):
        kit.goal(session, engine=agent, name=name, checks=(f"test -f {name}.txt",))
    done = world.loopx("worker", "--once", "--max", "3")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch("(start end ){3}", log.read_text())


def test_a_secret_of_a_capability_reaches_no_agent(world: kit.World, session: Session) -> None:
    world.write("loopx.toml", '[capabilities.push]\nargv = ["true"]\nsecrets = ["DEPLOY_KEY"]\n')
    world.commit("declare")
    agent = world.agent(
        'import os, sys\nsys.stdin.read()\nopen("done.txt", "w").write(os.environ.get("DEPLOY_KEY", "none"))\n'
    )
    kit.goal(session, engine=agent)
    world.loopx("worker", "--once", DEPLOY_KEY="s3cret-value")
    assert (world.root / kit.WANTED).read_text() == "none"


# -- when ----------------------------------------------------------------------------------------------------------


def test_a_sleeping_worker_wakes_when_something_changes(world: kit.World, session: Session, started: Any) -> None:
    """Nothing is due; a goal is created by another process; the worker runs it without being told."""
    worker = started()
    assert worker.until("idle")["until_ms"] is None
    goal = kit.goal(session, engine=world.agent(DONE_AGENT))
    assert worker.until("result", goal_id=goal.goal_id)["goal_state"] == "completed"
    assert worker.stop() == 0


def test_a_goal_that_waits_for_a_person_is_run_after_the_answer(
    world: kit.World, session: Session, started: Any
) -> None:
    agent = world.agent(
        "import json, os, sys\nprompt = sys.stdin.read()\n"
        "if 'blue' in prompt:\n    open('done.txt', 'w').write('blue')\n"
        "else:\n    json.dump({'turn_key': os.environ['LOOPX_TURN_KEY'], 'kind': 'question',"
        " 'question': {'text': 'Which colour?', 'choices': ['blue', 'red']}},"
        " open(os.environ['LOOPX_RESULT_FILE'], 'w'))\n"
    )
    goal = kit.goal(session, engine=agent)
    worker = started()
    asked = worker.until("result", goal_id=goal.goal_id)
    assert asked["exit_code"] == 11
    idle = worker.until("idle")
    assert idle["until_ms"] is not None, "an open question is looked at now and then, and at once when answered"
    answered = world.loopx("gate", "answer", asked["gate_id"], "blue")
    assert answered.returncode == 0, answered.stderr
    assert worker.until("result", goal_id=goal.goal_id)["goal_state"] == "completed"
    worker.stop()


def test_every_wake_is_computed(session: Session) -> None:
    """Throttled, waiting, paused, asking, closed: each leaves an instant of its own, or none, and never `now`."""
    goal = kit.goal(session, quota=QuotaPolicy(allowed_slots=1))
    now = session.store.now_ms()
    with session.store.write() as tx:
        tx.run(
            "goals.set_wait",
            goal_id=goal.goal_id,
            wait_kind="limit",
            wait_until_ms=now + 3_600_000,
            wait_detail="x",
            due_at_ms=now,
            now_ms=now,
        )
    wake = waking.settle(session.store, goal.goal_id, kit.AGENT)
    assert wake.kind is waking.WakeKind.LIMIT_RESET
    assert _row(session, goal.goal_id)["due_at_ms"] >= now + 3_600_000
    goal_service.move(session.store, goal.goal_id, GoalState.PAUSED, "test")
    assert waking.settle(session.store, goal.goal_id, kit.AGENT).at_ms is None


def test_any_event_asks_for_another_look(session: Session) -> None:
    """Whatever command changes a goal, it need not know of workers: the event itself is what they see."""
    goal = kit.goal(session)
    waking.settle(session.store, goal.goal_id, kit.AGENT, held=True)
    books = Books(session.store, kit.AGENT)
    assert books.look({}).candidates == ()
    kit.add_todo(session, goal.goal_id)
    assert [one.goal_id for one in books.look({}).candidates] == [goal.goal_id]


def test_a_persons_cancel_stands_until_something_changes(session: Session) -> None:
    goal = kit.goal(session)
    books = Books(session.store, kit.AGENT)
    before = books.before(goal.goal_id)
    books.settle(goal.goal_id, Ended(type="result", exit_code=130), 0, before)
    assert _row(session, goal.goal_id)["due_at_ms"] is None
    assert books.look({}).candidates == ()


def test_a_goal_with_another_clock_is_left_to_it(session: Session) -> None:
    goal = kit.goal(session)
    with session.store.write() as tx:
        before = schedules.get(tx, goal.goal_id)
        after = msgspec.structs.replace(
            before, owner=ScheduleOwner.CRON, rrule="FREQ=DAILY", dtstart_local="2026-01-01T02:00"
        )
        schedules.save(tx, before, after, session.store.now_ms(), "set")
    assert Books(session.store, kit.AGENT).look({}).candidates == ()
    assert _row(session, goal.goal_id)["due_at_ms"] is None


# -- never spinning ------------------------------------------------------------------------------------------------


def test_a_run_that_changes_nothing_is_put_off(session: Session) -> None:
    """Whatever the reason: due again at once and no change means a pause, each time a longer one."""
    goal = kit.goal(session)
    books = Books(session.store, kit.AGENT)
    pauses = []
    for _ in range(3):
        now = session.store.now_ms()
        before = books.before(goal.goal_id)
        failed = books.settle(goal.goal_id, Ended(type="result", exit_code=10), 0, before)
        assert failed is not None and failed.code == "no_effect"
        pauses.append(failed.again_at_ms - now)
        assert books.look({}).candidates == ()
    assert pauses[0] >= 60_000
    assert pauses[0] < pauses[1] < pauses[2]


def test_a_run_that_can_not_be_made_is_told_and_tried_later(world: kit.World, session: Session) -> None:
    """A check whose program is not there is no crash loop: one try, one event, one message, one wake."""
    goal = kit.goal(session, checks=("no-such-program-anywhere --version-of-it x",))
    done = world.loopx("worker", "--once", "--json")
    failed = [line for line in lines_of(done.stdout) if line["type"] == "run_failed"]
    assert [one["code"] for one in failed] == ["check_program_missing"]
    assert kit.event_bodies(session, goal.goal_id, "run_failed")[0]["code"] == "check_program_missing"
    assert _row(session, goal.goal_id)["due_at_ms"] == failed[0]["again_at_ms"] > session.store.now_ms()


def test_an_engine_that_is_not_there_backs_off(world: kit.World, session: Session) -> None:
    goal = kit.goal(session, engine="command:/no/such/agent")
    done = world.loopx("worker", "--once", "--json")
    lines = lines_of(done.stdout)
    assert sum(1 for line in lines if line["type"] == "run_started") == 1
    assert lines[-1]["spent_slots"] == 0
    assert _row(session, goal.goal_id)["due_at_ms"] > session.store.now_ms()


def _thousand_sleepers(session: Session) -> int:
    later = session.store.now_ms() + 86_400_000
    with session.store.write() as tx:
        for number in range(1000):
            definition = kit.GoalDefinition(objective=f"goal {number}")
            goals.create(tx, GoalId(f"g{number:04d}"), definition, session.project.root, f"t{number}", 1)
    with session.store.write() as tx:
        for number in range(1000):
            tx.run("goals.schedule", goal_id=f"g{number:04d}", due_at_ms=later)
    return later


def test_an_idle_worker_asks_one_question_and_no_other(session: Session) -> None:
    """A thousand goals sleep: a step that finds nothing written runs no statement but the one that says so."""
    _thousand_sleepers(session)
    told: list[object] = []
    worker = Worker(session.store, session.project, Options(agent_id=kit.AGENT, most=2), told.append, {}, session.clock)
    worker.step()
    asked: list[str] = []
    connection = session.store.connection._connection
    connection.set_trace_callback(asked.append)
    worker._looked_ms -= 10_000
    for _ in range(50):
        worker.step()
        worker._looked_ms -= 10_000
    connection.set_trace_callback(None)
    assert set(asked) == {"PRAGMA data_version"}
    assert len(asked) == 50


def test_a_sleeping_worker_is_small(world: kit.World, session: Session, started: Any) -> None:
    """Resident memory of the whole worker with a thousand sleeping goals, below 60 MB."""
    later = _thousand_sleepers(session)
    worker = started()
    assert worker.until("idle")["until_ms"] == later
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    resident = int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])  # type: ignore[index]
    assert resident < 60_000
    assert worker.stop() == 0


# -- the clock -----------------------------------------------------------------------------------------------------


class JumpingClock:
    """Wall time that may jump, beside a monotonic clock that does not."""

    def __init__(self) -> None:
        self.wall = 1_800_000_000_000
        self.steady = 1000

    def now_ms(self) -> int:
        return self.wall

    def monotonic_ms(self) -> int:
        return self.steady


def test_a_jump_of_the_clock_is_told_and_everything_looked_at(world: kit.World) -> None:
    clock = JumpingClock()
    with world.session(clock=clock) as session:
        told: list[object] = []
        worker = Worker(session.store, session.project, Options(agent_id=kit.AGENT, most=1), told.append, {}, clock)
        assert worker._heed_jump(clock.wall, clock.steady) == (clock.wall, clock.steady)
        before = (clock.wall, clock.steady)
        clock.wall += 7_200_000
        clock.steady += 10
        worker._heed_jump(*before)
        assert [event for event in told if isinstance(event, WorkerSlept)] == [WorkerSlept(jump_ms=7_199_990)]
        assert worker._must_look()
