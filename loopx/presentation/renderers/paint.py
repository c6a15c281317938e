"""Colour for terminals that want it, and the width of text that has it. Plain everywhere else."""

from __future__ import annotations

import re
import unicodedata

_ANSI = re.compile(r"\033\[[0-9;]*m")


class Paint:
    """Wraps words in colour, or leaves them as they are."""

    def __init__(self, *, color: bool) -> None:
        self._color = color

    def _in(self, code: str, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self._color and text else text

    def bold(self, text: str) -> str:
        return self._in("1", text)

    def dim(self, text: str) -> str:
        return self._in("2", text)

    def red(self, text: str) -> str:
        return self._in("31", text)

    def green(self, text: str) -> str:
        return self._in("32", text)

    def yellow(self, text: str) -> str:
        return self._in("33", text)

    @staticmethod
    def width(text: str) -> int:
        """How many columns the text takes in a terminal."""
        plain = _ANSI.sub("", text)
        return sum(_columns(char) for char in plain)

    @staticmethod
    def cut(text: str, width: int) -> str:
        """The text without colour, at most so many columns."""
        plain = _ANSI.sub("", text)
        used = 0
        for index, char in enumerate(plain):
            used += _columns(char)
            if used > width:
                return plain[: max(0, index - 1)] + "…"
        return plain


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
