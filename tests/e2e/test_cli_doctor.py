"""`loopx doctor`: each kind of trouble is found and named, and only what is provably safe is mended."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from loopx.hosts import spool
from loopx.runtime import care, space
from loopx.testing import LeakKind
from tests.e2e.desk import Desk
from tests.e2e.test_cli_turn import interrupt


def database(desk: Desk) -> str:
    return str(desk.json("store", "path")["database"])


def alter(desk: Desk, statement: str, *values: object) -> None:
    connection = sqlite3.connect(database(desk))
    connection.execute(statement, values)
    connection.commit()
    connection.close()


def found(desk: Desk, *words: str) -> dict[str, dict[str, object]]:
    said = desk.json("doctor", *words)
    return {str(one["code"]): one for one in said["findings"]}


def test_a_store_in_order_is_said_to_be(desk: Desk) -> None:
    desk.goal()
    desk.loopx("turn", "run-once", "goal")
    said = desk.loopx("doctor", "--json")
    assert (said.code, said.json["healthy"]) == (0, True)
    assert [one for one in said.json["findings"] if one["severity"] != "note"] == []
    assert "in order" in desk.loopx("doctor").out


def test_without_a_store_there_is_nothing_to_mend(desk: Desk) -> None:
    said = desk.loopx("doctor", "--json")
    assert (said.code, said.json["findings"][-1]["code"]) == (0, "store_missing")


@pytest.mark.leaves(reason="the store is damaged on purpose")
@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("UPDATE events SET body = '{}' WHERE goal_id = 'goal' AND seq = 2", "chain_broken"),
        ("UPDATE ledger SET cumulative = 7 WHERE goal_id = 'goal'", "books_unbalanced"),
        ("UPDATE goals SET run_index = 5 WHERE goal_id = 'goal'", "run_index"),
        ("DELETE FROM ledger WHERE goal_id = 'goal'", "turn_without_spend"),
        ("DELETE FROM turn_phases WHERE ordinal = 4", "phases_not_prefix"),
        ("UPDATE turns SET completed = 5", "phases_not_prefix"),
        (
            "INSERT INTO turn_claims (turn_key, seq, kind, body, at_ms) VALUES ('t-nobody', 1, 'x', '{}', 0)",
            "foreign_keys",
        ),
    ],
)
def test_what_can_not_be_mended_is_named_and_left_alone(desk: Desk, statement: str, code: str) -> None:
    desk.goal()
    desk.loopx("turn", "run-once", "goal")
    alter(desk, statement)
    said = desk.loopx("doctor", "--repair", "--json")
    assert said.code == 11
    codes = {one["code"]: one for one in said.json["findings"]}
    assert code in codes and not codes[code]["mendable"]
    assert said.json["mended"] == []


@pytest.mark.leaves(reason="the store's pages are damaged on purpose")
def test_a_flipped_page_is_found_and_nothing_is_guessed_from_it(desk: Desk) -> None:
    desk.goal()
    desk.loopx("turn", "run-once", "goal")
    path = Path(database(desk))
    alter(desk, "PRAGMA wal_checkpoint(TRUNCATE)")
    raw = bytearray(path.read_bytes())
    # The middle of some page well behind the header and the schema.
    middle = (len(raw) // 4096 // 2) * 4096
    raw[middle : middle + 64] = b"\xff" * 64
    path.write_bytes(bytes(raw))
    before = path.read_bytes()
    said = desk.loopx("doctor", "--repair", "--json")
    assert said.code in (4, 11)
    assert {one["code"] for one in said.json["findings"]} & {"integrity", "store_unreadable", "foreign_keys"}
    assert path.read_bytes() == before


def test_counts_that_are_wrong_are_recounted(desk: Desk) -> None:
    desk.goal()
    alter(desk, "UPDATE todos SET open_deps = 1, open_gates = 2")
    assert desk.json("quota", "should-run", "goal")["rule"] != "ready"
    assert found(desk)["counters_wrong"]["mendable"]
    said = desk.json("doctor", "--repair")
    assert [one["done"] for one in said["mended"]] == [True]
    assert said["healthy"] and desk.json("quota", "should-run", "goal")["rule"] == "ready"


def test_what_is_held_for_nobody_is_let_go(desk: Desk) -> None:
    desk.goal()
    desk.loopx("turn", "run-once", "goal")
    with desk.session() as session, session.store.read() as tx:
        key = tx.one("turns.last_key", goal_id="goal")["turn_key"]
    alter(desk, "INSERT INTO reservations (turn_key, goal_id, unit, amount) VALUES (?, 'goal', 'slots', 1)", key)
    alter(desk, "UPDATE todos SET status = 'claimed', claimed_by = 'ghost'")
    alter(desk, "UPDATE leases SET expires_at_ms = 1")
    codes = found(desk)
    assert {"reservation_of_nobody", "claim_of_nobody"} <= set(codes)
    desk.loopx("doctor", "--repair")
    assert not {"reservation_of_nobody", "claim_of_nobody"} & set(found(desk))
    assert desk.json("doctor")["healthy"]


@pytest.mark.leaves(LeakKind.OPEN_TURN, reason="the blocked turn is looked at, not run to its end")
def test_a_blocked_turn_is_opened_again_only_when_its_journal_is_sound(desk: Desk) -> None:
    desk.goal()
    key = interrupt(desk, "durable_writeback")
    alter(desk, "DELETE FROM turn_phases WHERE turn_key = ? AND ordinal = 1", key)
    blocked = desk.loopx("turn", "resume", "goal", "--json")
    assert (blocked.code, blocked.error) == (11, "journal_blocked")
    codes = found(desk)
    assert codes["journal_blocked"]["detail"] == "phase_without_receipt"
    assert not codes["journal_blocked"]["mendable"]
    assert desk.loopx("quota", "should-run", "goal").code == 11
    desk.loopx("doctor", "--repair")
    assert "journal_blocked" in found(desk)
    alter(
        desk,
        "INSERT INTO turn_phases SELECT turn_key, 1, 'typed_result', turn_key || '/typed_result', '{}', epoch, "
        "committed_at_ms FROM turn_phases WHERE turn_key = ? AND ordinal = 0",
        key,
    )
    assert found(desk)["journal_blocked"]["mendable"]
    said = desk.json("doctor", "--repair")
    assert said["mended"] == [{"code": "journal_blocked", "subject": key, "done": True}]
    assert desk.loopx("turn", "resume", "goal").code == 0
    assert desk.json("doctor")["healthy"]


@pytest.mark.leaves(LeakKind.OPEN_TURN, reason="the interrupted turn is only looked at")
def test_an_interrupted_turn_is_noted_with_what_a_run_would_do(desk: Desk) -> None:
    desk.goal()
    interrupt(desk, "durable_writeback")
    note = found(desk)["turn_interrupted"]
    assert (note["severity"], note["detail"], note["command"]) == (
        "note",
        "a run would: spend_only",
        ["loopx", "run", "goal"],
    )


def test_leftovers_are_removed_and_nothing_else(desk: Desk) -> None:
    desk.goal()
    desk.loopx("turn", "run-once", "goal")
    folder = Path(database(desk)).parent
    old = folder / "loopx.db.partial"
    old.write_text("half")
    fresh = folder / "loopx.db.restoring"
    fresh.write_text("still written")
    stray = folder / "spool" / "t-nobody.host_execute.1"
    stray.mkdir()
    (stray / "stdout.jsonl").write_text("who was that?")
    mine = folder / "mine.txt"
    mine.write_text("precious")
    for path in (old, stray):
        os.utime(path, (time.time() - 7200,) * 2)
    assert {"leftover_file", "spool_of_nobody"} <= set(found(desk))
    desk.loopx("doctor", "--repair")
    assert not old.exists() and not stray.exists()
    assert fresh.exists() and mine.exists()
    assert desk.loopx("turn", "log", "goal").out == "did it\n"


@pytest.mark.parametrize(
    ("version", "race"),
    [
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 44, 6), False),
        ((3, 46, 1), True),
        ((3, 52, 0), False),
    ],
)
def test_the_versions_with_the_race_are_known(version: tuple[int, int, int], race: bool) -> None:
    assert care.has_race(version) is race


def test_the_floor_is_the_keepers() -> None:
    assert spool.Limits().disk_floor_bytes == space.FLOOR_BYTES


def test_the_file_system_of_a_path_is_told(tmp_path: Path) -> None:
    assert care.file_system(str(tmp_path / "not" / "there" / "yet.db")) == care.file_system(str(tmp_path / "x")) != ""


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    place = tmp_path / "small"
    place.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode != 0:
        pytest.skip("a small disk needs the right to mount one")
    return place


def test_below_the_floor_nothing_is_launched_and_every_surface_says_so(
    desk: Desk, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        monkeypatch.setenv("LOOPX_STATE_DIR", str(small_disk))
        desk.goal()
        packet = desk.loopx("quota", "should-run", "goal", "--json")
        assert (packet.code, packet.json["rule"]) == (10, "wait_pending")
        assert packet.json["reason"].startswith("external_evidence: disk_floor: ")
        assert packet.json["wake_after"] is not None
        assert desk.json("why", "goal")["rule"] == "wait_pending"
        once = desk.loopx("turn", "run-once", "goal", "--json")
        assert (once.code, once.json["turn_key"]) == (10, None)
        assert desk.json("turn", "list", "goal")["turns"] == []
        assert found(desk)["disk_low"]["severity"] == "bad"
        out = desk.loopx("status").out
        assert "nothing is launched below 256" in out
    finally:
        subprocess.run(["umount", "-l", str(small_disk)], check=False)
