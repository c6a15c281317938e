"""Copies of the store: made while it is used, checked, and put back without losing what was there.

A restore never overwrites anything: the replaced store keeps its content under another name beside the restored one,
readable or not. The copy is judged whole before the first file is touched, and takes its place by one rename.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time

import msgspec

from loopx.control_plane.errors import ConflictError, NotFoundError, StoreError, UsageError
from loopx.runtime import owner
from loopx.runtime.project import Project
from loopx.store import events
from loopx.store.connection import Connection, Tx, backup_to
from loopx.store.schema import SCHEMA_VERSION
from loopx.store.store import Store

FOLDER = "backups"
EPOCH_JUMP = 1_000_000
"""A restored store's fences start this much further on, so that no process from before can write under one of them."""
_SIDES = ("-wal", "-shm")


class BackupMade(msgspec.Struct, frozen=True, kw_only=True):
    """A copy that was read back and found whole."""

    path: str
    bytes: int
    goals: int
    events: int


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What was put in place, and where the store that was there is now; None: there was none."""

    path: str
    from_file: str
    goals: int
    events: int
    kept: tuple[str, ...]


def default_path(project: Project) -> str:
    """A fresh name in the project's own folder of backups."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return os.path.join(project.state_dir, FOLDER, f"loopx-{stamp}.db")


def backup(store: Store, target: str, *, force: bool = False) -> BackupMade:
    """A consistent copy while others go on, complete or not there at all.

    Raises UsageError (`backup_exists`, `backup_unwritable`), StoreError.
    """
    path = os.path.abspath(target)
    if os.path.realpath(path) == os.path.realpath(store.path):
        raise UsageError("backup_is_the_store", f"{path} is the store itself", hint="name another file")
    if os.path.exists(path) and not force:
        raise UsageError("backup_exists", f"there is already a file {path}", hint="name another one, or add --force")
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with contextlib.closing(open(f"{path}.partial", "wb")):
            pass
        store.connection.backup(path)
        os.chmod(path, 0o600)
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(f"{path}.partial")
    goals, count = judge(path)
    return BackupMade(path=path, bytes=os.path.getsize(path), goals=goals, events=count)


def _unwritable(path: str, why: str) -> UsageError:
    return UsageError("backup_unwritable", f"{path} can't be written: {why}", hint="choose another folder")


def judge(path: str) -> tuple[int, int]:
    """Read a whole copy of a store; how many goals and events it holds. Changes nothing.

    Raises NotFoundError (`backup_missing`), StoreError (`store_newer`, `backup_corrupt`).
    """
    if not os.path.isfile(path):
        raise NotFoundError("backup_missing", f"no file {path}", hint="loopx backup makes one")
    with contextlib.suppress(OSError):
        if os.path.getsize(f"{path}-wal") > 0:
            raise _corrupt(path, "a log lies beside it, so it is a piece of a store that was in use")
    try:
        with contextlib.closing(_read_only(path)) as connection:
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
            if version > SCHEMA_VERSION:
                raise StoreError(
                    "store_newer",
                    f"{path} has version {version}; this LoopX knows {SCHEMA_VERSION}",
                    hint="use the newer LoopX that wrote it; nothing was changed",
                    data={"store_version": version, "known_version": SCHEMA_VERSION},
                )
            if version < 1:
                raise _corrupt(path, "it holds no store")
            said = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
            if said != ["ok"]:
                raise _corrupt(path, "; ".join(map(str, said))[:200])
            if connection.execute("PRAGMA foreign_key_check").fetchone() is not None:
                raise _corrupt(path, "rows refer to rows that are not there")
            return _chains(path, connection)
    except sqlite3.Error as error:
        raise _corrupt(path, str(error)) from error


def _chains(path: str, connection: sqlite3.Connection) -> tuple[int, int]:
    tx = Tx(connection)
    ids = [str(row[0]) for row in connection.execute("SELECT goal_id FROM goals ORDER BY goal_id")]
    for goal_id in ids:
        broken = events.broken_link(tx, goal_id)
        if broken is not None:
            raise _corrupt(path, f"the event chain of {goal_id} breaks at {broken}")
    return len(ids), int(connection.execute("SELECT COUNT(*) FROM events").fetchone()[0])


def _read_only(path: str) -> sqlite3.Connection:
    from urllib.parse import quote

    # A backup is one file: `immutable` keeps SQLite from making a log beside what it only reads.
    connection = sqlite3.connect(f"file:{quote(os.path.abspath(path))}?mode=ro&immutable=1", uri=True)
    connection.row_factory = sqlite3.Row
    return connection


def _corrupt(path: str, why: str) -> StoreError:
    return StoreError(
        "backup_corrupt",
        f"{path} can't be used: {why}",
        hint="use another backup; nothing was changed",
        data={"path": path},
    )


