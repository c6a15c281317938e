"""Marks in test and startup files that excuse a test or fake its surroundings: counted, never interpreted.

A count that grew explains *what* an edit did; whether the edit is acceptable is judged by running the checks both ways.
"""

from __future__ import annotations

import re

_SKIP = re.compile(
    rb"pytest\.mark\.skip|pytest\.skip\(|pytest\.importorskip|unittest\.skip|\.skipTest\(|SkipTest|"
    rb"\b(?:it|test|describe)\.(?:skip|only)\b|\b(?:xit|xtest|xdescribe|fit|fdescribe)\(|"
    rb"\bt\.Skip(?:f|Now)?\(|testing\.Short\(|#\[ignore|collect_ignore"
)
_EXPECTED = re.compile(
    rb"pytest\.mark\.xfail|pytest\.xfail\(|expectedFailure|\b(?:it|test)\.(?:failing|fails|todo)\b|#\[should_panic"
)
_FAKED = re.compile(
    rb"\b(?:time\.(?:time|sleep|monotonic|perf_counter)|datetime\.datetime|socket\.(?:socket|create_connection)|"
    rb"requests\.\w+|urllib\.request\.\w+)\s*=[^=]|"
    rb"setattr\(\s*(?:time|datetime|socket|requests|urllib)\b|"
    rb"\b(?:freeze_time|freezegun|time_machine|libfaketime|faketime|LD_PRELOAD|DYLD_INSERT_LIBRARIES)\b"
)


def more_skips(old: bytes | None, new: bytes | None) -> bool:
    """Whether more tests are marked to be skipped."""
    return _count(_SKIP, new) > _count(_SKIP, old)


def more_expected_failures(old: bytes | None, new: bytes | None) -> bool:
    """Whether more tests are marked as expected to fail."""
    return _count(_EXPECTED, new) > _count(_EXPECTED, old)


def fakes_surroundings(old: bytes | None, new: bytes | None) -> bool:
    """Whether a clock or network is newly replaced in a file that every test of a run shares."""
    return _count(_FAKED, new) > _count(_FAKED, old)


def _count(pattern: re.Pattern[bytes], data: bytes | None) -> int:
    return sum(1 for _ in pattern.finditer(data or b""))
