"""The canary: when it is worth its time, and what a report with it says of the runner."""

from __future__ import annotations

import pytest

from loopx.contracts import canary
from loopx.contracts.model import CheckResult, PartCounts, Verdict


def _result(*failing: str, failed: int | None = None) -> CheckResult:
    parts = PartCounts(source="pytest", total=9, passed=0, failed=failed or len(failing), failing=failing)
    return CheckResult(name="c", verdict=Verdict.RED, definition_hash="", tree_hash=None, parts=parts)


ALL = tuple(f"test_m.LoopxCanaryTest.test_must_fail_by_{way}" for way in ("equality", "statement", "raising"))


def test_a_sound_runner_fails_every_canary() -> None:
    assert canary.is_caught(_result(*ALL)) is True
    assert canary.is_caught(_result("test_own", *ALL)) is True


@pytest.mark.parametrize("missing", range(3))
def test_a_runner_that_lets_one_way_of_failing_pass_is_not_sound(missing: int) -> None:
    assert canary.is_caught(_result(*(name for name in ALL if name != ALL[missing]))) is False


def test_where_no_canary_ran_nothing_is_known() -> None:
    assert canary.is_caught(_result("test_own")) is None
    assert canary.is_caught(None) is None


def test_a_list_that_was_cut_may_hold_the_last_file_in_part() -> None:
    other = tuple(name.replace("test_m.", "test_n.") for name in ALL)
    assert canary.is_caught(_result(*ALL, *other[:2], failed=300)) is True
    assert canary.is_caught(_result(*ALL, *other[:2])) is False


@pytest.mark.parametrize(
    ("code", "reaches"),
    [
        (b"import unittest\nunittest.TestCase.assertEqual = print\n", True),
        (b"import os\nos._exit(0)\n", True),
        (b"from _pytest import reports\n", True),
        (b"import sys\nif 'pytest' in sys.modules: pass\n", True),
        (b"print('Ran 2 tests in 0.1s')\n", True),
        (b"def contest(latest): return latest.system\n", False),
        (b"import json, math\n", False),
    ],
)
def test_only_code_that_could_reach_the_runner_is_worth_a_canary(code: bytes, reaches: bool) -> None:
    assert canary.reaches_the_runner(None, code) is reaches
    assert canary.reaches_the_runner(code, code) is False, "what was there before is no suspicion"
