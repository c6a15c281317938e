"""The traps that stores of this kind fall into, each as a test."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loopx.control_plane.errors import NotNowError, StoreError
from loopx.control_plane.ids import AgentId
from loopx.runtime.worker_books import Books
from loopx.store import connection as connections
from loopx.store.connection import Connection
from loopx.store.schema import MIGRATIONS, Dialect, render_migration
from loopx.testing import Act, Sandbox, find_leaks, temporary_store
from tests.chaos import child, kit, picture

FILES = {"n.txt": "0\n"}
CHECKS = ("grep -q -e 1 -e 2 n.txt", "grep -q 2 n.txt")
ACTS = (Act(write={"n.txt": "1\n"}), Act(write={"n.txt": "2\n"}))


@pytest.fixture(scope="module")
def zygote() -> Iterator[kit.Zygote]:
    with kit.Zygote() as running:
        yield running


# -- nothing but SQL inside a transaction ------------------------------------------------------------------------


@pytest.mark.parametrize("died", [None, "durable_writeback"])
def test_inside_a_transaction_there_is_sql_and_nothing_else(
    zygote: kit.Zygote, tmp_path: Path, died: str | None
) -> None:
    """A process that is stopped inside one blocks every writer: so it may neither wait nor look at the world there."""
    with Sandbox(str(tmp_path), files=FILES) as box:
        goal = box.goal(*ACTS, checks=CHECKS)
    audit = tmp_path / "audit"
    order = {"folder": str(tmp_path), "goal_id": goal.goal_id}
    if died is not None:
        assert zygote.run(**order, all_boundaries=True, die_after=died) == child.DIED
    assert zygote.run(**order, audit=str(audit)) == 0
    transactions, *found = audit.read_text().splitlines()
    assert int(transactions) > 15, "the instrument saw the run's transactions"
    assert found == []


def test_a_process_that_is_stopped_inside_a_transaction_is_told_of_by_a_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "BUSY_TIMEOUT_S", 0.2)
    with (
        contextlib.closing(temporary_store(str(tmp_path))) as stopped,
        contextlib.closing(temporary_store(str(tmp_path))) as other,
    ):
        with stopped.write() as tx:
            tx.run("evidence.cache_check", inputs="a", result="{}", now_ms=1)
            with pytest.raises(StoreError) as caught, other.write():
                pass
            assert caught.value.code == "store_busy"
            assert "doctor" in caught.value.hint
            with other.read() as reading:
                assert reading.one("evidence.cached_check", inputs="a") is None, "readers go on"
        with other.write() as tx:
            tx.run("evidence.cache_check", inputs="b", result="{}", now_ms=1)


# -- a connection that is cut after COMMIT -----------------------------------------------------------------------


class _CutConnection(sqlite3.Connection):
    """Says once, after a COMMIT that was done, that it is not known whether it was."""

    left: list[int]

    def execute(self, statement: str, parameters: Any = (), /) -> sqlite3.Cursor:
        done = super().execute(statement, parameters)
        if statement == "COMMIT":
            self.left[0] -= 1
            if self.left[0] == 0:
                raise sqlite3.OperationalError("disk I/O error")
        return done


def cut_after(number: int) -> tuple[Callable[[str], sqlite3.Connection], list[int]]:
    left = [number]

    def driver(path: str) -> sqlite3.Connection:
        made = sqlite3.connect(path, timeout=30, isolation_level=None, factory=_CutConnection)
        made.left = left
        return made

    return driver, left


def run_with_a_lost_answer(folder: Path, number: int) -> tuple[dict[str, Any] | None, list[int]]:
    """The goal's final picture when the answer to its n-th commit was lost."""
    folder.mkdir()
    with Sandbox(str(folder), files=FILES) as box:
        goal_id = box.goal(*ACTS, checks=CHECKS).goal_id
    driver, left = cut_after(number)
    before = connections.use_driver(driver)
    try:
        for _ in range(3):
            with Sandbox(str(folder)) as box:
                try:
                    box.run(goal_id)
                    break
                except StoreError as error:
                    assert error.code == "store_unreadable"
                except NotNowError as error:
                    # The lost answer was the closeout's: there is nothing left to run.
                    assert error.code == "goal_closed"
    finally:
        connections.use_driver(before)
    assert find_leaks(picture.database_of(folder)) == ()
    return picture.of(folder, goal_id), left


