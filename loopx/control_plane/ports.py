"""The ports: everything that the control plane needs done, as Protocols. Runtime wires the adapters.

`executor.py` and `settlement.py` drive these; nothing else in the control plane touches them. Every method is
idempotent for the same arguments, because a crash may come between the act and its record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loopx.control_plane.ids import EffectRef, TurnKey
    from loopx.control_plane.turn_driver.journal import (
        Fence,
        HostReport,
        JournalStep,
        NextDue,
        RestoreOrder,
        TurnJournal,
        TurnResult,
    )


class Clock(Protocol):
    """Time as a value. `now_ms` is UTC wall time; `monotonic_ms` never goes back and means nothing by itself."""

    def now_ms(self) -> int: ...
    def monotonic_ms(self) -> int: ...


class Ids(Protocol):
    """Fresh identities: random, and sortable by the instant at which they were made."""

    def new(self, prefix: str) -> str: ...
    def secret(self) -> str: ...


class JournalPort(Protocol):
    """The store's side of one turn: what is true, exactly once."""

    def load(self, turn_key: TurnKey) -> TurnJournal:
        """Raises NotFoundError (`turn_unknown`), StoreError."""
        ...

    def commit(self, turn_key: TurnKey, fence: Fence, steps: Sequence[JournalStep]) -> TurnJournal:
        """Commit the steps in one transaction: phase rows, effects and events together, or none of them.

        Raises ConflictError: `lease_lost` when the fence is no longer valid, `prefix_moved` when the journal is not
        where the caller thinks, `spend_conflict` when the ledger moved. Raises StoreError when the store can't write;
        the outcome is then unknown until `load` is asked.
        """
        ...


class HostPort(Protocol):
    """Runs, adopts or reads back the host process of a turn."""

    def execute(self, journal: TurnJournal) -> HostReport:
        """Blocks until the host ended. Launches only what no record shows as launched. Raises CancelledError."""
        ...


class JudgePort(Protocol):
    """Evaluates the contract, the guards and the evidence on the tree as it is, and types the result."""

    def judge(self, journal: TurnJournal, host: HostReport) -> TurnResult:
        """Never believes the host. Raises CancelledError, and StoreError or UsageError when it can't judge at all."""
        ...


class TreePort(Protocol):
    """The work tree's effects: checkpoints and restorations."""

    def checkpoint(self, journal: TurnJournal, effect_ref: EffectRef) -> str | None:
        """The commit that carries `effect_ref`: found by its trailer, else made. None when the tree has no changes.

        Raises LoopXError when it can't be made.
        """
        ...

    def restore(self, journal: TurnJournal, order: RestoreOrder) -> None:
        """Put the named files back to the base. Raises LoopXError."""
        ...


class SchedulePort(Protocol):
    """What is known about the owner of the goal's cadence."""

    def next_due(self, journal: TurnJournal) -> NextDue:
        """The next occurrence of the goal's cadence after this turn; all None when it has none."""
        ...

    def owner_has(self, journal: TurnJournal) -> bool:
        """Whether the owner is known to have the wanted cadence, so that apply may be acknowledged at once."""
        ...


class CloseoutPort(Protocol):
    """The part of a terminal closeout that is outside the store."""

    def close(self, journal: TurnJournal) -> None:
        """Release what the goal still holds outside. Raises LoopXError: the turn becomes `terminal_closeout_failed`."""
        ...


class TurnPorts(Protocol):
    """The ports of one turn, wired by runtime."""

    @property
    def journal(self) -> JournalPort: ...
    @property
    def host(self) -> HostPort: ...
    @property
    def judge(self) -> JudgePort: ...
    @property
    def tree(self) -> TreePort: ...
    @property
    def schedule(self) -> SchedulePort: ...
    @property
    def closeout(self) -> CloseoutPort: ...
