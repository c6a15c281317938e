"""Wires the guard to one goal's work tree: what the two trees hold, and a copy with the start's files put back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from loopx.contracts.baseline import Baseline
from loopx.contracts.findings import GuardVerdict
from loopx.contracts.model import Contract, ContractEvaluation
from loopx.contracts.ports import Place
from loopx.contracts.programs import ProgramPin, ProgramSnapshot
from loopx.contracts.protect import ProtectedPaths, derive_protected
from loopx.control_plane.errors import NotFoundError
from loopx.runtime.evaluation import Evaluator
from loopx.runtime.tree_port import WorkTree
from loopx.workspace import difference, guard, restore, shadow, snapshot, tree


def protected_paths(work: WorkTree, contract: Contract, base_tree: str) -> ProtectedPaths:
    """What the contract's checks make protected in the tree of the goal's start."""
    return derive_protected(
        contract.checks,
        _paths(work, base_tree),
        read=lambda path, /: _read(work, base_tree, path),
        extra=contract.protected,
    )


def protected_names(work: WorkTree, contract: Contract, base_tree: str) -> tuple[str, ...]:
    """A few protected paths, for the prompt: the tests themselves first."""
    protected = protected_paths(work, contract, base_tree)
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


class Guard:
    """Judges the difference between a goal's start and the tree as it is."""

    def __init__(self, work: WorkTree, contract: Contract, evaluator: Evaluator, env: dict[str, str]) -> None:
        self._work = work
        self._contract = contract
        self._evaluator = evaluator
        self._env = env

    def judge(
        self,
        base_tree: str,
        now_tree: str,
        baseline: Baseline,
        current: ContractEvaluation,
        scope: tuple[str, ...],
        accepted: frozenset[str],
    ) -> GuardVerdict:
        """The guard's verdict; at most one second evaluation, in a copy."""
        copies = _RestoredCopy(self._work, base_tree, now_tree, self._contract)
        inputs = guard.GuardInputs(
            contract=self._contract,
            protected=protected_paths(self._work, self._contract, base_tree),
            baseline=baseline,
            current=current,
            changes=difference.diff(self._work.repository, base_tree, now_tree),
            accepted=accepted,
            scope=scope,
            programs_now=self.programs(),
        )
        ports = guard.GuardPorts(
            read_start=lambda path, /: _read(self._work, base_tree, path),
            read_now=lambda path, /: _read(self._work, now_tree, path),
            restored_tree=copies,
            evaluate=lambda place, /: self._evaluator.elsewhere(
                place.root, copies.environment(self._env), None, baseline
            ),
        )
        return guard.judge_turn(inputs, ports)

    def programs(self) -> ProgramSnapshot:
        """Which programs the checks would run now."""
        return shadow.take_snapshot(self._contract, self._work.root, self._env)


class _RestoredCopy:
    """Implements `RestoredTree` with a clean snapshot of the current tree."""

    def __init__(self, work: WorkTree, base_tree: str, now_tree: str, contract: Contract) -> None:
        self._work = work
        self._base_tree = base_tree
        self._now_tree = now_tree
        self._contract = contract
        self._copy: snapshot.Snapshot | None = None
        self._pinned: str | None = None

    def environment(self, env: dict[str, str]) -> dict[str, str]:
        """The environment in which checks run inside the copy that is open."""
        found = dict(self._copy.environment(env)) if self._copy is not None else dict(env)
        if self._pinned is not None:
            found["PATH"] = f"{self._pinned}{os.pathsep}{found.get('PATH', os.defpath)}"
        return found

    @contextlib.contextmanager
    def __call__(
        self, *, restore: tuple[str, ...], remove: tuple[str, ...], pins: tuple[ProgramPin, ...]
    ) -> Iterator[Place]:
        repository = self._work.repository
        dependency_dirs = self._contract.dependency_dirs or None
        with (
            snapshot.materialize(repository, self._now_tree, dependency_dirs=dependency_dirs) as copy,
            shadow.pinned(pins) as folder,
        ):
            self._put_back(Path(copy.path), restore)
            for path in remove:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(copy.path, path))
            inside = os.path.relpath(os.path.realpath(self._work.root), repository.root)
            root = str(Path(copy.path, inside))
            self._copy, self._pinned = copy, folder
            try:
                yield Place(root=root, tree_hash=None)
            finally:
                self._copy = self._pinned = None

    def _put_back(self, target: Path, paths: tuple[str, ...]) -> None:
        import shutil

        if not paths:
            return
        with restore.unpacked(self._work.repository, self._base_tree, paths) as source:
            for path in paths:
                origin, place = source / path, target / path
                place.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(place)
                shutil.copy2(origin, place, follow_symlinks=False)
