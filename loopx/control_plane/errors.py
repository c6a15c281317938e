"""Every error that LoopX raises on purpose, as one small tree.

The tree nests as drawn; each leaf has a stable `code` (in `LoopXError.code`) and an exit status that the CLI,
the web page and the API share (surface.md, "Exit codes")::

    LoopXError                     1   a fault in LoopX itself
    ├── UsageError                 2   input that a person, a file or a host got wrong
    ├── NotFoundError              3   no such goal, todo, gate, turn
    ├── StoreError                 4   the store is unreadable, newer, read-only or full
    ├── NotNowError               10   waiting, throttled, paused
    ├── NeedsPersonError          11   a gate, a sign-in, a blocked journal
    ├── BudgetError               12   an absolute cap is reached
    ├── EngineError               13   an engine failed or is not available
    ├── RedChecksError            14   ended with red checks
    ├── ConflictError             15   lease lost, stale revision, already answered
    └── CancelledError           130   a person stopped it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class LoopXError(Exception):
    """A typed refusal: what was wrong (`message`), what to do (`hint`), and machine-readable `data`."""

    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: str = "",
        data: Mapping[str, str | int | float | bool | None] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.data: dict[str, str | int | float | bool | None] = dict(data or {})


class UsageError(LoopXError):
    """Input that a person, a file or a host got wrong; nothing was changed."""

    exit_code = 2


class NotFoundError(LoopXError):
    """The named goal, todo, gate, turn or schedule does not exist; nothing was created."""

    exit_code = 3


class StoreError(LoopXError):
    """The store cannot be read or written (unreadable, newer schema, read-only, full); it was left as it is."""

    exit_code = 4


class NotNowError(LoopXError):
    """The goal waits, is throttled or is paused; a later call may succeed."""

    exit_code = 10


class NeedsPersonError(LoopXError):
    """Only a person can move this on."""

    exit_code = 11


class BudgetError(LoopXError):
    """An absolute cap is reached."""

    exit_code = 12


class EngineError(LoopXError):
    """An engine failed, or is not installed, or is not signed in."""

    exit_code = 13


class RedChecksError(LoopXError):
    """The run ended while checks are red."""

    exit_code = 14


class ConflictError(LoopXError):
    """Someone else moved first: lease lost, stale revision, already answered."""

    exit_code = 15


class CancelledError(LoopXError):
    """A person stopped the run."""

    exit_code = 130
