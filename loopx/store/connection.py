"""One SQLite connection: how it is opened, how a transaction runs, and how its failures become typed errors.

WAL and `synchronous=FULL`: in simulated power loss over thousands of crash images FULL lost nothing that it had
acknowledged. Inside a transaction there is SQL and nothing else, so that a process which is stopped there blocks
nobody for longer than it must. It knows nothing about goals.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator

from loopx.control_plane.errors import StoreError
from loopx.store.queries import sql
from loopx.store.schema import MIGRATIONS, SCHEMA_VERSION, Dialect, render_migration

Param = str | int | float | bytes | None
Row = sqlite3.Row

BUSY_TIMEOUT_S = 30.0
CHECKPOINT_BYTES = 4 * 1024 * 1024
"""The write-ahead log is folded back once it is larger; by one process at a time (see `_checkpoint`)."""


def typed_error(error: sqlite3.Error, path: str) -> StoreError:
    """The stable code for what SQLite said about `path`."""
    text = str(error)
    data = {"path": path, "sqlite": text}
    if "disk is full" in text or "database or disk" in text:
        return StoreError(
            "store_full",
            f"no space left for the store {path}",
            hint="free some space, then run the command again; nothing was half written",
            data=data,
        )
    if "readonly" in text or "read-only" in text:
        return StoreError(
            "store_read_only",
            f"the store {path} can't be written",
            hint="check its owner, its permissions and the mount",
            data=data,
        )
    if "locked" in text or "busy" in text:
        return StoreError(
            "store_busy",
            f"the store {path} stayed locked for {BUSY_TIMEOUT_S:.0f} s",
            hint="another LoopX process holds it (perhaps stopped): loopx doctor",
            data=data,
        )
    if "unable to open" in text:
        return StoreError(
            "store_unopenable",
            f"the store {path} can't be opened",
            hint="check that its folder exists and may be written",
            data=data,
        )
    return StoreError(
        "store_unreadable",
        f"the store {path} can't be read: {text}",
        hint="it is left as it is; loopx doctor, or loopx restore FILE",
        data=data,
    )


class Tx:
    """One running transaction. Statements are asked for by name; parameters by keyword."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def run(self, name: str, /, **params: Param) -> int:
        """Execute; the number of rows that it changed."""
        return self._connection.execute(sql(name), params).rowcount

    def one(self, name: str, /, **params: Param) -> Row | None:
        """The first row, or None."""
        row: Row | None = self._connection.execute(sql(name), params).fetchone()
        return row

    def all(self, name: str, /, **params: Param) -> list[Row]:
        return self._connection.execute(sql(name), params).fetchall()

    def number(self, name: str, /, **params: Param) -> int:
        """The first column of the first row as an integer; 0 when there is none or it is null."""
        row = self.one(name, **params)
        return int(row[0]) if row is not None and row[0] is not None else 0


class Connection:
    """A connection to the project's SQLite file. Not shared between threads."""

    def __init__(self, path: str, *, create: bool = False, migrate: bool = True) -> None:
        """Open `path`.

        Raises StoreError: `store_missing` (without `create`), `store_newer`, `store_unreadable`, `store_read_only`.
        """
        self.path = path
        if not create and not os.path.exists(path):
            raise StoreError("store_missing", f"no store at {path}", hint="loopx init")
        try:
            self._connection = self._open(path)
            version = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
        except sqlite3.Error as error:
            raise typed_error(error, path) from error
        if version > SCHEMA_VERSION:
            self._connection.close()
            raise StoreError(
                "store_newer",
                f"the store {path} has version {version}; this LoopX knows {SCHEMA_VERSION}",
                hint="use the newer LoopX that wrote it; nothing was changed",
                data={"store_version": version, "known_version": SCHEMA_VERSION},
            )
        if version < SCHEMA_VERSION and migrate:
            self._migrate(version)

    @staticmethod
    def _open(path: str) -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, cached_statements=256)
        connection.row_factory = sqlite3.Row
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        # SQLite up to 3.51.2 has a rare race between a checkpoint and a commit: see `_checkpoint`.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection

    def _migrate(self, version: int) -> None:
        if version > 0:
            backup_to(self._connection, f"{self.path}.before-v{SCHEMA_VERSION}")
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            version = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
            for name in MIGRATIONS[version:]:
                for statement in render_migration(name, Dialect.SQLITE):
                    self._connection.execute(statement)
            self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise typed_error(error, self.path) from error

    @contextlib.contextmanager
    def write(self) -> Iterator[Tx]:
        """One write transaction: all of it or nothing. Raises StoreError for what SQLite can't do."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise typed_error(error, self.path) from error
        try:
            yield Tx(self._connection)
            self._connection.execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.IntegrityError):
                raise typed_error(error, self.path) from error
            raise
        self._checkpoint()

    @contextlib.contextmanager
    def read(self) -> Iterator[Tx]:
        """One consistent snapshot for reading; never blocks a writer."""
        try:
            self._connection.execute("BEGIN DEFERRED")
            try:
                yield Tx(self._connection)
            finally:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise typed_error(error, self.path) from error

    def _checkpoint(self) -> None:
        """Fold the log back when it has grown, as the only checkpointer: the file lock makes it so."""
        wal = f"{self.path}-wal"
        try:
            if os.stat(wal).st_size < CHECKPOINT_BYTES:
                return
        except OSError:
            return
        import fcntl

        with open(f"{self.path}.checkpoint-lock", "w", encoding="ascii") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()

    def backup(self, target: str) -> None:
        """A consistent copy while others go on. Raises StoreError."""
        try:
            backup_to(self._connection, target)
        except sqlite3.Error as error:
            raise typed_error(error, self.path) from error

    def pragma(self, text: str) -> list[tuple[Param, ...]]:
        """The rows of one read-only PRAGMA, for `doctor`."""
        try:
            return [tuple(row) for row in self._connection.execute(f"PRAGMA {text}").fetchall()]
        except sqlite3.Error as error:
            raise typed_error(error, self.path) from error

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()


def backup_to(source: sqlite3.Connection, target: str) -> None:
    """Write a whole copy beside `target` and rename it there, so that a torn copy never carries the name."""
    partial = f"{target}.partial"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(partial)
    copy = sqlite3.connect(partial)
    try:
        source.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")
    finally:
        copy.close()
    with open(partial, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(partial, target)
    folder = os.open(os.path.dirname(os.path.abspath(target)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
