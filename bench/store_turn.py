"""The store's part of a turn: our commits, and the same statements replayed on bare `sqlite3`, which is the floor."""

from __future__ import annotations

import os
import resource
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from loopx.control_plane.goal import GoalDefinition
from loopx.control_plane.ids import AgentId, GoalId, TodoId, TurnKey
from loopx.control_plane.quota.facts import ContractState
from loopx.control_plane.quota.policy import QuotaPolicy
from loopx.control_plane.scheduler.schedule import Schedule
from loopx.control_plane.turn_driver.driver import LoopXTurnRoute
from loopx.control_plane.turn_driver.journal import (
    Fence,
    Finished,
    HostEnded,
    HostExecuted,
    HostReport,
    NextDue,
    ResultTyped,
    ScheduleAcked,
    ScheduleApplied,
    SlotSpent,
    TurnPurpose,
    TurnResult,
    Validated,
    WrittenBack,
)
from loopx.control_plane.turn_driver.transaction import LoopXTurnResultKind
from loopx.control_plane.work_items.todo import Todo
from loopx.runtime.clock import SystemClock, SystemIds
from loopx.store import goals, hosts, schedules, todos, turns
from loopx.store.connection import Connection
from loopx.store.store import Store

GOAL = GoalId("bench")
AGENT = AgentId("loopx")


class StoreCost(msgspec.Struct, frozen=True, kw_only=True):
    """The mean cost of one turn, in milliseconds."""

    wall_ms: float
    cpu_ms: float
    commits: int
    turns: int


def _open(path: Path) -> Store:
    return Store(Connection(str(path), create=True), SystemClock(), SystemIds())


def _prepare(store: Store) -> None:
    definition = GoalDefinition(objective="bench", quota=QuotaPolicy(allowed_slots=10_000_000))
    with store.write() as tx:
        now = store.now_ms()
        goals.create(tx, GOAL, definition, "/bench", "bench", now)
        schedules.create(tx, Schedule(goal_id=GOAL), now)
        todos.insert(tx, Todo(todo_id=TodoId("td-bench"), goal_id=GOAL, title="bench", created_at_ms=now))


def one_turn(store: Store, number: int, goal_id: GoalId = GOAL) -> None:
    """Every commit that a turn makes (claim and spend are among them), with the host and the checks left out."""
    key = TurnKey(f"b-{number:08d}")
    request = turns.StartTurn(
        turn_key=key,
        goal_id=goal_id,
        agent_id=AGENT,
        owner="bench",
        revision=1,
        purpose=TurnPurpose.WORK,
        route=LoopXTurnRoute.READY_FOR_HOST,
        engine="command:true",
        todo_id=TodoId(f"td-{goal_id}"),
        new_todo=None,
        predecessor=None,
        tree_before="a" * 40,
        envelope="{}",
        decision="{}",
        token_hash=None,
    )
    with store.write() as tx:
        journal, fence = turns.start(tx, request, store.now_ms())
    store.remember(journal)
    report = HostReport(run_id=f"{key}.1", engine="command:true", end_kind="success", handed_over=True)
    _intend(store, key, fence, goal_id)
    store.commit(key, fence, (HostEnded(report),))
    result = TurnResult(
        kind=LoopXTurnResultKind.VALIDATED_PROGRESS, tree_after="b" * 40, contract=ContractState.RED, changed=True
    )
    store.commit(key, fence, (HostExecuted(report), ResultTyped(result), Validated()))
    settled = (WrittenBack("c" * 40), SlotSpent(), ScheduleApplied(NextDue()), ScheduleAcked(), Finished())
    store.commit(key, fence, settled)


def _intend(store: Store, key: TurnKey, fence: Fence, goal_id: GoalId) -> None:
    with store.write() as tx:
        hosts.intend(
            tx,
            fence=fence,
            run_id=f"{key}.1",
            turn_key=key,
            goal_id=goal_id,
            engine="command:true",
            attempt=1,
            spool_dir="/bench",
            resumes=None,
            prompt_bytes=1,
            overhead_bytes=1,
            now_ms=store.now_ms(),
        )


def measure(count: int, folder: Path) -> tuple[StoreCost, StoreCost]:
    """Our commits and the floor's, on the same disk."""
    recorded: list[list[tuple[str, dict[str, Any]]]] = []
    _record(count, folder / "recorded.db", recorded)
    # The first hundred turns warm the caches of both.
    return _ours(count, folder / "ours.db"), _floor(recorded, folder / "floor.db", count)


def _ours(count: int, path: Path) -> StoreCost:
    store = _open(path)
    _prepare(store)
    for number in range(100):
        one_turn(store, number)
    wall, cpu = time.perf_counter(), _cpu()
    for number in range(100, 100 + count):
        one_turn(store, number)
    return _cost(wall, cpu, count, 5)


def in_store(path: Path, goal_id: GoalId, count: int) -> StoreCost:
    """The same in a store that is there."""
    store = _open(path)
    for number in range(20):
        one_turn(store, number, goal_id)
    wall, cpu = time.perf_counter(), _cpu()
    for number in range(20, 20 + count):
        one_turn(store, number, goal_id)
    return _cost(wall, cpu, count, 5)


def _record(count: int, path: Path, recorded: list[list[tuple[str, dict[str, Any]]]]) -> None:
    """Write down every statement of every transaction, to be replayed without any of our code."""
    store = _open(path)
    _prepare(store)
    connection = store.connection._connection
    current: list[tuple[str, dict[str, Any]]] = []

    class Recorder:
        def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
            if sql.startswith("BEGIN"):
                current.clear()
            elif sql == "COMMIT":
                recorded.append(list(current))
            elif not sql.startswith(("PRAGMA", "ROLLBACK")):
                current.append((sql, dict(parameters)))
            return connection.execute(sql, parameters)

        def __getattr__(self, name: str) -> Any:
            return getattr(connection, name)

    store.connection._connection = Recorder()  # type: ignore[assignment]  # the bench's own stand-in
    recorded.clear()
    for number in range(100 + count):
        one_turn(store, number)


def _floor(recorded: list[list[tuple[str, dict[str, Any]]]], path: Path, count: int) -> StoreCost:
    store = _open(path)
    _prepare(store)
    connection = store.connection._connection
    per_turn = len(recorded) // (100 + count)
    for transaction in recorded[: 100 * per_turn]:
        _replay(connection, transaction)
        store.connection._checkpoint()
    wall, cpu = time.perf_counter(), _cpu()
    for transaction in recorded[100 * per_turn :]:
        _replay(connection, transaction)
        store.connection._checkpoint()
    return _cost(wall, cpu, count, per_turn)


def _replay(connection: sqlite3.Connection, transaction: list[tuple[str, dict[str, Any]]]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for sql, parameters in transaction:
        cursor = connection.execute(sql, parameters)
        if sql.startswith("SELECT"):
            cursor.fetchall()
    connection.execute("COMMIT")


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _cost(wall: float, cpu: float, count: int, commits: int) -> StoreCost:
    return StoreCost(
        wall_ms=(time.perf_counter() - wall) * 1000 / count,
        cpu_ms=(_cpu() - cpu) * 1000 / count,
        commits=commits,
        turns=count,
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=os.environ.get("LOOPX_BENCH_TMP")) as folder:
        both = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 300, Path(folder))
    print(msgspec.json.encode(both).decode())
