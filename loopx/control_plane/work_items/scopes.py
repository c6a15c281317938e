"""Whether two write scopes may name the same file: a careful guess over path patterns. Pure.

It errs to yes, because two agents that write the same file lose more than one that waits.
"""

from __future__ import annotations

from collections.abc import Iterable

_WILD = "*?"


def overlap(one: Iterable[str], other: Iterable[str]) -> bool:
    """Whether any pattern of one scope may match what one of the other matches. An empty scope says nothing: no."""
    others = tuple(other)
    return any(_may_meet(left, right) for left in one for right in others)


def _may_meet(left: str, right: str) -> bool:
    a, b = _segments(left), _segments(right)
    if _anywhere(left) and _anywhere(right):
        return _meets_anywhere(a[0], b) or _meets_anywhere(b[0], a)
    if _anywhere(left):
        return _meets_anywhere(a[0], b)
    if _anywhere(right):
        return _meets_anywhere(b[0], a)
    for first, second in zip(a, b, strict=False):
        if _is_wild(first) or _is_wild(second):
            return True
        if first != second:
            return False
    return True


def _meets_anywhere(name: str, path: list[str]) -> bool:
    """A name without a folder lies at any depth: also inside whatever folder the other one names."""
    if _is_wild(name) or any(_is_wild(part) for part in path):
        return True
    return name in path or "." not in path[-1]


def _segments(pattern: str) -> list[str]:
    clean = pattern.strip("/")
    while clean.startswith("./"):
        clean = clean[2:]
    return clean.split("/")


def _anywhere(pattern: str) -> bool:
    return "/" not in pattern.strip("/") and not pattern.startswith(("/", "./"))


def _is_wild(segment: str) -> bool:
    return any(char in segment for char in _WILD)
