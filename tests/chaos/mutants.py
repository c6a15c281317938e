"""Deliberate bugs, each of which a named test must catch. Applied in a process by the environment variable."""

from __future__ import annotations

import os
from collections.abc import Callable

VARIABLE = "LOOPX_MUTANT"

MUTANTS: dict[str, Callable[[], None]] = {}


def apply_from_environment() -> None:
    name = os.environ.get(VARIABLE)
    if name:
        MUTANTS[name]()
