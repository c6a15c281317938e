"""The canary: tests that must fail, put beside the goal's own, so that a runner which can fail no more shows itself.

Product code runs in the same process as the tests that judge it, and could blunt their assertions, patch the runner's
reports, or print a summary and leave. Words in a changed file only say when the canary is worth its time; the verdict
is the canary's (loops, "The contract: the only judge"). Pure: copies and runs are made elsewhere.
"""

from __future__ import annotations

import re

from loopx.contracts.model import CheckResult

_REACHES = re.compile(
    rb"\b(?:unittest|_?pytest|pluggy|doctest|atexit|builtins|ctypes|sitecustomize|importlib|runpy)\b|"
    rb"\bos\.(?:_exit|kill|abort|exec[lv]|dup2)|\bsys\.(?:modules|exit|_getframe|settrace|setprofile|meta_path|stderr|stdout|"
    rb"path_hooks|exc_info|excepthook)|\bSystemExit\b|__builtins__|\b(?:exec|eval|__import__|setattr|globals)\(|\bgc\.get_|"
    rb"\bsignal\.|PYTEST_|junit|Ran \d"
)
_METHODS = ("test_must_fail_by_equality", "test_must_fail_by_statement", "test_must_fail_by_raising")
_CLASS = "LoopxCanaryTest"
TEXT = f"""

import unittest as _loopx_unittest


class {_CLASS}(_loopx_unittest.TestCase):
    def {_METHODS[0]}(self):
        self.assertEqual(1, 2)

    def {_METHODS[1]}(self):
        assert 1 == 2

    def {_METHODS[2]}(self):
        raise AssertionError("this test must fail")
"""
"""What is put at the end of Python test files, for unittest and pytest alike."""

SOURCES = frozenset({"unittest", "pytest"})
"""The runners, as a report names them, that run the canary."""


def reaches_the_runner(old: bytes | None, new: bytes | None) -> bool:
    """Whether a changed Python file newly speaks of anything through which it could reach the runner around it."""
    return len(_REACHES.findall(new or b"")) > len(_REACHES.findall(old or b""))


def is_caught(result: CheckResult | None) -> bool | None:
    """Whether the runner reported every canary of every file that it ran as failing; None: it reported none at all."""
    if result is None or result.parts is None:
        return None
    counts = [sum(1 for name in result.parts.failing if method in name) for method in _METHODS]
    if not any(counts):
        return None
    # The list of failing tests is bounded: where it was cut, the last file may be there in part.
    spread = max(counts) - min(counts)
    return spread <= (1 if result.parts.failed > len(result.parts.failing) else 0)
