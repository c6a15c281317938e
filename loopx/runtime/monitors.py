"""Monitors: probes whose output is watched by its hash. Plain code looks; only what changed becomes work for a host.

What a probe sees the first time is its reference. The same again costs nothing and leaves no trace but the instant of
the next look. Something else opens one todo that names it (and while that todo is still open, only its text is brought
up to date). Three changes in a row, or three probes in a row that could not look, mean that the watching itself is
wrong: a replan is due. A probe's next instant is written before it runs, so that no crash and no second process can
make it spin. The same holds for a deferral that a probe ends.
"""

from __future__ import annotations

import enum
import os
import shlex
from collections.abc import Callable, Mapping

import msgspec

from loopx.control_plane.ids import TodoId
from loopx.control_plane.work_items.todo import Monitor, Todo, TodoStatus
from loopx.hosts import redact
from loopx.runtime.goal_work import GoalWork
from loopx.store import events, todos
from loopx.store.codec import dump
from loopx.store.connection import Tx
from loopx.store.store import Store
from loopx.workspace.check_env import check_environment
from loopx.workspace.check_output import OutputSink
from loopx.workspace.check_process import Clock, EndedBy, run_command

STREAK = 3
"""Changes, or failures, in a row after which the plan is asked about instead."""
SLOWEST_MS = 3_600_000
"""A probe that fails is tried ever more slowly, up to this."""
PROBE_EVERY_MS = 300_000
PROBE_TIMEOUT_S = 60
SHOWN_CHARS = 1200


class Saw(enum.StrEnum):
    """What one look came to."""

    NOTHING_DUE = "nothing_due"
    FIRST = "first"
    UNCHANGED = "unchanged"
    CHANGED = "changed"
    FAILED = "failed"
    GONE = "gone"
    """The monitor was closed or edited while its probe ran; what it saw counts for nothing."""


class _Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe's command did. `digest` None: it could not look."""

    digest: str | None
    text: str


def _never() -> bool:
    return False


def run_due_monitor(store: Store, work: GoalWork, env: Mapping[str, str], stopping: Callable[[], bool] = _never) -> Saw:
    """Run the probe that is due, if there is one, and record what it saw."""
    taken = _take(store, work.goal_id)
    if taken is None or taken.monitor is None:
        return Saw.NOTHING_DUE
    monitor = taken.monitor
    seen = _look(monitor.argv, work.tree.root, env, monitor.timeout_s, stopping)
    with store.write() as tx:
        now = store.now_ms()
        current = todos.get(tx, taken.todo_id)
        if current.status is not TodoStatus.OPEN or current.monitor != monitor:
            return Saw.GONE
        return _Judge(store, tx, current, monitor, now).judge(seen)


def _take(store: Store, goal_id: str) -> Todo | None:
    """The due monitor, its next look already written."""
    with store.write() as tx:
        now = store.now_ms()
        due = tx.one("todos.monitor_due", goal_id=goal_id, now_ms=now)
        if due is None:
            return None
        row = tx.one("todos.get", todo_id=due["todo_id"])
        todo = todos.get(tx, due["todo_id"])
        every = todo.monitor.every_ms if todo.monitor is not None else SLOWEST_MS
        expected = int(row["monitor_due_ms"]) if row is not None else now
        taken = tx.run(
            "todos.advance_monitor", todo_id=todo.todo_id, expected=expected, monitor_due_ms=now + max(1000, every)
        )
        return todo if taken == 1 else None


def _look(
    argv: tuple[str, ...], root: str, env: Mapping[str, str], timeout_s: int, stopping: Callable[[], bool]
) -> _Probe:
    sink = OutputSink(keep_stdout=True)
    try:
        ended = run_command(
            argv,
            cwd=root,
            env=check_environment(env),
            sink=sink,
            clock=Clock(timeout_ms=timeout_s * 1000),
            cancelled=stopping,
        )
    except (OSError, ValueError) as error:
        return _Probe(digest=None, text=f"{os.path.basename(argv[0]) if argv else 'probe'}: {type(error).__name__}")
    output = sink.output()
    text = redact.redact(output.head + output.tail)[:SHOWN_CHARS]
    if ended.by is not EndedBy.ITSELF or ended.exit_code != 0:
        how = f"exit {ended.exit_code}" if ended.by is EndedBy.ITSELF else str(ended.by)
        return _Probe(digest=None, text=f"{how}\n{text}")
    return _Probe(digest=sink.stdout_hash, text=text)


