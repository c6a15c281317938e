"""What a turn delivered, derived from the checks' evidence (contracts, section 9).

A host's claim may lower the outcome and never raises it. Pure; the vocabularies live in the control plane.
"""

from __future__ import annotations

from collections.abc import Iterable

from loopx.contracts.compare import Comparison
from loopx.contracts.model import ContractEvaluation
from loopx.contracts.ports import Change
from loopx.contracts.protect import ProtectedPaths
from loopx.control_plane.work_items.delivery_outcome import (
    DeliveryEvidence,
    DeliveryOutcome,
    DeliveryTurnKind,
    claimed_outcome,
    derive_outcome,
    lower,
)


def delivery_evidence(
    comparison: Comparison, current: ContractEvaluation, changes: Iterable[Change]
) -> DeliveryEvidence:
    """What the checks and the tree say of a turn. `comparison` is with the last accepted evaluation."""
    progress = comparison.measured_progress
    whole_goal = current.all_green and bool(comparison.turned_green)
    return DeliveryEvidence(
        primary_green=progress and (comparison.primary_turned_green or whole_goal),
        checks_turned_green=progress,
        files_touched=any(True for _ in changes),
    )


def judge_delivery(evidence: DeliveryEvidence, claim: object = None) -> DeliveryOutcome:
    """The outcome that the evidence supports, or the host's claim where that is less."""
    return lower(claimed_outcome(claim), derive_outcome(evidence))


def derive_turn_kind(
    changes: Iterable[Change],
    protected: ProtectedPaths,
    *,
    evidence_added: bool = False,
    blocker_reported: bool = False,
) -> DeliveryTurnKind:
    """What kind of turn it was: by what it touched, then by what it reported."""
    paths = [change.path for change in changes]
    if any(protected.role_of(path) is None for path in paths):
        return DeliveryTurnKind.PRODUCT_PATH_EXECUTION
    if paths:
        return DeliveryTurnKind.CONTRACT_ONLY_PREPARATION
    if blocker_reported:
        return DeliveryTurnKind.BLOCKER_WRITEBACK
    return DeliveryTurnKind.COMPACT_EVIDENCE if evidence_added else DeliveryTurnKind.OUTCOME_GAP
