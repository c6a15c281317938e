"""Makes large stores for the growth cases: rows as the product writes them, inserted in bulk."""

from __future__ import annotations

import sys
from pathlib import Path

from loopx.control_plane.goal import GoalDefinition
from loopx.control_plane.ids import GoalId, TodoId
from loopx.control_plane.quota.policy import QuotaPolicy
from loopx.control_plane.scheduler.schedule import Schedule
from loopx.control_plane.work_items.todo import Todo
from loopx.runtime.session import open_session
from loopx.store import goals, schedules, todos
from loopx.store.store import Store

DAY_MS = 86_400_000
FOCUS = GoalId("focus")


def _goal(store: Store, name: str, now: int) -> None:
    definition = GoalDefinition(
        objective=name, engines=("command:true",), quota=QuotaPolicy(allowed_slots=1_000_000_000)
    )
    with store.write() as tx:
        goals.create(tx, GoalId(name), definition, "/bench", f"tree-{name}", now)
        schedules.create(tx, Schedule(goal_id=GoalId(name)), now)
        todo = Todo(todo_id=TodoId(f"td-{name}"), goal_id=GoalId(name), title=name, created_at_ms=now)
        todos.insert(tx, todo)


def fill(project: str, *, ledger: int, turns: int, goal_count: int, todo_count: int, asleep: bool = False) -> None:
    """A project whose focus goal has so much history, among so many goals. Spends are spread over a year.

    `asleep`: every goal waits until tomorrow.
    """
    session = open_session(project, create=True)
    store, now = session.store, session.store.now_ms()
    _goal(store, FOCUS, now)
    raw = store.connection._connection
    raw.execute("PRAGMA synchronous = OFF")
    for number in range(goal_count - 1):
        _goal(store, f"goal-{number:06d}", now)
    raw.execute("BEGIN")
    step = max(1, 365 * DAY_MS // max(1, ledger))
    raw.executemany(
        "INSERT INTO ledger (goal_id, run_index, kind, effect_ref, turn_key, slots, cumulative, at_ms, voids,"
        " voided_at_ms, reason) VALUES ('focus', ?, 'spend', ?, NULL, 1, ?, ?, NULL, NULL, 'bench')",
        ((i, f"bench/{i}", i, now - (ledger - i) * step) for i in range(1, ledger + 1)),
    )
    raw.execute("UPDATE goals SET run_index = ?, turn_count = ? WHERE goal_id = 'focus'", (ledger, turns))
    raw.executemany(
        "INSERT INTO turns (turn_key, goal_id, agent_id, todo_id, number, goal_revision, purpose, route, state,"
        " completed, closeout, epoch, engine, discharged, slots, envelope, decision, started_at_ms, ended_at_ms,"
        " result_kind, intended_kind) VALUES (?, 'focus', 'loopx', 'td-focus', ?, 1, 'work', 'ready_for_host',"
        " 'closed', 7, 'none', 1, 'command:true', 0, 1, '{}', '{}', ?, ?, 'validated_progress', 'validated_progress')",
        ((f"t-{i:08d}", i, now - (turns - i) * 1000, now - (turns - i) * 1000) for i in range(1, turns + 1)),
    )
    raw.executemany(
        "INSERT INTO todos (todo_id, goal_id, title, body, task_class, status, priority, open_deps, open_gates, checks,"
        " write_scope, reason, created_at_ms, updated_at_ms) VALUES (?, 'focus', 'more', '', 'advancement', 'open', 0,"
        " 0, 0, '[]', '[]', '', ?, ?)",
        ((f"td-x{i:08d}", now, now) for i in range(todo_count - 1)),
    )
    if asleep:
        raw.execute(
            "UPDATE goals SET wait_kind = 'limit', wait_until_ms = ?, due_at_ms = ?, scheduled_seq = event_seq",
            (now + DAY_MS, now + DAY_MS),
        )
    raw.execute("COMMIT")
    raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    session.close()


if __name__ == "__main__":
    folder, ledger_rows, turn_rows, goal_rows, todo_rows = sys.argv[1], *map(int, sys.argv[2:6])
    Path(folder).mkdir(parents=True, exist_ok=True)
    sleeping = sys.argv[6:] == ["--asleep"]
    fill(folder, ledger=ledger_rows, turns=turn_rows, goal_count=goal_rows, todo_count=todo_rows, asleep=sleeping)
