"""What a worker reads and writes in the store: who is due, who is busy, and the next wake of whoever just ran.

Every goal that it leaves has a wake in the future, or none; a run that failed is tried again ever more slowly. So a
worker can neither spin nor forget a goal. It starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from loopx.control_plane.errors import LoopXError
from loopx.control_plane.ids import AgentId, GoalId
from loopx.control_plane.scheduler.arbitration import backoff_ms
from loopx.control_plane.scheduler.execution_context import ExecutionContext, RunMode, automation_of, owner_refusal
from loopx.control_plane.scheduler.schedule import ScheduleOwner
from loopx.control_plane.work_items.lease import Lease
from loopx.runtime import owner as owners
from loopx.runtime import run_guard, waking
from loopx.runtime.fleet import Candidate
from loopx.store import events, goals, leases, outbox, turns
from loopx.store.connection import Row, Tx
from loopx.store.store import Store

LIMIT = 5000
"""Goals that one look takes in; more are seen by the next one."""
NEXT_LOOK_MS = 1_000
BUSY_AGAIN_MS = 5_000
"""When to look again at a goal that another process runs."""
SENDER_MS = 5_000
_RESUMED_STATES = frozenset({"active", "paused"})
"""A pause lets the running turn come to its end; a stop is carried out by whoever stops."""
_CONFLICTS = frozenset({"goal_running", "lease_held", "tree_busy", "turn_open", "stale_revision", "lease_lost"})


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """What one look found. `next_at_ms`: the next instant at which something is due; None: nothing ever by itself."""

    candidates: tuple[Candidate, ...]
    busy_trees: frozenset[str]
    next_at_ms: int | None


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """A goal as it was when its run was started."""

    event_seq: int
    spent: int


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """A run that came to no result."""

    code: str
    message: str
    again_at_ms: int


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A child's last line, as far as it can be read."""

    type: str = ""
    exit_code: int | None = None
    turns: int = 0
    code: str = ""
    message: str = ""

    @staticmethod
    def of(line: bytes) -> Ended:
        """What the line says; nothing when it is no such line."""
        try:
            return msgspec.json.decode(line, type=Ended)
        except msgspec.MsgspecError:
            return Ended()


