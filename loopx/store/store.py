"""The store: one object per process and project that opens transactions and holds the clock and the ids.

Everything that is true about goals, turns, spends and leases is in here; the CLI, the page and the workers are its
clients. The rooms' modules (`goals`, `todos`, `turns`, ...) take a running transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopx.store import facts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from loopx.control_plane.ids import AgentId, TurnKey
    from loopx.control_plane.ports import Clock, Ids
    from loopx.control_plane.quota.facts import GoalFacts
    from loopx.control_plane.turn_driver.journal import Fence, JournalStep, TurnJournal
    from loopx.store.connection import Connection, Tx


class Store:
    """A connection with a clock and a source of ids. Implements `JournalPort`. Not shared between threads."""

    def __init__(self, connection: Connection, clock: Clock, ids: Ids) -> None:
        self.connection = connection
        self.clock = clock
        self.ids = ids
        self._journals: dict[TurnKey, TurnJournal] = {}

    @property
    def path(self) -> str:
        return self.connection.path

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def read(self) -> AbstractContextManager[Tx]:
        """One consistent snapshot."""
        return self.connection.read()

    def write(self) -> AbstractContextManager[Tx]:
        """One transaction: all or nothing."""
        return self.connection.write()

    def facts(self, goal_id: str, agent_id: AgentId) -> GoalFacts:
        """What one decision reads, in one snapshot. Raises NotFoundError (`goal_unknown`)."""
        with self.read() as tx:
            return facts.read(tx, goal_id, agent_id, self.now_ms())

    def load(self, turn_key: TurnKey) -> TurnJournal:
        """Raises NotFoundError (`turn_unknown`)."""
        # A decision never looks at journals; their types would double its start.
        from loopx.store import turns

        with self.read() as tx:
            return turns.load_journal(tx, turn_key)

    def remember(self, journal: TurnJournal) -> None:
        """Take what this process has just committed of a turn as known; its next commit proves it or refuses."""
        self._journals[journal.turn.turn_key] = journal

    def commit(self, turn_key: TurnKey, fence: Fence, steps: Sequence[JournalStep]) -> TurnJournal:
        """Commit steps of a turn under its fence; see `JournalPort.commit`."""
        from loopx.control_plane.turn_driver.journal import TurnState
        from loopx.store import turns
        from loopx.store.journal import StepWriter

        # What this process committed last under the same fence is what the store holds: the statement that moves the
        # prefix proves it, and refuses where it is not so.
        known = self._journals.pop(turn_key, None)
        if known is not None and known.turn.epoch != fence.epoch:
            known = None
        now = self.now_ms()
        with self.write() as tx:
            before = known or turns.load_journal(tx, turn_key)
            after = StepWriter(tx, before, fence, self.ids.new, now).write(steps)
        if after.turn.state is TurnState.OPEN:
            self.remember(after)
        return after

    def close(self) -> None:
        self.connection.close()
