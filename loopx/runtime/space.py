"""Free space where LoopX writes: below the floor no engine is launched, and every surface says so in the same words.

One `statvfs` and no more, because a should-run decision asks for it. Enforcing the floor while a host runs is its
keeper's business.
"""

from __future__ import annotations

import os

from loopx.control_plane.quota.facts import GoalFacts, PendingWait, WaitKind

FLOOR_BYTES = 256 << 20
"""The same floor as the keeper's (`hosts/spool.py`, `Limits.disk_floor_bytes`); a test holds them together."""
RECHECK_MS = 60_000
DISK_FLOOR = "disk_floor"


def free_bytes(path: str) -> int | None:
    """What is free to this user where `path` is, or will be; None when the system does not tell."""
    folder = os.path.dirname(os.path.abspath(path))
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    try:
        stats = os.statvfs(folder)
    except OSError:
        return None
    return stats.f_bavail * stats.f_frsize


def heed_floor(facts: GoalFacts, path: str) -> GoalFacts:
    """The facts, with a wait for room when there is too little where the store is. A longer wait stays as it is."""
    free = free_bytes(path)
    if free is None or free >= FLOOR_BYTES:
        return facts
    until = facts.now_ms + RECHECK_MS
    waits = facts.wait is not None and (facts.wait.until_ms is None or facts.wait.until_ms >= until)
    if waits:
        return facts
    import msgspec

    wait = PendingWait(
        kind=WaitKind.EXTERNAL_EVIDENCE,
        until_ms=until,
        detail=f"{DISK_FLOOR}: {free >> 20} MiB free, {FLOOR_BYTES >> 20} MiB needed",
    )
    return msgspec.structs.replace(facts, wait=wait)
