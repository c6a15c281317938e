"""Ending a worker, sharing a store, being fair, and running from login on: real processes and real signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopx.control_plane.goal import GoalState
from loopx.control_plane.ids import AgentId, GoalId
from loopx.runtime import service_unit
from loopx.runtime.fleet import Candidate, choose
from loopx.runtime.session import Session
from loopx.runtime.worker_books import Before, Books, Ended
from loopx.store import events, goals
from loopx.testing.leaks import LeakKind
from tests.e2e import services_kit as kit
from tests.e2e.worker_kit import Running

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


# -- being ended ---------------------------------------------------------------------------------------------------


def _waiting_agent(world: kit.World) -> tuple[str, Path, Path]:
    """An agent that says that it is there, and works on only when it is let."""
    here, go = world.folder / "here", world.folder / "go"
    os.mkfifo(here)
    os.mkfifo(go)
    log = world.folder / "launches"
    script = (
        f"import sys\nsys.stdin.read()\nopen({str(log)!r}, 'a').write('x')\n"
        f"open({str(here)!r}, 'w').write('here')\nopen({str(go)!r}).read()\nopen('done.txt', 'w').write('x')\n"
    )
    return world.agent(script), here, go


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_an_ended_worker_leaves_its_hosts_and_the_next_one_adopts_them(
    world: kit.World, session: Session, started: Any, number: int
) -> None:
    """The host works on while no worker is there, and is neither started again nor lost."""
    agent, here, go = _waiting_agent(world)
    goal = kit.goal(session, engine=agent)
    first = started()
    child = first.until("run_started")["pid"]
    assert here.read_text() == "here"
    status = first.stop(number)
    if number == signal.SIGKILL:
        # The child of a worker that was killed goes on by itself; this one is killed too, with its host at work.
        os.kill(child, signal.SIGKILL)
        with session.store.read() as tx:
            assert tx.all("turns.open_all", limit=5)
    else:
        assert status == 0
        assert first.seen[-1]["left_running"] == 1
    second = started()
    resumed = second.until("run_started")
    assert resumed["resume"] is True
    go.write_text("go")
    ended = second.until("result", goal_id=goal.goal_id)
    assert ended["goal_state"] == "completed"
    assert (world.folder / "launches").read_text() == "x", "the host ran once"
    assert ended["spent_slots"] == 1
    assert second.stop() == 0


def test_a_worker_that_is_killed_lets_its_child_finish(world: kit.World, session: Session, started: Any) -> None:
    """The child writes to a pipe that nobody reads any more, and finishes its turn all the same."""
    agent, here, go = _waiting_agent(world)
    goal = kit.goal(session, engine=agent)
    worker = started()
    child = worker.until("run_started")["pid"]
    here.read_text()
    handle = os.pidfd_open(child)
    worker.stop(signal.SIGKILL)
    go.write_text("go")
    import select

    poll = select.poll()
    poll.register(handle, select.POLLIN)
    assert poll.poll(60_000)
    os.close(handle)
    assert _row(session, goal.goal_id)["state"] == GoalState.COMPLETED


def test_two_workers_share_a_store(world: kit.World, session: Session) -> None:
    """Each turn runs once, whichever worker takes it, and the books balance."""
    log = world.folder / "launches"
    agent = world.agent(
        f"import os, sys\nsys.stdin.read()\nopen({str(log)!r}, 'a').write(os.environ['LOOPX_GOAL_ID'] + '\\n')\n"
        "open('done.txt', 'w').write('x')\n"
    )
    ids = [kit.goal(session, engine=agent, name=f"goal-{n}", worktree=True).goal_id for n in range(4)]
    both = [world.start("worker", "--once", "--json", "--max", "2") for _ in range(2)]
    results = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], results
    assert [_row(session, goal_id)["state"] for goal_id in ids] == ["completed"] * 4, results
    assert sorted(log.read_text().split()) == sorted(ids), "no goal was worked on twice"
    with session.store.read() as tx:
        assert [tx.number("ledger.total", goal_id=goal_id) for goal_id in ids] == [1] * 4


def test_an_interrupted_turn_is_claimable_although_its_goal_is_not_due(session: Session) -> None:
    """Its schedule moved on; the turn is open and its driver is dead, so it is taken up all the same."""
    goal = kit.goal(session)
    turn = kit.open_turn(session, goal.goal_id, owner=_dead_owner())
    with session.store.write() as tx:
        tx.run("goals.schedule", goal_id=goal.goal_id, due_at_ms=session.store.now_ms() + 86_400_000)
    found = Books(session.store, kit.AGENT).look({}).candidates
    assert [(one.goal_id, one.resume) for one in found] == [(goal.goal_id, True)]
    assert turn.goal_id == goal.goal_id


def test_a_turn_with_a_living_driver_keeps_its_tree(session: Session) -> None:
    from loopx.runtime import owner

    first = kit.goal(session, name="first")
    kit.goal(session, name="second")
    kit.open_turn(session, first.goal_id, owner=owner.current_owner())
    looked = Books(session.store, kit.AGENT).look({})
    assert choose(looked.candidates, {}, looked.busy_trees, 4) == ()


def _dead_owner() -> str:
    from loopx.runtime import owner

    parts = owner.current_owner().split("/")
    done = subprocess.Popen(["true"])
    done.wait()
    return f"{parts[0]}/{parts[1]}/{done.pid}/1"


# -- fairness ------------------------------------------------------------------------------------------------------

_candidates = st.lists(
    st.builds(
        Candidate,
        goal_id=st.integers(0, 30).map(lambda n: GoalId(f"g{n}")),
        tree_key=st.integers(0, 12).map(lambda n: f"t{n}"),
        at_ms=st.integers(0, 1000),
        started_at_ms=st.none() | st.integers(0, 1000),
        resume=st.booleans(),
    ),
    max_size=40,
)


@given(
    _candidates, st.dictionaries(st.integers(0, 30).map(lambda n: f"g{n}"), st.just("x"), max_size=3), st.integers(1, 6)
)
def test_a_choice_never_exceeds_the_limit_nor_shares_a_tree(
    candidates: list[Candidate], running: dict[str, str], most: int
) -> None:
    chosen = choose(candidates, running, {"t0"}, most)
    assert len(chosen) + len(running) <= max(most, len(running))
    trees = [one.tree_key for one in chosen]
    assert len(set(trees)) == len(trees)
    assert not {"t0", *running.values()} & set(trees)
    assert not {one.goal_id for one in chosen} & set(running)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=25),
    st.integers(1, 4),
)
def test_no_goal_starves_however_greedy_the_others(shape: list[tuple[int, int]], most: int) -> None:
    """Goals that are always eligible, in a few trees: between two starts of any goal, each other of its tree runs."""
    fleet = {f"g{n}": (f"t{tree}", length) for n, (tree, length) in enumerate(shape)}
    last: dict[str, int] = {}
    starts: dict[str, list[int]] = {name: [] for name in fleet}
    running: dict[str, tuple[str, int]] = {}
    for now in range(600):
        running = {name: held for name, held in running.items() if held[1] > now}
        waiting = [
            Candidate(goal_id=GoalId(name), tree_key=tree, at_ms=now, started_at_ms=last.get(name))
            for name, (tree, _) in fleet.items()
            if name not in running
        ]
        trees = {name: tree for name, (tree, _) in running.items()}
        for one in choose(waiting, trees, (), most):
            starts[one.goal_id].append(now)
            last[one.goal_id] = now
            running[one.goal_id] = (one.tree_key, now + fleet[one.goal_id][1])
    # In the time in which every goal runs once, each has run: the slowest possible round is the sum of all turns.
    longest_round = sum(length for _, length in fleet.values())
    for name, times in starts.items():
        gaps = [later - earlier for earlier, later in zip([0, *times], times, strict=False)]
        assert times and max(gaps) <= 2 * longest_round, (name, times)


# -- at login ------------------------------------------------------------------------------------------------------


def test_the_unit_keeps_hosts_and_is_valid(world: kit.World, session: Session, tmp_path: Path) -> None:
    made = service_unit.unit(session.project, "loopx", 2, world.env)
    assert "KillMode=process" in made.text
    assert "WantedBy=default.target" in made.text
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is needed to verify a unit file")
    file = tmp_path / made.name
    file.write_text(made.text)
    done = subprocess.run([analyze, "verify", "--user", str(file)], capture_output=True, text=True, check=False)
    about_it = [line for line in done.stderr.splitlines() if made.name in line]
    assert about_it == [], done.stderr


def test_install_writes_the_unit_and_says_what_is_left(world: kit.World, session: Session) -> None:
    """Without a service manager that answers, the file is there and the commands are printed."""
    bare = world.folder / "bin"
    bare.mkdir()
    done = world.loopx("worker", "--install", "--json", XDG_CONFIG_HOME=str(world.folder / "config"), PATH=str(bare))
    told = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert Path(told["path"]).read_text().startswith("[Unit]")
    assert told["running"] is False
    assert told["todo"][0] == "systemctl --user daemon-reload"


def test_the_words_of_a_unit_are_taken_as_they_are() -> None:
    assert service_unit._quoted('a "b" $HOME 100% \\') == '"a \\"b\\" $$HOME 100%% \\\\"'


def test_an_agent_starts_no_worker(world: kit.World, session: Session) -> None:
    goal = kit.goal(session)
    turn = kit.open_turn(session, goal.goal_id)
    refused = world.loopx("worker", "--once", LOOPX_TURN_TOKEN=turn.token)
    assert refused.returncode == 11


@pytest.mark.parametrize("most", ["0", "-1"])
def test_a_limit_of_nothing_is_refused(world: kit.World, most: str) -> None:
    assert world.loopx("worker", "--once", "--max", most).returncode == 2


def test_an_event_during_the_run_is_not_lost(session: Session) -> None:
    """Something changes between a run's last look and its settling: the wake is computed with it, never over it."""
    goal = kit.goal(session)
    books = Books(session.store, AgentId(kit.AGENT))
    before = books.before(goal.goal_id)
    with session.store.write() as tx:
        events.append(tx, goal.goal_id, "noted", session.store.now_ms(), {})
    assert books.settle(goal.goal_id, Ended(type="result", exit_code=12), 0, before) is None
    assert _row(session, goal.goal_id)["due_at_ms"] <= session.store.now_ms(), "still due: it changed, and is ready"
    assert isinstance(before, Before)


def test_a_turn_that_was_interrupted_before_its_launch_gets_a_token_of_its_own(
    world: kit.World, session: Session
) -> None:
    """The first driver died between the start and the launch, and took the token along: the agent must have one."""
    agent = world.agent(
        "import os, subprocess, sys\nsys.stdin.read()\n"
        "done = subprocess.run([sys.executable, '-m', 'loopx', 'todo', 'complete'])\n"
        "open('done.txt', 'w').write(str(done.returncode))\n"
    )
    goal = kit.goal(session, engine=agent)
    kit.take_baseline(session, goal.goal_id)
    kit.open_turn(session, goal.goal_id, owner=_dead_owner(), engine=agent)
    done = world.loopx("worker", "--once")
    assert (world.root / kit.WANTED).read_text() == "0", done.stderr
    assert [one["kind"] for one in kit.event_bodies(session, goal.goal_id, "agent_claimed")] == ["completion"]
