"""What tests are built with must itself be right: the clock, the ids, the agent, and above all the leak checker."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopx.testing import Act, CountingIds, FakeClock, LeakKind, Sandbox, find_leaks, leaks


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A goal that was completed."""
    with Sandbox(str(tmp_path_factory.mktemp("box")), files={"n.txt": "0\n"}) as box:
        goal = box.goal(Act(write={"n.txt": "2\n"}, say="did it"), checks=("grep -q 2 n.txt",))
        assert box.run(goal).exit_code == 0
        yield box


@pytest.fixture
def copy(finished: Sandbox, tmp_path: Path) -> Path:
    """The store's file, to be spoilt."""
    path = tmp_path / "copy.db"
    finished.store.connection.backup(str(path))
    return path


def spoil(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()


def test_a_clean_run_leaves_nothing(finished: Sandbox, copy: Path) -> None:
    assert find_leaks(finished.store) == ()
    assert find_leaks(str(copy)) == ()


_NEVER = 1 << 50
SPOILT = {
    "an open turn": (LeakKind.OPEN_TURN, "UPDATE turns SET state = 'open'"),
    "a turn's lease": (
        LeakKind.LEASE_OF_NOBODY,
        f"UPDATE leases SET expires_at_ms = {_NEVER} WHERE resource LIKE 'turn:%'",
    ),
    "a claim's lease": (
        LeakKind.LEASE_OF_NOBODY,
        f"UPDATE leases SET expires_at_ms = {_NEVER} WHERE resource LIKE 'todo:%'",
    ),
    "a claim without a lease": (LeakKind.CLAIM_OF_NOBODY, "UPDATE todos SET status = 'claimed', todo_id = 'td-x'"),
    "an intent": (LeakKind.ORPHAN_INTENT, "UPDATE host_runs SET state = 'intended'"),
    "a reservation": (
        LeakKind.ORPHAN_RESERVATION,
        "INSERT INTO reservations (turn_key, goal_id, unit, amount) SELECT turn_key, goal_id, 'slots', 1 FROM turns",
    ),
    "an edited event": (LeakKind.BROKEN_CHAIN, "UPDATE events SET body = '{}' WHERE seq = 2"),
    "a lost event": (LeakKind.BROKEN_CHAIN, "DELETE FROM events WHERE seq = (SELECT MAX(seq) FROM events)"),
    "a lost spend": (LeakKind.UNBALANCED_BOOKS, "DELETE FROM ledger"),
    "a wrong total": (LeakKind.UNBALANCED_BOOKS, "UPDATE ledger SET cumulative = 2"),
    "a wrong index": (LeakKind.UNBALANCED_BOOKS, "UPDATE goals SET run_index = 2"),
    "a lost phase": (LeakKind.UNBALANCED_BOOKS, "DELETE FROM turn_phases WHERE ordinal = 3"),
    "a wrong price": (LeakKind.UNBALANCED_BOOKS, "UPDATE turns SET slots = 2"),
    "a lost turn": (LeakKind.UNBALANCED_BOOKS, "UPDATE goals SET turn_count = 2"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_each_leak_is_found(copy: Path, what: str) -> None:
    kind, statement = SPOILT[what]
    spoil(copy, statement)
    assert kind in {leak.kind for leak in find_leaks(str(copy))}


def test_a_process_of_a_run_that_is_over_is_found(finished: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "PATIENCE_S", 0.1)
    with sqlite3.connect(finished.store.path) as connection:
        [(run_id,)] = connection.execute("SELECT run_id FROM host_runs").fetchall()
    connection.close()
    left = subprocess.Popen(["sleep", "600"], env={"PATH": "/usr/bin:/bin", "LOOPX_RUN_ID": run_id})
    try:
        found = find_leaks(finished.store)
    finally:
        left.kill()
        left.wait()
    assert [leak.kind for leak in found] == [LeakKind.ORPHAN_PROCESS]
    assert str(left.pid) in found[0].subject


def test_an_agent_notes_its_starts_by_turn_and_repeats_its_act_for_the_same_turn(tmp_path: Path) -> None:
    with Sandbox(str(tmp_path), files={"n.txt": "0\n"}) as box:
        agent = box.agent(Act(write={"n.txt": "1\n"}), Act(write={"n.txt": "2\n"}))
        for turn in ("t-1", "t-1", "t-2", "t-3"):
            subprocess.run(
                ["sh", "-c", agent.engine.removeprefix("command:")],
                cwd=box.root,
                env={"PATH": "/usr/bin:/bin", "LOOPX_TURN_KEY": turn},
                stdin=subprocess.DEVNULL,
                check=True,
            )
            assert box.read("n.txt") == ("1\n" if turn == "t-1" else "2\n")
        assert agent.started == agent.finished == ("t-1", "t-1", "t-2", "t-3")


def test_the_clock_moves_when_it_is_told_to() -> None:
    clock = FakeClock(1_000)
    steady = clock.monotonic_ms()
    clock.advance(50)
    assert (clock.now_ms(), clock.monotonic_ms() - steady) == (1_050, 50)
    clock.jump(-500)
    assert (clock.now_ms(), clock.monotonic_ms() - steady) == (550, 50)
    with pytest.raises(ValueError, match="jump"):
        clock.advance(-1)


def test_ids_are_the_same_in_every_run() -> None:
    assert [CountingIds().new("td") for _ in range(2)] == ["td00000001"] * 2
    ids = CountingIds()
    assert [ids.new("td"), ids.new("t"), ids.secret()] == ["td00000001", "t00000002", "secret-00000003"]
