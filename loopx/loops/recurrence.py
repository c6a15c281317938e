"""Which failures came back, and whether anything moved at all (loops, "The contract" and "Engines").

A failure signature is a check's name and a coarse error class; a fingerprint is what a turn left of tree, checks, todos
and evidence. Text is never compared: two rounds are alike when these values are equal. Pure folds over values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

BREAKER_TURNS: Final = 3
"""Turns in a row without any change before the breaker opens, unless the goal says otherwise."""


class FailureSignature(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One red check, coarsely: its name and the class of its error (an exception's name, a timeout, an exit code)."""

    check: str
    error_class: str


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn left behind. Hashes are opaque; equal fingerprints mean that nothing changed."""

    tree_hash: str
    checks_hash: str
    todos_hash: str
    evidence_hash: str


class Recurrence(msgspec.Struct, frozen=True, kw_only=True):
    """The signatures of the last round that the round before it had too, and for how many rounds in a row."""

    returned: tuple[FailureSignature, ...] = ()
    rounds: int = 0

    @property
    def recurred(self) -> bool:
        """Whether the worker must be told."""
        return bool(self.returned)


def recurrence(rounds: Sequence[frozenset[FailureSignature]]) -> Recurrence:
    """What of the last round's failures had been there in the round before; `rounds` is in order of time.

    `rounds` in the answer counts the rounds at the end that share at least one of the returned signatures.
    """
    if len(rounds) < 2:
        return Recurrence()
    returned = rounds[-1] & rounds[-2]
    if not returned:
        return Recurrence()
    streak = 0
    for signatures in reversed(rounds):
        if not signatures & returned:
            break
        streak += 1
    return Recurrence(returned=tuple(sorted(returned)), rounds=streak)


def unchanged_turns(fingerprints: Sequence[Fingerprint]) -> int:
    """How many turns at the end changed nothing. `fingerprints` starts with the state before the first turn."""
    count = 0
    for before, after in zip(reversed(fingerprints[:-1]), reversed(fingerprints[1:]), strict=True):
        if before != after:
            break
        count += 1
    return count


def breaker_open(fingerprints: Sequence[Fingerprint], threshold: int = BREAKER_TURNS) -> bool:
    """Whether the last `threshold` turns changed nothing at all."""
    return unchanged_turns(fingerprints) >= max(1, threshold)
