"""Evaluating a goal's contract: in place, and once more in a clean snapshot of exactly that tree.

It runs checks and compares; what the verdicts mean for the turn is decided elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from loopx.contracts.baseline import Baseline, take_baseline, with_snapshot
from loopx.contracts.model import (
    CheckResult,
    Contract,
    ContractEvaluation,
    Output,
    Verdict,
    merged,
    narrowed,
)
from loopx.control_plane.errors import LoopXError
from loopx.runtime.progress import CheckDone, CheckRuns, CheckSummary, Observer
from loopx.runtime.tree_port import WorkTree
from loopx.store.store import Store
from loopx.workspace import check_run, shadow, snapshot

_FAILING = frozenset({Verdict.RED, Verdict.FLAKY})


class StoredResults:
    """The store's cache of check results by their inputs, for one turn. Implements `EvaluationCache`.

    What is green stays so as long as its inputs are the same. What is red may have failed for reasons outside them (a
    service that was down), so that only the turn which saw it keeps it.
    """

    def __init__(self, store: Store, turn_key: str) -> None:
        self._store = store
        self._turn_key = turn_key

    def get(self, inputs: str, /) -> CheckResult | None:
        with self._store.read() as tx:
            row = tx.one("evidence.cached_check", inputs=inputs)
            row = row or tx.one("evidence.cached_check", inputs=self._own(inputs))
        return msgspec.json.decode(row["result"], type=CheckResult) if row is not None else None

    def put(self, inputs: str, result: CheckResult, /) -> None:
        encoded = msgspec.json.encode(result).decode()
        key = inputs if result.verdict is Verdict.GREEN else self._own(inputs)
        with self._store.write() as tx:
            tx.run("evidence.cache_check", inputs=key, result=encoded, now_ms=self._store.now_ms())

    def _own(self, inputs: str) -> str:
        return f"{self._turn_key}:{inputs}"


class Evaluator:
    """Evaluates one contract on one work tree on behalf of one turn (or of the baseline, with an empty turn key)."""

    def __init__(
        self,
        store: Store,
        tree: WorkTree,
        contract: Contract,
        env: Mapping[str, str],
        observer: Observer,
        goal_id: str,
        turn_key: str,
        left_ms: Callable[[], int | None],
        cancelled: Callable[[], bool],
    ) -> None:
        self._store = store
        self._tree = tree
        self._contract = contract
        self._env = env
        self._observer = observer
        self._goal_id = goal_id
        self._turn_key = turn_key
        self._left_ms = left_ms
        self._cancelled = cancelled

    def in_place(
        self,
        tree_hash: str,
        environment: str,
        baseline: Baseline | None = None,
        contract: Contract | None = None,
        *,
        take: bool = False,
        held_out: bool = True,
    ) -> ContractEvaluation:
        """All checks in the work tree itself, where the dependencies live, held-out ones last and without a trace.

        `environment` is a digest of what decides beside the tree; without one nothing is looked up or kept.
        """
        asked = contract or self._contract
        shown = [check.name for check in asked.checks if not check.held_out]
        hidden = [check.name for check in asked.checks if check.held_out] if held_out else []
        found: list[ContractEvaluation] = []
        for names, env in ((shown, self._env), (hidden, traceless(self._env))):
            if names:
                part = narrowed(asked, names)
                found.append(self._evaluate_in_place(part, env, tree_hash, environment, baseline, take=take))
        return merged(asked, *found)

    def _evaluate_in_place(
        self,
        contract: Contract,
        env: Mapping[str, str],
        tree_hash: str,
        environment: str,
        baseline: Baseline | None,
        *,
        take: bool,
    ) -> ContractEvaluation:
        here = check_run.session(
            self._tree.root,
            env=env,
            tree_hash=tree_hash,
            session_left_ms=self._left_ms(),
            cancelled=self._cancelled,
            environment=environment,
        )
        return check_run.evaluate(
            contract,
            here,
            captures=baseline.captures if baseline is not None else None,
            cache=StoredResults(self._store, self._turn_key) if environment else None,
            take_baseline=take,
            observe=self._observe(baseline, in_snapshot=False),
        )

    def elsewhere(
        self,
        root: str,
        env: Mapping[str, str],
        tree_hash: str | None,
        baseline: Baseline | None,
        *,
        contract: Contract | None = None,
        held_out: bool = True,
    ) -> ContractEvaluation:
        """All checks (of `contract`, where it is given) in another place, never cached."""
        here = check_run.session(
            root, env=env, tree_hash=tree_hash, session_left_ms=self._left_ms(), cancelled=self._cancelled
        )
        return check_run.evaluate(
            contract or self._contract,
            here,
            captures=baseline.captures if baseline is not None else None,
            held_out=held_out,
            observe=self._observe(baseline, in_snapshot=True),
        )

    def in_snapshot(
        self,
        tree_hash: str,
        baseline: Baseline | None,
        *,
        contract: Contract | None = None,
        without: tuple[str, ...] = (),
        change: Callable[[Path], None] | None = None,
    ) -> ContractEvaluation:
        """All checks in a clean snapshot of exactly that tree. Raises LoopXError when no snapshot can be made.

        `without` are paths that are taken away in the snapshot; `change` may do more to it first.
        """
        repository = self._tree.repository
        dependency_dirs = self._contract.dependency_dirs or None
        with snapshot.materialize(repository, tree_hash, dependency_dirs=dependency_dirs) as copy:
            for path in without:
                (copy.path / path).unlink(missing_ok=True)
            if change is not None:
                change(copy.path)
            inside = os.path.relpath(os.path.realpath(self._tree.root), repository.root)
            root = str(Path(copy.path, inside))
            return self.elsewhere(root, copy.environment(self._env), tree_hash, baseline, contract=contract)

    def baseline(self, tree_hash: str) -> Baseline:
        """The contract on the untouched tree, in place, and then tried in a snapshot where that is asked for."""
        evaluation = self.in_place(tree_hash, "", take=True)
        taken = take_baseline(
            self._contract, evaluation, shadow.take_snapshot(self._contract, self._tree.root, self._env)
        )
        if not self._contract.confirm_in_snapshot:
            return taken
        try:
            tried = self.in_snapshot(tree_hash, taken)
        except LoopXError:
            names = tuple(check.name for check in self._contract.checks)
            return msgspec.structs.replace(taken, not_snapshotable=names)
        return with_snapshot(taken, tried)

    def _observe(self, baseline: Baseline | None, *, in_snapshot: bool) -> Callable[[str, CheckResult | None], None]:
        def tell(name: str, result: CheckResult | None) -> None:
            if result is None:
                self._observer(CheckRuns(goal_id=self._goal_id, turn_key=self._turn_key, name=name))
                return
            self._observer(
                CheckDone(
                    goal_id=self._goal_id,
                    turn_key=self._turn_key,
                    check=summarise(result, baseline.evaluation if baseline else None),
                    snapshot=in_snapshot,
                )
            )

        return tell


def traceless(env: Mapping[str, str]) -> dict[str, str]:
    """The environment for checks that an agent must not learn of: nothing about them stays in the runner's caches."""
    options = f"{env.get('PYTEST_ADDOPTS', '')} -p no:cacheprovider".strip()
    return {**env, "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": options}


