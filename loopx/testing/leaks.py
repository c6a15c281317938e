"""Looks for what a run of LoopX may not leave behind: leases, intents and processes of nobody, and books that do not
balance.

It reads the store and the process table, and changes neither. Its questions to the store are its own, so that a fault
in the store's queries does not hide itself.
"""

from __future__ import annotations

import contextlib
import enum
import os
import sqlite3
import time
from collections.abc import Iterator
from typing import Final

import msgspec

from loopx.control_plane.effect_program import effect_ref
from loopx.control_plane.turn_driver.transaction import PHASES, TurnStep
from loopx.hosts import identity, procs, runfiles
from loopx.runtime import owner
from loopx.store import events, ledger
from loopx.store.connection import Row, Tx
from loopx.store.store import Store

PATIENCE_S = 5.0
"""How long a keeper may take to go after its last word."""
_EVER_MS: Final = 1 << 50
_SPENT: Final = PHASES.index("quota_spend") + 1
_APPLIED: Final = _SPENT + 1
_OF_WORK: Final = ("turn:", "todo:")
_MARK: Final = f"{procs.RUN_ENV}=".encode()

_OPEN_TURNS = "SELECT * FROM turns WHERE state <> 'closed'"
_LIVE_LEASES = "SELECT * FROM leases WHERE expires_at_ms > ?"
_ORPHAN_INTENTS = """
  SELECT run_id FROM host_runs JOIN turns USING (turn_key) WHERE host_runs.state = 'intended' AND turns.state = 'closed'
"""
_ORPHAN_RESERVATIONS = """
  SELECT turn_key, unit FROM reservations JOIN turns USING (turn_key) WHERE turns.state = 'closed'
"""
_UNLEASED_CLAIMS = """
  SELECT todo_id FROM todos WHERE status = 'claimed'
  AND NOT EXISTS (SELECT 1 FROM leases WHERE resource = 'todo:' || todo_id)
"""


class LeakKind(enum.StrEnum):
    """What was left behind."""

    OPEN_TURN = "open_turn"
    LEASE_OF_NOBODY = "lease_of_nobody"
    """A lease that is held though no turn is open, or no todo is claimed, under it."""
    CLAIM_OF_NOBODY = "claim_of_nobody"
    """A todo that is claimed and never had a lease."""
    ORPHAN_INTENT = "orphan_intent"
    """A launch without an end, of a turn that has one."""
    ORPHAN_PROCESS = "orphan_process"
    """A process of a host run that is over."""
    ORPHAN_RESERVATION = "orphan_reservation"
    """Budget that is held for a turn that is over."""
    BROKEN_CHAIN = "broken_chain"
    UNBALANCED_BOOKS = "unbalanced_books"
    """Entries, running totals, run index, turns and phases that do not tell the same story."""


class Leak(msgspec.Struct, frozen=True, kw_only=True):
    """One finding; `subject` names the row or the process."""

    kind: LeakKind
    subject: str


def find_leaks(store: Store | str, *, open_turns: bool = False, processes: bool = True) -> tuple[Leak, ...]:
    """Everything that should not be there once nothing runs any more, in a store or in the file of one.

    `open_turns`: turns may be open on purpose; their lease, launch and reservations are then theirs.
    Raises sqlite3.Error for a file that is no store.
    """
    path = store if isinstance(store, str) else store.path
    now_ms = time.time_ns() // 1_000_000 if isinstance(store, str) else store.now_ms()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        found = [*_turns(connection, open_turns=open_turns), *_leases(connection, now_ms), *_orphans(connection)]
        for goal in connection.execute("SELECT * FROM goals").fetchall():
            found += _goal(connection, goal, now_ms)
        over = _runs_that_are_over(connection) if processes else {}
    return (*found, *_processes(over))


def _turns(connection: sqlite3.Connection, *, open_turns: bool) -> Iterator[Leak]:
    if not open_turns:
        for row in connection.execute(_OPEN_TURNS):
            yield Leak(kind=LeakKind.OPEN_TURN, subject=f"{row['turn_key']} {row['state']} after {row['completed']}")


def _leases(connection: sqlite3.Connection, now_ms: int) -> Iterator[Leak]:
    """A turn's lease needs its open turn; a todo's needs a claim, or a turn that works on it; others need a life."""
    turns = connection.execute(_OPEN_TURNS).fetchall()
    resources = {f"turn:{row['goal_id']}:{row['agent_id']}" for row in turns}
    resources |= {f"todo:{row['todo_id']}" for row in turns}
    resources |= {f"todo:{row[0]}" for row in connection.execute("SELECT todo_id FROM todos WHERE status = 'claimed'")}
    for row in connection.execute(_LIVE_LEASES, (now_ms,)):
        resource = str(row["resource"])
        if resource not in resources and (resource.startswith(_OF_WORK) or not _is_brief(row)):
            yield Leak(kind=LeakKind.LEASE_OF_NOBODY, subject=f"{resource} of {row['owner']}")


