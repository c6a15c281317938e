"""Named SQL: each statement lives in `sql/<file>.sql` under a `-- name:` line with a description.

A statement is asked for as `file.name`; a file is read once per process, when its first statement is needed.
"""

from __future__ import annotations

import os

_HERE = os.path.join(os.path.dirname(__file__), "sql")
_statements: dict[str, str] = {}
"""By full name, of the files that were read."""


def _read(file_name: str) -> dict[str, str]:
    with open(os.path.join(_HERE, f"{file_name}.sql"), encoding="utf-8") as file:
        text = file.read()
    named: dict[str, str] = {}
    for block in text.split("-- name:")[1:]:
        name, _, body = block.partition("\n")
        lines = [line for line in body.splitlines() if not line.lstrip().startswith("--")]
        named[name.strip()] = "\n".join(lines).strip().rstrip(";")
    return named


def sql(name: str) -> str:
    """The text of `file.name`. KeyError for a name that does not exist is a fault in LoopX."""
    found = _statements.get(name)
    if found is None:
        file_name, _, _ = name.partition(".")
        _statements.update((f"{file_name}.{statement}", text) for statement, text in _read(file_name).items())
        found = _statements[name]
    return found


def all_names() -> tuple[str, ...]:
    """Every statement's full name, for the tests that pin query plans."""
    names: list[str] = []
    for entry in sorted(os.listdir(_HERE)):
        file_name = entry.removesuffix(".sql")
        names.extend(f"{file_name}.{name}" for name in _read(file_name))
    return tuple(names)
