"""One SQLite connection: how it is opened, how a transaction runs, and how its failures become typed errors.

WAL and `synchronous=FULL`: in simulated power loss over thousands of crash images FULL lost nothing that it had
acknowledged. Inside a transaction there is SQL and nothing else, so that a process which is stopped there blocks
nobody for longer than it must. It knows nothing about goals.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Callable, Iterator

import msgspec

from loopx.control_plane.errors import StoreError
from loopx.store.queries import sql
from loopx.store.schema import MIGRATIONS, SCHEMA_VERSION, Dialect, render_migration

Param = str | int | float | bytes | None
Row = sqlite3.Row

BUSY_TIMEOUT_S = 30.0
CHECKPOINT_BYTES = 4 * 1024 * 1024
"""The write-ahead log is folded back once it is larger; by one process at a time (see `_checkpoint`)."""

Driver = Callable[[str], sqlite3.Connection]
"""Opens the library's own connection to a path. The one seam at which another SQLite, or another disk, stands in."""


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
    if "readonly" in text or "read-only" in text or ("unable to open" in text and _is_read_only(path)):
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


def _is_read_only(path: str) -> bool:
    """A store that is there, in a folder where SQLite can't make its log."""
    return os.path.exists(path) and not os.access(os.path.dirname(os.path.abspath(path)), os.W_OK)


def _unreadable(path: str, why: str) -> StoreError:
    return StoreError(
        "store_unreadable",
        f"the store {path} can't be read: {why}",
        hint="it is left as it is; loopx doctor, or loopx restore FILE",
        data={"path": path},
    )


_SQLITE_WORDS = {errno.ENOSPC: "database or disk is full", errno.EDQUOT: "disk is full", errno.EROFS: "readonly"}
"""What SQLite says where the system has these words, so that each trouble has one code."""


def standard_driver(path: str) -> sqlite3.Connection:
    """The SQLite of the standard library."""
    return sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, cached_statements=256)


def _use_log(connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        connection.execute("PRAGMA journal_mode = WAL")


_driver: Driver = standard_driver


def use_driver(driver: Driver) -> Driver:
    """From now on this process opens stores through `driver`; returns the one before. For fault injection."""
    global _driver
    before, _driver = _driver, driver
    return before


class ChainHead(msgspec.Struct, kw_only=True):
    """The head of one event chain as this transaction read it, and as its own events move it."""

    read_seq: int
    read_hash: str
    seq: int
    hash: str


class Tx:
    """One running transaction. Statements are asked for by name; parameters by keyword."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._before_commit: list[Callable[[], None]] = []
        self.heads: dict[str, ChainHead] = {}
        """The heads of the event chains that this transaction adds to."""

    def before_commit(self, act: Callable[[], None]) -> None:
        """Have `act` called just before this transaction commits."""
        self._before_commit.append(act)

    def finish(self) -> None:
        """Call what was asked for by `before_commit`."""
        for act in self._before_commit:
            act()

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

    def __init__(self, path: str, *, create: bool = False, migrate: bool = True, driver: Driver | None = None) -> None:
        """Open `path`; with `create`, make it first if there is none.

        A store appears whole, under its name, or not at all: so a file that holds none is damage, and is left as it
        is. Raises StoreError: `store_missing` (without `create`), `store_newer`, `store_unreadable`,
        `store_read_only`, `store_full`, `store_unopenable`.
        """
        self.path = path
        self._driver = driver or _driver
        self._checkpoint_at = CHECKPOINT_BYTES
        if not os.path.exists(path):
            if not create:
                raise StoreError("store_missing", f"no store at {path}", hint="loopx init")
            self._create()
        version = self._open_existing()
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

    def _open_existing(self) -> int:
        """Open the file that is there; its version. Nothing is written before it is known to be a store."""
        if os.path.getsize(self.path) == 0:
            raise _unreadable(self.path, "it is empty")
        try:
            self._connection = self._open(self.path)
            try:
                version = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
                if version == 0:
                    raise _unreadable(self.path, "it holds no store")
                _use_log(self._connection)
            except BaseException:
                self._connection.close()
                raise
        except sqlite3.Error as error:
            raise typed_error(error, self.path) from error
        return version

    def _create(self) -> None:
        """Make the store beside its name and rename it there, so that a crash leaves no half of one."""
        import fcntl

        with contextlib.suppress(FileNotFoundError):
            if os.path.getsize(f"{self.path}-wal") > 0:
                raise _unreadable(self.path, "its main file is gone, and its log is still there")
        try:
            with open(f"{self.path}.create-lock", "w", encoding="ascii") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not os.path.exists(self.path):
                    self._build(f"{self.path}.new")
        except sqlite3.Error as error:
            raise typed_error(error, self.path) from error
        except OSError as error:
            raise typed_error(
                sqlite3.OperationalError(_SQLITE_WORDS.get(error.errno or 0, "unable to open")), self.path
            ) from error

    def _build(self, partial: str) -> None:
        for name in (partial, f"{partial}-wal", f"{partial}-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
        self._connection = self._open(partial)
        try:
            _use_log(self._connection)
            self._migrate(0)
        finally:
            self._connection.close()
        _put_in_place(partial, self.path)

    def _open(self, path: str) -> sqlite3.Connection:
        connection = self._driver(path)
        connection.row_factory = sqlite3.Row
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
            tx = Tx(self._connection)
            yield tx
            tx.finish()
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

    @contextlib.contextmanager
    def raw_read(self) -> Iterator[sqlite3.Connection]:
        """One consistent snapshot as the library's own connection, for whoever copies whole tables."""
        with self.read():
            yield self._connection

    @contextlib.contextmanager
    def raw_write(self) -> Iterator[sqlite3.Connection]:
        """One write transaction as the library's own connection, for whoever copies whole tables."""
        with self.write():
            yield self._connection

    def _checkpoint(self) -> None:
        """Fold the log back when it has grown, as the only checkpointer: the file lock makes it so.

        It waits for nobody: a reader that was stopped must not make every writer wait. What is committed stays so,
        whatever happens here.
        """
        try:
            size = os.stat(f"{self.path}-wal").st_size
            if size < self._checkpoint_at:
                return
            lock = os.open(f"{self.path}.checkpoint-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        import fcntl

        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            done = self._fold_back()
        except OSError:
            return
        finally:
            os.close(lock)
        self._checkpoint_at = CHECKPOINT_BYTES if done else size + CHECKPOINT_BYTES

    def _fold_back(self) -> bool:
        """False when a reader kept the log from being emptied."""
        try:
            self._connection.execute("PRAGMA busy_timeout = 0")
            busy = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        except sqlite3.Error:
            return False
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute(f"PRAGMA busy_timeout = {round(BUSY_TIMEOUT_S * 1000)}")
        return not busy

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
    _put_in_place(partial, target)


def _put_in_place(partial: str, target: str) -> None:
    """Give a whole file its name, durably."""
    with open(partial, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(partial, target)
    folder = os.open(os.path.dirname(os.path.abspath(target)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
