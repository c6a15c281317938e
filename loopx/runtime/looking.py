"""When a person last looked, kept beside the store: a convenience of the screen. Nothing decides on it."""

from __future__ import annotations

import contextlib
import os

from loopx.runtime.project import Project

NAME = "looked"
DAY_MS = 86_400_000


def last(project: Project, now_ms: int) -> int:
    """The last look, or a day ago. Never raises: an unreadable mark is no mark."""
    try:
        with open(os.path.join(project.state_dir, NAME), encoding="ascii") as file:
            found = int(file.read(20))
    except (OSError, ValueError):
        return now_ms - DAY_MS
    return min(found, now_ms)


def remember(project: Project, now_ms: int) -> None:
    """Note that a person looked now. What can't be written is not noted."""
    path = os.path.join(project.state_dir, NAME)
    partial = f"{path}.{os.getpid()}"
    with contextlib.suppress(OSError):
        with open(partial, "w", encoding="ascii") as file:
            file.write(str(now_ms))
        os.replace(partial, path)
