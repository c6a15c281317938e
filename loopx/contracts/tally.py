"""Counting tests: one outcome per distinct test id, turned into `PartCounts`. Bounded however many tests there are."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable

from loopx.contracts.model import PartCounts

MAX_FAILING = 200
MAX_KEYS = 5_000
MAX_IDS = 200_000
_ID_LENGTH = 300


class Outcome(enum.IntEnum):
    """A test's outcome; where a test is reported more than once, the higher one stands."""

    PASSED = 0
    SKIPPED = 1
    EXPECTED_FAILURE = 2
    FAILED = 3
    COLLECTION_ERROR = 4


class Tally:
    """Outcomes as a report is read. Ids beyond `MAX_IDS` make the tally useless rather than large."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._outcomes: dict[str, Outcome] = {}
        self._classes: set[str] = set()

    def add(self, test_id: str, outcome: Outcome, error_class: str | None = None) -> None:
        """Record one reported test."""
        if len(self._outcomes) > MAX_IDS:
            return
        known = self._outcomes.get(test_id)
        if known is None or outcome > known:
            self._outcomes[test_id] = outcome
        if error_class is not None and outcome >= Outcome.FAILED and len(self._classes) < 50:
            self._classes.add(error_class)

    def counts(self) -> PartCounts | None:
        """The parts; None when there are more tests than can be held."""
        if len(self._outcomes) > MAX_IDS:
            return None
        ids = {outcome: self._ids(outcome) for outcome in Outcome}
        errors = ids[Outcome.COLLECTION_ERROR]
        failing = sorted(ids[Outcome.FAILED] + errors)
        small = len(self._outcomes) <= MAX_KEYS
        return PartCounts(
            source=self._source,
            total=len(self._outcomes),
            passed=len(ids[Outcome.PASSED]),
            failed=len(failing),
            skipped=len(ids[Outcome.SKIPPED]),
            expected_failures=len(ids[Outcome.EXPECTED_FAILURE]),
            collection_errors=len(errors),
            collected_digest=digest_of(self._outcomes),
            failing=tuple(clip(name) for name in failing[:MAX_FAILING]),
            error_classes=tuple(sorted(self._classes)),
            failing_keys=keys_of(failing) if small else None,
            collected_keys=keys_of(self._outcomes) if small else None,
            skipped_keys=keys_of(ids[Outcome.SKIPPED]) if small else None,
            expected_keys=keys_of(ids[Outcome.EXPECTED_FAILURE]) if small else None,
        )

    def __len__(self) -> int:
        return len(self._outcomes)

    def _ids(self, outcome: Outcome) -> list[str]:
        return [name for name, found in self._outcomes.items() if found is outcome]


def clip(test_id: str) -> str:
    """A test id short enough to show; parametrized ids can hold whole documents."""
    return test_id if len(test_id) <= _ID_LENGTH else f"{test_id[: _ID_LENGTH - 3]}..."


def key_of(test_id: str) -> str:
    """Ten hex digits that stand for a test id."""
    return hashlib.sha256(test_id.encode("utf-8", "replace")).hexdigest()[:10]


def keys_of(ids: Iterable[str]) -> tuple[str, ...]:
    """The keys of these test ids, sorted."""
    return tuple(sorted({key_of(name) for name in ids}))


def digest_of(ids: Iterable[str]) -> str:
    """One digest over all test ids."""
    return hashlib.sha256("\n".join(sorted(ids)).encode("utf-8", "replace")).hexdigest()
