"""Output judged by content, by JSON value and against a capture."""

from __future__ import annotations

import pytest

from loopx.contracts.expect import Finished, judge, resolve_pointer
from loopx.contracts.model import Capture, Check, CheckKind, DifferentialRule, Reason
from loopx.contracts.parse import parse_expect


def _judge(expect: str, stdout: bytes | None = b"", *, exit_code: int = 0, contains: bool = False) -> Reason | None:
    check = Check(name="c", command=("x",), expect=parse_expect(expect))
    return judge(check, Finished(exit_code=exit_code, contains_text=contains, stdout=stdout), None)


def test_exit_code() -> None:
    assert _judge("exit_zero") is None
    assert _judge("exit_zero", exit_code=1) is Reason.EXIT_CODE


def test_contains_looks_at_the_output_only() -> None:
    assert _judge("contains ok", contains=True, exit_code=3) is None
    assert _judge("contains ok", contains=False) is Reason.TEXT_ABSENT


@pytest.mark.parametrize("expect", ["exit_zero", "contains ok", "$json:/a=1"])
def test_a_program_that_could_not_run_is_never_green(expect: str) -> None:
    assert _judge(expect, b'{"a": 1}', exit_code=127, contains=True) is Reason.PROGRAM_MISSING
    assert _judge(expect, b'{"a": 1}', exit_code=126, contains=True) is Reason.NOT_EXECUTABLE


@pytest.mark.parametrize(
    ("expect", "stdout", "reason"),
    [
        ("$json:/a/1=2", b'{"a": [1, 2]}', None),
        ("$json:/a=2", b'log line\n{"a": 2}\n', None),
        ("$json:/a=2.0", b'{"a": 2}', None),
        ("$json:/a=true", b'{"a": 1}', Reason.VALUE_DIFFERS),
        ("$json:/a=[true]", b'{"a": [1]}', Reason.VALUE_DIFFERS),
        ("$json:/a=ready", b'{"a": "ready"}', None),
        ("$json:/a~1b=1", b'{"a/b": 1}', None),
        ("$json:/b=1", b'{"a": 1}', Reason.POINTER_ABSENT),
        ("$json:/a/-1=1", b'{"a": [1]}', Reason.POINTER_ABSENT),
        ("$json:/a/b=1", b'{"a": 1}', Reason.POINTER_ABSENT),
        ("$json:/a=1", b"not json", Reason.NOT_JSON),
        ("$json:/a=1", b"", Reason.NOT_JSON),
        ("$json:/a=1", None, Reason.OUTPUT_TOO_LARGE),
    ],
)
def test_json(expect: str, stdout: bytes | None, reason: Reason | None) -> None:
    assert _judge(expect, stdout) is reason


def test_pointer_to_the_whole() -> None:
    assert resolve_pointer({"a": 1}, "") == {"a": 1}


@pytest.mark.parametrize(
    ("rule", "tolerance", "now", "reason"),
    [
        (DifferentialRule.NOT_HIGHER, 0, b"took 100 ms", None),
        (DifferentialRule.NOT_HIGHER, 0, b"took 101 ms", Reason.DIFFERS),
        (DifferentialRule.NOT_HIGHER, 5, b"took 105 ms", None),
        (DifferentialRule.NOT_HIGHER, 5, b"took 106 ms", Reason.DIFFERS),
        (DifferentialRule.LOWER, 0, b"100", Reason.DIFFERS),
        (DifferentialRule.LOWER, 10, b"89.5", None),
        (DifferentialRule.HIGHER, 0, b"1e3", None),
        (DifferentialRule.NOT_LOWER, 0, b"99", Reason.DIFFERS),
        (DifferentialRule.NOT_LOWER, 0, b"no number", Reason.NO_NUMBER),
        (DifferentialRule.SAME, 0, b"something else", Reason.DIFFERS),
    ],
)
def test_differential(rule: DifferentialRule, tolerance: int, now: bytes, reason: Reason | None) -> None:
    check = Check(
        name="d",
        command=("x",),
        kind=CheckKind.DIFFERENTIAL,
        against="b",
        compare=rule,
        tolerance_percent=tolerance,
    )
    capture = Capture(name="b", output_hash="same", number=100.0, definition_hash="", tree_hash=None)
    assert judge(check, Finished(exit_code=0, stdout=now, output_hash="other"), capture) is reason
    assert judge(check, Finished(exit_code=0, stdout=now), None) is Reason.CAPTURE_MISSING
    assert judge(check, Finished(exit_code=1, stdout=now), capture) is Reason.EXIT_CODE


def test_differential_same_output() -> None:
    check = Check(name="d", command=("x",), kind=CheckKind.DIFFERENTIAL, against="b")
    capture = Capture(name="b", output_hash="same", number=None, definition_hash="", tree_hash=None)
    assert judge(check, Finished(exit_code=0, output_hash="same"), capture) is None
