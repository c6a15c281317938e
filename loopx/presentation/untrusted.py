"""Makes a stranger's text harmless to look at: terminal escapes go, and marks that reorder text are shown as what they
are. Escaping for HTML or for a terminal's own markup is the caller's; this comes before it.
"""

from __future__ import annotations

import re

_ESCAPES = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor, erase
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)?"  # OSC, DCS and kin: titles, links
    "|\x1b[ -/]*[0-~]?"
)
_BIDI = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_BREAKS = re.compile("\r\n|[\r\u0085\u2028\u2029]")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufeff\ufff9-\ufffb]")


def clean(text: str) -> str:
    """The text with its line breaks and tabs, and nothing in it that a terminal or a browser would obey."""
    if text.isascii() and text.isprintable():
        return text
    plain = _BREAKS.sub("\n", _ESCAPES.sub("", text))
    plain = _CONTROL.sub("", plain)
    return _BIDI.sub(lambda mark: f"⟨U+{ord(mark[0]):04X}⟩", plain)


def one_line(text: str, width: int) -> str:
    """The same on one line, cut at a width."""
    flat = " ".join(clean(text).split())
    return flat if len(flat) <= width else flat[: max(1, width - 1)] + "…"


def head(text: str, lines: int, width: int = 2000) -> str:
    """The first lines, each cut at a width."""
    found = clean(text).split("\n")
    kept = [line if len(line) <= width else line[: width - 1] + "…" for line in found[:lines]]
    return "\n".join([*kept, "…"] if len(found) > lines else kept)
