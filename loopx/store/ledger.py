"""The quota ledger: append-only, one entry per effect, appended by compare-and-set on the goal's run index.

What a spend or a void may do is decided by the pure rules (`control_plane/quota/spend_commit.py`); this module reads
what they ask for and appends what they say. Running totals on the entries make every window's sum two index look-ups,
whatever the history's length; `recount` proves them equal to the sum over the entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from loopx.control_plane.errors import ConflictError, LoopXError, NotFoundError, NotNowError, UsageError
from loopx.control_plane.ids import EffectRef, GoalId, TurnKey

if TYPE_CHECKING:
    from loopx.control_plane.quota.spend_commit import LedgerEntry, SpendRefusal, SpendVerdict
    from loopx.store.connection import Row, Tx


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt of an append; `replayed` when the same effect was on record already."""

    entry: LedgerEntry
    replayed: bool


def from_row(row: Row) -> LedgerEntry:
    # The rules of a spend stay off the path of a decision, which only sums.
    from loopx.control_plane.quota.spend_commit import EntryKind, LedgerEntry

    return LedgerEntry(
        goal_id=GoalId(row["goal_id"]),
        run_index=row["run_index"],
        kind=EntryKind(row["kind"]),
        effect_ref=EffectRef(row["effect_ref"]),
        turn_key=row["turn_key"],
        slots=row["slots"],
        at_ms=row["at_ms"],
        voids=row["voids"],
        voided_at_ms=row["voided_at_ms"],
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
    material: bool = True,
    written_back: bool = True,
    reserved: bool = True,
) -> Appended:
    """Append one spend. A repeat of the same effect returns the first receipt and counts as committed.

    Raises ConflictError: `spend_conflict` when `expected_index` is not the goal's run index, `effect_of_another`;
    NotNowError (`allocation_exhausted`) for a spend without a reservation that does not fit; UsageError
    (`spend_refused`) when no durable writeback of a material result stands behind it; NotFoundError (`goal_unknown`).
    """
    from loopx.control_plane.quota.spend_commit import SpendRequest, plan_spend

    goal, last = _goal(tx, goal_id), tx.one("ledger.last_spend", goal_id=goal_id)
    current = int(goal["run_index"])
    request = SpendRequest(
        goal_id=GoalId(goal_id),
        effect_ref=EffectRef(effect_ref),
        expected_run_index=current if expected_index is None else expected_index,
        # The clock may go back; entries may not, or the running totals would not be in order.
        at_ms=max(now_ms, last["at_ms"] if last else 0),
        slots=slots,
        turn_key=TurnKey(turn_key) if turn_key is not None else None,
        material=material,
        written_back=written_back,
        reserved=reserved,
    )
    verdict = plan_spend(
        request,
        by_effect(tx, effect_ref),
        current_run_index=current,
        allowed=int(goal["allowed_slots"]),
        spent=0 if reserved else spent_in_window(tx, goal_id, goal["window_ms"], now_ms) + _held(tx, goal_id),
    )
    cumulative = (last["cumulative"] if last else 0) + slots
    return _act(tx, verdict, "quota_spent", cumulative, reason, current, expected_index, now_ms)


def void(
    tx: Tx,
    goal_id: str,
    run_index: int,
    effect_ref: str,
    reason: str,
    now_ms: int,
    *,
    expected_index: int | None = None,
) -> Appended:
    """Take one spend off, at most once. A repeat of the same effect returns the first receipt.

    Raises NotFoundError (`goal_unknown`, `ledger_entry_unknown`); ConflictError (`not_a_spend`, `already_voided`,
    `spend_conflict`, `effect_of_another`); UsageError (`void_reason_missing`).
    """
    from loopx.control_plane.quota.spend_commit import VoidRequest, plan_void

    current = int(_goal(tx, goal_id)["run_index"])
    target = tx.one("ledger.entry", goal_id=goal_id, run_index=run_index)
    voided = tx.one("ledger.void_of", goal_id=goal_id, run_index=run_index)
    request = VoidRequest(
        goal_id=GoalId(goal_id),
        effect_ref=EffectRef(effect_ref),
        expected_run_index=current if expected_index is None else expected_index,
        at_ms=now_ms,
        voids=run_index,
        reason=reason,
    )
    verdict = plan_void(
        request,
        by_effect(tx, effect_ref),
        target=from_row(target) if target is not None else None,
        target_void=from_row(voided) if voided is not None else None,
        current_run_index=current,
    )
    return _act(tx, verdict, "quota_voided", 0, reason.strip(), current, expected_index, now_ms)


def by_effect(tx: Tx, effect_ref: str) -> LedgerEntry | None:
    """The entry that carries this effect, whichever goal it belongs to."""
    row = tx.one("ledger.by_effect", effect_ref=effect_ref)
    return from_row(row) if row is not None else None


