"""One run at a time for a goal and an agent: the second is told whom to wait for, instead of the two taking turns.

It is a lease like every other and fences nothing by itself; what may be written is decided by the turn's own lease.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from loopx.control_plane.errors import ConflictError, StoreError
from loopx.control_plane.ids import AgentId, Epoch
from loopx.control_plane.turn_driver.journal import Fence
from loopx.control_plane.work_items.lease import TURN_LEASE_MS
from loopx.runtime import owner as owners
from loopx.runtime.leasing import LeaseKeeper
from loopx.store import leases
from loopx.store.connection import Tx
from loopx.store.store import Store


def resource(goal_id: str, agent_id: str) -> str:
    """The lease of the one run of a goal for an agent."""
    return f"run:{goal_id}:{agent_id}"


@contextlib.contextmanager
def only_run(store: Store, goal_id: str, agent_id: AgentId, owner: str) -> Iterator[None]:
    """Hold the goal's run for as long as the block lasts; a dead holder is no obstacle.

    Raises ConflictError (`goal_running`) that names the process which runs it.
    """
    name = resource(goal_id, agent_id)
    epoch = _take(store, goal_id, name, owner)
    try:
        with LeaseKeeper(store.path, store.clock, Fence(resource=name, epoch=epoch), None):
            yield
    finally:
        with store.write() as tx:
            leases.release(tx, name, epoch)


def _take(store: Store, goal_id: str, name: str, owner: str) -> Epoch:
    """The run's lease; a commit whose answer was lost is read back, or the run would wait for itself."""
    dead = _dead_holder(store, name)
    with store.read() as tx:
        before = leases.get(tx, name)
    try:
        with store.write() as tx:
            return _acquire(tx, goal_id, name, owner, dead, store.now_ms())
    except StoreError:
        with store.read() as tx:
            held = leases.get(tx, name)
        if held is None or held.owner != owner or (before is not None and held.epoch == before.epoch):
            raise
        return held.epoch


def _dead_holder(store: Store, name: str) -> str | None:
    """Asked before the write transaction: looking at processes inside one would keep every writer waiting."""
    with store.read() as tx:
        held = leases.get(tx, name)
    return held.owner if held is not None and owners.is_dead(held.owner) else None


def _acquire(tx: Tx, goal_id: str, name: str, owner: str, dead: str | None, now_ms: int) -> Epoch:
    try:
        return leases.acquire(tx, name, owner, TURN_LEASE_MS, now_ms, dead_owner=dead)
    except ConflictError as error:
        raise held_by(goal_id, str(error.data.get("owner") or "")) from error


def held_by(goal_id: str, owner: str) -> ConflictError:
    """The refusal that names the process which has the goal."""
    pid = owners.pid_of(owner)
    who = f"process {pid}" if pid is not None else owner or "another process"
    return ConflictError(
        "goal_running",
        f"goal {goal_id} is being run by {who}",
        hint=f"let it go on, or stop it: loopx goal stop {goal_id}",
        data={"goal_id": goal_id, "pid": pid, "owner": owner},
    )
