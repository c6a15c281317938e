"""Monitors: what a probe sees costs nothing until it changes, never starts a host by itself, and can never spin."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopx.control_plane.goal import GoalState
from loopx.control_plane.quota import decision as decisions
from loopx.control_plane.quota.rules import Rule
from loopx.control_plane.work_items.todo import Monitor, TaskClass, TodoStatus, Wake, WakeKind
from loopx.hosts import identity
from loopx.runtime import goal_work, monitors
from loopx.runtime.monitors import Saw, run_due_monitor, run_due_probe
from loopx.runtime.session import Session
from loopx.store import facts, goals, todos
from tests.e2e import services_kit as kit


@pytest.fixture
def world(tmp_path: Path) -> kit.World:
    return kit.World(tmp_path, {})


@pytest.fixture
def session(world: kit.World) -> Iterator[Session]:
    with world.session() as opened:
        yield opened


class Watched:
    """A goal with one monitor that prints a file outside the work tree."""

    def __init__(self, world: kit.World, session: Session, **monitor: Any) -> None:
        self.session = session
        self.world = world
        self.source = world.folder / "status"
        self.source.write_text("green\n")
        self.goal = kit.goal(session, engine="command:false")
        argv = monitor.pop("argv", ("cat", str(self.source)))
        self.todo_id = kit.add_todo(
            session,
            self.goal.goal_id,
            "the build is red",
            task_class=TaskClass.MONITOR,
            monitor=Monitor(argv=argv, **{"every_ms": 60_000, **monitor}),
        )
        self.env = dict(world.env)

    def look(self) -> Saw:
        """Make the probe due, and run it."""
        due = self.due
        with self.session.store.write() as tx:
            tx.run("todos.advance_monitor", todo_id=self.todo_id, expected=due, monitor_due_ms=1)
        work = goal_work.open_goal(self.session.store, self.session.project, self.goal.goal_id)
        return run_due_monitor(self.session.store, work, self.env)

    @property
    def due(self) -> int:
        with self.session.store.read() as tx:
            row = tx.one("todos.get", todo_id=self.todo_id)
        return int(row["monitor_due_ms"])  # type: ignore[index]

    @property
    def monitor(self) -> Monitor:
        with self.session.store.read() as tx:
            found = todos.get(tx, self.todo_id).monitor
        assert found is not None
        return found

    def made(self) -> list[Any]:
        """The work that changes opened."""
        with self.session.store.read() as tx:
            return [one for one in todos.page(tx, self.goal.goal_id) if one.reason == f"monitor:{self.todo_id}"]

    def decision(self) -> decisions.QuotaDecision:
        with self.session.store.read() as tx:
            return decisions.decide(facts.read(tx, self.goal.goal_id, kit.AGENT, self.session.store.now_ms()))


def test_the_same_again_costs_nothing(world: kit.World, session: Session) -> None:
    """No todo, no event, no spend: nothing but a later instant."""
    watched = Watched(world, session)
    assert watched.look() is Saw.FIRST
    kinds = kit.event_kinds(session, watched.goal.goal_id)
    for _ in range(5):
        assert watched.look() is Saw.UNCHANGED
    assert kit.event_kinds(session, watched.goal.goal_id) == kinds
    assert watched.made() == []
    assert watched.monitor.unchanged == 5
    assert watched.due > session.store.now_ms()


def test_a_change_becomes_work_that_names_it(world: kit.World, session: Session) -> None:
    watched = Watched(world, session)
    watched.look()
    watched.source.write_text("red: test_upload failed\n")
    assert watched.look() is Saw.CHANGED
    (made,) = watched.made()
    assert made.title == "the build is red"
    assert "test_upload failed" in made.body
    assert made.task_class is TaskClass.ADVANCEMENT
    assert "monitor_changed" in kit.event_kinds(session, watched.goal.goal_id)


def test_a_second_change_updates_the_work_that_waits(world: kit.World, session: Session) -> None:
    watched = Watched(world, session)
    watched.look()
    for text in ("red: first\n", "red: second\n"):
        watched.source.write_text(text)
        watched.look()
    (made,) = watched.made()
    assert "second" in made.body


def test_three_changes_in_a_row_ask_for_a_replan(world: kit.World, session: Session) -> None:
    """An output that is never the same (a timestamp in it) would make work for ever."""
    watched = Watched(world, session)
    watched.look()
    for number in range(monitors.STREAK):
        watched.source.write_text(f"now {number}\n")
        assert watched.look() is Saw.CHANGED
    assert watched.decision().rule is Rule.REPLAN_UNTRIED
    assert len(watched.made()) == 1


def test_a_probe_that_can_not_look_changes_nothing_but_is_told(world: kit.World, session: Session) -> None:
    watched = Watched(world, session)
    watched.look()
    watched.source.unlink()
    assert watched.look() is Saw.FAILED
    first = watched.due
    assert watched.made() == []
    assert watched.look() is Saw.FAILED
    assert watched.due - session.store.now_ms() > first - session.store.now_ms(), "ever more slowly"
    assert watched.look() is Saw.FAILED
    assert watched.decision().rule is Rule.REPLAN_UNTRIED
    told = kit.event_bodies(session, watched.goal.goal_id, "monitor_failed")
    assert [one["streak"] for one in told] == [1, 3]
    watched.source.write_text("green\n")
    assert watched.look() is Saw.UNCHANGED


@pytest.mark.parametrize("argv", [("no-such-program-anywhere",), ("false",), ("sh", "-c", "kill -9 $$")])
def test_every_way_to_fail_is_a_failure(world: kit.World, session: Session, argv: tuple[str, ...]) -> None:
    watched = Watched(world, session, argv=argv)
    assert watched.look() is Saw.FAILED
    assert watched.due > session.store.now_ms()


def test_a_probe_that_hangs_is_ended_with_all_that_it_started(world: kit.World, session: Session) -> None:
    pid_file = world.folder / "pid"
    watched = Watched(world, session, argv=("sh", "-c", f"sleep 1000 & echo $! > {pid_file}; wait"), timeout_s=1)
    assert watched.look() is Saw.FAILED
    assert identity.of(int(pid_file.read_text())) is None


def test_a_probe_has_no_credentials(world: kit.World, session: Session) -> None:
    env = {"PATH": os.environ["PATH"], "OPENAI_API_KEY": "sk-1", "LOOPX_TURN_TOKEN": "tok", "DATABASE_URL": "x"}
    watched = Watched(world, session)
    work = goal_work.open_goal(session.store, session.project, watched.goal.goal_id)
    seen = monitors._look(("env",), work.tree.root, env, 60, lambda: False)
    assert "DATABASE_URL" in seen.text
    assert "OPENAI" not in seen.text and "LOOPX" not in seen.text


def test_the_next_look_is_written_before_the_probe_runs(world: kit.World, session: Session) -> None:
    """A probe that asks the store when it is due finds the next instant there: a crash now would not repeat it."""
    out = world.folder / "seen"
    script = (
        "import sqlite3, sys\n"
        f"row = sqlite3.connect({session.store.path!r}).execute("
        "\"SELECT monitor_due_ms FROM todos WHERE task_class = 'monitor'\").fetchone()\n"
        f"open({str(out)!r}, 'w').write(str(row[0]))\n"
    )
    watched = Watched(world, session, argv=(sys.executable, "-c", script))
    now = session.store.now_ms()
    watched.look()
    assert int(out.read_text()) >= now + 60_000


def test_only_one_of_two_processes_runs_a_probe(world: kit.World, session: Session) -> None:
    watched = Watched(world, session)
    taken = monitors._take(session.store, watched.goal.goal_id)
    assert taken is not None
    assert monitors._take(session.store, watched.goal.goal_id) is None


def test_a_monitor_closed_meanwhile_counts_for_nothing(world: kit.World, session: Session) -> None:
    script = (
        "import sqlite3\n"
        f"c = sqlite3.connect({session.store.path!r})\n"
        "c.execute(\"UPDATE todos SET status = 'superseded' WHERE task_class = 'monitor'\")\nc.commit()\n"
    )
    watched = Watched(world, session, argv=(sys.executable, "-c", script))
    assert watched.look() is Saw.GONE


def test_watching_never_starts_a_host(world: kit.World, session: Session) -> None:
    """A whole run of a goal that only watches: probes run, no turn is started, and the run waits for the next look."""
    watched = Watched(world, session)
    with session.store.write() as tx:
        itself = todos.page(tx, watched.goal.goal_id)[0]
        todos.finish(tx, watched.goal.goal_id, itself.todo_id, "test", None, session.store.now_ms())
        tx.run("goals.set_contract", goal_id=watched.goal.goal_id, contract_state="green", contract_tree=None)
    done = world.loopx("worker", "--once", "--json")
    assert '"type":"turn_started"' not in done.stdout, done.stdout
    assert watched.monitor.last_hash is not None
    with session.store.read() as tx:
        row = goals.row_of(tx, watched.goal.goal_id)
    assert row["turn_count"] == 0
    assert row["due_at_ms"] == watched.due, "the worker wakes for the next look, and not before"
    assert row["state"] == GoalState.ACTIVE


def test_a_deferral_ends_when_its_probe_says_so(world: kit.World, session: Session) -> None:
    """Exit 0 opens the todo; anything else is asked again later."""
    flag = world.folder / "flag"
    goal = kit.goal(session)
    todo_id = kit.add_todo(
        session,
        goal.goal_id,
        "after the release",
        status=TodoStatus.DEFERRED,
        wake=Wake(kind=WakeKind.PROBE, probe=("test", "-f", str(flag))),
    )
    work = goal_work.open_goal(session.store, session.project, goal.goal_id)
    assert run_due_probe(session.store, work, world.env)
    assert not run_due_probe(session.store, work, world.env), "the next look is in the future"
    with session.store.write() as tx:
        assert todos.get(tx, todo_id).status is TodoStatus.DEFERRED
        row = tx.one("todos.get", todo_id=todo_id)
        tx.run("todos.advance_probe", todo_id=todo_id, expected=row["wake_at_ms"], wake_at_ms=1)  # type: ignore[index]
    flag.touch()
    assert run_due_probe(session.store, work, world.env)
    with session.store.read() as tx:
        assert todos.get(tx, todo_id).status is TodoStatus.OPEN
