"""Reads one raw line of a host's stream as a JSON object, and fields out of it, without ever raising.

A host's output is untrusted: garbage, nulls, wrong types, megabytes, broken UTF-8 and lines that the keeper has cut are
all ordinary here. This module never interprets what a field means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

Object = Mapping[str, object]

TEXT_CAP = 2000
"""Characters of a text that an event carries."""

_EMPTY: Object = {}


def decode(line: bytes) -> Object | None:
    """The JSON object on this line, or None for anything else. Broken UTF-8 is replaced, not refused."""
    stripped = line.strip()
    if not stripped.startswith(b"{"):
        return None
    value = _decoded(stripped)
    if value is None:
        value = _decoded(stripped.decode("utf-8", "replace").encode())
    return value if isinstance(value, dict) else None


def _decoded(raw: bytes) -> object:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


def child(value: Object, key: str) -> Object:
    """The object under `key`, or an empty one."""
    found = value.get(key)
    return found if isinstance(found, dict) else _EMPTY


def children(value: Object, key: str) -> Sequence[Object]:
    """The objects in the list under `key`; everything else in it is left out."""
    found = value.get(key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def text(value: Object, key: str) -> str:
    """The string under `key`, or an empty one."""
    found = value.get(key)
    return found if isinstance(found, str) else ""


def texts(value: Object, key: str) -> Sequence[str]:
    """The strings in the list under `key`; everything else in it is left out."""
    found = value.get(key)
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def count(value: Object, key: str) -> int | None:
    """The whole number >= 0 under `key`; None when it is absent or anything else (unknown is not zero)."""
    found = value.get(key)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    if not 0 <= found < 2**62:
        return None
    return int(found)


def dollars(value: Object, key: str) -> int | None:
    """The dollar amount under `key` in micro-dollars; None when unknown."""
    found = value.get(key)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < 1e9:
        return None
    return round(found * 1_000_000)


def flag(value: Object, key: str) -> bool:
    """True only for a real `true`."""
    return value.get(key) is True


def salvage(line: bytes, key: str) -> str | None:
    """The plain string or word under `key` near the beginning of a line that could not be decoded (a cut one)."""
    head = line[:4000].decode("utf-8", "replace")
    found = re.search(rf'"{re.escape(key)}"\s*:\s*(?:"([^"\\]{{0,200}})"|(true|false|null|\d{{1,18}}))', head)
    return None if found is None else (found.group(1) if found.group(1) is not None else found.group(2))


def clip(value: str, cap: int = TEXT_CAP) -> str:
    """At most `cap` characters."""
    return value if len(value) <= cap else value[: cap - 1] + "…"


def canonical(value: object) -> str:
    """A stable text for comparing two tool calls; never raises."""
    try:
        return msgspec.json.encode(value, order="sorted").decode()
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return repr(type(value))
