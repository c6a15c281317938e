"""The whole store as JSON lines, and back: lossless, verified by count, digest and event chains.

One line for the header, one for each row in an order that references never break, one at the end with the number of
rows and the digest of all lines before. An import is one transaction into a store without goals: all of it or nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import msgspec

from loopx.control_plane.errors import ConflictError, StoreError, UsageError
from loopx.store import events
from loopx.store.connection import Tx
from loopx.store.schema import SCHEMA_VERSION
from loopx.store.store import Store

FORMAT = "loopx_export_v1"
LINE_BYTES = 64 << 20
Value = str | int | float | None
"""What a column holds; the store has no binary ones."""
_FIRST = ("goals", "todos", "turns")
"""Tables that others refer to; the rest follows by name."""


class Header(msgspec.Struct, frozen=True, kw_only=True, tag="header"):
    """The first line."""

    format: str
    store_version: int
    exported_at_ms: int
    project_root: str


class RowLine(msgspec.Struct, frozen=True, kw_only=True, tag="row"):
    """One row of one table, every column by its name."""

    table: str
    values: dict[str, Value]


class End(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """The last line: what came before it, counted and digested."""

    rows: int
    sha256: str


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What was written."""

    path: str
    rows: int
    goals: int
    events: int
    sha256: str


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What was read, with its chains verified."""

    rows: int
    goals: int
    events: int
    sha256: str


_decoder = msgspec.json.Decoder(Header | RowLine | End)


def export_to(store: Store, root: str, path: str, *, force: bool = False) -> Exported:
    """Write everything to a file, complete or not there at all.

    Raises UsageError (`export_exists`, `export_unwritable`), StoreError.
    """
    target = os.path.abspath(path)
    if os.path.exists(target) and not force:
        raise UsageError("export_exists", f"there is already a file {target}", hint="name another one, or add --force")
    partial = f"{target}.partial"
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            done = export(store, root, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except OSError as error:
        raise UsageError(
            "export_unwritable", f"{target} can't be written: {error.strerror}", hint="choose another folder"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(partial)
    return msgspec.structs.replace(done, path=target)


def export(store: Store, root: str, file: BinaryIO) -> Exported:
    """Write everything, from one snapshot, into an open file."""
    digest = hashlib.sha256()
    counts: dict[str, int] = {}

    def put(line: Header | RowLine | End) -> None:
        raw = msgspec.json.encode(line) + b"\n"
        digest.update(raw)
        file.write(raw)

    header = Header(format=FORMAT, store_version=SCHEMA_VERSION, exported_at_ms=store.now_ms(), project_root=root)
    with store.connection.raw_read() as connection:
        put(header)
        for table in _tables(connection):
            for values in _rows(connection, table):
                put(RowLine(table=table, values=values))
                counts[table] = counts.get(table, 0) + 1
    total, sha256 = sum(counts.values()), digest.hexdigest()
    put(End(rows=total, sha256=sha256))
    return Exported(path="-", rows=total, goals=counts.get("goals", 0), events=counts.get("events", 0), sha256=sha256)


def _tables(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    names = sorted(str(row[0]) for row in rows)
    return [*(name for name in _FIRST if name in names), *(name for name in names if name not in _FIRST)]


def _rows(connection: sqlite3.Connection, table: str) -> Iterator[dict[str, Value]]:
    cursor = connection.execute(
        f'SELECT * FROM "{table}" ORDER BY rowid' if _has_rowid(connection, table) else f'SELECT * FROM "{table}"'
    )
    names = [column[0] for column in cursor.description]
    for row in cursor:
        yield dict(zip(names, row, strict=True))


def _has_rowid(connection: sqlite3.Connection, table: str) -> bool:
    row = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    return "WITHOUT ROWID" not in str(row[0]).upper()


def import_from(store: Store, path: str) -> Imported:
    """Read an export into a store that has no goal yet; in one transaction, or not at all.

    Raises UsageError (`import_unreadable`, `export_malformed`, `export_truncated`, `export_corrupt`), StoreError
    (`store_newer`), ConflictError (`store_not_empty`).
    """
    try:
        with open(path, "rb") as file:
            return import_lines(store, file)
    except OSError as error:
        raise UsageError(
            "import_unreadable", f"{path} can't be read: {error.strerror}", hint="name a file that loopx export wrote"
        ) from error


def import_lines(store: Store, lines: Iterable[bytes]) -> Imported:
    """The same from open lines."""
    reader = _Reader(lines)
    reader.header()
    with store.connection.raw_write() as connection:
        _require_empty(connection)
        known = {table: _columns(connection, table) for table in _tables(connection)}
        connection.execute("PRAGMA defer_foreign_keys = ON")
        counts: dict[str, int] = {}
        for row in reader.rows():
            _insert(connection, known, row)
            counts[row.table] = counts.get(row.table, 0) + 1
        if connection.execute("PRAGMA foreign_key_check").fetchone() is not None:
            raise _corrupt("rows refer to rows that are not there")
        _verify_chains(connection)
    return Imported(
        rows=sum(counts.values()), goals=counts.get("goals", 0), events=counts.get("events", 0), sha256=reader.sha256
    )


class _Reader:
    """Reads the lines, and holds the end to what it says of them."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = iter(lines)
        self._digest = hashlib.sha256()
        self._count = 0
        self.sha256 = ""

    def header(self) -> Header:
        first = self._next()
        if not isinstance(first, Header) or first.format != FORMAT:
            raise _malformed("it does not begin as an export does")
        if first.store_version > SCHEMA_VERSION:
            raise StoreError(
                "store_newer",
                f"the export has version {first.store_version}; this LoopX knows {SCHEMA_VERSION}",
                hint="use the newer LoopX that wrote it; nothing was changed",
            )
        return first

    def rows(self) -> Iterator[RowLine]:
        while True:
            line = self._next()
            if isinstance(line, RowLine):
                self._count += 1
                yield line
                continue
            if isinstance(line, End):
                if line.rows != self._count or line.sha256 != self.sha256:
                    raise _corrupt("its last line does not match what came before")
                return
            raise _malformed("a second header stands inside")

    def _next(self) -> Header | RowLine | End:
        raw = next(self._lines, b"")
        if not raw.endswith(b"\n"):
            raise UsageError(
                "export_truncated", "the export ends before its last line", hint="copy it again; nothing was imported"
            )
        if len(raw) > LINE_BYTES:
            raise _malformed("a line is too long")
        try:
            line: Header | RowLine | End = _decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise _malformed(str(error)) from error
        if isinstance(line, End):
            self.sha256 = self._digest.hexdigest()
        self._digest.update(raw)
        return line


