"""Path patterns: `*` within a folder, `**` across folders, `?` one character. Pure; paths use `/` and are relative.

A pattern without `/` matches at any depth. A pattern that names a folder matches all that is in it.
"""

from __future__ import annotations

import functools
import re


def _translate(pattern: str) -> str:
    clean = pattern.strip("/")
    while clean.startswith("./"):
        clean = clean[2:]
    anchored = "/" in clean or pattern.startswith(("/", "./"))
    text = "" if anchored else "(?:.*/)?"
    index = 0
    while index < len(clean):
        if clean.startswith("**/", index):
            text, index = text + "(?:.*/)?", index + 3
        elif clean.startswith("**", index):
            text, index = text + ".*", index + 2
        else:
            text += {"*": "[^/]*", "?": "[^/]"}.get(clean[index], re.escape(clean[index]))
            index += 1
    return text + "(?:/.*)?"


@functools.lru_cache(maxsize=256)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(_translate, patterns)), re.DOTALL)


def matches(pattern: str, path: str) -> bool:
    """Whether the path, or a folder that it lies in, matches."""
    return _compiled((pattern,)).fullmatch(path) is not None


def matches_any(patterns: tuple[str, ...], path: str) -> bool:
    """Whether any pattern matches."""
    return bool(patterns) and _compiled(patterns).fullmatch(path) is not None


def literal(path: str) -> str:
    """A pattern that matches this path (and what is in it) at its place only."""
    # `[` has no meaning here, and `*` and `?` in real names are rare enough to match a little more than themselves.
    return f"/{path}"


def is_literal(pattern: str) -> bool:
    """Whether a pattern names one path at its place, without any wildcard."""
    return pattern.startswith("/") and "*" not in pattern and "?" not in pattern