class Books:
    """One worker's view of the store."""

    def __init__(self, store: Store, agent_id: AgentId) -> None:
        self._store = store
        self._agent_id = agent_id
        self._failures: dict[str, int] = {}
        self._held: dict[str, int] = {}
        """Goals that another process runs, and until when they are left alone."""

    def look(self, running: Mapping[str, str]) -> Looked:
        """Who is due, with every other goal's wake computed and stored.

        `running` maps the goals that run here to their work trees; whoever shares one is not even looked at.
        """
        now = self._store.now_ms()
        with self._store.read() as tx:
            due = tx.all("goals.to_look_at", now_ms=now, limit=LIMIT)
            moved = tx.all("goals.moved", limit=LIMIT)
            open_turns = tx.all("turns.open_all", limit=LIMIT)
        busy: set[str] = set(running.values())
        found: dict[str, Candidate] = {}
        self._held = {goal_id: until for goal_id, until in self._held.items() if until > now}
        for turn in open_turns:
            if turn["goal_id"] not in running:
                self._see_open_turn(turn, busy, found, now)
        for goal_id, row in {str(row["goal_id"]): row for row in (*due, *moved)}.items():
            if not (goal_id in running or goal_id in found or goal_id in self._held or row["tree_key"] in busy):
                self._see_due(goal_id, row, found, now)
        more = len(due) >= LIMIT or len(moved) >= LIMIT
        next_at = now + NEXT_LOOK_MS if more else self._next_at(now)
        return Looked(candidates=tuple(found.values()), busy_trees=frozenset(busy), next_at_ms=next_at)

    def _see_open_turn(self, turn: Row, busy: set[str], found: dict[str, Candidate], now_ms: int) -> None:
        """A turn that is open keeps its tree; one whose driver is gone goes on here, if it is our agent's."""
        goal_id = str(turn["goal_id"])
        if turn["state"] != "open":
            return
        with self._store.read() as tx:
            row = goals.row_of(tx, goal_id)
            held = leases.get(tx, turns.turn_resource(goal_id, turn["agent_id"]))
            runs = leases.get(tx, run_guard.resource(goal_id, turn["agent_id"]))
        if row["state"] not in _RESUMED_STATES:
            return
        if turn["agent_id"] != self._agent_id or _lives(held, now_ms) or _lives(runs, now_ms) or goal_id in self._held:
            busy.add(str(row["tree_key"]))
            return
        found[goal_id] = Candidate(
            goal_id=GoalId(goal_id),
            tree_key=row["tree_key"],
            at_ms=turn["started_at_ms"],
            started_at_ms=turn["started_at_ms"],
            resume=True,
        )

    def _see_due(self, goal_id: str, row: Row, found: dict[str, Candidate], now_ms: int) -> None:
        """Whether this goal could run now. Only a wake that is not here yet is written down."""
        with self._store.read() as tx:
            busy = leases.get(tx, run_guard.resource(goal_id, self._agent_id))
            outside = self._refusal(tx, goal_id)
            wake = waking.look(self._store, tx, goal_id, self._agent_id)
        if _lives(busy, now_ms):
            self._held[goal_id] = now_ms + BUSY_AGAIN_MS
        elif outside or not wake.due or wake.at_ms is None:
            waking.settle(self._store, goal_id, self._agent_id, held=outside)
        else:
            found[goal_id] = Candidate(
                goal_id=GoalId(goal_id), tree_key=row["tree_key"], at_ms=wake.at_ms, started_at_ms=wake.last_start_ms
            )

    def _refusal(self, tx: Tx, goal_id: str) -> bool:
        """Whether another clock wakes this goal."""
        row = tx.one("schedules.get", goal_id=goal_id)
        if row is None or row["owner"] == ScheduleOwner.LOOPX:
            return False
        engine = goals.row_of(tx, goal_id)["engine"]
        context = ExecutionContext(
            owner=ScheduleOwner(row["owner"]), mode=RunMode.WORKER, automation=automation_of(engine)
        )
        return owner_refusal(context) is not None

    def _next_at(self, now_ms: int) -> int | None:
        """The next instant that is not here yet: of a goal that sleeps, of one that is left alone, of a message."""
        with self._store.read() as tx:
            due_at = tx.number("goals.next_due_after", now_ms=now_ms)
            send_at = tx.number("outbox.next_at")
        # What is due in the outbox is being sent by another process: it is looked at again when that had its time.
        instants = [due_at, send_at and max(send_at, now_ms + SENDER_MS), *self._held.values()]
        return min((max(at, now_ms + 1) for at in instants if at), default=None)

    def before(self, goal_id: str) -> Before:
        """The goal as it is now."""
        with self._store.read() as tx:
            row = goals.row_of(tx, goal_id)
            return Before(event_seq=row["event_seq"], spent=tx.number("ledger.total", goal_id=goal_id))

    def has_open_turn(self, goal_id: str) -> bool:
        with self._store.read() as tx:
            return turns.open_turn(tx, goal_id, self._agent_id) is not None

    def slots_since(self, goal_id: str, before: Before) -> int:
        """Slots that were spent since; for the worker's last word."""
        with self._store.read() as tx:
            return max(0, tx.number("ledger.total", goal_id=goal_id) - before.spent)

    def settle(self, goal_id: GoalId, ended: Ended, status: int, before: Before) -> Failed | None:
        """Leave the goal with a wake after its run; what failed, if it did."""
        if ended.type == "error" and ended.code in _CONFLICTS:
            self._held[goal_id] = self._store.now_ms() + BUSY_AGAIN_MS
            return None
        if ended.type == "result":
            return self._after_result(goal_id, ended, before)
        return self._after_failure(goal_id, ended, status)

    def _after_result(self, goal_id: GoalId, ended: Ended, before: Before) -> Failed | None:
        wake = waking.settle(self._store, goal_id, self._agent_id, held=ended.exit_code == 130)
        stuck = self.has_open_turn(goal_id)
        if not stuck and (not wake.due or wake.event_seq != before.event_seq):
            self._failures.pop(goal_id, None)
            return None
        # It would run again at once, and to no other end: whatever the reason, that must not become a spin.
        code = "turn_stuck" if stuck else "no_effect"
        return Failed(
            code=code, message=f"the run left the goal as it was: {wake.rule}", again_at_ms=self._put_off(goal_id)
        )

    def _after_failure(self, goal_id: GoalId, ended: Ended, status: int) -> Failed:
        code = ended.code or ("killed" if status < 0 else "crashed")
        message = ended.message or f"the run ended with {status}"
        now = self._store.now_ms()
        with self._store.write() as tx:
            row = goals.row_of(tx, goal_id)
            events.append(tx, goal_id, "run_failed", now, {"code": code, "message": message[:500]})
            key = f"{goal_id}:run_failed:{code}:{row['turn_count']}"
            outbox.notify(tx, goal_id, key, "run_failed", {"code": code, "message": message[:500]}, now)
        return Failed(code=code, message=message, again_at_ms=self._put_off(goal_id))

    def _put_off(self, goal_id: GoalId) -> int:
        streak = self._failures[goal_id] = self._failures.get(goal_id, 0) + 1
        again = self._store.now_ms() + backoff_ms(streak)
        self._held[goal_id] = again
        waking.settle(self._store, goal_id, self._agent_id, not_before_ms=again)
        return again

    def record_sleep(self, running: tuple[str, ...], jump_ms: int) -> None:
        """Put a jump of the clock on the record of the goals that ran over it."""
        for goal_id in running:
            try:
                with self._store.write() as tx:
                    events.append(tx, goal_id, "slept", self._store.now_ms(), {"jump_ms": jump_ms})
            except LoopXError:
                continue


def _lives(lease: Lease | None, now_ms: int) -> bool:
    """Whether somebody holds it who is not proved dead."""
    return lease is not None and lease.expires_at_ms > now_ms and not owners.is_dead(lease.owner)
