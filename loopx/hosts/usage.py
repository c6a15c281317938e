"""The arithmetic of usage: from what a host counts to what one run used (hosts, C0; field notes, B18).

Each CLI counts from another beginning: Codex from the thread's start, Claude Code from the process's start, OpenCode
from the step's, Gemini from the process's. Raw counters are stored beside deltas, so nothing here is lost. Unknown
stays None; it never becomes 0.
"""

from __future__ import annotations

import msgspec

from loopx.hosts.protocol import Usage

_FIELDS = tuple(field for field in Usage.__struct_fields__)
ZERO = Usage(**dict.fromkeys(_FIELDS, 0))
"""Nothing used, and known to be: where a session's own first run is concerned."""


def delta(total: Usage, last: Usage | None, *, resumed: bool) -> Usage:
    """What one run used, from a session's running `total` and the `last` total stored for that session.

    A fresh session counts from nothing. A resumed one without a stored total is unknown: its total also holds what
    earlier runs used. Any counter that fell means that the host counts anew (a compaction, a new process): rebase.
    """
    if not resumed:
        return total
    if last is None:
        return Usage()
    if _fell(total, last):
        return total
    values = {name: _minus(getattr(total, name), getattr(last, name)) for name in _FIELDS}
    return Usage(**values)


def add(left: Usage, right: Usage) -> Usage:
    """The sum of two runs; a counter that only one of them knows is that one's."""
    return Usage(**{name: _plus(getattr(left, name), getattr(right, name)) for name in _FIELDS})


def merge(known: Usage, newer: Usage) -> Usage:
    """`newer` where it knows a counter, else `known`."""
    picked = {
        name: getattr(newer, name) if getattr(newer, name) is not None else getattr(known, name) for name in _FIELDS
    }
    return msgspec.structs.replace(known, **picked)


def is_known(usage: Usage) -> bool:
    """Whether any counter is known."""
    return any(getattr(usage, name) is not None for name in _FIELDS)


def _fell(total: Usage, last: Usage) -> bool:
    pairs = ((getattr(total, name), getattr(last, name)) for name in _FIELDS)
    return any(now is not None and before is not None and now < before for now, before in pairs)


def _minus(now: int | None, before: int | None) -> int | None:
    return None if now is None else now - (before or 0)


def _plus(left: int | None, right: int | None) -> int | None:
    if left is None or right is None:
        return right if left is None else left
    return left + right
