"""Deliberate bugs, each of which a named test must catch (`test_mutants.py`).

One is applied in a process by the environment variable `LOOPX_MUTANT`, before any test runs; children inherit it. Each
patches the product in memory, as somebody might have written it, and nothing on the disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

VARIABLE = "LOOPX_MUTANT"
_DIES_AT_START = "LOOPX_TEST_DIES_AT_START"


class Mutant(NamedTuple):
    apply: Callable[[], None]
    caught_by: str
    """The node id of a test that fails with it."""


def _replace_sql(name: str, old: str, new: str) -> None:
    from loopx.store import queries

    text = queries.sql(name)
    assert old in text, f"{name} has changed; so must its mutant"
    queries._statements[name] = text.replace(old, new)


_FENCE = (
    "\n  AND EXISTS (SELECT 1 FROM leases WHERE resource = :resource AND epoch = :epoch AND expires_at_ms > :now_ms)"
)


def no_fence() -> None:
    """The prefix is compared, and whoever compares may write."""
    _replace_sql("turns.move", _FENCE, "")


def owner_name_fence() -> None:
    """The lease's owner is the fence, and a restarted worker has the same name."""
    same_owner = "(SELECT owner FROM leases WHERE resource = :resource) = 'worker-1'"
    _replace_sql("turns.move", "epoch = :epoch AND expires_at_ms", f"{same_owner} AND expires_at_ms")


def expired_lease_writes() -> None:
    """A lease counts until somebody else takes it."""
    _replace_sql("turns.move", " AND expires_at_ms > :now_ms", "")


def unfenced_launch() -> None:
    """Only the journal is fenced; the intent to launch is not."""
    _replace_sql("hosts.insert", _FENCE.replace("\n  AND ", "WHERE "), "WHERE 1")


def split_spend() -> None:
    """The spend is one transaction, the phase that tells of it the next one."""
    from loopx.control_plane.turn_driver.journal import SlotSpent
    from loopx.store.store import Store

    whole = Store.commit

    def commit(self: Store, turn_key: Any, fence: Any, steps: Any) -> Any:
        at = next((index for index, step in enumerate(steps) if isinstance(step, SlotSpent)), 0)
        if at:
            whole(self, turn_key, fence, steps[:at])
        return whole(self, turn_key, fence, steps[at:])

    Store.commit = commit  # type: ignore[method-assign]


def normal() -> None:
    """`synchronous = NORMAL`, because it is three times as fast."""
    from loopx.store.connection import Connection

    whole = Connection._open

    def opened(self: Connection, path: str) -> Any:
        connection = whole(self, path)
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    Connection._open = opened  # type: ignore[method-assign]


def blind_retry() -> None:
    """A commit that failed is tried again."""
    from loopx.control_plane.errors import StoreError
    from loopx.control_plane.turn_driver.settlement import JournalWriter

    def flush(self: JournalWriter) -> None:
        if not self._pending:
            return
        steps, self._pending = tuple(self._pending), []
        try:
            self.journal = self._port.commit(self.turn.turn_key, self._fence, steps)
        except StoreError:
            self.journal = self._port.commit(self.turn.turn_key, self._fence, steps)
        self._expected = self.turn.completed

    JournalWriter.flush = flush  # type: ignore[method-assign]


def no_open_turn_claim() -> None:
    """A worker claims what is due, and nothing else."""
    _replace_sql("turns.open_all", "WHERE t.state <> 'closed'", "WHERE t.state <> 'closed' AND 0")


