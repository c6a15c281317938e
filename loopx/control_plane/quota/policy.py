"""Quota and budget policies as values (quota, "Budgets"). Validation of what people write is in `budgets.py`."""

from __future__ import annotations

import enum

import msgspec


class QuotaPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Slots: the pacing unit. `allowed_slots` None means round(window_hours * 60 / slot_minutes * compute)."""

    compute: float = 1.0
    window_hours: float = 24
    slot_minutes: float = 1
    allowed_slots: int | None = None
    outcome_floor: int = 3
    """Delivered turns in a row without an accountable outcome before the hand-off floor holds delivery."""


class BudgetUnit(enum.StrEnum):
    """What a budget counts. Tokens are kept apart because they are priced apart; wall-clock is in milliseconds."""

    TURNS = "turns"
    LAUNCHES = "launches"
    INPUT_TOKENS = "input_tokens"
    CACHED_TOKENS = "cached_tokens"
    OUTPUT_TOKENS = "output_tokens"
    TOKENS = "tokens"
    """Input and output together."""
    MICROUSD = "microusd"
    WALL_MS = "wall_ms"


class BudgetScope(enum.StrEnum):
    """Over what a budget is summed. A `goal` budget is an absolute cap; `machine` is no goal's own."""

    TURN = "turn"
    WINDOW = "window"
    GOAL = "goal"
    MACHINE = "machine"


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """One optional limit beside the slots. `window_ms` is set exactly when the scope is `window`."""

    unit: BudgetUnit
    scope: BudgetScope
    limit: int
    window_ms: int | None = None
