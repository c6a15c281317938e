"""Wires the guard to one goal's work tree: what the two trees hold, the second run, the canaries and the alarms."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence

import msgspec

from loopx.contracts import canary
from loopx.contracts import verdict as verdict_rules
from loopx.contracts.baseline import Baseline
from loopx.contracts.findings import Finding, FindingCode, GuardVerdict
from loopx.contracts.model import Check, Contract, ContractEvaluation, visible_checks
from loopx.contracts.programs import ProgramSnapshot
from loopx.contracts.protect import ProtectedPaths, Role, derive_protected
from loopx.control_plane.errors import LoopXError, NotFoundError
from loopx.runtime import alarms, canaries
from loopx.runtime.evaluation import Evaluator
from loopx.runtime.second_run import SecondTree
from loopx.runtime.tree_port import WorkTree
from loopx.workspace import difference, guard, shadow, tree


def protected_paths(work: WorkTree, contract: Contract, base_tree: str) -> ProtectedPaths:
    """What the contract's checks make protected in the tree of the goal's start."""
    return derive_protected(
        tuple(_seen_from_the_top(work, check) for check in contract.checks),
        _paths(work, base_tree),
        read=lambda path, /: _read(work, base_tree, path),
        extra=contract.protected,
    )


def _seen_from_the_top(work: WorkTree, check: Check) -> Check:
    """The check with paths from the top of the repository, of which the project may be a folder."""
    inside = os.path.relpath(os.path.realpath(work.root), work.repository.root)
    if inside == ".":
        return check
    junit = posixpath.join(inside, check.junit) if check.junit is not None else None
    return msgspec.structs.replace(check, cwd=posixpath.normpath(posixpath.join(inside, check.cwd)), junit=junit)


def protected_names(work: WorkTree, contract: Contract, base_tree: str) -> tuple[str, ...]:
    """A few protected paths, for the prompt: the tests themselves first. What only held-out checks run is not named."""
    shown = msgspec.structs.replace(contract, checks=visible_checks(contract))
    protected = protected_paths(work, shown, base_tree)
    roles = {path: protected.role_of(path) for path in _paths(work, base_tree)}
    named = sorted(path for path, role in roles.items() if role is not None)
    return tuple(sorted(named, key=lambda path: roles[path] != "test"))[:6]


def _paths(work: WorkTree, tree_hash: str) -> tuple[str, ...]:
    return tuple(entry.path for entry in tree.list_paths(work.repository, tree_hash))


def _read(work: WorkTree, tree_hash: str, path: str) -> bytes | None:
    try:
        return tree.read_file(work.repository, tree_hash, path)
    except NotFoundError:
        return None


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What the guard found, and what whoever confirms a completion needs of it."""

    verdict: GuardVerdict
    links_out: tuple[str, ...] = ()
    """New links that lead out of the tree: they are not there in a clean copy."""
    failed: LoopXError | None = None
    """The copy that a judgement needed could not be made."""


