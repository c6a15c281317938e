"""The failure signature: a check's name and a coarse error class, stable against lines, timings and paths.

Two rounds with the same signature mean the same failure came back (loops, "Engines"). Text similarity never counts.
"""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Iterable

from loopx.contracts.model import PartCounts, Reason

_MAX_CLASSES = 3
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_SUFFIX = r"(?:Error|Exception|Exit|Interrupt|Warning|Failure|Failed|Violation)"
_EXCEPTION = rf"(?:{_NAME}[.:]{{1,2}})*({_NAME}{_SUFFIX}|Error|Exception)"
_MESSAGE = re.compile(rf"^\s*(?:E\s+)?(?:Uncaught\s+)?{_EXCEPTION}(?:\s*\[[\w.-]+\])?\s*(?::|$|\()")
_PYTEST_END = re.compile(rf":\d+: {_EXCEPTION}\s*$")
_SHORT_SUMMARY = re.compile(rf"^(?:FAILED|ERROR) .*? - {_EXCEPTION}\b")
_COMPILER = re.compile(r"\berror(?:\[(E\d+)\]|\s+(TS\d+))")
_OTHERS = ((re.compile(r"^panic: "), "panic"), (re.compile(r"panicked at "), "panic"))
_WORD = re.compile(r"[^A-Za-z0-9_.-]+")


def error_class_of(text: str) -> str | None:
    """The last exception class, compiler code or panic that the text names; None when it names none."""
    for line in reversed(text.splitlines()):
        for pattern in (_MESSAGE, _PYTEST_END, _SHORT_SUMMARY):
            if found := pattern.search(line):
                return found[1]
        if found := _COMPILER.search(line):
            return found[1] or found[2]
        for pattern, name in _OTHERS:
            if pattern.search(line):
                return name
    return None


def coarse_class(
    reason: Reason, *, exit_code: int | None, signal: int | None, parts: PartCounts | None, output_tail: str
) -> str:
    """The coarse error class of a check that is not green.

    How the run was ended comes first; then the classes in the runner's own report; then the last error that the output
    names; then the exit code.
    """
    if reason is Reason.KILLED and signal is not None:
        return _signal_name(signal)
    if reason not in {Reason.EXIT_CODE, Reason.TEXT_ABSENT, Reason.FLIPPED}:
        return reason.value
    if parts is not None and parts.error_classes:
        return "+".join(sorted(set(parts.error_classes))[:_MAX_CLASSES])
    named = error_class_of(output_tail)
    if named is not None:
        return named
    if parts is not None and parts.failed:
        return "tests_failed"
    return reason.value if reason is Reason.TEXT_ABSENT else f"exit_{exit_code}"


def failure_signature(check_name: str, error_class: str) -> str:
    """`NAME: Class`, in which the class has no character that a path or a number of a line could hide in."""
    return f"{check_name}: {_WORD.sub('_', error_class)}" if "+" not in error_class else f"{check_name}: {error_class}"


def recurring(before: Iterable[str], now: Iterable[str]) -> tuple[str, ...]:
    """The signatures that came back, sorted: what the worker is told about."""
    return tuple(sorted(set(before) & set(now)))


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal_{number}"
