"""Looking through a store and its surroundings: what is wrong, what is only untidy, and what may safely be mended.

It reads, and changes nothing; `mending.py` does the little that is provably safe. Everything else is named with what a
person can do. A store that can't be opened is looked at from outside.
"""

from __future__ import annotations

import enum
import os
import sqlite3
from collections.abc import Iterator

import msgspec

from loopx.control_plane.effect_program import effect_ref
from loopx.control_plane.errors import StoreError
from loopx.control_plane.turn_driver.transaction import PHASES, LoopXTurnPhase, TurnStep
from loopx.hosts import identity, procs, runfiles
from loopx.runtime import backups, machine, space, tree_health
from loopx.runtime import owner as owners
from loopx.runtime.project import Project
from loopx.runtime.turn_service import recovery_of
from loopx.store import events, ledger, turns
from loopx.store.connection import Row, Tx
from loopx.store.store import Store

_SPENT = PHASES.index(LoopXTurnPhase.QUOTA_SPEND) + 1
_EVER_MS = 1 << 60
_REMOTE = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "fuse.sshfs", "fuse.rclone", "ceph", "glusterfs"}
)
"""File systems on which SQLite's log can't share memory between machines."""
_FIXED_IN = (3, 51, 3)
_FIXED_LINES = {(3, 50): 7, (3, 44): 6}
"""Older lines with the patch for the race between a checkpoint and a commit: their first good release."""


class Severity(enum.StrEnum):
    """`bad` needs somebody; `untidy` costs nothing but room or order; `note` is only good to know."""

    BAD = "bad"
    UNTIDY = "untidy"
    NOTE = "note"


