"""A turn's effects as a program: identities, ordered steps, receipts and typed failures (architecture, "Effects").

`turn_key` is chosen before anything runs, and every effect's `effect_ref` follows from it, so that a repeat is
recognised wherever it comes from. Pure values: nothing here performs an effect, and nothing here mints randomness.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import msgspec

from loopx.control_plane.canonical import sha256_hex
from loopx.control_plane.ids import AgentId, EffectRef, GoalId, TurnKey
from loopx.control_plane.turn_driver.transaction import (
    MATERIAL_RESULT_KINDS,
    STEPS,
    LoopXTurnResultKind,
    TurnStep,
)

EXTERNAL_STEPS: Final = frozenset({TurnStep.HOST_EXECUTE, TurnStep.VALIDATION, TurnStep.DURABLE_WRITEBACK})
"""Steps with a part outside the store (a process, check runs, a checkpoint commit): intent first, then read back."""

SPENDING_STEPS: Final = frozenset({TurnStep.QUOTA_SPEND})
"""The only step that may write to the ledger. Cadence changes never spend."""


class EffectFailure(enum.StrEnum):
    """Why an effect did not commit."""

    CONFLICT = "conflict"
    """A compare-and-set lost: someone appended first."""
    FENCED = "fenced"
    """The lease's epoch is not the newest: another owner took over."""
    INDETERMINATE = "indeterminate"
    """The outcome is unknown (the reply to a commit was lost)."""
    UNAVAILABLE = "unavailable"
    """Nothing was done; the other side could not be reached."""
    REFUSED = "refused"
    """The other side understood and said no."""

    @property
    def read_back_first(self) -> bool:
        """Whether the effect must be looked up by its `effect_ref` before anything is tried again."""
        return self in _READ_BACK_FIRST

    @property
    def may_retry(self) -> bool:
        """Whether this owner may try the effect again (after reading back, where that is asked)."""
        return self in _MAY_RETRY


_READ_BACK_FIRST: Final = frozenset({EffectFailure.CONFLICT, EffectFailure.INDETERMINATE})
_MAY_RETRY: Final = frozenset({EffectFailure.CONFLICT, EffectFailure.INDETERMINATE, EffectFailure.UNAVAILABLE})


class EffectOutcome(enum.StrEnum):
    """How a receipt came about. Both count as committed: a replay returns the first receipt."""

    COMMITTED = "committed"
    REPLAYED = "replayed"


class EffectReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """Proof that one step's effect is in the world. `detail` is JSON of the step's own."""

    effect_ref: EffectRef
    turn_key: TurnKey
    step: TurnStep
    outcome: EffectOutcome = EffectOutcome.COMMITTED
    committed_at_ms: int | None = None
    detail: msgspec.Raw = msgspec.Raw(b"{}")


class EffectStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a turn's program with its identity."""

    step: TurnStep
    effect_ref: EffectRef
    external: bool
    spends: bool


class ProgramViolation(enum.StrEnum):
    """What a set of receipts may not be."""

    FOREIGN_TURN = "foreign_turn"
    FOREIGN_EFFECT_REF = "foreign_effect_ref"
    DUPLICATE_STEP = "duplicate_step"
    STEP_NOT_IN_PROGRAM = "step_not_in_program"
    GAP = "gap"


class ProgramView(msgspec.Struct, frozen=True, kw_only=True):
    """What receipts say about a program: the steps still to do, or the violation that forbids to go on."""

    remaining: tuple[EffectStep, ...] = ()
    violation: ProgramViolation | None = None


def turn_key(goal_id: GoalId, agent_id: AgentId, nonce: str) -> TurnKey:
    """The turn's key: the same three inputs always give the same key. The caller passes the nonce in."""
    return TurnKey(f"t-{sha256_hex([goal_id, agent_id, nonce])[:26]}")


def effect_ref(key: TurnKey, step: TurnStep, part: str = "") -> EffectRef:
    """The stable identity of one effect of one turn. `part` tells several effects of one step apart (host attempts)."""
    return EffectRef(f"{key}/{step}/{part}" if part else f"{key}/{step}")


def turn_program(key: TurnKey, kind: LoopXTurnResultKind, *, closeout: bool = False) -> tuple[EffectStep, ...]:
    """The ordered steps of a turn that intends `kind`.

    A material kind goes through all seven phases, and through the terminal closeout when one is asked for; every
    other kind ends with its validation at the latest, so that it can neither write, spend nor schedule.
    """
    if kind in MATERIAL_RESULT_KINDS:
        steps = STEPS if closeout else STEPS[:-1]
    else:
        steps = STEPS[: STEPS.index(TurnStep.DURABLE_WRITEBACK)]
    return tuple(
        EffectStep(
            step=step,
            effect_ref=effect_ref(key, step),
            external=step in EXTERNAL_STEPS,
            spends=step in SPENDING_STEPS,
        )
        for step in steps
    )


def program_view(key: TurnKey, program: tuple[EffectStep, ...], receipts: Iterable[EffectReceipt]) -> ProgramView:
    """What is left of `program` after `receipts`, in order. A closeout may precede what is left of scheduling."""
    seen: set[TurnStep] = set()
    refs = {step.step: step.effect_ref for step in program}
    for receipt in receipts:
        violation = _receipt_violation(key, refs, seen, receipt)
        if violation is not None:
            return ProgramView(violation=violation)
        seen.add(receipt.step)
    remaining = tuple(step for step in program if step.step not in seen)
    return ProgramView(violation=ProgramViolation.GAP) if _has_gap(program, seen) else ProgramView(remaining=remaining)


def _receipt_violation(
    key: TurnKey, refs: dict[TurnStep, EffectRef], seen: set[TurnStep], receipt: EffectReceipt
) -> ProgramViolation | None:
    if receipt.turn_key != key:
        return ProgramViolation.FOREIGN_TURN
    if receipt.step not in refs:
        return ProgramViolation.STEP_NOT_IN_PROGRAM
    if receipt.effect_ref != refs[receipt.step]:
        return ProgramViolation.FOREIGN_EFFECT_REF
    return ProgramViolation.DUPLICATE_STEP if receipt.step in seen else None


def _has_gap(program: tuple[EffectStep, ...], seen: set[TurnStep]) -> bool:
    phases = [step.step in seen for step in program if step.step is not TurnStep.TERMINAL_CLOSEOUT]
    if phases != sorted(phases, reverse=True):
        return True
    return TurnStep.TERMINAL_CLOSEOUT in seen and TurnStep.QUOTA_SPEND not in seen
