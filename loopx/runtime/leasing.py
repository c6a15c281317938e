"""Keeps a turn's leases alive while its host works, on a thread and a connection of its own.

Losing a lease is no error here: somebody proved this process gone, or it slept too long. The next commit is refused by
its fence, and `lost` tells whoever follows the host to stop following it.
"""

from __future__ import annotations

import threading

from loopx.control_plane.errors import LoopXError
from loopx.control_plane.ids import Epoch
from loopx.control_plane.ports import Clock
from loopx.control_plane.turn_driver.journal import Fence
from loopx.control_plane.work_items.lease import CLAIM_LEASE_MS, TURN_LEASE_MS
from loopx.store import leases
from loopx.store.connection import Connection


class LeaseKeeper:
    """Use as a context manager around a turn's execution."""

    def __init__(self, database: str, clock: Clock, fence: Fence, todo_id: str | None) -> None:
        self._database = database
        self._clock = clock
        self._fence = fence
        self._todo_id = todo_id
        self._done = threading.Event()
        self._lost = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loopx-leases", daemon=True)

    @property
    def lost(self) -> bool:
        """Whether the turn now belongs to somebody else."""
        return self._lost.is_set()

    def __enter__(self) -> LeaseKeeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(TURN_LEASE_MS / 3000):
            try:
                self._renew()
            except LoopXError:
                # A store that can't be written now is tried again at the next beat; the lease has two more in it.
                continue
            if self.lost:
                return

    def _renew(self) -> None:
        connection = Connection(self._database)
        try:
            with connection.write() as tx:
                now = self._clock.now_ms()
                if not leases.renew(tx, self._fence.resource, self._fence.epoch, TURN_LEASE_MS, now):
                    self._lost.set()
                    return
                held = leases.get(tx, f"todo:{self._todo_id}") if self._todo_id else None
                if held is not None:
                    leases.renew(tx, held.resource, Epoch(held.epoch), CLAIM_LEASE_MS, now)
        finally:
            connection.close()