class Code(enum.StrEnum):
    """What was found."""

    STORE_MISSING = "store_missing"
    STORE_UNREADABLE = "store_unreadable"
    INTEGRITY = "integrity"
    FOREIGN_KEYS = "foreign_keys"
    CHAIN_BROKEN = "chain_broken"
    BOOKS_UNBALANCED = "books_unbalanced"
    RUN_INDEX = "run_index"
    TURN_WITHOUT_SPEND = "turn_without_spend"
    PHASES_NOT_PREFIX = "phases_not_prefix"
    JOURNAL_BLOCKED = "journal_blocked"
    TURN_INTERRUPTED = "turn_interrupted"
    COUNTERS_WRONG = "counters_wrong"
    RESERVATION_OF_NOBODY = "reservation_of_nobody"
    CLAIM_OF_NOBODY = "claim_of_nobody"
    LAUNCH_OF_NOBODY = "launch_of_nobody"
    PROCESS_OF_NOBODY = "process_of_nobody"
    SPOOL_OF_NOBODY = "spool_of_nobody"
    WORKTREE_OF_NOBODY = "worktree_of_nobody"
    LEFTOVER_FILE = "leftover_file"
    CADENCE_UNCONFIRMED = "cadence_unconfirmed"
    DELIVERY_DEAD = "delivery_dead"
    DISK_LOW = "disk_low"
    REMOTE_FILE_SYSTEM = "remote_file_system"
    SQLITE_RACE = "sqlite_race"
    SETTINGS = "settings"
    FOREIGN_FOLDER = "foreign_folder"
    MACHINE_CAP = "machine_cap"
    TREE_UNUSABLE = "tree_unusable"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. `mendable`: a repair is provably safe. `command`: what a person can run instead."""

    code: Code
    severity: Severity
    subject: str
    detail: str = ""
    mendable: bool = False
    command: tuple[str, ...] = ()


def _bad(
    code: Code, subject: str, detail: str = "", *, mendable: bool = False, command: tuple[str, ...] = ()
) -> Finding:
    return Finding(code=code, severity=Severity.BAD, subject=subject, detail=detail, mendable=mendable, command=command)


def _untidy(code: Code, subject: str, detail: str = "", *, mendable: bool = True) -> Finding:
    return Finding(code=code, severity=Severity.UNTIDY, subject=subject, detail=detail, mendable=mendable)


def _note(code: Code, subject: str, detail: str = "", command: tuple[str, ...] = ()) -> Finding:
    return Finding(code=code, severity=Severity.NOTE, subject=subject, detail=detail, command=command)


def surroundings(project: Project) -> list[Finding]:
    """What can be said without opening the store."""
    found: list[Finding] = []
    free = space.free_bytes(project.database)
    if free is not None and free < space.FLOOR_BYTES:
        detail = f"{free >> 20} MiB free; nothing is launched below {space.FLOOR_BYTES >> 20}"
        found.append(_bad(Code.DISK_LOW, os.path.dirname(project.database), detail))
    kind = file_system(project.database)
    if kind in _REMOTE:
        detail = f"{kind}: the store needs a local disk; set LOOPX_STATE_DIR, or --database"
        found.append(_bad(Code.REMOTE_FILE_SYSTEM, project.database, detail))
    if has_race(sqlite3.sqlite_version_info):
        detail = "a rare race between a checkpoint and a commit; LoopX checkpoints from one process at a time"
        found.append(_note(Code.SQLITE_RACE, f"SQLite {sqlite3.sqlite_version}", detail))
    if project.foreign:
        found.append(
            _note(
                Code.FOREIGN_FOLDER,
                os.path.join(project.root, ".loopx"),
                "another program's; left alone",
                ("loopx", "import", ".loopx"),
            )
        )
    broken = tree_health.trouble(project.root)
    if broken is not None:
        found.append(_bad(Code.TREE_UNUSABLE, project.root, broken))
    return found + list(_machine_cap()) + list(_leftover_files(project))


def _machine_cap() -> Iterator[Finding]:
    """The cap on the launches of this machine: good to know when goals wait for it, and a fault when unreadable."""
    try:
        cap = machine.read()
    except StoreError as error:
        yield _bad(Code.MACHINE_CAP, machine.path(), error.message, command=("loopx", "quota", "cap", "unlimited"))
        return
    if cap is not None:
        words = machine.cap_words(cap)
        yield _note(
            Code.MACHINE_CAP, words, "goals of every project wait when it is used up", ("loopx", "quota", "cap")
        )


def unreadable(project: Project, error: StoreError) -> list[Finding]:
    """A store that can't be opened: left as it is, with the copies that could take its place."""
    if error.code == "store_missing":
        return [_note(Code.STORE_MISSING, project.database, "nothing was set up here yet", ("loopx", "init"))]
    copies = backups.known_backups(project)
    command = ("loopx", "restore", copies[0]) if copies else ("loopx", "restore", "FILE")
    return [_bad(Code.STORE_UNREADABLE, project.database, error.message, command=command)]


def has_race(version: tuple[int, int, int]) -> bool:
    """Whether this SQLite has the race between resetting the log and a commit."""
    fixed = _FIXED_LINES.get(version[:2])
    return version < _FIXED_IN and (fixed is None or version[2] < fixed)


def file_system(path: str) -> str:
    """The kind of file system that holds `path`, by the kernel's own list; empty where there is none."""
    folder = os.path.realpath(os.path.dirname(os.path.abspath(path)))
    best, kind = "", ""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return ""
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        place = fields[1].encode().decode("unicode_escape")
        inside = folder == place or folder.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, kind = place, fields[2]
    return kind


def _leftover_files(project: Project) -> Iterator[Finding]:
    """Halves of files whose writer was killed; a living one finishes within the hour."""
    folder, name = os.path.split(project.database)
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for one in sorted(names):
        path = os.path.join(folder, one)
        partial = one.startswith(name) and one.endswith((".partial", ".restoring", ".new", ".new-wal", ".new-shm"))
        if partial and os.path.isfile(path) and _age_s(path) > 3600:
            yield _untidy(Code.LEFTOVER_FILE, path, "half of a file that nobody finishes any more")


