"""A disk that loses power: what was synced stays, and of the rest a random, sector-torn subset.

A recording virtual file system of SQLite passes everything on to the real files and writes down each write, truncation,
sync and deletion. It stands behind the store's own connection seam, with the store's own SQL and settings. From the
record, the disk as it may be found after a power cut at any instant is made again, thousands of times.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw

SECTOR = 512
_names = itertools.count()


class Write(NamedTuple):
    inode: int
    offset: int
    data: bytes


class Truncate(NamedTuple):
    inode: int
    size: int


class Sync(NamedTuple):
    inode: int


class Create(NamedTuple):
    inode: int
    name: str


class Delete(NamedTuple):
    name: str


class Ack(NamedTuple):
    """A commit returned: what the store says then is promised."""

    state: str


Op = Write | Truncate | Sync | Create | Delete | Ack


class Record:
    """Everything that SQLite did to its files, in order, and what each commit promised."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ops: list[Op] = []
        self.begun: dict[str, bytes] = {}
        self._inodes: dict[str, int] = {}
        self._next = 0

    def begin(self, *paths: Path) -> None:
        """These files are on the disk already, durably."""
        for path in paths:
            if path.exists():
                self.begun[path.name] = path.read_bytes()
                self._inodes[path.name] = self._new_inode()

    def _new_inode(self) -> int:
        self._next += 1
        return self._next

    def open(self, path: str) -> int:
        name = os.path.basename(path)
        if name not in self._inodes:
            self._inodes[name] = self._new_inode()
            self.ops.append(Create(self._inodes[name], name))
        return self._inodes[name]

    def delete(self, path: str) -> None:
        name = os.path.basename(path)
        if self._inodes.pop(name, None) is not None:
            self.ops.append(Delete(name))

    @property
    def acks(self) -> list[str]:
        return [op.state for op in self.ops if isinstance(op, Ack)]


class _File(apsw.VFSFile):
    def __init__(self, record: Record, filename: Any, flags: Any) -> None:
        super().__init__("", filename, flags)
        self._record = record
        self._inode = record.open(filename.filename() if isinstance(filename, apsw.URIFilename) else str(filename))

    def xWrite(self, data: Any, offset: int) -> None:
        super().xWrite(data, offset)
        self._record.ops.append(Write(self._inode, offset, bytes(data)))

    def xTruncate(self, size: int) -> None:
        super().xTruncate(size)
        self._record.ops.append(Truncate(self._inode, size))

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self._record.ops.append(Sync(self._inode))


