"""Judging a finished command's output: `contains`, `$json:` and the comparison with a capture. Pure; runs nothing."""

from __future__ import annotations

import re
from typing import assert_never

import msgspec

from loopx.contracts.model import Capture, Check, CheckKind, DifferentialRule, Expect, ExpectKind, Reason

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.]*\d)")


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """A command that ran to its own end. `stdout` is None when it was longer than what is kept for judging."""

    exit_code: int
    contains_text: bool = False
    stdout: bytes | None = None
    output_hash: str = ""


def judge(check: Check, finished: Finished, capture: Capture | None) -> Reason | None:
    """Why the check is red, or None when it is green. A program that could not run (126, 127) is never green."""
    if finished.exit_code == 127:
        return Reason.PROGRAM_MISSING
    if finished.exit_code == 126:
        return Reason.NOT_EXECUTABLE
    reason = _judge_expect(check.expect, finished)
    if reason is not None or check.kind is not CheckKind.DIFFERENTIAL:
        return reason
    return Reason.CAPTURE_MISSING if capture is None else _judge_difference(check, finished, capture)


def _judge_expect(expect: Expect, finished: Finished) -> Reason | None:
    match expect.kind:
        case ExpectKind.EXIT_ZERO:
            return None if finished.exit_code == 0 else Reason.EXIT_CODE
        case ExpectKind.CONTAINS:
            return None if finished.contains_text else Reason.TEXT_ABSENT
        case ExpectKind.JSON:
            return _judge_json(expect, finished.stdout)
        case _:
            assert_never(expect.kind)


def _judge_json(expect: Expect, stdout: bytes | None) -> Reason | None:
    if stdout is None:
        return Reason.OUTPUT_TOO_LARGE
    try:
        found = resolve_pointer(json_document(stdout), expect.pointer)
    except ValueError:
        return Reason.NOT_JSON
    except LookupError:
        return Reason.POINTER_ABSENT
    return None if _same_json(found, msgspec.json.decode(expect.value)) else Reason.VALUE_DIFFERS


def _same_json(left: object, right: object) -> bool:
    """Equality in which true is not 1, and 1.0 is 1 (Python says otherwise of the first)."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same_json, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same_json(left[key], right[key]) for key in left)
    return left == right


def json_document(stdout: bytes) -> object:
    """The JSON that a command printed: the whole output, else its last line. Raises `ValueError`."""
    lines = stdout.strip().splitlines()
    for text in (stdout, lines[-1] if lines else b""):
        try:
            document: object = msgspec.json.decode(text)
        except msgspec.MsgspecError:
            continue
        return document
    raise ValueError("the output is not JSON")


def resolve_pointer(document: object, pointer: str) -> object:
    """What an RFC 6901 pointer names. Raises `LookupError` when it names nothing."""
    found = document
    for part in pointer.split("/")[1:]:
        token = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found[token]
        elif isinstance(found, list) and re.fullmatch(r"0|[1-9]\d*", token):
            found = found[int(token)]
        else:
            raise LookupError(token)
    return found


def number_of(check: Check, stdout: bytes | None) -> float | None:
    """The number that a baseline or differential check measures: at its pointer, else the last one printed."""
    if stdout is None:
        return None
    if check.pointer is None:
        numbers = _NUMBER.findall(stdout.decode("utf-8", "replace"))
        return float(numbers[-1]) if numbers else None
    try:
        found = resolve_pointer(json_document(stdout), check.pointer)
    except (ValueError, LookupError):
        return None
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def _judge_difference(check: Check, finished: Finished, capture: Capture) -> Reason | None:
    if check.compare is DifferentialRule.SAME and check.pointer is None:
        return None if finished.output_hash == capture.output_hash else Reason.DIFFERS
    now = number_of(check, finished.stdout)
    if now is None or capture.number is None:
        return Reason.NO_NUMBER
    return None if _holds(check.compare, now, capture.number, check.tolerance_percent) else Reason.DIFFERS


def _holds(rule: DifferentialRule, now: float, before: float, tolerance_percent: int) -> bool:
    slack = abs(before) * tolerance_percent / 100
    match rule:
        case DifferentialRule.SAME:
            return abs(now - before) <= slack
        case DifferentialRule.NOT_LOWER:
            return now >= before - slack
        case DifferentialRule.NOT_HIGHER:
            return now <= before + slack
        case DifferentialRule.LOWER:
            return now < before - slack
        case DifferentialRule.HIGHER:
            return now > before + slack
        case _:
            assert_never(rule)