class Guard:
    """Judges the difference between a goal's start and the tree as it is."""

    def __init__(
        self,
        work: WorkTree,
        contract: Contract,
        evaluator: Evaluator,
        env: dict[str, str],
        todo_checks: tuple[Check, ...] = (),
    ) -> None:
        """`todo_checks` are guarded and judged both ways as the goal's own are, under names of their own."""
        self._work = work
        self._contract = contract
        self._all = msgspec.structs.replace(contract, checks=(*contract.checks, *todo_checks))
        self._evaluator = evaluator
        self._env = env

    def judge(
        self,
        base_tree: str,
        now_tree: str,
        left_tree: str,
        baseline: Baseline,
        current: ContractEvaluation,
        scope: tuple[str, ...],
        accepted: frozenset[str],
        *,
        programs_now: ProgramSnapshot,
        completing: bool,
        progressed: bool,
    ) -> Judged:
        """The guard's verdict; at most one second evaluation, and at most two runs of canaries.

        `left_tree` is the tree after the checks ran, which may themselves have written. `completing`: held-out checks
        are part of the second evaluation. `progressed`: something turned green, so that canaries are worth their time.
        """
        repository = self._work.repository
        protected = protected_paths(self._work, self._all, base_tree)
        changes = difference.diff(repository, base_tree, now_tree)
        second = SecondTree(
            repository,
            self._work.root,
            self._contract,
            start=base_tree,
            now=now_tree,
            in_place=bool(baseline.not_snapshotable),
        )
        inputs = guard.GuardInputs(
            contract=self._contract,
            protected=protected,
            baseline=baseline,
            current=current,
            changes=changes,
            accepted=accepted,
            scope=scope,
            programs_now=programs_now,
        )
        ports = guard.GuardPorts(
            read_start=lambda path, /: _read(self._work, base_tree, path),
            read_now=lambda path, /: _read(self._work, now_tree, path),
            restored_tree=second,
            evaluate=lambda place, /: self._evaluator.elsewhere(
                place.root, second.environment(self._env), None, baseline, contract=self._all, held_out=completing
            ),
        )
        links = alarms.links_out(repository, now_tree, changes)
        try:
            verdict = guard.judge_turn(inputs, ports)
            more = self._rewritten(now_tree, left_tree, protected)
            caught: tuple[Finding, ...] | None = ()
            if progressed and not verdict.refused and not verdict.undecided:
                caught = self._canaries(base_tree, now_tree, baseline, current, protected, changes)
        except LoopXError as failed:
            return Judged(verdict=_undecided(), links_out=links, failed=failed)
        if caught is None:
            verdict = msgspec.structs.replace(verdict, undecided=True)
        found = _with(verdict, (*more, *(caught or ()), *alarms.link_findings(links)))
        if found.undecided and not found.refused:
            found = _with(found, _incomplete())
        return Judged(verdict=found, links_out=links)

    def _rewritten(self, now_tree: str, left_tree: str, protected: ProtectedPaths) -> tuple[Finding, ...]:
        """Code of the checks that was changed while they ran: by the work that they were to judge."""
        found = []
        for change in difference.diff(self._work.repository, now_tree, left_tree):
            path = change.old_path or change.path
            role = protected.role_of(path)
            if change.kind != "added" and role in _CODE_ROLES and verdict_rules.is_code(path):
                found.append(Finding(code=FindingCode.CHECKS_REWRITTEN, refused=True, path=path, detail="by_check"))
        return tuple(found)

    def _canaries(
        self,
        base_tree: str,
        now_tree: str,
        baseline: Baseline,
        current: ContractEvaluation,
        protected: ProtectedPaths,
        changes: Sequence[difference.FileChange],
    ) -> tuple[Finding, ...] | None:
        checks = canaries.suspects(self._contract, baseline, current)
        if not checks or not self._contract.confirm_in_snapshot or baseline.not_snapshotable is None:
            return ()
        changed = [
            change
            for change in changes
            if change.kind != "deleted" and change.path.endswith(".py") and protected.role_of(change.path) is None
        ]
        if not any(
            canary.reaches_the_runner(
                _read(self._work, base_tree, change.old_path or change.path), _read(self._work, now_tree, change.path)
            )
            for change in changed
        ):
            return ()
        return canaries.judge(
            self._evaluator, checks, self._contract, baseline, protected, base_tree=base_tree, now_tree=now_tree
        )

    def programs(self) -> ProgramSnapshot:
        """Which programs the checks would run now."""
        return shadow.take_snapshot(self._contract, self._work.root, self._env)


_OWN = "todo: "


def renamed_todo_checks(checks: tuple[Check, ...]) -> tuple[Check, ...]:
    """A todo's checks beside the goal's: a todo may use a name that the goal has too."""
    return tuple(msgspec.structs.replace(check, name=f"{_OWN}{check.name}") for check in checks)


def with_todo_results(shown: ContractEvaluation, own: ContractEvaluation | None) -> ContractEvaluation:
    """The goal's results and a todo's, under the names that the guard knows them by."""
    results = own.results if own is not None else ()
    renamed = tuple(msgspec.structs.replace(result, name=f"{_OWN}{result.name}") for result in results)
    return msgspec.structs.replace(shown, results=(*shown.results, *renamed))


_CODE_ROLES = frozenset({Role.TEST, Role.SCRIPT, Role.RUNNER_CONFIG, Role.HOOK})


def _with(verdict: GuardVerdict, more: tuple[Finding, ...]) -> GuardVerdict:
    """The verdict with more findings; files of the refused ones among them are put back too."""
    if not more:
        return verdict
    refused = {finding.path for finding in more if finding.refused and finding.path is not None}
    return msgspec.structs.replace(
        verdict,
        findings=(*verdict.findings, *more),
        refused=verdict.refused or any(finding.refused for finding in more),
        restore_paths=tuple(sorted({*verdict.restore_paths, *refused})),
        evidence_paths=tuple(sorted({*verdict.evidence_paths, *refused})),
    )


def with_findings(judged: Judged, more: tuple[Finding, ...]) -> Judged:
    """What was judged, with findings that were made elsewhere."""
    return msgspec.structs.replace(judged, verdict=_with(judged.verdict, more))


def _incomplete() -> tuple[Finding, ...]:
    return (Finding(code=FindingCode.SECOND_RUN_INCOMPLETE, refused=False),)


def _undecided() -> GuardVerdict:
    return GuardVerdict(findings=_incomplete(), undecided=True)
