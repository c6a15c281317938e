"""The books: running totals to deltas, restarts, unknown that is not zero (field notes, B18)."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from loopx.hosts.protocol import Usage
from loopx.hosts.usage import add, delta, is_known, merge

FIRST = Usage(input_tokens=100, cached_input_tokens=40, output_tokens=20, reasoning_tokens=5)


def test_running_total_is_subtracted() -> None:
    total = Usage(input_tokens=300, cached_input_tokens=140, output_tokens=50, reasoning_tokens=9)
    expected = Usage(input_tokens=200, cached_input_tokens=100, output_tokens=30, reasoning_tokens=4)
    assert delta(total, FIRST, resumed=True) == expected


def test_a_fresh_session_counts_from_nothing() -> None:
    assert delta(FIRST, None, resumed=False) == FIRST
    assert delta(FIRST, Usage(input_tokens=9_000), resumed=False) == FIRST


def test_a_resumed_session_with_an_unknown_past_is_unknown() -> None:
    assert delta(FIRST, None, resumed=True) == Usage()


def test_a_counter_that_fell_counts_anew() -> None:
    """A compaction or a new process: the whole record is rebased, not one counter of it."""
    after = Usage(input_tokens=60, cached_input_tokens=50, output_tokens=30, reasoning_tokens=6)
    assert delta(after, FIRST, resumed=True) == after


def test_unknown_is_not_zero() -> None:
    assert delta(Usage(output_tokens=30), FIRST, resumed=True) == Usage(output_tokens=10)
    assert add(Usage(), Usage()) == Usage()
    assert add(Usage(input_tokens=1), Usage()) == Usage(input_tokens=1)
    assert not is_known(Usage())
    assert is_known(Usage(cost_microusd=0))


def test_merge_prefers_the_newer() -> None:
    assert merge(FIRST, Usage(input_tokens=7)) == msgspec.structs.replace(FIRST, input_tokens=7)


_counts = st.integers(min_value=0, max_value=10**9)
_runs = st.lists(st.builds(Usage, input_tokens=_counts, cached_input_tokens=_counts, output_tokens=_counts), max_size=9)


@given(_runs)
def test_deltas_of_running_totals_add_up_to_the_last_total(runs: list[Usage]) -> None:
    total, booked, last = Usage(), Usage(), None
    for number, run in enumerate(runs):
        total = add(total, run)
        booked = add(booked, delta(total, last, resumed=number > 0))
        last = total
    assert booked == total
