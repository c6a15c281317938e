"""The quota ledger: append-only, one entry per effect, appended by compare-and-set on the goal's run index.

Running totals on the entries make every window's sum two index look-ups, whatever the history's length; `recount`
proves them equal to the sum over the entries. Nothing is edited: a void is an entry of its own.
"""

from __future__ import annotations

import msgspec

from loopx.control_plane.errors import ConflictError, NotFoundError
from loopx.control_plane.ids import GoalId
from loopx.store import events
from loopx.store.connection import Row, Tx


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One entry. `voids` is the run index that a void takes off."""

    goal_id: GoalId
    run_index: int
    kind: str
    effect_ref: str
    turn_key: str | None
    slots: int
    at_ms: int
    voids: int | None
    reason: str


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt of an append; `replayed` when the same effect was on record already."""

    entry: LedgerRow
    replayed: bool


def from_row(row: Row) -> LedgerRow:
    return LedgerRow(
        goal_id=GoalId(row["goal_id"]),
        run_index=row["run_index"],
        kind=row["kind"],
        effect_ref=row["effect_ref"],
        turn_key=row["turn_key"],
        slots=row["slots"],
        at_ms=row["at_ms"],
        voids=row["voids"],
        reason=row["reason"],
    )


def spend(
    tx: Tx,
    goal_id: str,
    effect_ref: str,
    slots: int,
    now_ms: int,
    *,
    turn_key: str | None = None,
    expected_index: int | None = None,
    reason: str = "",
) -> Appended:
    """Append one spend. A repeat of the same effect returns the first receipt and counts as committed.

    Raises ConflictError (`spend_conflict`) when `expected_index` is not the goal's run index.
    """
    first = tx.one("ledger.by_effect", effect_ref=effect_ref)
    if first is not None:
        return Appended(entry=from_row(first), replayed=True)
    index = _move_index(tx, goal_id, expected_index)
    last = tx.one("ledger.last_spend", goal_id=goal_id)
    cumulative = (last["cumulative"] if last else 0) + slots
    # The clock may go back; entries may not, or the running totals would not be in order.
    at_ms = max(now_ms, last["at_ms"] if last else 0)
    tx.run(
        "ledger.insert",
        goal_id=goal_id,
        run_index=index,
        kind="spend",
        effect_ref=effect_ref,
        turn_key=turn_key,
        slots=slots,
        cumulative=cumulative,
        at_ms=at_ms,
        voids=None,
        voided_at_ms=None,
        reason=reason,
    )
    entry = entry_at(tx, goal_id, index)
    events.append(tx, goal_id, "quota_spent", now_ms, entry, turn_key)
    return Appended(entry=entry, replayed=False)


def void(tx: Tx, goal_id: str, run_index: int, effect_ref: str, reason: str, now_ms: int) -> Appended:
    """Take one spend off, at most once.

    Raises NotFoundError (`ledger_entry_unknown`), ConflictError (`not_a_spend`).
    """
    existing = tx.one("ledger.void_of", goal_id=goal_id, run_index=run_index)
    if existing is not None:
        return Appended(entry=from_row(existing), replayed=True)
    target = tx.one("ledger.entry", goal_id=goal_id, run_index=run_index)
    if target is None:
        raise NotFoundError(
            "ledger_entry_unknown", f"{goal_id} has no ledger entry {run_index}", hint=f"loopx quota ledger {goal_id}"
        )
    if target["kind"] != "spend":
        raise ConflictError("not_a_spend", f"entry {run_index} is a void itself", hint=f"loopx quota ledger {goal_id}")
    index = _move_index(tx, goal_id, None)
    tx.run(
        "ledger.insert",
        goal_id=goal_id,
        run_index=index,
        kind="void",
        effect_ref=effect_ref,
        turn_key=target["turn_key"],
        slots=target["slots"],
        cumulative=0,
        at_ms=now_ms,
        voids=run_index,
        voided_at_ms=target["at_ms"],
        reason=reason,
    )
    entry = entry_at(tx, goal_id, index)
    events.append(tx, goal_id, "quota_voided", now_ms, entry, target["turn_key"])
    return Appended(entry=entry, replayed=False)


def entry_at(tx: Tx, goal_id: str, run_index: int) -> LedgerRow:
    row = tx.one("ledger.entry", goal_id=goal_id, run_index=run_index)
    if row is None:
        raise NotFoundError(
            "ledger_entry_unknown", f"{goal_id} has no ledger entry {run_index}", hint=f"loopx quota ledger {goal_id}"
        )
    return from_row(row)


def spent_in_window(tx: Tx, goal_id: str, window_ms: int, now_ms: int) -> int:
    """Slots spent in (now - window, now], voids taken off."""
    last = tx.one("ledger.last_spend", goal_id=goal_id)
    if last is None:
        return 0
    start = now_ms - window_ms
    before = tx.number("ledger.before_window", goal_id=goal_id, start_ms=start)
    voided = tx.number("ledger.voided_in_window", goal_id=goal_id, start_ms=start)
    return int(last["cumulative"]) - before - voided


def recount(tx: Tx, goal_id: str, window_ms: int, now_ms: int) -> int:
    """The same sum from the entries themselves."""
    return tx.number("ledger.recount", goal_id=goal_id, start_ms=now_ms - window_ms)


def frees_at(tx: Tx, goal_id: str, window_ms: int, allowed: int, now_ms: int) -> int | None:
    """The instant at which enough spends have left the window for one more slot; None when one is free now."""
    if allowed <= 0:
        return None
    instant = now_ms
    while spent_in_window(tx, goal_id, window_ms, instant) >= allowed:
        last = tx.one("ledger.last_spend", goal_id=goal_id)
        voided = tx.number("ledger.voided_in_window", goal_id=goal_id, start_ms=instant - window_ms)
        threshold = (int(last["cumulative"]) if last else 0) - voided - allowed
        leaving = tx.number("ledger.frees_at", goal_id=goal_id, threshold=threshold)
        # A void of a spend that leaves with it can ask for one more step; each step moves forward.
        instant = max(leaving + window_ms, instant + 1)
    return None if instant == now_ms else instant


def _move_index(tx: Tx, goal_id: str, expected: int | None) -> int:
    row = tx.one("goals.get", goal_id=goal_id)
    if row is None:
        raise NotFoundError("goal_unknown", f"no goal {goal_id}", hint="loopx goal list")
    current = int(row["run_index"])
    if (expected is not None and expected != current) or tx.run(
        "ledger.move_index", goal_id=goal_id, expected=current
    ) != 1:
        raise ConflictError(
            "spend_conflict",
            f"the ledger of {goal_id} moved to {current}",
            hint="read it again: loopx quota ledger",
            data={"run_index": current, "expected": expected},
        )
    return current + 1