class _Judge:
    """Writes what one look means, in one transaction."""

    def __init__(self, store: Store, tx: Tx, todo: Todo, monitor: Monitor, now_ms: int) -> None:
        self._store = store
        self._tx = tx
        self._todo = todo
        self._monitor = monitor
        self._now = now_ms

    def judge(self, seen: _Probe) -> Saw:
        monitor = self._monitor
        if seen.digest is None:
            return self._failed(seen)
        if monitor.last_hash is None:
            self._save(last_hash=seen.digest, unchanged=0, changes=0, failures=0)
            self._event("monitor_watching", {"hash": seen.digest})
            return Saw.FIRST
        if seen.digest == monitor.last_hash:
            self._save(unchanged=monitor.unchanged + 1, changes=0, failures=0)
            return Saw.UNCHANGED
        return self._changed(seen, seen.digest)

    def _changed(self, seen: _Probe, digest: str) -> Saw:
        streak = self._monitor.changes + 1
        flapping = streak >= STREAK
        self._save(last_hash=digest, unchanged=0, changes=0 if flapping else streak, failures=0)
        self._event("monitor_changed", {"hash": digest, "streak": streak, "replan": flapping})
        if flapping:
            self._replan()
        else:
            self._open_work(seen.text)
        return Saw.CHANGED

    def _failed(self, seen: _Probe) -> Saw:
        streak = self._monitor.failures + 1
        slower = min(SLOWEST_MS, self._monitor.every_ms << min(streak, 16))
        self._save(failures=streak, changes=0, after_ms=max(self._monitor.every_ms, slower))
        # An event for the first failure and for the streak; one for each would only make noise.
        if streak in (1, STREAK):
            body = {"streak": streak, "text": seen.text[:200], "replan": streak == STREAK}
            self._event("monitor_failed", body)
        if streak == STREAK:
            self._replan()
        return Saw.FAILED

    def _save(self, *, after_ms: int | None = None, **changes: str | int | None) -> None:
        monitor = msgspec.structs.replace(self._monitor, **changes)
        due = self._now + max(1000, self._monitor.every_ms if after_ms is None else after_ms)
        self._tx.run(
            "todos.set_monitor",
            todo_id=self._todo.todo_id,
            monitor=dump(monitor),
            monitor_due_ms=due,
            now_ms=self._now,
        )

    def _replan(self) -> None:
        self._tx.run("goals.open_breaker", goal_id=self._todo.goal_id, now_ms=self._now)

    def _open_work(self, text: str) -> None:
        """One open todo for this monitor: what it saw last is what counts."""
        reason = f"monitor:{self._todo.todo_id}"
        body = f"$ {shlex.join(self._monitor.argv)}\n{text}"
        found = self._tx.one("todos.open_with_reason", goal_id=self._todo.goal_id, reason=reason)
        if found is not None:
            self._tx.run(
                "todos.edit",
                todo_id=found["todo_id"],
                title=found["title"],
                body=body,
                priority=found["priority"],
                checks=found["checks"],
                now_ms=self._now,
            )
            return
        todo = Todo(
            todo_id=TodoId(self._store.ids.new("td")),
            goal_id=self._todo.goal_id,
            title=self._todo.title,
            body=body,
            priority=self._todo.priority,
            write_scope=self._todo.write_scope,
            reason=reason,
            created_at_ms=self._now,
        )
        todos.insert(self._tx, todo)

    def _event(self, kind: str, body: dict[str, object]) -> None:
        events.append(self._tx, self._todo.goal_id, kind, self._now, {"todo_id": self._todo.todo_id, **body})


def run_due_probe(store: Store, work: GoalWork, env: Mapping[str, str], stopping: Callable[[], bool] = _never) -> bool:
    """Ask whether a deferral is over: exit 0 opens its todo. False when no probe was due."""
    with store.write() as tx:
        now = store.now_ms()
        row = tx.one("todos.probe_due", goal_id=work.goal_id, now_ms=now)
        if row is None:
            return False
        taken = tx.run(
            "todos.advance_probe",
            todo_id=row["todo_id"],
            expected=row["wake_at_ms"],
            wake_at_ms=now + PROBE_EVERY_MS,
        )
        todo = todos.get(tx, row["todo_id"])
    if taken != 1 or todo.wake is None or not todo.wake.probe:
        return True
    seen = _look(todo.wake.probe, work.tree.root, env, PROBE_TIMEOUT_S, stopping)
    if seen.digest is None:
        return True
    with store.write() as tx:
        current = todos.get(tx, todo.todo_id)
        if current.status is todo.status and current.wake == todo.wake:
            todos.set_status(tx, current, TodoStatus.OPEN, store.now_ms(), reason="probe_passed", by="loopx")
    return True
