"""Write scopes: two that may name one file are told, two that can't are let be."""

from __future__ import annotations

import pytest

from loopx.control_plane.work_items import scopes

MEET = [
    ("src/**", "src/io/*.py"),
    ("src/**", "src"),
    ("**", "docs/a.md"),
    ("*.py", "src/a.py"),
    ("a.py", "src/a.py"),
    ("a.py", "src"),
    ("src/a.py", "src/a.py"),
    ("./src/a", "src/a"),
    ("src/*/x", "src/y/z"),
]
APART = [("src/**", "docs/**"), ("src/a.py", "src/b.py"), ("a.py", "docs/b.md"), ("src/io", "src/ui")]


@pytest.mark.parametrize(("one", "other"), MEET)
def test_scopes_that_may_meet(one: str, other: str) -> None:
    assert scopes.overlap([one], [other])
    assert scopes.overlap([other], [one])


@pytest.mark.parametrize(("one", "other"), APART)
def test_scopes_that_can_not_meet(one: str, other: str) -> None:
    assert not scopes.overlap([one], [other])
    assert not scopes.overlap([other], [one])


def test_a_scope_that_says_nothing_meets_nothing() -> None:
    assert not scopes.overlap([], ["src/**"])
