"""The machine-wide launch cap: how many turns may be started in a rolling window, over every project of this user.

Projects have stores of their own, so the count is in one small file beside them: replaced as a whole, under a lock. A
turn's place is taken inside the transaction that starts it; a crash in between costs a place and never grants one.
Without a cap there is no file, and nothing is counted. It launches and refuses nothing else.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import msgspec

from loopx.control_plane.errors import NotNowError, StoreError, UsageError
from loopx.control_plane.quota.facts import BudgetUse, GoalFacts
from loopx.control_plane.quota.policy import Budget, BudgetScope, BudgetUnit
from loopx.runtime.project import state_home

NAME = "machine.json"
MOST = 10_000
"""The largest cap: every launch in the window has a line in the file."""


class Cap(msgspec.Struct, frozen=True, kw_only=True):
    """The file. `launches` maps what started to the instant at which it did."""

    limit: int
    window_ms: int
    launches: dict[str, int] = {}


def path() -> str:
    """Where the cap is kept: in the user's state folder, beside every project's own."""
    return os.path.join(state_home(), NAME)


def read() -> Cap | None:
    """The cap, or None where there is none. Raises StoreError (`machine_cap_unreadable`)."""
    try:
        with open(path(), "rb") as file:
            return msgspec.json.decode(file.read(), type=Cap)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise StoreError(
            "machine_cap_unreadable",
            f"{path()} can't be read: {error}",
            hint="set it anew: loopx quota cap launches=N/WINDOW",
        ) from error


def use(now_ms: int) -> BudgetUse | None:
    """The cap's use as every decision reads it; None where there is no cap. Raises as `read`."""
    cap = read()
    return None if cap is None else use_of(cap, now_ms)


def use_of(cap: Cap, now_ms: int) -> BudgetUse:
    """What of the cap is used, and when it frees a place."""
    inside = sorted(_inside(cap, now_ms).values())
    over = len(inside) - cap.limit
    return BudgetUse(
        unit=BudgetUnit.LAUNCHES,
        scope=BudgetScope.MACHINE,
        limit=cap.limit,
        used=len(inside),
        frees_at_ms=inside[over] + cap.window_ms if over >= 0 else None,
        window_ms=cap.window_ms,
    )


def cap_words(cap: Cap) -> str:
    """The cap as a person writes it: `launches=60/1h`."""
    from loopx.control_plane.quota.budgets import budget_words

    scope = BudgetScope.WINDOW
    return budget_words(Budget(unit=BudgetUnit.LAUNCHES, scope=scope, limit=cap.limit, window_ms=cap.window_ms))


def heed_cap(facts: GoalFacts) -> GoalFacts:
    """The facts, with the machine's cap among the budgets."""
    cap = use(facts.now_ms)
    return facts if cap is None else msgspec.structs.replace(facts, budgets=(*facts.budgets, cap))


def take(key: str, now_ms: int) -> None:
    """Take a place for one start. Raises NotNowError (`machine_cap_reached`), StoreError; nothing where no cap is."""
    if read() is None:
        return
    with _locked():
        cap = read()
        if cap is None:
            return
        now_used = use_of(cap, now_ms)
        if now_used.used >= cap.limit and key not in cap.launches:
            raise NotNowError(
                "machine_cap_reached",
                f"{now_used.used} of {cap.limit} launches of this machine are used in its window",
                hint="loopx quota cap shows it, and raises it",
                data={"used": now_used.used, "limit": cap.limit, "frees_at_ms": now_used.frees_at_ms},
            )
        _replace(msgspec.structs.replace(cap, launches={**_inside(cap, now_ms), key: now_ms}))


def give_back(key: str) -> None:
    """Free the place of a start that came to nothing."""
    if read() is None:
        return
    with _locked():
        cap = read()
        if cap is not None and key in cap.launches:
            _replace(msgspec.structs.replace(cap, launches={k: at for k, at in cap.launches.items() if k != key}))


def count(key: str, now_ms: int) -> None:
    """Count a further launch of a turn that has its place already."""
    if read() is None:
        return
    with _locked():
        cap = read()
        if cap is not None:
            _replace(msgspec.structs.replace(cap, launches={**_inside(cap, now_ms), key: now_ms}))


def set_cap(budget: Budget | None, now_ms: int) -> Cap | None:
    """Set the cap, or take it away with None; what was counted under the old one stays counted.

    Raises UsageError (`policy_field_invalid`) naming the field, StoreError (`machine_cap_unwritable`).
    """
    if budget is not None and (budget.limit > MOST or budget.window_ms is None):
        raise UsageError(
            "policy_field_invalid",
            f"machine_cap: {budget.limit} is too many to count",
            hint=f"write at most launches={MOST}/WINDOW",
            data={"field": "machine_cap"},
        )
    with _locked():
        if budget is None or budget.window_ms is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path())
            return None
        try:
            old = read()
        except StoreError:
            old = None
        made = Cap(limit=budget.limit, window_ms=budget.window_ms, launches=old.launches if old is not None else {})
        made = msgspec.structs.replace(made, launches=_inside(made, now_ms))
        _replace(made)
        return made


def _inside(cap: Cap, now_ms: int) -> dict[str, int]:
    """The launches that have not left the window. One from the future (the clock was set back) is in it."""
    return {key: at_ms for key, at_ms in cap.launches.items() if at_ms > now_ms - cap.window_ms}


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    import fcntl

    try:
        os.makedirs(os.path.dirname(path()), mode=0o700, exist_ok=True)
        lock = os.open(f"{path()}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unwritable(error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _replace(cap: Cap) -> None:
    partial = f"{path()}.{os.getpid()}"
    try:
        with open(partial, "wb") as file:
            file.write(msgspec.json.encode(cap))
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path())
    except OSError as error:
        raise _unwritable(error) from error


def _unwritable(error: OSError) -> StoreError:
    return StoreError(
        "machine_cap_unwritable", f"{path()} can't be written: {error.strerror}", hint="check the folder's owner"
    )
