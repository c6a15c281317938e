"""What a turn delivered, in two closed vocabularies (contracts, section 9).

LoopX derives the outcome from evidence. A host's claim can lower it and never raise it, and a word that is not in the
vocabulary becomes `unknown`: a guess is worse than an admitted gap. Values and pure rules only.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec


class DeliveryOutcome(enum.StrEnum):
    """What the turn was worth; the last two are accountable."""

    SURFACE_ONLY = "surface_only"
    OUTCOME_GAP = "outcome_gap"
    OUTCOME_PROGRESS = "outcome_progress"
    PRIMARY_GOAL_OUTCOME = "primary_goal_outcome"

    @property
    def accountable(self) -> bool:
        """Whether it resets the hand-off floor."""
        return self in ACCOUNTABLE


ACCOUNTABLE: Final = frozenset({DeliveryOutcome.OUTCOME_PROGRESS, DeliveryOutcome.PRIMARY_GOAL_OUTCOME})

_RANK: Final = {
    DeliveryOutcome.OUTCOME_GAP: 0,
    DeliveryOutcome.SURFACE_ONLY: 1,
    DeliveryOutcome.OUTCOME_PROGRESS: 2,
    DeliveryOutcome.PRIMARY_GOAL_OUTCOME: 3,
}
"""Nothing achieved is less than something touched."""


class DeliveryTurnKind(enum.StrEnum):
    """What kind of turn it was."""

    CONTRACT_ONLY_PREPARATION = "contract_only_preparation"
    COMPACT_EVIDENCE = "compact_evidence"
    BLOCKER_WRITEBACK = "blocker_writeback"
    PRODUCT_PATH_EXECUTION = "product_path_execution"
    OUTCOME_GAP = "outcome_gap"
    UNKNOWN = "unknown"


_TURN_KIND_BY_TEXT: Final = {str(kind): kind for kind in DeliveryTurnKind}
_OUTCOME_BY_TEXT: Final = {str(outcome): outcome for outcome in DeliveryOutcome}


class DeliveryEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What LoopX itself measured of one turn."""

    primary_green: bool = False
    """The goal's primary check is green now and was not before, or the whole goal is."""
    checks_turned_green: bool = False
    """Any check turned green, or fewer tests fail inside one."""
    files_touched: bool = False


def derive_outcome(evidence: DeliveryEvidence) -> DeliveryOutcome:
    """The outcome that the evidence supports; the best that applies."""
    if evidence.primary_green:
        return DeliveryOutcome.PRIMARY_GOAL_OUTCOME
    if evidence.checks_turned_green:
        return DeliveryOutcome.OUTCOME_PROGRESS
    return DeliveryOutcome.SURFACE_ONLY if evidence.files_touched else DeliveryOutcome.OUTCOME_GAP


def lower(claimed: DeliveryOutcome | None, derived: DeliveryOutcome) -> DeliveryOutcome:
    """The derived outcome, or the claimed one when that is less. No claim changes nothing."""
    return derived if claimed is None or _RANK[claimed] >= _RANK[derived] else claimed


def claimed_outcome(text: object) -> DeliveryOutcome | None:
    """The outcome that a host's word names, or None: a claim that nobody can read claims nothing."""
    return _OUTCOME_BY_TEXT.get(text) if isinstance(text, str) else None


def normalise_turn_kind(explicit: object, derived: DeliveryTurnKind) -> DeliveryTurnKind:
    """The explicit kind when it is a legal word, `unknown` when it is given but illegal, else the derived one."""
    if explicit is None:
        return derived
    if not isinstance(explicit, str):
        return DeliveryTurnKind.UNKNOWN
    return _TURN_KIND_BY_TEXT.get(explicit, DeliveryTurnKind.UNKNOWN)
