"""Path patterns: `*` within a folder, `**` across folders, `?` one character. Pure; paths use `/` and are relative.

A pattern without `/` matches at any depth. A pattern that names a folder matches all that is in it.
"""

from __future__ import annotations

import functools
import re


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
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
    return re.compile(text + "(?:/.*)?", re.DOTALL)


def matches(pattern: str, path: str) -> bool:
    """Whether the path, or a folder that it lies in, matches."""
    return _compiled(pattern).fullmatch(path) is not None


def matches_any(patterns: tuple[str, ...], path: str) -> bool:
    """Whether any pattern matches."""
    return any(matches(pattern, path) for pattern in patterns)


def literal(path: str) -> str:
    """A pattern that matches this path (and what is in it) at its place only."""
    # `[` has no meaning here, and `*` and `?` in real names are rare enough to match a little more than themselves.
    return f"/{path}"
