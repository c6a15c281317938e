"""Ids sort in the order in which they were made, also within one millisecond, and never repeat."""

from __future__ import annotations

import itertools

from loopx.runtime.clock import SystemIds


def test_ids_sort_as_they_were_made() -> None:
    ids = SystemIds()
    made = [ids.new("td") for _ in range(5_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_two_processes_share_no_id() -> None:
    one, other = SystemIds(), SystemIds()
    made = list(itertools.chain.from_iterable((one.new("td"), other.new("td")) for _ in range(500)))
    assert len(set(made)) == len(made)
