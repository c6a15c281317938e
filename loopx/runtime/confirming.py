"""Confirming a completion: every check once more in a clean snapshot of that tree, held-out ones for the first time.

What the baseline showed to be no matter for a snapshot is confirmed in place, which the goal discloses. It accepts and
refuses nothing: it says what the checks said there (contracts, section 10).
"""

from __future__ import annotations

import hashlib

import msgspec

from loopx.contracts.baseline import Baseline
from loopx.contracts.model import (
    CheckKind,
    CheckResult,
    ChecksState,
    Contract,
    ContractEvaluation,
    Verdict,
    narrowed,
)
from loopx.contracts.programs import ProgramSnapshot
from loopx.control_plane.errors import LoopXError
from loopx.runtime.evaluation import Evaluator


class Confirmation(msgspec.Struct, frozen=True, kw_only=True):
    """What the confirmation saw. `in_snapshot` are the visible checks there; None when none was to be run there.

    `held_out` are the held-out checks, wherever they could be run. `failed`: no snapshot could be made, so that nothing
    is known.
    """

    in_snapshot: ContractEvaluation | None = None
    held_out: tuple[CheckResult, ...] = ()
    failed: LoopXError | None = None

    @property
    def state(self) -> ChecksState:
        """All of it as one word: green only when everything was run and is green."""
        if self.failed is not None:
            return ChecksState.NOT_EVALUABLE
        shown = self.in_snapshot.results if self.in_snapshot is not None else ()
        results = (*shown, *self.held_out)
        return ContractEvaluation(results=results).state if results else ChecksState.GREEN


def confirm(
    contract: Contract,
    baseline: Baseline,
    evaluator: Evaluator,
    tree_hash: str,
    environment: str,
    *,
    without: tuple[str, ...] = (),
) -> Confirmation:
    """Run it. `without` are paths that a clean copy must do without (links that lead out of the tree)."""
    asked = [check for check in contract.checks if check.kind is not CheckKind.BASELINE]
    in_copy = {check.name for check in asked if fits_a_snapshot(contract, baseline, check.name)}
    in_place = {check.name for check in asked if check.held_out and check.name not in in_copy}
    found: list[CheckResult] = []
    if in_copy:
        try:
            part = narrowed(contract, in_copy)
            found += evaluator.in_snapshot(tree_hash, baseline, contract=part, without=without).results
        except LoopXError as failed:
            return Confirmation(failed=failed)
    if in_place:
        found += evaluator.in_place(tree_hash, environment, baseline, narrowed(contract, in_place)).results
    shown = tuple(result for result in found if not result.held_out)
    return Confirmation(
        in_snapshot=ContractEvaluation(results=shown, tree_hash=tree_hash) if shown else None,
        held_out=tuple(result for result in found if result.held_out),
    )


def fits_a_snapshot(contract: Contract, baseline: Baseline, name: str) -> bool:
    """Whether a clean snapshot can tell about this check: tried at the baseline, and with the same answer there."""
    tried = baseline.not_snapshotable
    return contract.confirm_in_snapshot and tried is not None and name not in tried


def held_out_red(evaluation: ContractEvaluation | None) -> bool:
    """Whether a held-out check failed in this evaluation."""
    results = evaluation.results if evaluation is not None else ()
    return any(result.held_out and result.verdict is not Verdict.GREEN for result in results)


def environment_of(programs: ProgramSnapshot) -> str:
    """A digest of what decides about a check beside the tree: the programs, and the startup files of interpreters."""
    return hashlib.sha256(msgspec.json.encode(programs)).hexdigest()
