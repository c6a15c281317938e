"""Who drives a turn: a name that proves, on this machine, whether its process still lives.

The name is for people and for liveness; the lease's epoch alone is the fence.
"""

from __future__ import annotations

import os

from loopx.hosts import identity as process_identity


def current_owner() -> str:
    """`host/boot/pid/start` of this process."""
    identity = process_identity.of(os.getpid())
    if identity is None:
        return f"{os.uname().nodename}/unknown/{os.getpid()}/0"
    return f"{os.uname().nodename}/{identity.boot_id}/{identity.pid}/{identity.start_ticks}"


def pid_of(owner: str) -> int | None:
    """The pid in an owner's name, for messages."""
    parts = owner.split("/")
    return int(parts[2]) if len(parts) == 4 and parts[2].isdigit() else None


def is_dead(owner: str) -> bool:
    """Whether the owner's process is proved gone. False when it can't be proved: another machine, another format."""
    parts = owner.split("/")
    if len(parts) != 4 or parts[0] != os.uname().nodename or not parts[2].isdigit():
        return False
    here = process_identity.of(os.getpid())
    if here is None:
        return False
    if parts[1] != here.boot_id:
        return True
    other = process_identity.of(int(parts[2]))
    return other is None or str(other.start_ticks) != parts[3]