def restore(project: Project, source: str) -> Restored:
    """Put a backup in the store's place; what was there stays beside it.

    Raises NotFoundError (`backup_missing`), StoreError (`store_newer`, `backup_corrupt`), ConflictError
    (`store_in_use`) while another process works with the store, UsageError (`restore_failed`).
    """
    goals, count = judge(source)
    target = project.database
    fresh = f"{target}.restoring"
    try:
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        _copy(source, fresh)
        _prepare(fresh)
        kept = _set_aside(target)
        os.replace(fresh, target)
        _sync_folder(target)
    except OSError as error:
        raise UsageError(
            "restore_failed",
            f"the store could not be put in place: {error.strerror}",
            hint=f"what was there is untouched, or beside {target}; mend the cause and restore again",
        ) from error
    finally:
        _remove(fresh)
    return Restored(path=target, from_file=os.path.abspath(source), goals=goals, events=count, kept=kept)


def _copy(source: str, fresh: str) -> None:
    _remove(fresh)
    with contextlib.closing(_read_only(source)) as connection:
        backup_to(connection, fresh)
    os.chmod(fresh, 0o600)


def _prepare(fresh: str) -> None:
    """Let no process from before hold anything: fences jump on, and every lease is free."""
    connection = Connection(fresh)
    try:
        with connection.write() as tx:
            tx.run("leases.jump", jump=EPOCH_JUMP)
        connection.pragma("wal_checkpoint(TRUNCATE)")
        connection.pragma("journal_mode = DELETE")
    finally:
        connection.close()
    with open(fresh, "rb+") as file:
        os.fsync(file.fileno())


def _set_aside(target: str) -> tuple[str, ...]:
    """Give the store that is there another name; its own name stays in place until the new one takes it.

    The names of what was kept. Raises ConflictError (`store_in_use`).
    """
    if not os.path.exists(target):
        return _move_sides(target, _free_name(target))
    kept = _free_name(target)
    if _fold_in(target):
        os.link(target, kept)
        return (kept, *_move_sides(target, kept))
    # It can't be read: its files are kept as they are, the log beside the main file.
    os.link(target, kept)
    return (kept, *_move_sides(target, kept))


def _fold_in(target: str) -> bool:
    """Bring the log into the main file as the only process; False for a store that can't be read."""
    try:
        with contextlib.closing(sqlite3.connect(target, timeout=2.0, isolation_level=None)) as connection:
            connection.row_factory = sqlite3.Row
            _refuse_in_use(connection)
            mode = connection.execute("PRAGMA journal_mode = DELETE").fetchone()[0]
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise _in_use("another process has it open") from error
        return False
    except sqlite3.DatabaseError:
        return False
    if mode != "delete":
        raise _in_use("another process has it open")
    return True


def _refuse_in_use(connection: sqlite3.Connection) -> None:
    """A living process that drives a turn or a run would write into the store that is being replaced."""
    now_ms = time.time_ns() // 1_000_000
    for row in Tx(connection).all("leases.live", now_ms=now_ms, limit=1000):
        pid = owner.pid_of(row["owner"])
        if pid is not None and pid != os.getpid() and not owner.is_dead(row["owner"]):
            raise _in_use(f"process {pid} holds {row['resource']}")


def _in_use(why: str) -> ConflictError:
    return ConflictError(
        "store_in_use",
        f"the store is in use: {why}",
        hint="stop runs and workers of this project first: loopx goal stop",
    )


def _move_sides(target: str, kept: str) -> tuple[str, ...]:
    """Take what lies beside the main file out of the way: the log of one store must never meet another's."""
    moved: list[str] = []
    for side in _SIDES:
        if os.path.exists(f"{target}{side}"):
            os.rename(f"{target}{side}", f"{kept}{side}")
            moved.append(f"{kept}{side}")
    _sync_folder(target)
    return tuple(moved)


def _free_name(target: str) -> str:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    name, number = f"{target}.replaced-{stamp}", 1
    while any(os.path.exists(f"{name}{side}") for side in ("", *_SIDES)):
        number += 1
        name = f"{target}.replaced-{stamp}-{number}"
    return name


def _sync_folder(target: str) -> None:
    folder = os.open(os.path.dirname(os.path.abspath(target)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _remove(fresh: str) -> None:
    for name in (fresh, f"{fresh}-wal", f"{fresh}-shm", f"{fresh}.partial", f"{fresh}.checkpoint-lock"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def known_backups(project: Project) -> tuple[str, ...]:
    """Copies that lie near the store, the newest first: made by hand, before a migration, or set aside by a restore."""
    folder, name = os.path.split(project.database)
    found: list[str] = []
    for place, wanted in ((folder, f"{name}."), (os.path.join(project.state_dir, FOLDER), "")):
        with contextlib.suppress(OSError):
            found += [os.path.join(place, one) for one in os.listdir(place) if one.startswith(wanted)]
    likely = [path for path in found if _is_copy(path, name)]
    return tuple(sorted(likely, key=os.path.getmtime, reverse=True))


def _is_copy(path: str, name: str) -> bool:
    base = os.path.basename(path)
    if base.endswith(_SIDES) or base.endswith(("-lock", ".partial", ".new")):
        return False
    return (
        base.startswith((f"{name}.before-v", f"{name}.replaced-")) or os.path.basename(os.path.dirname(path)) == FOLDER
    )
