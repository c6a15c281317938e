"""Runners' reports become counts; forged, contradictory and dangerous ones become nothing."""

from __future__ import annotations

import json

import pytest

from loopx.contracts import tally
from loopx.contracts.junit import read_junit
from loopx.contracts.model import Machine, PartCounts, Reason
from loopx.contracts.reports import GoScanner, read_jest
from loopx.contracts.signature import coarse_class, error_class_of, failure_signature, recurring
from loopx.contracts.summaries import (
    AnyScanner,
    CargoScanner,
    Found,
    JavaScriptScanner,
    Scanner,
    TapScanner,
    UnittestScanner,
    plain,
)


def _scan(scanner: Scanner, text: str, exit_code: int) -> Found:
    for line in text.splitlines():
        scanner.line(plain(line))
    return scanner.found(exit_code)


JUNIT = b"""<?xml version="1.0"?><testsuites><testsuite name="s">
<testcase classname="t.a" name="ok"/>
<testcase classname="t.a" name="bad"><failure message="KeyError: 'x'">E KeyError</failure></testcase>
<testcase classname="t.a" name="typed"><failure type="java.lang.IllegalStateException" message="no"/></testcase>
<testcase classname="t.a" name="skip"><skipped type="pytest.skip" message="s"/></testcase>
<testcase classname="t.a" name="xf"><skipped type="pytest.xfail" message="s"/></testcase>
<testcase classname="t.a" name="two"><failure message="assert 0">t.py:3: AssertionError</failure></testcase>
<testcase classname="t.a" name="two"><error message="failed on teardown">ValueError: x</error></testcase>
<testcase classname="" name="t.b"><error message="collection failure">E   ModuleNotFoundError: nope</error></testcase>
</testsuite></testsuites>"""


def test_junit() -> None:
    parts = read_junit([JUNIT[:300], JUNIT[300:]], "pytest")
    assert parts is not None
    assert (parts.total, parts.passed, parts.failed, parts.skipped, parts.expected_failures) == (7, 1, 4, 1, 1)
    assert (parts.collection_errors, parts.collected) == (1, 6)
    assert parts.failing == ("t.a::bad", "t.a::two", "t.a::typed", "t.b")
    assert parts.error_classes == (
        "AssertionError",
        "IllegalStateException",
        "KeyError",
        "ModuleNotFoundError",
        "ValueError",
    )
    assert parts.failing_keys == tally.keys_of(parts.failing)
    assert parts.skipped_keys == (tally.key_of("t.a::skip"),)


def test_junit_without_tests_is_a_report_of_none() -> None:
    parts = read_junit([b"<testsuites><testsuite tests='0'/></testsuites>"])
    assert parts is not None
    assert parts.total == 0


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"not xml",
        b"<html/>",
        JUNIT[:-40],
        b'<!DOCTYPE x [<!ENTITY a "b">]><testsuites>&a;</testsuites>',
        b'<!DOCTYPE testsuites SYSTEM "http://127.0.0.1/x"><testsuites/>',
    ],
)
def test_documents_that_are_refused(document: bytes) -> None:
    assert read_junit([document]) is None


