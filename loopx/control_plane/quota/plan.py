"""A goal's allocation over its rolling window, and the plan over many goals.

Arithmetic on slots and instants only. Whether the goal is gated is no business of this room: an exhausted allocation
shows as exhausted behind a gate too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from loopx.control_plane.ids import GoalId
from loopx.control_plane.quota.policy import QuotaPolicy

HOUR_MS = 3_600_000


class WindowSpend(msgspec.Struct, frozen=True, kw_only=True):
    """One ledger entry as the window sees it: an amount at an instant. A void carries a negative amount."""

    at_ms: int
    amount: int


class QuotaNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """A goal's quota in numbers. `exhausted` is the allocation alone, whatever gates the goal."""

    compute: float
    window_hours: float
    slot_minutes: float
    allowed_slots: int
    spent_slots: int
    exhausted: bool
    frees_at_ms: int | None = None


def allowed_slots(policy: QuotaPolicy) -> int:
    """The slots of one window: as given, else round(window_hours * 60 / slot_minutes * compute); never below 0."""
    if policy.allowed_slots is not None:
        return policy.allowed_slots
    return max(0, round(policy.window_hours * 60 / policy.slot_minutes * policy.compute))


def quota_numbers(policy: QuotaPolicy, *, spent_slots: int, frees_at_ms: int | None = None) -> QuotaNumbers:
    """Assemble the numbers of one goal; `frees_at_ms` is kept only while the allocation is exhausted."""
    allowed = allowed_slots(policy)
    exhausted = spent_slots >= allowed
    return QuotaNumbers(
        compute=policy.compute,
        window_hours=policy.window_hours,
        slot_minutes=policy.slot_minutes,
        allowed_slots=allowed,
        spent_slots=spent_slots,
        exhausted=exhausted,
        frees_at_ms=frees_at_ms if exhausted else None,
    )


def window_ms(policy: QuotaPolicy) -> int:
    """The rolling window's length in milliseconds."""
    return round(policy.window_hours * HOUR_MS)


def spent_in_window(spends: Iterable[WindowSpend], *, now_ms: int, window_ms: int) -> int:
    """What counts at `now_ms`: an entry leaves the window exactly `window_ms` after its instant."""
    return sum(spend.amount for spend in spends if spend.at_ms + window_ms > now_ms)


def frees_at(spends: Iterable[WindowSpend], *, now_ms: int, window_ms: int, allowed: int, need: int = 1) -> int | None:
    """The first instant from `now_ms` on at which `need` more fit into the window.

    `now_ms` when they fit already; None when no instant is ever enough (`need` is more than `allowed`). Open
    reservations are not entries: pass what is allowed beyond them.
    """
    live = sorted((spend for spend in spends if spend.at_ms + window_ms > now_ms), key=lambda spend: spend.at_ms)
    if need > allowed:
        return None
    total = sum(spend.amount for spend in live)
    if total + need <= allowed:
        return now_ms
    for index, spend in enumerate(live):
        total -= spend.amount
        same_instant = index + 1 < len(live) and live[index + 1].at_ms == spend.at_ms
        if not same_instant and total + need <= allowed:
            return spend.at_ms + window_ms
    return None


class PlanEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One goal of a plan: when it may start, if ever by itself. `started_at_ms` is its last turn's start."""

    goal_id: GoalId
    at_ms: int | None
    started_at_ms: int | None = None


def start_order(entries: Sequence[PlanEntry]) -> tuple[PlanEntry, ...]:
    """The order in which a worker takes goals, fair between them.

    The goal that ran longest ago goes first (a goal that never ran before all others), so that none starves while
    another is always eligible; goals that wait only for a person (`at_ms` None) are left out.
    """
    timed = [(entry, entry.at_ms) for entry in entries if entry.at_ms is not None]
    timed.sort(key=lambda pair: (_last_start(pair[0]), pair[1], pair[0].goal_id))
    return tuple(entry for entry, _ in timed)


def next_start_ms(entries: Iterable[PlanEntry]) -> int | None:
    """The earliest instant at which any goal of the plan may start; None when all wait for people."""
    return min((entry.at_ms for entry in entries if entry.at_ms is not None), default=None)


def _last_start(entry: PlanEntry) -> int:
    return -1 if entry.started_at_ms is None else entry.started_at_ms