class _Vfs(apsw.VFS):
    def __init__(self, record: Record) -> None:
        self.vfs_name = f"recording-{next(_names)}"
        super().__init__(self.vfs_name, "")
        self._record = record

    def xOpen(self, name: Any, flags: Any) -> Any:
        return _File(self._record, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self._record.delete(filename)


class _Row:
    """What the store asks of `sqlite3.Row`: a value by its name or its place."""

    def __init__(self, names: tuple[str, ...], values: tuple[Any, ...]) -> None:
        self._names = names
        self._values = values

    def __getitem__(self, key: str | int) -> Any:
        return self._values[key] if isinstance(key, int) else self._values[self._names.index(key)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def keys(self) -> tuple[str, ...]:
        return self._names


def _rows(cursor: Any) -> list[_Row]:
    names: tuple[str, ...] = ()
    rows: list[_Row] = []
    for values in cursor:
        names = names or tuple(column[0] for column in cursor.get_description())
        rows.append(_Row(names, values))
    return rows


class _Cursor:
    def __init__(self, rows: list[_Row], rowcount: int) -> None:
        self._rows = iter(rows)
        self.rowcount = rowcount

    def fetchone(self) -> _Row | None:
        return next(self._rows, None)

    def fetchall(self) -> list[_Row]:
        return list(self._rows)


class RecordedConnection:
    """The library's own connection as the store uses it, over the recording file system."""

    row_factory: object = None

    def __init__(self, path: str, record: Record, vfs: _Vfs, settle: Callable[[str], str]) -> None:
        self._connection = apsw.Connection(path, vfs=vfs.vfs_name)
        self._connection.set_busy_timeout(30_000)
        self._record = record
        self._settle = settle

    def execute(self, statement: str, parameters: Any = ()) -> _Cursor:
        try:
            cursor = self._connection.execute(self._settle(statement), parameters)
            rows = _rows(cursor)
        except apsw.ConstraintError as error:
            raise sqlite3.IntegrityError(str(error)) from error
        except apsw.Error as error:
            raise sqlite3.OperationalError(str(error)) from error
        if statement == "COMMIT":
            self._record.ops.append(Ack(self.state()))
        return _Cursor(rows, self._connection.changes())

    def state(self) -> str:
        return digest(lambda question: [tuple(row) for row in self._connection.execute(question)])

    def close(self) -> None:
        self._connection.close()


def as_it_is(statement: str) -> str:
    """The store's own settings."""
    return statement


def with_normal(statement: str) -> str:
    """The setting that does not sync at a commit."""
    return statement.replace("synchronous = FULL", "synchronous = NORMAL")


def driver(record: Record, settle: Callable[[str], str] = as_it_is) -> Any:
    """A driver for the store's connection seam, whose files are recorded."""
    vfs = _Vfs(record)
    return lambda path: RecordedConnection(path, record, vfs, settle)


def digest(ask: Callable[[str], list[tuple[Any, ...]]]) -> str:
    """All that the store holds, as one value."""
    found = hashlib.sha256()
    for (table,) in ask("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"):
        found.update(repr((table, ask(f"SELECT * FROM {table} ORDER BY 1, 2"))).encode())
    return found.hexdigest()


# -- the disk after a power cut ----------------------------------------------------------------------------------


def image(record: Record, cut: int, rng: random.Random) -> dict[str, bytes]:
    """The files as they may be found after a power cut behind the first `cut` operations."""
    ops = record.ops[:cut]
    synced = {op.inode: at for at, op in enumerate(ops) if isinstance(op, Sync)}
    contents: dict[int, bytearray] = {}
    names: dict[str, int] = {}
    for number, (name, data) in enumerate(record.begun.items(), start=1):
        contents[number], names[name] = bytearray(data), number
    luck = rng.choice((0.0, 0.5, 0.5, 0.9, 1.0))
    for at, op in enumerate(ops):
        match op:
            case Create():
                contents[op.inode] = bytearray()
                # The first sync of a file also makes its name durable.
                if op.inode in synced or rng.random() < luck:
                    names[op.name] = op.inode
            case Delete():
                if rng.random() < luck:
                    names.pop(op.name, None)
            case Write():
                _write(contents[op.inode], op, None if at <= synced.get(op.inode, -1) else (rng, luck))
            case Truncate():
                if at <= synced.get(op.inode, -1) or rng.random() < luck:
                    _resize(contents[op.inode], op.size)
            case _:
                continue
    return {name: bytes(contents[inode]) for name, inode in names.items() if not name.endswith("-shm")}


def _write(content: bytearray, op: Write, torn: tuple[random.Random, float] | None) -> None:
    end = op.offset + len(op.data)
    if torn is None:
        _grow(content, end)
        content[op.offset : end] = op.data
        return
    rng, luck = torn
    at = op.offset
    while at < end:
        until = min(end, (at // SECTOR + 1) * SECTOR)
        if rng.random() < luck:
            _grow(content, until)
            content[at:until] = op.data[at - op.offset : until - op.offset]
        at = until


def _grow(content: bytearray, size: int) -> None:
    if len(content) < size:
        content.extend(bytes(size - len(content)))


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    _grow(content, size)


def found_after(files: dict[str, bytes], folder: Path) -> str:
    """Opens the files with the real library, as the next LoopX would; the digest of what is in them, or the trouble."""
    for old in folder.iterdir():
        old.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    connection = sqlite3.connect(folder / "loopx.db", isolation_level=None)
    try:
        broken = connection.execute("PRAGMA integrity_check").fetchall()
        if broken != [("ok",)]:
            return f"corrupt: {broken[:2]}"
        return digest(lambda question: connection.execute(question).fetchall())
    except sqlite3.Error as error:
        return f"corrupt: {error}"
    finally:
        connection.close()
