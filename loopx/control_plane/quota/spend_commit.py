"""The rules of a spend (quota, "Spending"): run-index compare-and-set and `effect_ref`, so nothing is charged twice.

Pure: the store reads the facts, asks for a verdict, and appends the entry under the same compare-and-set. Entries are
appended, never edited; a void is a correcting entry of its own.
"""

from __future__ import annotations

import enum

import msgspec

from loopx.control_plane.ids import EffectRef, GoalId, TurnKey


class EntryKind(enum.StrEnum):
    SPEND = "spend"
    VOID = "void"


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One appended entry. A void names the `run_index` that it corrects and the instant at which that was spent."""

    goal_id: GoalId
    run_index: int
    kind: EntryKind
    effect_ref: EffectRef
    slots: int
    at_ms: int
    turn_key: TurnKey | None = None
    voids: int | None = None
    voided_at_ms: int | None = None
    reason: str = ""


class SpendReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What was committed, first and only once. `replayed`: this call found it already there."""

    effect_ref: EffectRef
    run_index: int
    kind: EntryKind
    slots: int
    at_ms: int
    replayed: bool = False


class SpendRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A wish to charge one turn. `expected_run_index` is the goal's as the caller read it.

    `reserved`: the turn holds its slot since it started, so it is charged even when the allocation was lowered
    meanwhile; a spend without a reservation must fit.
    """

    goal_id: GoalId
    effect_ref: EffectRef
    expected_run_index: int
    at_ms: int
    slots: int = 1
    turn_key: TurnKey | None = None
    material: bool = True
    written_back: bool = True
    reserved: bool = True


class VoidRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A wish to take one spend back, with a reason; `voids` is that spend's run index."""

    goal_id: GoalId
    effect_ref: EffectRef
    expected_run_index: int
    at_ms: int
    voids: int
    reason: str


class SpendOutcome(enum.StrEnum):
    """What the store does next."""

    COMMIT = "commit"
    REPLAY = "replay"
    CONFLICT = "conflict"
    """Another entry came first: read back by `effect_ref`, and only then try again."""
    REFUSED = "refused"


class SpendRefusal(enum.StrEnum):
    """Why a spend or a void is refused for good."""

    NOT_MATERIAL = "not_material"
    NOT_WRITTEN_BACK = "not_written_back"
    ALLOCATION_EXHAUSTED = "allocation_exhausted"
    EFFECT_BELONGS_TO_ANOTHER = "effect_belongs_to_another"
    SLOTS_NOT_POSITIVE = "slots_not_positive"
    NO_SUCH_ENTRY = "no_such_entry"
    NOT_A_SPEND = "not_a_spend"
    ALREADY_VOIDED = "already_voided"
    REASON_MISSING = "reason_missing"


class SpendVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly the field of its outcome is set: `entry` to append, `receipt` replayed, or `refusal`."""

    outcome: SpendOutcome
    entry: LedgerEntry | None = None
    receipt: SpendReceipt | None = None
    refusal: SpendRefusal | None = None


def plan_spend(
    request: SpendRequest,
    existing: LedgerEntry | None,
    *,
    current_run_index: int,
    allowed: int,
    spent: int,
) -> SpendVerdict:
    """What to do with a spend; `existing` is the entry that carries its `effect_ref`, if any.

    The replay is looked at first: whatever changed since, what is committed stays committed.
    """
    if existing is not None:
        return _replay(existing, request.goal_id, EntryKind.SPEND, request.slots, request.turn_key)
    refusal = _spend_refusal(request, allowed=allowed, spent=spent)
    if refusal is not None:
        return SpendVerdict(outcome=SpendOutcome.REFUSED, refusal=refusal)
    if request.expected_run_index != current_run_index:
        return SpendVerdict(outcome=SpendOutcome.CONFLICT)
    entry = LedgerEntry(
        goal_id=request.goal_id,
        run_index=current_run_index + 1,
        kind=EntryKind.SPEND,
        effect_ref=request.effect_ref,
        slots=request.slots,
        at_ms=request.at_ms,
        turn_key=request.turn_key,
    )
    return SpendVerdict(outcome=SpendOutcome.COMMIT, entry=entry)


def plan_void(
    request: VoidRequest,
    existing: LedgerEntry | None,
    *,
    target: LedgerEntry | None,
    target_void: LedgerEntry | None,
    current_run_index: int,
) -> SpendVerdict:
    """What to do with a void. `target` is the entry to correct, `target_void` what corrected it already."""
    if existing is not None:
        if existing.voids != request.voids:
            return _refused(SpendRefusal.EFFECT_BELONGS_TO_ANOTHER)
        return _replay(existing, request.goal_id, EntryKind.VOID, existing.slots, existing.turn_key)
    refusal = _void_refusal(request, target, target_void)
    if target is None or refusal is not None:
        return _refused(refusal or SpendRefusal.NO_SUCH_ENTRY)
    if request.expected_run_index != current_run_index:
        return SpendVerdict(outcome=SpendOutcome.CONFLICT)
    entry = LedgerEntry(
        goal_id=request.goal_id,
        run_index=current_run_index + 1,
        kind=EntryKind.VOID,
        effect_ref=request.effect_ref,
        slots=target.slots,
        at_ms=request.at_ms,
        turn_key=target.turn_key,
        voids=target.run_index,
        voided_at_ms=target.at_ms,
        reason=request.reason.strip(),
    )
    return SpendVerdict(outcome=SpendOutcome.COMMIT, entry=entry)


def receipt_for(entry: LedgerEntry, *, replayed: bool = False) -> SpendReceipt:
    """The receipt of an entry; the same whenever and by whomever it is read."""
    return SpendReceipt(
        effect_ref=entry.effect_ref,
        run_index=entry.run_index,
        kind=entry.kind,
        slots=entry.slots,
        at_ms=entry.at_ms,
        replayed=replayed,
    )


def _spend_refusal(request: SpendRequest, *, allowed: int, spent: int) -> SpendRefusal | None:
    if request.slots <= 0:
        return SpendRefusal.SLOTS_NOT_POSITIVE
    if not request.material:
        return SpendRefusal.NOT_MATERIAL
    if not request.written_back:
        return SpendRefusal.NOT_WRITTEN_BACK
    if not request.reserved and spent + request.slots > allowed:
        return SpendRefusal.ALLOCATION_EXHAUSTED
    return None


def _void_refusal(
    request: VoidRequest, target: LedgerEntry | None, target_void: LedgerEntry | None
) -> SpendRefusal | None:
    if not request.reason.strip():
        return SpendRefusal.REASON_MISSING
    if target is None or target.goal_id != request.goal_id or target.run_index != request.voids:
        return SpendRefusal.NO_SUCH_ENTRY
    if target.kind is not EntryKind.SPEND:
        return SpendRefusal.NOT_A_SPEND
    return SpendRefusal.ALREADY_VOIDED if target_void is not None else None


def _replay(
    existing: LedgerEntry, goal_id: GoalId, kind: EntryKind, slots: int, turn_key: TurnKey | None
) -> SpendVerdict:
    same = (existing.goal_id, existing.kind, existing.slots, existing.turn_key) == (goal_id, kind, slots, turn_key)
    if not same:
        return _refused(SpendRefusal.EFFECT_BELONGS_TO_ANOTHER)
    return SpendVerdict(outcome=SpendOutcome.REPLAY, receipt=receipt_for(existing, replayed=True))


def _refused(refusal: SpendRefusal) -> SpendVerdict:
    return SpendVerdict(outcome=SpendOutcome.REFUSED, refusal=refusal)
