"""Backup, restore, export, import, gc, copy, uninstall, hosts: nothing is lost, and nothing is overwritten."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from loopx.runtime import backups
from loopx.runtime.project import locate
from loopx.testing import LeakKind
from tests.e2e.desk import Desk


def database(desk: Desk) -> str:
    return str(desk.json("store", "path")["database"])


def content(path: str) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table."""
    connection = sqlite3.connect(path)
    try:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall(), key=repr) for name in names}
    finally:
        connection.close()


def a_desk_with_history(desk: Desk) -> None:
    desk.goal("first")
    desk.goal("second")
    desk.loopx("turn", "run-once", "first")
    desk.loopx("quota", "void", "first", "1", "--reason", "a test")
    desk.loopx("schedule", "set", "second", "--every", "6h")


def a_small_history(desk: Desk) -> None:
    """The same without a turn: two goals, a spend and its void."""
    desk.goal("first")
    desk.goal("second")
    with desk.session() as session, session.store.write() as tx:
        from loopx.store import ledger

        ledger.spend(tx, "first", "effect", 1, session.store.now_ms())
        ledger.void(tx, "first", 1, "void", "a test", session.store.now_ms())


# -- backup and restore ----------------------------------------------------------------------------------------------


def test_a_backup_is_whole_and_comes_back_as_it_was(desk: Desk, tmp_path: Path) -> None:
    a_desk_with_history(desk)
    made = desk.json("backup", str(tmp_path / "copy.db"))
    before = content(database(desk))
    desk.loopx("turn", "run-once", "first")
    assert desk.json("turn", "list", "first")["turns"][0]["number"] == 2
    done = desk.json("restore", made["path"])
    assert (done["goals"], done["events"]) == (made["goals"], made["events"]) == (2, len(before["events"]))
    after = content(database(desk))
    assert {name: rows for name, rows in after.items() if name != "leases"} == {
        name: rows for name, rows in before.items() if name != "leases"
    }
    # What was replaced is still there, whole, with the turn that the backup did not have.
    (kept,) = done["kept"]
    assert len(content(kept)["turns"]) == 2
    assert desk.json("doctor")["healthy"]


@pytest.mark.leaves(LeakKind.UNBALANCED_BOOKS, reason="the goal is restored to before a turn that its branch has")
def test_after_a_restore_no_process_from_before_can_write(desk: Desk, tmp_path: Path) -> None:
    a_desk_with_history(desk)
    desk.loopx("backup", str(tmp_path / "copy.db"))
    desk.loopx("restore", str(tmp_path / "copy.db"))
    with desk.session() as session, session.store.read() as tx:
        lease = tx.one("leases.get", resource="turn:first:loopx")
        assert lease["epoch"] > backups.EPOCH_JUMP and lease["expires_at_ms"] == 0


def test_a_backup_is_taken_while_others_write(desk: Desk, tmp_path: Path) -> None:
    desk.goal()
    stop = threading.Event()

    def write() -> None:
        with desk.session() as session:
            number = 0
            while not stop.is_set():
                number += 1
                with session.store.write() as tx:
                    from loopx.store import events

                    events.append(tx, "goal", "noted", session.store.now_ms(), {"n": number})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(5):
            path = str(tmp_path / f"copy{number}.db")
            assert desk.loopx("backup", path).code == 0
            backups.judge(path)
    finally:
        stop.set()
        writer.join()


def test_a_backup_never_replaces_a_file_by_accident(desk: Desk, tmp_path: Path) -> None:
    desk.goal()
    mine = tmp_path / "mine.txt"
    mine.write_text("precious")
    said = desk.loopx("backup", str(mine), "--json")
    assert (said.code, said.error, mine.read_text()) == (2, "backup_exists", "precious")
    assert desk.loopx("backup", str(mine), "--force").code == 0
    itself = desk.loopx("backup", database(desk), "--force", "--json")
    assert itself.error == "backup_is_the_store"
    assert desk.loopx("backup", "/proc/nowhere/copy.db", "--json").error == "backup_unwritable"


