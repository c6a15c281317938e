"""Deliberate bugs: the suite is worth something because each of them is caught by a test that is named beside it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.chaos import kit, mutants

NAMED = ("no_fence", "split_spend", "normal", "owner_name_fence", "blind_retry", "no_open_turn_claim")
NAMED += ("effect_before_intent", "ack_before_apply")


def test_the_known_bugs_of_such_stores_are_all_here() -> None:
    assert set(NAMED) <= set(mutants.MUTANTS)
    assert len(mutants.MUTANTS) >= 8


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", mutants.MUTANTS)
def test_a_mutant_is_caught(name: str) -> None:
    """The named test fails, by an assertion or a refusal, and not because it could not run."""
    if os.environ.get(mutants.VARIABLE):
        pytest.skip("one mutant at a time")
    test = mutants.MUTANTS[name].caught_by
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test],
        cwd=kit.ROOT,
        env={**os.environ, mutants.VARIABLE: name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, f"{test} passes with {name}:\n{done.stdout[-3000:]}{done.stderr[-1000:]}"
    assert "1 failed" in done.stdout or "FAILED" in done.stdout, done.stdout[-3000:]