def summarise(result: CheckResult, before: ContractEvaluation | None = None) -> CheckSummary:
    """One result in a few numbers."""
    parts = result.parts
    then = before.named(result.name) if before is not None else None
    return CheckSummary(
        name=result.name,
        verdict=result.verdict,
        failed=parts.failed if parts is not None else None,
        total=parts.total if parts is not None else None,
        before_failed=then.parts.failed if then is not None and then.parts is not None else None,
        duration_ms=result.duration_ms,
        reason=str(result.reason) if result.reason is not None else None,
    )


def without_output(evaluation: ContractEvaluation) -> ContractEvaluation:
    """The evaluation as a reference for later ones: verdicts and counts, no text."""
    lean = tuple(msgspec.structs.replace(result, output=Output()) for result in evaluation.results)
    return msgspec.structs.replace(evaluation, results=lean)


def signatures(evaluation: ContractEvaluation) -> tuple[str, ...]:
    """The failure signatures of the red checks, sorted; held-out ones are not among them, because workers are told."""
    failing = (one for one in evaluation.results if one.verdict in _FAILING and not one.held_out)
    return tuple(sorted(result.signature for result in failing if result.signature))


def failure_text(results: tuple[CheckResult, ...]) -> str:
    """What a worker needs of the red results: names, counts, a few failing ids, the end of the output."""
    lines: list[str] = []
    for result in results:
        if result.verdict is Verdict.GREEN or result.held_out:
            continue
        parts = result.parts
        count = f": {parts.failed} of {parts.total} failing" if parts is not None and parts.total else ""
        lines.append(f"{result.name} {result.verdict}{count}")
        lines.extend(f"  {name}" for name in (parts.failing[:4] if parts is not None else ()))
        tail = (result.output.tail or result.output.head).strip().splitlines()[-4:]
        lines.extend(f"  {line}"[:160] for line in tail)
    return "\n".join(lines)