def test_many_tests_keep_the_report_small(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = "".join(f'<testcase classname="c" name="t{n}"><failure/></testcase>' for n in range(6_000))
    parts = read_junit([f"<testsuite>{cases}</testsuite>".encode()])
    assert parts is not None
    assert (parts.failed, len(parts.failing)) == (6_000, tally.MAX_FAILING)
    assert parts.failing_keys is None
    assert parts.collected_digest is not None


HEADER = "=" * 70
UNITTEST = f"""F.
{HEADER}
FAIL: test_f (test_a.T.test_f)
a docstring
----------------------------------------------------------------------
Traceback (most recent call last):
  File "/tmp/test_a.py", line 6, in test_f
AssertionError: 1 != 2

{HEADER}
ERROR: test_b (unittest.loader._FailedTest.test_b)
----------------------------------------------------------------------
ImportError: Failed to import test module: test_b

----------------------------------------------------------------------
Ran 5 tests in 0.002s

FAILED (failures=1, errors=1, skipped=1, expected failures=1)
"""


def test_unittest() -> None:
    parts, machine = _scan(UnittestScanner(), UNITTEST, 1)
    assert machine is Machine.READ
    assert parts is not None
    assert (parts.total, parts.passed, parts.failed, parts.skipped, parts.expected_failures) == (5, 1, 2, 1, 1)
    assert parts.collection_errors == 1
    assert parts.failing == ("test_b (unittest.loader._FailedTest.test_b)", "test_f (test_a.T.test_f)")
    assert parts.error_classes == ("AssertionError", "ImportError")


def test_only_the_last_summary_counts() -> None:
    forged = "Ran 40 tests in 0.1s\n\nOK\n"
    parts, _ = _scan(UnittestScanner(), forged + UNITTEST, 1)
    assert parts is not None
    assert parts.total == 5


def test_a_summary_that_contradicts_the_exit_code_is_none() -> None:
    assert _scan(UnittestScanner(), UNITTEST + "Ran 40 tests in 0.1s\n\nOK\n", 1) == (None, Machine.CONTRADICTS)
    assert _scan(UnittestScanner(), UNITTEST, 0) == (None, Machine.CONTRADICTS)
    assert _scan(UnittestScanner(), "Ran 3 tests in 0.1s\n\nFAILED\n", 1) == (None, Machine.CONTRADICTS)
    assert _scan(UnittestScanner(), "Ran 3 tests in 0.1s\nnoise\nOK", 0) == (None, Machine.MISSING)


def test_headers_that_do_not_add_up_give_counts_without_names() -> None:
    parts, _ = _scan(UnittestScanner(), f"{HEADER}\nFAIL: fake\n{UNITTEST}", 1)
    assert parts is not None
    assert (parts.failed, parts.failing, parts.failing_keys) == (2, (), None)


def test_unittest_without_tests() -> None:
    parts, _ = _scan(UnittestScanner(), "Ran 0 tests in 0.000s\n\nNO TESTS RAN\n", 5)
    assert parts is not None
    assert parts.total == 0


TAP = """TAP version 13
# Subtest: outer
    # Subtest: in
    ok 1 - in
    # Subtest: in2
    not ok 2 - in2
      ---
        TypeError: no
      ...
    1..2
not ok 1 - outer
ok 2 - sk # SKIP
not ok 3 - later # TODO
ok 4
1..4
"""


def test_tap() -> None:
    parts, machine = _scan(TapScanner(), TAP, 1)
    assert machine is Machine.READ
    assert parts is not None
    assert parts.failing == ("outer", "outer > in2")
    assert (parts.passed, parts.skipped, parts.expected_failures) == (2, 1, 1)
    assert parts.error_classes == ("TypeError",)
    assert _scan(TapScanner(), TAP, 0) == (None, Machine.CONTRADICTS)
    assert _scan(TapScanner(), "ok then\nok 1 - x", 0) == (None, Machine.MISSING)


CARGO = """     Running unittests src/lib.rs (target/debug/deps/x-1)
running 3 tests
test tests::a ... ok
test tests::b ... FAILED
test tests::c ... ignored, slow
test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
   Doc-tests x
test src/lib.rs - f (line 3) ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
"""


def test_cargo() -> None:
    parts, _ = _scan(CargoScanner(), CARGO, 101)
    assert parts is not None
    assert (parts.total, parts.passed, parts.failed, parts.skipped) == (4, 2, 1, 1)
    assert parts.failing == ("src/lib.rs::tests::b",)
    garbled, _ = _scan(CargoScanner(), CARGO.replace("test tests::a ... ok", "test tests::a ... hello\nok"), 101)
    assert garbled is not None
    assert (garbled.passed, garbled.failing_keys) == (2, None)
    assert _scan(CargoScanner(), "error[E0308]: mismatched types", 101) == (None, Machine.MISSING)


def test_javascript_summaries() -> None:
    jest = "  ● sum › adds\n    TypeError: x\nTests:       1 failed, 1 skipped, 1 todo, 2 passed, 5 total\n"
    parts, _ = _scan(JavaScriptScanner("jest"), jest, 1)
    assert parts is not None
    assert (parts.total, parts.failed, parts.skipped, parts.failing) == (5, 1, 1, ("sum › adds",))
    flat = "  ● bad\n  ● bad\n  ● Test suite failed to run\nTests:       1 failed, 1 total\n"
    parts, _ = _scan(JavaScriptScanner("jest"), flat, 1)
    assert parts is not None
    assert parts.failing == ("bad",)
    vitest = " FAIL  a.test.ts > sum > adds\n\x1b[2m      Tests \x1b[22m 1 failed | 2 passed (3)\n"
    parts, _ = _scan(JavaScriptScanner("vitest"), vitest, 1)
    assert parts is not None
    assert (parts.total, parts.failed, parts.passed) == (3, 1, 2)


def test_a_hidden_runner_is_recognised_only_when_there_is_one() -> None:
    parts, _ = _scan(AnyScanner(), CARGO, 101)
    assert parts is not None
    assert parts.source == "cargo"
    assert _scan(AnyScanner(), CARGO + UNITTEST, 101) == (None, Machine.MISSING)
    assert _scan(AnyScanner(), "nothing here", 0) == (None, Machine.MISSING)


def test_jest_report() -> None:
    report = {
        "numTotalTests": 4,
        "testResults": [
            {
                "name": "/r/a.test.js",
                "status": "failed",
                "assertionResults": [
                    {"fullName": "sum adds", "status": "failed", "failureMessages": ["TypeError: no\n at x"]},
                    {"fullName": "sum ok", "status": "passed", "failureMessages": []},
                    {"fullName": "sum later", "status": "todo"},
                    {"fullName": "sum skip", "status": "pending"},
                ],
            },
            {"name": "/r/b.test.js", "status": "failed", "message": "SyntaxError: bad", "assertionResults": []},
        ],
    }
    parts = read_jest(json.dumps(report).encode(), "/r", "jest")
    assert parts is not None
    assert parts.failing == ("a.test.js::sum adds", "b.test.js")
    assert (parts.collection_errors, parts.skipped, parts.expected_failures) == (1, 1, 1)
    assert parts.error_classes == ("SyntaxError", "TypeError")
    assert read_jest(b"{}", "/r", "jest") is None


def test_go_stream() -> None:
    events = [
        {"Action": "run", "Package": "p", "Test": "TestA"},
        {"Action": "output", "Package": "p", "Test": "TestA", "Output": "panic: boom\n"},
        {"Action": "fail", "Package": "p", "Test": "TestA"},
        {"Action": "pass", "Package": "p", "Test": "TestB"},
        {"Action": "skip", "Package": "p", "Test": "TestC"},
        {"Action": "fail", "Package": "p"},
        {"Action": "fail", "Package": "broken"},
    ]
    scanner = GoScanner()
    lines = [json.dumps(event) for event in events]
    parts, _ = _scan(scanner, "\n".join(lines), 1)
    assert parts is not None
    assert parts.failing == ("broken", "p::TestA")
    assert (parts.passed, parts.skipped, parts.collection_errors) == (1, 1, 1)
    assert scanner.text_of(lines[1]) == "panic: boom\n"
    assert scanner.text_of("# p [build failed]") == "# p [build failed]\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("E   ModuleNotFoundError: No module named 'x'", "ModuleNotFoundError"),
        ("pkg.errors.CustomError: x", "CustomError"),
        ("/a/b.py:12: AssertionError", "AssertionError"),
        ("FAILED t.py::a - ValueError: x", "ValueError"),
        ("Uncaught TypeError: x", "TypeError"),
        ("Error: expect(received).toBe(expected)", "Error"),
        ("Warning: old", None),
        ("error[E0308]: mismatched", "E0308"),
        ("src/a.ts(1,2): error TS2345: x", "TS2345"),
        ("panic: runtime error", "panic"),
        ("thread 'x' panicked at src/lib.rs:3:5:", "panic"),
        ("KeyError: 'a'\nall fine\n", "KeyError"),
        ("all fine", None),
    ],
)
def test_error_classes(text: str, name: str | None) -> None:
    assert error_class_of(text) == name


def test_signatures_do_not_move_with_lines_paths_or_times() -> None:
    def signature(text: str) -> str:
        found = coarse_class(Reason.EXIT_CODE, exit_code=1, signal=None, parts=None, output_tail=text)
        return failure_signature("unit", found)

    first = signature("/home/a/x.py:10: AssertionError\n3 failed in 1.20s")
    assert first == signature("/tmp/b/x.py:999: AssertionError\n3 failed in 9.99s") == "unit: AssertionError"
    assert signature("boom") == "unit: exit_1"


def test_signatures_say_how_a_run_ended() -> None:
    parts = PartCounts(source="x", total=2, passed=1, failed=1, error_classes=("KeyError", "AssertionError"))
    assert coarse_class(Reason.TIMEOUT, exit_code=None, signal=15, parts=None, output_tail="KeyError: x") == "timeout"
    assert coarse_class(Reason.KILLED, exit_code=None, signal=11, parts=None, output_tail="") == "SIGSEGV"
    assert coarse_class(Reason.EXIT_CODE, exit_code=1, signal=None, parts=parts, output_tail="") == (
        "AssertionError+KeyError"
    )
    assert recurring(["a: X", "b: Y"], ["b: Y", "c: Z"]) == ("b: Y",)