def test_a_newer_or_damaged_backup_is_refused_before_anything_is_touched(desk: Desk, tmp_path: Path) -> None:
    a_small_history(desk)
    before = content(database(desk))
    good = tmp_path / "good.db"
    desk.loopx("backup", str(good))
    newer, torn, forged, empty = (tmp_path / name for name in ("newer.db", "torn.db", "forged.db", "empty.db"))
    newer.write_bytes(good.read_bytes())
    _sql(newer, "PRAGMA user_version = 99")
    torn.write_bytes(good.read_bytes()[: len(good.read_bytes()) // 2])
    forged.write_bytes(good.read_bytes())
    _sql(forged, "UPDATE events SET body = '{}' WHERE goal_id = 'first' AND seq = 2")
    empty.write_bytes(b"")
    for path, code in (
        (newer, "store_newer"),
        (torn, "backup_corrupt"),
        (forged, "backup_corrupt"),
        (empty, "backup_corrupt"),
    ):
        said = desk.loopx("restore", str(path), "--json")
        assert (said.code, said.error) == (4, code), path
    assert desk.loopx("restore", str(tmp_path / "nothing.db"), "--json").code == 3
    assert content(database(desk)) == before
    assert not [
        name for name in os.listdir(os.path.dirname(database(desk))) if "replaced" in name or "restoring" in name
    ]


def _sql(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.leaves(reason="the damaged store is kept beside the restored one")
def test_a_damaged_store_is_kept_as_it_is_and_replaced_by_a_backup(desk: Desk, tmp_path: Path) -> None:
    a_desk_with_history(desk)
    desk.loopx("backup", str(tmp_path / "copy.db"))
    path = Path(database(desk))
    path.write_bytes(b"garbage" * 1000)
    damaged = path.read_bytes()
    look = desk.loopx("doctor", "--json")
    assert (look.code, look.json["findings"][-1]["code"]) == (4, "store_unreadable")
    assert desk.loopx("status", "--json").code == 4
    done = desk.json("restore", str(tmp_path / "copy.db"))
    assert Path(done["kept"][0]).read_bytes() == damaged
    assert desk.json("doctor")["healthy"]


def test_a_store_in_use_is_not_replaced(desk: Desk, tmp_path: Path) -> None:
    desk.goal()
    desk.loopx("backup", str(tmp_path / "copy.db"))
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDER, database(desk)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        said = desk.loopx("restore", str(tmp_path / "copy.db"), "--json")
        assert (said.code, said.error) == (15, "store_in_use")
    finally:
        other.communicate("\n", timeout=30)
    assert desk.loopx("restore", str(tmp_path / "copy.db")).code == 0


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("BEGIN"); connection.execute("SELECT * FROM goals").fetchall()
print("held", flush=True); sys.stdin.readline()
"""


@pytest.mark.leaves(reason="every step of a restore is cut off on purpose")
@pytest.mark.parametrize("step", ["_copy", "_prepare", "_set_aside", "replace"])
def test_a_restore_that_is_cut_off_loses_nothing(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    a_desk_with_history(desk)
    desk.loopx("backup", str(tmp_path / "copy.db"))
    desk.loopx("turn", "run-once", "first")
    path = database(desk)
    before = content(path)
    program = CUT.format(step=step)
    done = subprocess.run(
        [sys.executable, "-c", program, str(desk.root), str(tmp_path / "copy.db")], capture_output=True, text=True
    )
    assert done.returncode == 9, done.stderr
    # Either store is there under its name, whole; the one that was there is there in any case.
    assert content(path) in (before, content(str(tmp_path / "copy.db"))) or step == "replace"
    folder = os.path.dirname(path)
    stores = [os.path.join(folder, name) for name in os.listdir(folder) if name == "loopx.db" or "replaced" in name]
    assert any(len(content(one)["turns"]) == 2 for one in stores if not one.endswith(("-wal", "-shm")))
    assert desk.loopx("restore", str(tmp_path / "copy.db")).code == 0
    assert len(desk.json("turn", "list", "first")["turns"]) == 1


CUT = """
import os, sys
from loopx.runtime import backups
from loopx.runtime.project import locate
def cut(act):
    def wrapped(*words):
        act(*words)
        os._exit(9)
    return wrapped
step = "{step}"
if step == "replace":
    replace = os.replace
    def last(source, target):
        replace(source, target)
        if target.endswith("loopx.db"):
            os._exit(9)
    os.replace = last
else:
    setattr(backups, step, cut(getattr(backups, step)))
backups.restore(locate(sys.argv[1]), sys.argv[2])
"""


# -- export and import -----------------------------------------------------------------------------------------------


def test_an_export_is_read_back_without_any_loss(desk: Desk, tmp_path: Path) -> None:
    a_desk_with_history(desk)
    before = content(database(desk))
    out = tmp_path / "all.jsonl"
    done = desk.json("export", str(out))
    assert (done["goals"], done["rows"]) == (2, sum(map(len, before.values())))
    elsewhere = str(tmp_path / "elsewhere.db")
    read = desk.json("import", str(out), "--database", elsewhere)
    assert (read["rows"], read["sha256"]) == (done["rows"], done["sha256"])
    assert content(elsewhere) == before
    again = tmp_path / "again.jsonl"
    desk.loopx("export", str(again), "--database", elsewhere)
    assert out.read_text().splitlines()[1:-1] == again.read_text().splitlines()[1:-1]
    assert desk.json("why", "first", "--database", elsewhere)["goal_id"] == "first"


def test_two_histories_are_never_mixed(desk: Desk, tmp_path: Path) -> None:
    a_small_history(desk)
    desk.loopx("export", str(tmp_path / "all.jsonl"))
    before = content(database(desk))
    said = desk.loopx("import", str(tmp_path / "all.jsonl"), "--json")
    assert (said.code, said.error) == (15, "store_not_empty")
    assert content(database(desk)) == before


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda lines: lines[:-1], "export_truncated"),
        (lambda lines: [*lines[: len(lines) // 2], lines[len(lines) // 2][:20]], "export_truncated"),
        (lambda lines: [line.replace("a test", "another") for line in lines], "export_corrupt"),
        (lambda lines: lines[:5] + lines[6:], "export_corrupt"),
        (lambda lines: ["{}\n", *lines[1:]], "export_malformed"),
        (
            lambda lines: [lines[0], '{"type": "row", "table": "horses", "values": {}}\n', *lines[1:]],
            "export_malformed",
        ),
        (lambda lines: [lines[0].replace('"store_version":1', '"store_version":99'), *lines[1:]], "store_newer"),
    ],
)
def test_a_spoilt_export_is_refused_and_leaves_nothing(desk: Desk, tmp_path: Path, spoil: object, code: str) -> None:
    a_small_history(desk)
    out = tmp_path / "all.jsonl"
    desk.loopx("export", str(out))
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(spoil(lines)))  # type: ignore[operator]
    elsewhere = str(tmp_path / "elsewhere.db")
    said = desk.loopx("import", str(out), "--database", elsewhere, "--json")
    assert said.error == code
    assert content(elsewhere)["goals"] == []


def test_a_store_is_copied_elsewhere_and_works_there(desk: Desk, tmp_path: Path) -> None:
    a_small_history(desk)
    target = str(tmp_path / "far" / "loopx.db")
    assert desk.loopx("store", "copy", f"sqlite://{target}").code == 0
    assert len(desk.json("status", "--database", target)["goals"]) == 2
    assert desk.loopx("store", "copy", "postgresql://x/y", "--json").error == "database_unsupported"


# -- the other program's state ---------------------------------------------------------------------------------------

WORKBENCH = """---
status: active
objective: "Ship the parser"
---

# Active Goal State

## User Todo

- [ ] [P0] Approve the release packet.
  <!-- loopx:todo todo_id=todo_ask status=open task_class=user_gate -->

## Agent Todo

- [ ] [P1] Write the release notes
  in plain words.
  <!-- loopx:todo todo_id=todo_notes status=open task_class=advancement_task resume_when=todo_done:todo_parser -->
- [ ] [P0] Make the parser accept weeks.
  <!-- loopx:todo todo_id=todo_parser status=open task_class=advancement_task claimed_by=somebody -->
- [x] Sketch the grammar.
  <!-- loopx:todo todo_id=todo_done status=done task_class=advancement_task -->
- [ ] Watch the mirror.
  <!-- loopx:todo todo_id=todo_watch status=open task_class=continuous_monitor -->

## Completed Work Archive

- [x] Something old.
"""


def test_another_programs_goals_are_taken_over_paused_and_left_alone_there(desk: Desk) -> None:
    folder = desk.root / ".loopx"
    folder.mkdir()
    state = desk.root / ".codex" / "goals" / "ship" / "ACTIVE_GOAL_STATE.md"
    state.parent.mkdir(parents=True)
    state.write_text(WORKBENCH)
    registry = {
        "schema_version": 1,
        "goals": [
            {
                "id": "Ship_Parser",
                "status": "active",
                "repo": str(desk.root),
                "state_file": str(state.relative_to(desk.root)),
                "quota": {"compute": 0.5, "window_hours": 24},
                "coordination": {"write_scope": ["src/**"]},
            },
            {"id": "old", "status": "completed", "repo": "", "state_file": ""},
        ],
    }
    (folder / "registry.json").write_text(json.dumps(registry))
    kept = (folder / "registry.json").read_bytes(), state.read_bytes()
    taken = desk.json("import", str(folder))
    (goal,) = taken["goals"]
    assert (goal["goal_id"], goal["todos"], goal["questions"], taken["skipped"]) == ("ship-parser", 2, 1, ["old"])
    assert goal["notes"] == ["monitor_left_out:todo_watch", "ended_todos_left_out:1"]
    one = desk.json("status", "ship-parser")
    assert (one["objective"], one["goals"][0]["goal_state"]) == ("Ship the parser", "paused")
    titles = {todo["title"]: todo["todo_id"] for todo in one["todos"]}
    assert list(titles) == ["Make the parser accept weeks.", "Write the release notes in plain words."]
    with desk.session() as session, session.store.read() as tx:
        from loopx.store import goals, todos

        notes = todos.get(tx, titles["Write the release notes in plain words."])
        assert list(notes.depends_on) == [titles["Make the parser accept weeks."]]
        definition = goals.get(tx, "ship-parser").definition
        assert (definition.quota.compute, definition.boundary.write_scope) == (0.5, ("src/**",))
    assert ((folder / "registry.json").read_bytes(), state.read_bytes()) == kept
    assert not (folder / "project.json").exists()


def test_a_folder_that_nobody_knows_is_refused_by_name(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "what").mkdir()
    assert desk.loopx("import", str(tmp_path / "what"), "--json").error == "import_unknown"


# -- gc, uninstall, hosts ---------------------------------------------------------------------------------------------


def test_gc_lets_go_of_output_and_keeps_facts(desk: Desk) -> None:
    desk.goal()
    desk.loopx("turn", "run-once", "goal")
    before = content(database(desk))
    spool = before["host_runs"][0]
    assert desk.json("gc")["items"] == []
    look = desk.json("gc", "--days", "0", "--dry-run")
    kinds = {item["kind"] for item in look["items"]}
    assert "output" in kinds and look["bytes"] > 0
    assert desk.loopx("turn", "log", "goal").out == "did it\n"
    done = desk.json("gc", "--days", "0")
    assert done["removed"] and done["items"] == look["items"]
    assert desk.loopx("turn", "log", "goal").out == ""
    assert desk.json("gc", "--days", "0")["items"] == []
    after = content(database(desk))
    for table in ("goals", "turns", "turn_phases", "ledger", "events", "evidence"):
        assert after[table] == before[table]
    assert spool in after["host_runs"]
    assert desk.json("doctor")["healthy"]


def test_uninstall_says_what_there_is_and_removes_it_only_when_told(desk: Desk) -> None:
    desk.goal()
    desk.loopx("turn", "run-once", "goal")
    found = desk.json("uninstall", "--dry-run")
    assert found["branches"] == ["refs/heads/loopx/goal"] and found["state_bytes"] > 0
    assert desk.loopx("uninstall").code == 2
    assert os.path.isdir(found["state_dir"])
    done = desk.json("uninstall", "--yes")
    assert found["state_dir"] in done["removed"] and done["stays"] == found["branches"]
    assert not os.path.exists(found["state_dir"]) and not (desk.root / ".loopx").exists()
    assert "def f(): return 2" in (desk.root / "m.py").read_text()
    assert desk.git("rev-parse", "loopx/goal")
    assert not desk.git("for-each-ref", "refs/loopx/")


def test_hosts_says_what_is_missing_and_how_to_mend_it(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("codex", "gemini"):
        (programs / name).write_text(
            f"#!{sys.executable}\nimport sys\n" + ("sys.exit(1)" if name == "gemini" else "print('codex-cli 0.171.0')")
        )
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("HOME", str(tmp_path))
    found = {one["engine"]: one for one in desk.json("hosts")["hosts"]}
    assert set(found) == {"codex", "claude", "opencode", "gemini"}
    assert (found["codex"]["executable"], found["codex"]["version"]) == ("ready", "0.171.0")
    assert found["gemini"]["executable"] == "broken"
    assert found["claude"]["executable"] == "missing" and found["claude"]["fix"]
    assert desk.loopx("hosts", "claude").code == 13
    assert "not installed" in desk.loopx("hosts").out


def test_an_agent_cares_for_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    desk.goal()
    monkeypatch.setenv("LOOPX_TURN_TOKEN", "whatever")
    for words in (
        ("backup", str(tmp_path / "x.db")),
        ("restore", str(tmp_path / "x.db")),
        ("export", str(tmp_path / "x.jsonl")),
        ("import", str(tmp_path)),
        ("gc",),
        ("store", "copy", str(tmp_path / "x.db")),
        ("uninstall", "--yes"),
        ("doctor", "--repair"),
    ):
        said = desk.loopx(*words, "--json")
        assert (said.code, said.error) == (11, "person_only"), words
    assert locate(str(desk.root)).database