def _is_brief(lease: Row) -> bool:
    """A lease that is given up by its end, or free for all because its owner is proved dead."""
    return str(lease["resource"]).startswith("account:") or owner.is_dead(lease["owner"])


def _orphans(connection: sqlite3.Connection) -> Iterator[Leak]:
    for question, kind in (
        (_ORPHAN_INTENTS, LeakKind.ORPHAN_INTENT),
        (_ORPHAN_RESERVATIONS, LeakKind.ORPHAN_RESERVATION),
        (_UNLEASED_CLAIMS, LeakKind.CLAIM_OF_NOBODY),
    ):
        for row in connection.execute(question):
            yield Leak(kind=kind, subject=" ".join(str(value) for value in row))


def _goal(connection: sqlite3.Connection, goal: Row, now_ms: int) -> Iterator[Leak]:
    broken = events.broken_link(Tx(connection), goal["goal_id"])
    if broken is not None:
        yield Leak(kind=LeakKind.BROKEN_CHAIN, subject=f"{goal['goal_id']} at event {broken}")
    for why in _books(connection, goal, now_ms):
        yield Leak(kind=LeakKind.UNBALANCED_BOOKS, subject=f"{goal['goal_id']}: {why}")


def _books(connection: sqlite3.Connection, goal: Row, now_ms: int) -> Iterator[str]:
    of_goal = (goal["goal_id"],)
    entries = connection.execute("SELECT * FROM ledger WHERE goal_id = ? ORDER BY run_index", of_goal).fetchall()
    if [entry["run_index"] for entry in entries] != list(range(1, goal["run_index"] + 1)):
        yield f"{len(entries)} entries, and the run index is {goal['run_index']}"
    for window_ms in (_EVER_MS, goal["window_ms"]):
        told = ledger.spent_in_window(Tx(connection), goal["goal_id"], window_ms, now_ms)
        summed = ledger.recount(Tx(connection), goal["goal_id"], window_ms, now_ms)
        if told != summed:
            yield f"the running totals say {told}, the entries {summed}"
    turns = connection.execute("SELECT * FROM turns WHERE goal_id = ? ORDER BY number", of_goal).fetchall()
    if [turn["number"] for turn in turns] != list(range(1, goal["turn_count"] + 1)):
        yield f"{len(turns)} turns, and {goal['turn_count']} were counted"
    for turn in turns:
        yield from _turn(connection, turn)


def _turn(connection: sqlite3.Connection, turn: Row) -> Iterator[str]:
    key, completed = turn["turn_key"], turn["completed"]
    phases = connection.execute("SELECT phase FROM turn_phases WHERE turn_key = ? ORDER BY ordinal", (key,)).fetchall()
    if tuple(row["phase"] for row in phases) != PHASES[:completed]:
        yield f"{key} counts {completed} phases and has {[row['phase'] for row in phases]}"
    reference = effect_ref(key, TurnStep.QUOTA_SPEND)
    spend = connection.execute("SELECT slots FROM ledger WHERE effect_ref = ?", (reference,)).fetchone()
    if (spend is not None) != (completed >= _SPENT):
        yield f"{key} has {completed} phases and {'a' if spend is not None else 'no'} spend"
    if turn["slots"] != (spend["slots"] if spend is not None else 0):
        yield f"{key} says {turn['slots']} slots"
    if turn["state"] == "closed" and completed > 3 and completed < _APPLIED:
        yield f"{key} is closed after {completed} phases"


def _runs_that_are_over(connection: sqlite3.Connection) -> dict[str, str]:
    rows = connection.execute("SELECT run_id, spool_dir FROM host_runs WHERE state = 'ended'")
    return {str(row["run_id"]): str(row["spool_dir"]) for row in rows}


def _processes(over: dict[str, str]) -> tuple[Leak, ...]:
    """What is left of runs that are over. A keeper writes the last word before it goes, so it is given a moment."""
    give_up = time.monotonic() + PATIENCE_S
    while left := [*_hosts(over), *_keepers(over)]:
        if time.monotonic() > give_up:
            return tuple(Leak(kind=LeakKind.ORPHAN_PROCESS, subject=one) for one in left)
        time.sleep(0.02)
    return ()


def _hosts(over: dict[str, str]) -> Iterator[str]:
    for proc in procs.scan() if over else ():
        run_id = None if proc.ended else _run_of(proc.pid)
        if run_id in over:
            yield f"process {proc.pid} of {run_id}"


def _keepers(over: dict[str, str]) -> Iterator[str]:
    for run_id, spool_dir in over.items():
        found = runfiles.host(spool_dir)
        if found is not None and identity.alive(found.keeper):
            yield f"keeper {found.keeper.pid} of {run_id}"


def _run_of(pid: int) -> str | None:
    """The run whose marker the process was started with."""
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            words = file.read().split(b"\0")
    except OSError:
        return None
    return next((os.fsdecode(word[len(_MARK) :]) for word in words if word.startswith(_MARK)), None)