def _malformed(why: str) -> UsageError:
    return UsageError(
        "export_malformed", f"that is no export: {why}", hint="loopx export writes one; nothing was imported"
    )


def _corrupt(why: str) -> UsageError:
    return UsageError("export_corrupt", f"the export was changed: {why}", hint="copy it again; nothing was imported")


def _require_empty(connection: sqlite3.Connection) -> None:
    """Two histories are never mixed. Raises ConflictError (`store_not_empty`)."""
    if connection.execute("SELECT 1 FROM goals LIMIT 1").fetchone() is not None:
        raise ConflictError(
            "store_not_empty",
            "this store has goals already, and two histories are never mixed",
            hint="import into another store: --database PATH",
        )
    for table in _tables(connection)[::-1]:
        connection.execute(f'DELETE FROM "{table}"')


def _columns(connection: sqlite3.Connection, table: str) -> frozenset[str]:
    return frozenset(str(row[1]) for row in connection.execute(f'PRAGMA table_info("{table}")'))


def _insert(connection: sqlite3.Connection, known: dict[str, frozenset[str]], row: RowLine) -> None:
    columns = known.get(row.table)
    if columns is None or frozenset(row.values) != columns:
        raise _malformed(f"table {row.table[:40]!r} is not as this version has it")
    names = ", ".join(f'"{name}"' for name in row.values)
    marks = ", ".join("?" for _ in row.values)
    try:
        connection.execute(f'INSERT INTO "{row.table}" ({names}) VALUES ({marks})', tuple(row.values.values()))
    except sqlite3.IntegrityError as error:
        raise _corrupt(f"{row.table}: {error}") from error


def _verify_chains(connection: sqlite3.Connection) -> None:
    tx = Tx(connection)
    for row in connection.execute("SELECT goal_id FROM goals").fetchall():
        broken = events.broken_link(tx, row[0])
        if broken is not None:
            raise _corrupt(f"the event chain of {row[0]} breaks at {broken}")
