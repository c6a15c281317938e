"""The shared deadline, and what came back or stood still (loops, "The contract" and "Engines")."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loopx.loops.deadline import Deadline
from loopx.loops.recurrence import (
    FailureSignature,
    Fingerprint,
    Recurrence,
    breaker_open,
    recurrence,
    unchanged_turns,
)


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


def test_one_deadline_runs_down_and_nothing_restarts_it() -> None:
    clock = Clock()
    deadline = Deadline.after(clock, 500)
    assert (deadline.remaining_ms(), deadline.admit(), deadline.admit(501)) == (500, True, False)
    clock.now_ms += 400
    assert (deadline.remaining_ms(), deadline.clamp_ms(1_000), deadline.clamp_ms(10)) == (100, 100, 10)
    clock.now_ms += 400
    assert (deadline.remaining_ms(), deadline.admit(), deadline.clamp_ms(10)) == (0, False, 0)


def test_no_limit_admits_everything() -> None:
    deadline = Deadline.after(Clock(), None)
    assert deadline.remaining_ms() is None
    assert deadline.admit(10**12)
    assert deadline.clamp_ms(7) == 7


def test_a_budget_of_zero_admits_nothing() -> None:
    assert not Deadline.after(Clock(), 0).admit(0)


A = FailureSignature(check="unit", error_class="AssertionError")
B = FailureSignature(check="unit", error_class="ImportError")
C = FailureSignature(check="lint", error_class="exit_1")


def test_a_failure_that_came_back_is_named() -> None:
    assert recurrence([]) == Recurrence()
    assert not recurrence([frozenset({A})]).recurred
    assert not recurrence([frozenset({A}), frozenset({B})]).recurred
    assert not recurrence([frozenset({A}), frozenset()]).recurred
    assert recurrence([frozenset({A}), frozenset({A, C})]) == Recurrence(returned=(A,), rounds=2)
    assert recurrence([frozenset({A}), frozenset({A}), frozenset({A})]).rounds == 3
    assert recurrence([frozenset({A}), frozenset({B}), frozenset({B})]).rounds == 2


def print_of(letter: str) -> Fingerprint:
    return Fingerprint(tree_hash=letter, checks_hash="c", todos_hash="t", evidence_hash="e")


@given(st.lists(st.sampled_from("ab"), max_size=8), st.integers(1, 4))
def test_the_breaker_counts_only_turns_that_changed_nothing(letters: list[str], threshold: int) -> None:
    prints = [print_of(letter) for letter in letters]
    count = unchanged_turns(prints)
    assert count <= max(0, len(prints) - 1)
    assert all(one == prints[-1] for one in prints[len(prints) - 1 - count :])
    if count < len(prints) - 1:
        assert prints[-1 - count] != prints[-2 - count]
    assert breaker_open(prints, threshold) == (count >= threshold)


def test_any_part_of_the_fingerprint_is_a_change() -> None:
    base = print_of("a")
    for other in (
        Fingerprint(tree_hash="b", checks_hash="c", todos_hash="t", evidence_hash="e"),
        Fingerprint(tree_hash="a", checks_hash="d", todos_hash="t", evidence_hash="e"),
        Fingerprint(tree_hash="a", checks_hash="c", todos_hash="u", evidence_hash="e"),
        Fingerprint(tree_hash="a", checks_hash="c", todos_hash="t", evidence_hash="f"),
    ):
        assert unchanged_turns([base, base, other]) == 0
    assert breaker_open([base, base, base, base])
    assert not breaker_open([base, base, base])
