"""The audit log tells by itself where everything stands, and a store that says something else is found out."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from tests.e2e.cli_kit import Cli


def test_a_store_that_says_something_else_than_its_log_is_found_out(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    cli.create()
    todo = cli.ok("todo", "add", "fg", "mend f")["todo_id"]
    cli.ok("gate", "ask", "fg", "Ship it?", "--option", "yes")
    assert cli.ok("log", "fg", "--replay")["differences"] == []
    with contextlib.closing(sqlite3.connect(next(cli.state.rglob("loopx.db")))) as store, store:
        store.execute("UPDATE todos SET status = 'done' WHERE todo_id = ?", (todo,))

    found = cli.loopx("log", "fg", "--replay", "--json")

    assert (found.code, found.json["differences"]) == (4, [f"todo {todo}: open in the log, done in the store"])