def latest(tx: Tx, goal_id: str, limit: int = 50) -> tuple[LedgerEntry, ...]:
    """Entries, the newest first."""
    return tuple(from_row(row) for row in tx.all("ledger.latest", goal_id=goal_id, limit=limit))


def page(tx: Tx, goal_id: str, *, after: int = 0, limit: int = 500) -> tuple[LedgerEntry, ...]:
    """Entries in order, from a cursor on."""
    return tuple(from_row(row) for row in tx.all("ledger.page", goal_id=goal_id, after=after, limit=limit))


def live_spend_of_turn(tx: Tx, turn_key: str) -> LedgerEntry | None:
    """The spend that stands for a turn: not voided. A turn has one at most."""
    row = tx.one("ledger.live_of_turn", turn_key=turn_key)
    return from_row(row) if row is not None else None


def _act(
    tx: Tx,
    verdict: SpendVerdict,
    event: str,
    cumulative: int,
    reason: str,
    current: int,
    expected: int | None,
    now_ms: int,
) -> Appended:
    """Do what the rules said."""
    from loopx.control_plane.quota.spend_commit import SpendOutcome
    from loopx.store import events

    if verdict.refusal is not None:
        raise _refused(verdict.refusal)
    if verdict.receipt is not None:
        first = by_effect(tx, verdict.receipt.effect_ref)
        if first is not None:
            return Appended(entry=first, replayed=True)
    if verdict.outcome is not SpendOutcome.COMMIT or verdict.entry is None:
        raise _moved(current, expected)
    entry = msgspec.structs.replace(verdict.entry, reason=reason)
    if tx.run("ledger.move_index", goal_id=entry.goal_id, expected=entry.run_index - 1) != 1:
        raise _moved(current, expected)
    tx.run(
        "ledger.insert",
        goal_id=entry.goal_id,
        run_index=entry.run_index,
        kind=entry.kind,
        effect_ref=entry.effect_ref,
        turn_key=entry.turn_key,
        slots=entry.slots,
        cumulative=cumulative,
        at_ms=entry.at_ms,
        voids=entry.voids,
        voided_at_ms=entry.voided_at_ms,
        reason=entry.reason,
    )
    events.append(tx, entry.goal_id, event, now_ms, entry, entry.turn_key)
    return Appended(entry=entry, replayed=False)


def _goal(tx: Tx, goal_id: str) -> Row:
    from loopx.store import goals

    return goals.row_of(tx, goal_id)


def _held(tx: Tx, goal_id: str) -> int:
    """Slots that open turns reserved."""
    return tx.number("meters.reserved", goal_id=goal_id, unit="slots")


def _moved(current: int, expected: int | None) -> ConflictError:
    return ConflictError(
        "spend_conflict",
        f"the ledger moved to {current}",
        hint="read it again (loopx quota ledger GOAL), and look for your effect_ref first",
        data={"run_index": current, "expected": expected},
    )


def _refused(refusal: SpendRefusal) -> LoopXError:
    """The typed error of one refusal."""
    from loopx.control_plane.quota.spend_commit import SpendRefusal as Why

    if refusal is Why.ALLOCATION_EXHAUSTED:
        return NotNowError(
            "allocation_exhausted", "every slot of this window is spent or reserved", hint="loopx why GOAL"
        )
    if refusal is Why.NO_SUCH_ENTRY:
        return NotFoundError("ledger_entry_unknown", "no such ledger entry", hint="loopx quota ledger GOAL")
    if refusal is Why.NOT_A_SPEND:
        return ConflictError("not_a_spend", "that entry is a void itself", hint="loopx quota ledger GOAL")
    if refusal is Why.ALREADY_VOIDED:
        return ConflictError("already_voided", "that spend is voided already", hint="loopx quota ledger GOAL")
    if refusal is Why.EFFECT_BELONGS_TO_ANOTHER:
        return ConflictError(
            "effect_of_another", "that effect_ref is on record for something else", hint="loopx quota ledger GOAL"
        )
    if refusal is Why.REASON_MISSING:
        return UsageError("void_reason_missing", "a void needs a reason", hint='add --reason "WHY"')
    if refusal is Why.SLOTS_NOT_POSITIVE:
        return UsageError("slots_invalid", "slots: write a number above 0", data={"field": "slots"})
    return UsageError(
        "spend_refused",
        f"no durable writeback of a material result stands behind this spend ({refusal})",
        hint="settle the work in one go: loopx turn settle GOAL --todo TODO",
        data={"refusal": str(refusal)},
    )


def spent_in_window(tx: Tx, goal_id: str, window_ms: int, now_ms: int) -> int:
    """Slots spent in (now - window, now], voids taken off."""
    return tx.number("ledger.spent_since", goal_id=goal_id, start_ms=now_ms - window_ms)


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
