"""An error as a person reads it: what was wrong, and beneath it what to do. It adds no facts of its own."""

from __future__ import annotations

import textwrap

from loopx.control_plane.errors import LoopXError

LABEL = "  error  "
INDENT = " " * len(LABEL)
WIDTH = 118


def error_text(error: LoopXError) -> str:
    """The message on lines of their own, then the hint; long sentences are folded under their beginning."""
    message = error.message or error.code
    lines = _folded(message, LABEL)
    if error.hint:
        lines += _folded(error.hint, INDENT)
    return "\n".join(lines)


def _folded(text: str, first: str) -> list[str]:
    lines: list[str] = []
    for number, raw in enumerate(text.splitlines()):
        # Names of files and words of agents may be in it: they never move a cursor.
        line = "".join(char if char.isprintable() else "?" for char in raw)
        # A command is meant to be copied: it is folded only between words, and never inside one.
        lines += textwrap.wrap(
            line,
            WIDTH,
            initial_indent=first if number == 0 else INDENT,
            subsequent_indent=INDENT,
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
            drop_whitespace=True,
        ) or [INDENT.rstrip()]
    return lines
