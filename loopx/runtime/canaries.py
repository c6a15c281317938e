"""Runs the canary in copies of the tree: whether the runner can still fail, where changed code may keep it from that.

It decides only that; see `contracts.canary` for what a canary is. Nothing of it is ever in the project itself.
"""

from __future__ import annotations

import os
from pathlib import Path

from loopx.contracts import canary, globs
from loopx.contracts.baseline import Baseline
from loopx.contracts.commands import Tool
from loopx.contracts.findings import Finding, FindingCode
from loopx.contracts.model import Check, Contract, ContractEvaluation, Verdict, narrowed
from loopx.contracts.protect import ProtectedPaths, Role
from loopx.contracts.tool_files import TESTS_BY_NAME
from loopx.runtime.evaluation import Evaluator

_FILES = 200
_TEST_NAMES = (*TESTS_BY_NAME[Tool.PYTEST], *TESTS_BY_NAME[Tool.UNITTEST])


def suspects(contract: Contract, baseline: Baseline, evaluation: ContractEvaluation) -> tuple[Check, ...]:
    """The green checks whose runner runs canaries, and which a clean copy can judge."""
    unfit = baseline.not_snapshotable or ()
    green = {
        result.name
        for result in evaluation.results
        if result.verdict is Verdict.GREEN and _runs_canaries(baseline.evaluation, evaluation, result.name)
    }
    return tuple(check for check in contract.checks if check.name in green and check.name not in unfit)


def _runs_canaries(before: ContractEvaluation, now: ContractEvaluation, name: str) -> bool:
    known = (before.named(name), now.named(name))
    return any(one is not None and one.parts is not None and one.parts.source in canary.SOURCES for one in known)


def judge(
    evaluator: Evaluator,
    checks: tuple[Check, ...],
    contract: Contract,
    baseline: Baseline,
    protected: ProtectedPaths,
    *,
    base_tree: str,
    now_tree: str,
) -> tuple[Finding, ...] | None:
    """A finding for each check whose runner caught every canary at the start, and not all of them now.

    One run where the runner is sound, two where it looks otherwise. None: a run was cut short, and nothing is known.
    Raises LoopXError when no copy can be made.
    """
    names = [check.name for check in checks]
    part = narrowed(contract, names)

    def plant(folder: Path) -> None:
        for path in _test_files(folder, protected):
            with path.open("ab") as file:
                file.write(canary.TEXT.encode())

    now = evaluator.in_snapshot(now_tree, baseline, contract=part, change=plant)
    if _cut_short(now):
        return None
    doubtful = [name for name in names if canary.is_caught(now.named(name)) is not True]
    if not doubtful:
        return ()
    start = evaluator.in_snapshot(base_tree, baseline, contract=narrowed(contract, doubtful), change=plant)
    if _cut_short(start):
        return None
    return tuple(
        Finding(code=FindingCode.RUNNER_DISARMED, refused=True, check=name, detail="canary")
        for name in doubtful
        if canary.is_caught(start.named(name))
    )


def _cut_short(evaluation: ContractEvaluation) -> bool:
    return any(result.verdict in {Verdict.STARVED, Verdict.NOT_EVALUABLE} for result in evaluation.results)


def _test_files(folder: Path, protected: ProtectedPaths) -> list[Path]:
    """The Python test files of a copy, as the runners find them; links are not followed."""
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in {".git", "node_modules", ".venv", "venv", ".tox"})
        for name in sorted(names):
            path = Path(place, name)
            inside = path.relative_to(folder).as_posix()
            if globs.matches_any(_TEST_NAMES, inside) and protected.role_of(inside) is Role.TEST:
                found.append(path)
    return [path for path in found if path.is_file() and not path.is_symlink()][:_FILES]