@pytest.fixture(params=[pytest.param(3, id="some"), pytest.param(0, id="all", marks=pytest.mark.chaos)])
def at_most(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.mark.timeout(1800)
def test_a_commit_whose_answer_was_lost_is_read_back_and_never_retried_blind(tmp_path: Path, at_most: int) -> None:
    wanted, left = run_with_a_lost_answer(tmp_path / "undisturbed", 0)
    commits = -left[0]
    assert commits > 15
    seed = kit.seed()
    print(f"{kit.SEED_VARIABLE}={seed}")
    numbers = list(range(1, commits + 1))
    for number in random.Random(seed).sample(numbers, at_most) if at_most else numbers:
        found, left = run_with_a_lost_answer(tmp_path / str(number), number)
        assert left[0] <= 0, "the answer was lost"
        assert found == wanted, f"the answer to commit {number} of {commits} was lost"
        starts = (tmp_path / str(number) / "agent" / "started").read_text().split()
        assert len(starts) == len(set(starts)) == len(ACTS)


# -- what the library would decide for us ------------------------------------------------------------------------


def test_no_value_in_the_schema_or_the_statements_comes_from_the_library() -> None:
    """Two SQLite versions, or two databases, would not agree on it: instants, ids and defaults are made in Python."""
    texts = [statement for name in MIGRATIONS for statement in render_migration(name, Dialect.SQLITE)]
    folder = Path(connections.__file__).with_name("sql")
    texts += [re.sub(r"--.*", "", file.read_text()) for file in sorted(folder.glob("*.sql"))]
    forbidden = re.compile(
        r"\bDEFAULT\b|CURRENT_(TIME|DATE)|\b(datetime|strftime|julianday|unixepoch|random|randomblob|last_insert_rowid)"
        r"\s*\(|AUTOINCREMENT",
        re.IGNORECASE,
    )
    found = [match.group(0) for text in texts if (match := forbidden.search(text))]
    assert found == []


def test_there_is_one_checkpointer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some SQLite versions have a race between a checkpoint and a commit: nobody folds back while another does."""
    monkeypatch.setattr(connections, "CHECKPOINT_BYTES", 1)
    store = temporary_store(str(tmp_path))
    assert store.connection.pragma("wal_autocheckpoint") == [(0,)]
    folds: list[bool] = []
    whole = Connection._fold_back
    monkeypatch.setattr(Connection, "_fold_back", lambda self: folds.append(whole(self)) or folds[-1])
    with open(f"{store.path}.checkpoint-lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with store.write() as tx:
            tx.run("evidence.cache_check", inputs="a", result="{}", now_ms=1)
        assert folds == []
    with store.write() as tx:
        tx.run("evidence.cache_check", inputs="b", result="{}", now_ms=1)
    assert folds == [True]
    assert os.stat(f"{store.path}-wal").st_size == 0
    store.close()


# -- an unfinished turn must be claimable although its schedule has moved on -------------------------------------


@pytest.mark.leaves("open_turn", reason="the turn is looked at, and not run")
def test_a_worker_takes_a_goal_with_an_open_turn_although_it_is_not_due(zygote: kit.Zygote, tmp_path: Path) -> None:
    with Sandbox(str(tmp_path), files=FILES) as box:
        goal = box.goal(*ACTS, checks=CHECKS)
        order = {"folder": str(tmp_path), "goal_id": goal.goal_id}
        assert zygote.run(**order, all_boundaries=True, die_after="durable_writeback") == child.DIED
        far = box.store.now_ms() + 10**9
        with kit.rows(box.store.path) as connection:
            connection.execute("UPDATE goals SET due_at_ms = ?, scheduled_seq = event_seq", (far,))
            connection.execute("UPDATE schedules SET next_due_ms = ?", (far,))
            connection.commit()
        found = Books(box.store, AgentId("loopx")).look({})
        assert [candidate.goal_id for candidate in found.candidates] == [goal.goal_id]
