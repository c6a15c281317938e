"""What judging a contract needs from the world, as Protocols: changes, file reading, copies of the tree, a cache.

Implementations live in other rooms; nothing here does I/O (architecture, "The rooms").
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from loopx.contracts.model import CheckResult, ContractEvaluation
from loopx.contracts.programs import ProgramPin


class Change(Protocol):
    """One changed path between two trees. `kind` is one of added, modified, deleted, renamed, mode."""

    @property
    def path(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def old_path(self) -> str | None: ...


class ReadFile(Protocol):
    """The bytes of one file of one tree; None where that tree has no such regular file. Paths use `/`."""

    def __call__(self, path: str, /) -> bytes | None: ...


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A folder in which a contract can be evaluated, and the hash of the tree that stands there."""

    root: str
    tree_hash: str | None


class RestoredTree(Protocol):
    """The current tree with some paths as they were at the goal's start, in a copy outside the user's tree.

    `restore` come from the start's tree, `remove` are taken away. Where no copy can hold the project's dependencies,
    an implementation may put the files back in place for the length of the context and must undo that. `pins` are
    programs that the checks must find there as they were.
    """

    def __call__(
        self, *, restore: tuple[str, ...], remove: tuple[str, ...], pins: tuple[ProgramPin, ...]
    ) -> AbstractContextManager[Place]: ...


class Evaluator(Protocol):
    """Evaluate the goal's whole contract in a place."""

    def __call__(self, place: Place, /) -> ContractEvaluation: ...


class EvaluationCache(Protocol):
    """Results by their inputs (definition, tree, environment), so that the same inputs are not checked twice."""

    def get(self, inputs: str, /) -> CheckResult | None: ...

    def put(self, inputs: str, result: CheckResult, /) -> None: ...