def _age_s(path: str) -> float:
    import time

    try:
        return time.time() - os.stat(path).st_mtime
    except OSError:
        return 0.0


def examine(store: Store, project: Project) -> list[Finding]:
    """Look through everything. Raises StoreError when it can't be read on the way."""
    found = list(_file(store))
    if any(one.code in (Code.INTEGRITY, Code.FOREIGN_KEYS) for one in found):
        # On damaged pages every further answer would be a guess.
        return found
    with store.read() as tx:
        for row in tx.all("care.goals"):
            found += _goal(tx, row, store.now_ms())
        found += _open_turns(tx)
        found += _nobodys(tx, store.now_ms())
        found += _pending(tx)
        found += _processes(tx)
        found += _spools(tx, project)
    return found


def _file(store: Store) -> Iterator[Finding]:
    connection = store.connection
    said = [str(row[0]) for row in connection.pragma("integrity_check(5)")]
    if said != ["ok"]:
        yield _bad(Code.INTEGRITY, store.path, "; ".join(said)[:300], command=("loopx", "restore", "FILE"))
    broken = connection.pragma("foreign_key_check")
    if broken:
        yield _bad(Code.FOREIGN_KEYS, store.path, f"{len(broken)} rows refer to rows that are not there")
    for pragma, wanted in (("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1)):
        (value,) = connection.pragma(pragma)[0]
        if value != wanted:
            yield _bad(Code.SETTINGS, pragma, f"{value!r}, and {wanted!r} is needed")


def _goal(tx: Tx, row: Row, now_ms: int) -> Iterator[Finding]:
    goal_id = row["goal_id"]
    broken = events.broken_link(tx, goal_id)
    if broken is not None:
        yield _bad(
            Code.CHAIN_BROKEN, goal_id, f"the event chain breaks at {broken}", command=("loopx", "restore", "FILE")
        )
    for window in (_EVER_MS, int(row["window_ms"])):
        told = ledger.spent_in_window(tx, goal_id, window, now_ms)
        summed = ledger.recount(tx, goal_id, window, now_ms)
        if told != summed:
            detail = f"the running totals say {told}, the entries {summed}"
            yield _bad(Code.BOOKS_UNBALANCED, goal_id, detail, command=("loopx", "quota", "ledger", goal_id))
            break
    entries = tx.number("care.entries", goal_id=goal_id)
    if entries != row["run_index"]:
        yield _bad(Code.RUN_INDEX, goal_id, f"{entries} ledger entries, and the run index is {row['run_index']}")
    yield from _turns(tx, goal_id)


def _turns(tx: Tx, goal_id: str) -> Iterator[Finding]:
    for row in tx.all("care.turns", goal_id=goal_id):
        key, completed = row["turn_key"], int(row["completed"])
        phases = tuple(str(one["phase"]) for one in tx.all("turns.phases", turn_key=key))
        if phases != tuple(map(str, PHASES[:completed])):
            detail = f"counts {completed} phases and has {', '.join(phases) or 'none'}"
            yield _bad(Code.PHASES_NOT_PREFIX, key, detail, command=("loopx", "turn", "journal", goal_id, key))
        spent = ledger.by_effect(tx, effect_ref(key, TurnStep.QUOTA_SPEND)) is not None
        if spent != (completed >= _SPENT):
            detail = f"{completed} phases and {'a' if spent else 'no'} spend"
            yield _bad(Code.TURN_WITHOUT_SPEND, key, detail, command=("loopx", "turn", "journal", goal_id, key))


def _open_turns(tx: Tx) -> Iterator[Finding]:
    for row in tx.all("turns.open_all", limit=1000):
        journal = turns.load_journal(tx, row["turn_key"])
        decision = recovery_of(tx, journal)
        key, goal_id = row["turn_key"], row["goal_id"]
        if row["state"] == "blocked":
            healed = decision.violation is None
            detail = "its journal is consistent again" if healed else f"{decision.violation}"
            command = ("loopx", "turn", "journal", goal_id, key)
            yield _bad(Code.JOURNAL_BLOCKED, key, detail, mendable=healed, command=command)
            continue
        lease = tx.one("leases.get", resource=f"turn:{goal_id}:{row['agent_id']}")
        if lease is None or lease["expires_at_ms"] <= 0 or owners.is_dead(lease["owner"]):
            detail = f"a run would: {decision.action}"
            yield _note(Code.TURN_INTERRUPTED, key, detail, ("loopx", "run", goal_id))


def _nobodys(tx: Tx, now_ms: int) -> Iterator[Finding]:
    """Rows that hold something for somebody who is gone."""
    for row in tx.all("care.reservations"):
        yield _untidy(Code.RESERVATION_OF_NOBODY, row["turn_key"], "its turn is over")
    for row in tx.all("care.claims", now_ms=now_ms):
        yield _untidy(
            Code.CLAIM_OF_NOBODY, row["todo_id"], f"claimed by {row['claimed_by']}, and the claim has run out"
        )
    for row in tx.all("care.counters"):
        counted = f"{row['open_deps']} dependencies and {row['open_gates']} questions"
        detail = f"counts {counted}; {row['deps']} and {row['gates']} are open"
        yield _bad(Code.COUNTERS_WRONG, row["todo_id"], detail, mendable=True)


def _pending(tx: Tx) -> Iterator[Finding]:
    for row in tx.all("schedules.pending_acks", limit=200):
        goal_id = row["goal_id"]
        yield _note(Code.CADENCE_UNCONFIRMED, goal_id, command=("loopx", "schedule", "show", goal_id))
    dead = tx.number("care.dead_deliveries")
    if dead:
        yield _note(Code.DELIVERY_DEAD, f"{dead}", "notifications that could not be delivered", ("loopx", "notify"))


def _processes(tx: Tx) -> Iterator[Finding]:
    """Launches and processes whose turn is over."""
    for row in tx.all("care.launches"):
        if alive(row["spool_dir"]) is None:
            yield _untidy(Code.LAUNCH_OF_NOBODY, row["run_id"], "its turn is over, and nothing runs")
    for pid, run_id in sorted(_marked().items()):
        if tx.number("care.over", run_id=run_id):
            yield _bad(Code.PROCESS_OF_NOBODY, run_id, f"process {pid} still runs for a turn that is over")


def alive(spool_dir: str) -> int | None:
    """The process that still works for a launch, by its own records."""
    found = runfiles.host(spool_dir) if spool_dir else None
    if found is None:
        return None
    return next((who.pid for who in (found.host, found.keeper) if identity.alive(who)), None)


def _marked() -> dict[int, str]:
    """The processes of this user that were started for a launch: pid to run id."""
    mark = f"{procs.RUN_ENV}=".encode()
    found: dict[int, str] = {}
    for one in procs.scan():
        try:
            with open(f"/proc/{one.pid}/environ", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        run = next((word[len(mark) :] for word in words if word.startswith(mark)), None)
        if run is not None and not one.ended:
            found[one.pid] = os.fsdecode(run)
    return found


def _spools(tx: Tx, project: Project) -> Iterator[Finding]:
    """Folders of output that no launch of this store belongs to."""
    try:
        names = sorted(os.listdir(project.spools))
    except OSError:
        return
    for name in names:
        path = os.path.join(project.spools, name)
        if _is_known(tx, name) or not os.path.isdir(path) or _age_s(path) < 3600 or alive(path) is not None:
            continue
        yield _untidy(Code.SPOOL_OF_NOBODY, path, "output of a launch that this store does not know")


def _is_known(tx: Tx, name: str) -> bool:
    if tx.one("care.run", run_id=name) is not None:
        return True
    kind, _, rest = name.partition(".")
    return kind == "capability" and tx.one("care.capability", intent_id=rest.partition(".")[0]) is not None
