"""The guard: judge what a turn changed against the goal's start, running the checks a second time where that decides.

It restores nothing itself and never accuses: a verdict names what is refused, what is only disclosed, and which paths
to put back. The start's files are put back in a copy that the caller provides (loops, "The contract: the only judge").
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loopx.contracts import baseline as baselines
from loopx.contracts import programs, verdict
from loopx.contracts.findings import Finding, FindingCode, GuardVerdict
from loopx.contracts.model import Contract, ContractEvaluation
from loopx.contracts.ports import Change, Evaluator, ReadFile, RestoredTree
from loopx.contracts.protect import ProtectedPaths


class GuardPorts(msgspec.Struct, frozen=True, kw_only=True):
    """How the guard reaches the two trees, a copy with the start's files put back, and the checks."""

    read_start: ReadFile
    read_now: ReadFile
    restored_tree: RestoredTree
    evaluate: Evaluator


class GuardInputs(msgspec.Struct, frozen=True, kw_only=True):
    """One turn to judge. `changes` are from the goal's start to the current tree, never from the turn's.

    `accepted` are paths whose present content a person accepted. `scope` are globs; empty means the whole tree.
    `programs_now` None: programs are not compared.
    """

    contract: Contract
    protected: ProtectedPaths
    baseline: baselines.Baseline
    current: ContractEvaluation
    changes: Sequence[Change]
    accepted: frozenset[str] = frozenset()
    scope: tuple[str, ...] = ()
    programs_now: programs.ProgramSnapshot | None = None


def judge_turn(inputs: GuardInputs, ports: GuardPorts) -> GuardVerdict:
    """The guard's verdict on a turn; at most one second evaluation is made."""
    changes = [change for change in inputs.changes if change.path not in inputs.accepted]
    policy = inputs.contract.policy
    touched = verdict.touched_paths(changes, inputs.protected, ports.read_start, ports.read_now)
    start = inputs.baseline.evaluation
    plan = verdict.plan_second_run(touched, policy, inputs.current, start)
    pins = programs.program_pins(inputs.baseline.programs, inputs.programs_now) if inputs.programs_now else ()
    restored: ContractEvaluation | None = None
    if plan or pins:
        with ports.restored_tree(restore=plan.restore, remove=plan.remove, pins=pins) as place:
            restored = ports.evaluate(place)
    judged = verdict.judge_touched(touched, policy, start, inputs.current, restored)
    counted = verdict.count_findings(start, inputs.current, policy, explained=judged.explained)
    outside = verdict.out_of_scope(changes, inputs.scope)
    bought = restored is not None and not judged.undecided and verdict.buys(start, inputs.current, restored)
    findings = (
        *judged.findings,
        *(() if judged.undecided else counted),
        *(Finding(code=FindingCode.OUT_OF_SCOPE, refused=True, path=path) for path in outside),
        *_definition_findings(inputs),
        *_program_findings(inputs, changes, {item.path for item in touched}, pins if bought else ()),
    )
    restore_paths = tuple(sorted({*judged.offending, *outside}))
    return GuardVerdict(
        findings=findings,
        refused=any(finding.refused for finding in findings),
        undecided=judged.undecided,
        restore_paths=restore_paths,
        evidence_paths=tuple(path for path in restore_paths if ports.read_now(path) is not None),
        restored=restored,
    )


def _definition_findings(inputs: GuardInputs) -> tuple[Finding, ...]:
    return tuple(
        Finding(code=FindingCode.CHECK_DEFINITION_CHANGED, refused=True, check=name, detail="hash_pin")
        for name in baselines.changed_definitions(inputs.baseline, inputs.contract.checks)
    )


def _program_findings(
    inputs: GuardInputs, changes: Sequence[Change], judged: set[str], guilty: tuple[programs.ProgramPin, ...]
) -> tuple[Finding, ...]:
    """Programs and startup files; those that are tracked files, or accepted, were judged already.

    `guilty`: programs outside the tree without whose change something would not pass.
    """
    if inputs.programs_now is None:
        return ()
    found = programs.compare_programs(
        inputs.baseline.programs,
        inputs.programs_now,
        dependencies_changed=verdict.dependencies_changed(changes, inputs.protected),
    )
    tracked = (
        judged | inputs.accepted | {change.path for change in changes if inputs.protected.role_of(change.path) is None}
    )
    shadowing = {pin.path for pin in guilty}
    found = tuple(
        msgspec.structs.replace(finding, code=FindingCode.PROGRAM_SHADOWED, refused=True)
        if finding.code is FindingCode.PROGRAM_CHANGED and finding.path in shadowing
        else finding
        for finding in found
    )
    return tuple(
        finding
        for finding in found
        if finding.path is None
        or (finding.path not in tracked and not any(path.startswith(f"{finding.path}/") for path in tracked))
    )
