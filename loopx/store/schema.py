"""The logical schema, rendered to a dialect: numbered migrations hold type names, and this module spells them.

STRICT SQLite refuses BIGINT and BOOLEAN, and PostgreSQL's INTEGER has 32 bits, so no type word suits both.
"""

from __future__ import annotations

import enum
import os

_HERE = os.path.dirname(__file__)


class Dialect(enum.StrEnum):
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


_TYPES: dict[Dialect, dict[str, str]] = {
    Dialect.SQLITE: {
        "{int}": "INTEGER",
        "{text}": "TEXT",
        "{bool}": "INTEGER",
        "{json}": "TEXT",
        "{real}": "REAL",
        "{strict}": " STRICT",
        # The table is its primary key's tree: rows that are small, and that every turn adds to.
        "{keyed}": " STRICT, WITHOUT ROWID",
    },
    Dialect.POSTGRESQL: {
        "{int}": "BIGINT",
        "{text}": "TEXT",
        "{bool}": "SMALLINT",
        "{json}": "TEXT",
        "{real}": "DOUBLE PRECISION",
        "{strict}": "",
        "{keyed}": "",
    },
}

MIGRATIONS: tuple[str, ...] = ("0001_initial",)
"""Names in order; a store's version is how many of them it has."""

SCHEMA_VERSION = len(MIGRATIONS)


def render_migration(name: str, dialect: Dialect) -> tuple[str, ...]:
    """The migration's statements in the dialect's own words, in order."""
    with open(os.path.join(_HERE, "migrations", f"{name}.sql"), encoding="utf-8") as file:
        text = file.read()
    for word, spelled in _TYPES[dialect].items():
        text = text.replace(word, spelled)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    return tuple(part.strip() for part in "\n".join(lines).split(";") if part.strip())
