"""Moving one of LoopX's own refs: from what was seen to what is new, in one step or not at all.

Git leaves its lock file behind when it is killed while it holds it, and then refuses that ref for ever. Nobody but
LoopX writes these refs, and git holds such a lock for milliseconds, so one that stays is removed. It never touches the
lock of a ref that is not LoopX's.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

from loopx.control_plane.errors import UsageError
from loopx.workspace import git
from loopx.workspace.repository import Repository

LOCK_S: Final = 3.0
"""How long a lock may stay before it is taken for one that a dead git left."""
_OURS: Final = ("refs/heads/loopx/", "refs/loopx/")


def set_ref(repo: Repository, ref: str, commit: str, old: str | None, message: str) -> git.GitResult:
    """Set `ref` if it is still `old` (None: whatever it is). The result's status is for the caller to judge.

    Raises UsageError (`foreign_ref`) for a ref that is not LoopX's own.
    """
    if not ref.startswith(_OURS):
        raise UsageError("foreign_ref", f"{ref} is not LoopX's to write")
    words = ("update-ref", "-m", message, ref, commit, *((old,) if old is not None else ()))
    done = repo.git(*words, into_project=True, expect=(0, 1, 128))
    if done.status and _outlive(Path(repo.common_dir, f"{ref}.lock")):
        done = repo.git(*words, into_project=True, expect=(0, 1, 128))
    return done


def _outlive(lock: Path) -> bool:
    """Wait until the lock is gone, and remove it when it stays; False when there was none."""
    since = time.monotonic()
    found = False
    while lock.exists():
        found = True
        if time.monotonic() - since > LOCK_S:
            with contextlib.suppress(FileNotFoundError):
                lock.unlink()
            break
        time.sleep(0.05)
    return found
