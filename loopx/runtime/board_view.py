"""What the board shows: the one projection of all goals, with what each is about and what it used.

Bounded look-ups, whatever the number of goals and turns; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from loopx.control_plane.quota.policy import BudgetUnit
from loopx.runtime.glance import LIMIT, GoalLine, Overview, Section, overview
from loopx.store import goals
from loopx.store.connection import Row, Tx
from loopx.store.store import Store


class GoalRow(msgspec.Struct, frozen=True, kw_only=True):
    """One goal in a list. `cost_microusd` and `tokens`: since it began; None is unknown."""

    goal_id: str
    objective: str
    state: str
    contract: str
    turn_count: int
    slots: int
    tokens: int | None
    cost_microusd: int | None
    updated_at_ms: int


class Board(msgspec.Struct, frozen=True, kw_only=True):
    """The overview, and a row for each goal in it."""

    seen: Overview
    rows: Mapping[str, GoalRow]

    def lines(self, section: str) -> tuple[GoalLine, ...]:
        """The lines of one section, in their order."""
        return tuple(line for line in self.seen.goals if line.section == section)

    @property
    def hidden(self) -> int:
        """Open goals that the board has no place for."""
        shown = sum(1 for line in self.seen.goals if line.section is not Section.SINCE)
        return max(0, self.seen.counts.get("active", 0) + self.seen.counts.get("paused", 0) - shown)


def board(store: Store, since_ms: int) -> Board:
    """The board, with what ended since `since_ms`. Raises StoreError."""
    seen = overview(store, since_ms=since_ms, limit=LIMIT)
    with store.read() as tx:
        rows = {line.goal_id: goal_row(tx, goals.row_of(tx, line.goal_id)) for line in seen.goals}
    return Board(seen=seen, rows=rows)


def goal_row(tx: Tx, row: Row) -> GoalRow:
    """One goal's row with what it used."""
    goal_id = row["goal_id"]
    return GoalRow(
        goal_id=goal_id,
        objective=row["objective"],
        state=row["state"],
        contract=row["contract_state"],
        turn_count=row["turn_count"],
        slots=tx.number("ledger.total", goal_id=goal_id),
        tokens=_total(tx, goal_id, BudgetUnit.TOKENS),
        cost_microusd=_total(tx, goal_id, BudgetUnit.MICROUSD),
        updated_at_ms=row["updated_at_ms"],
    )


def _total(tx: Tx, goal_id: str, unit: BudgetUnit) -> int | None:
    row = tx.one("meters.total", goal_id=goal_id, unit=unit)
    return int(row["cumulative"]) if row is not None else None


def goals_page(store: Store, *, after: str = "", limit: int = 50) -> tuple[GoalRow, ...]:
    """All goals by id, a page at a time."""
    with store.read() as tx:
        return tuple(goal_row(tx, row) for row in tx.all("goals.page", after=after, limit=limit))


def counts(store: Store) -> dict[str, int]:
    """How many goals there are in each state."""
    with store.read() as tx:
        return {row["state"]: row["n"] for row in tx.all("goals.count_by_state")}