def effect_before_intent() -> None:
    """The host is started first, and then recorded."""
    from loopx.hosts import supervise
    from loopx.runtime import host_port
    from loopx.store import hosts

    record, start, launch = hosts.intend, supervise.start, host_port.KeptHost._launch
    waiting: list[dict[str, Any]] = []
    stores: list[Any] = []

    def launched(self: Any, *args: Any, **keywords: Any) -> Any:
        stores.append(self._store)
        return launch(self, *args, **keywords)

    def started(*args: Any, **keywords: Any) -> Any:
        kept = start(*args, **keywords)
        if os.environ.get(_DIES_AT_START):
            os._exit(77)
        with stores[-1].write() as tx:
            record(tx, **waiting.pop())
        return kept

    hosts.intend = lambda tx, **fields: waiting.append(fields)  # type: ignore[assignment]
    supervise.start = started  # type: ignore[assignment]
    host_port.KeptHost._launch = launched  # type: ignore[method-assign]


def ack_before_apply() -> None:
    """The owner is asked to confirm before it was told."""
    from loopx.store.journal import StepWriter

    whole = StepWriter._apply

    def apply(self: StepWriter, step: Any) -> None:
        from loopx.store import schedules

        schedules.acknowledge_applied(self._tx, self._scheduled(), self._now)
        whole(self, step)

    def acknowledge(self: StepWriter) -> None:
        self._phase(6, {})

    StepWriter._apply = apply  # type: ignore[method-assign]
    StepWriter._acknowledge = acknowledge  # type: ignore[method-assign]


def lost_lease_ends_the_host() -> None:
    """Who loses the turn cancels its host, which by then is somebody else's."""
    from loopx.runtime.host_port import KeptHost

    whole = KeptHost.__init__

    def made(self: KeptHost, *args: Any, **keywords: Any) -> None:
        whole(self, *args, **keywords)
        stopping, lost = self._should_stop, self._lost
        self._should_stop = lambda: stopping() or lost()
        self._lost = lambda: False

    KeptHost.__init__ = made  # type: ignore[method-assign]


_COMMIT = "tests/chaos/test_commit.py::test_"
_RECOVERY = "tests/e2e/test_recovery"

MUTANTS: dict[str, Mutant] = {
    "no_fence": Mutant(no_fence, f"{_COMMIT}a_late_writer_can_write_nothing"),
    "owner_name_fence": Mutant(
        owner_name_fence, f"{_COMMIT}a_restarted_worker_of_the_same_name_does_not_let_the_old_one_write"
    ),
    "expired_lease_writes": Mutant(
        expired_lease_writes, f"{_COMMIT}a_worker_that_slept_past_its_lease_writes_nothing_although_nobody_took_over"
    ),
    "unfenced_launch": Mutant(unfenced_launch, f"{_COMMIT}a_late_writer_can_t_record_a_launch_either"),
    "split_spend": Mutant(
        split_spend, f"{_COMMIT}a_crash_at_any_statement_of_the_settlement_leaves_all_of_it_or_nothing"
    ),
    "normal": Mutant(normal, "tests/chaos/test_power_loss.py::test_no_acknowledged_commit_is_lost"),
    "blind_retry": Mutant(blind_retry, f"{_COMMIT}a_commit_with_an_unknown_outcome_is_looked_up_and_not_tried_again"),
    "no_open_turn_claim": Mutant(
        no_open_turn_claim,
        f"{_RECOVERY}_traps.py::test_a_worker_takes_a_goal_with_an_open_turn_although_it_is_not_due",
    ),
    "effect_before_intent": Mutant(
        effect_before_intent, f"{_RECOVERY}.py::test_killed_right_after_the_start_of_the_host_it_is_found_again"
    ),
    "ack_before_apply": Mutant(ack_before_apply, f"{_COMMIT}what_is_acknowledged_is_what_was_applied"),
    "lost_lease_ends_the_host": Mutant(
        lost_lease_ends_the_host,
        "tests/chaos/test_stopped.py::"
        "test_stopped_while_its_agent_works_it_wakes_and_leaves_the_agent_to_the_new_owner",
    ),
}


def apply_from_environment() -> None:
    """Apply the mutant that the environment names, if it names one."""
    name = os.environ.get(VARIABLE)
    if name:
        MUTANTS[name].apply()
