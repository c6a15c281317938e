"""A store that is damaged, half made, full or read-only ends in a typed error, and is never written over."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopx.control_plane.errors import StoreError
from loopx.store import connection as connections
from loopx.store.connection import Connection

pytestmark = pytest.mark.leaves(reason="the stores are damaged on purpose")


def made(folder: Path) -> Path:
    path = folder / "loopx.db"
    Connection(str(path), create=True).close()
    return path


def filled(folder: Path, rows: int = 2000) -> Path:
    """A store of many pages, all of them in its main file."""
    path = made(folder)
    connection = Connection(str(path))
    with connection.write() as tx:
        for number in range(rows):
            tx.run("evidence.cache_check", inputs=f"{number:064d}", result="{}", now_ms=number)
    connection.close()
    return path


def contents(folder: Path) -> dict[str, bytes]:
    names = ("loopx.db", "loopx.db-wal")
    return {name: data for name in names if (folder / name).exists() and (data := (folder / name).read_bytes())}


def code_of(path: Path, *, create: bool = False) -> str:
    with pytest.raises(StoreError) as caught:
        Connection(str(path), create=create).close()
    return caught.value.code


@pytest.mark.parametrize("create", [False, True])
def test_a_store_that_was_cut_to_nothing_is_not_made_anew(tmp_path: Path, create: bool) -> None:
    path = made(tmp_path)
    path.write_bytes(b"")
    assert code_of(path, create=create) == "store_unreadable"
    assert path.read_bytes() == b""


def test_a_log_without_its_store_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "loopx.db"
    (tmp_path / "loopx.db-wal").write_bytes(b"somebody's commits")
    assert code_of(path, create=True) == "store_unreadable"
    assert contents(tmp_path) == {"loopx.db-wal": b"somebody's commits"}


def test_something_else_at_the_store_s_path_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "loopx.db"
    path.write_bytes(b"a diary, not a store\n" * 300)
    before = contents(tmp_path)
    assert code_of(path, create=True) == "store_unreadable"
    assert contents(tmp_path) == before


def test_a_crash_while_the_store_is_made_leaves_none_and_the_next_start_makes_it(tmp_path: Path) -> None:
    script = (
        "import os, sys; from loopx.store import connection as c\n"
        "c._put_in_place = lambda *_: os._exit(9)\n"
        "c.Connection(sys.argv[1], create=True)"
    )
    path = tmp_path / "loopx.db"
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert done.returncode == 9
    assert not path.exists()
    Connection(str(path), create=True).close()
    assert path.exists()


def test_eight_at_once_make_one_store(tmp_path: Path) -> None:
    path = tmp_path / "loopx.db"
    failures: list[BaseException] = []

    def make(number: int) -> None:
        try:
            connection = Connection(str(path), create=True)
            with connection.write() as tx:
                tx.run("evidence.cache_check", inputs=str(number), result="{}", now_ms=number)
            connection.close()
        except BaseException as error:  # noqa: BLE001  (told to the test below)
            failures.append(error)

    threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    connection = Connection(str(path))
    with connection.read() as tx:
        found = [tx.one("evidence.cached_check", inputs=str(number)) for number in range(8)]
    connection.close()
    assert all(found)


@pytest.mark.parametrize("seed", range(12))
def test_a_truncated_store_is_a_typed_error_and_stays_as_it_is(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = filled(tmp_path)
    size = path.stat().st_size
    os.truncate(path, rng.randrange(1, size))
    before = contents(tmp_path)
    outcome = look_at_everything(path)
    assert outcome in {"store_unreadable"}, outcome
    assert contents(tmp_path) == before


@pytest.mark.parametrize("seed", range(24))
def test_a_flipped_bit_is_a_typed_error_or_harmless_and_stays_as_it_is(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = filled(tmp_path)
    data = bytearray(path.read_bytes())
    # The header, and the pages' own headers, are where a flip breaks the structure.
    place = rng.randrange(0, 100) if seed % 2 else 4096 * rng.randrange(1, len(data) // 4096) + rng.randrange(0, 12)
    data[place] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(data))
    before = contents(tmp_path)["loopx.db"]
    outcome = look_at_everything(path)
    assert outcome in {"fine", "store_unreadable", "store_newer", "store_read_only"}, outcome
    assert path.read_bytes() == before or outcome == "fine"


def look_at_everything(path: Path) -> str:
    """Read every row and have SQLite check the file; the error's code, or `fine`."""
    connection = None
    try:
        connection = Connection(str(path))
        with connection.read() as tx:
            for number in range(2000):
                tx.one("evidence.cached_check", inputs=f"{number:064d}")
        if connection.pragma("integrity_check") != [("ok",)]:
            return "store_unreadable"
    except StoreError as error:
        return error.code
    finally:
        if connection is not None:
            connection.close()
    return "fine"


class SmallDisk:
    """A file system of a few hundred kilobytes, which only root may mount."""

    def __init__(self, folder: Path, size: str) -> None:
        self.folder = folder
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(self.folder)], check=True)

    def fill(self) -> Path:
        filler = self.folder / "filler"
        with filler.open("ab", buffering=0) as file:
            for size in (65536, 4096, 512, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    continue
        return filler

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small tmpfs")
    try:
        disk = SmallDisk(tmp_path / "disk", "2m")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no tmpfs can be mounted here: {error}")
    try:
        yield disk
    finally:
        disk.close()


def test_a_full_disk_is_typed_nothing_is_half_written_and_it_goes_on_afterwards(small_disk: SmallDisk) -> None:
    path = small_disk.folder / "loopx.db"
    connection = Connection(str(path), create=True)
    with connection.write() as tx:
        tx.run("evidence.cache_check", inputs="first", result="{}", now_ms=1)
    filler = small_disk.fill()
    with pytest.raises(StoreError) as caught, connection.write() as tx:
        for number in range(3000):
            tx.run("evidence.cache_check", inputs=f"{number:064d}", result="{}", now_ms=2)
    assert caught.value.code == "store_full"
    with connection.read() as tx:
        assert tx.one("evidence.cached_check", inputs="first") is not None
        assert tx.one("evidence.cached_check", inputs=f"{0:064d}") is None
    filler.unlink()
    with connection.write() as tx:
        tx.run("evidence.cache_check", inputs="second", result="{}", now_ms=3)
    assert connection.pragma("integrity_check") == [("ok",)]
    connection.close()


def test_a_store_can_t_be_made_on_a_full_disk_and_can_afterwards(small_disk: SmallDisk) -> None:
    path = small_disk.folder / "loopx.db"
    filler = small_disk.fill()
    assert code_of(path, create=True) in {"store_full", "store_unopenable"}
    assert not path.exists()
    filler.unlink()
    Connection(str(path), create=True).close()


def test_a_full_disk_does_not_turn_a_commit_into_an_error_when_the_log_can_t_be_folded_back(
    small_disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small_disk.folder / "loopx.db"
    connection = Connection(str(path), create=True)
    monkeypatch.setattr(connections, "CHECKPOINT_BYTES", 1)
    connection._checkpoint_at = 1
    with connection.write() as tx:
        tx.run("evidence.cache_check", inputs="a", result="{}", now_ms=1)
    # No room for the checkpointer's own lock file, nor for the main file to grow.
    (small_disk.folder / "loopx.db.checkpoint-lock").unlink()
    os.symlink("/nowhere/at/all", small_disk.folder / "loopx.db.checkpoint-lock")
    with connection.write() as tx:
        tx.run("evidence.cache_check", inputs="b", result="{}", now_ms=1)
    connection.close()


def test_a_read_only_store_can_t_be_written_and_says_so(small_disk: SmallDisk) -> None:
    path = small_disk.folder / "loopx.db"
    Connection(str(path), create=True).close()
    small_disk.remount("ro")
    before = path.read_bytes()
    with pytest.raises(StoreError) as caught:
        connection = Connection(str(path))
        with connection.write() as tx:
            tx.run("evidence.cache_check", inputs="a", result="{}", now_ms=1)
    assert caught.value.code == "store_read_only"
    assert path.read_bytes() == before


def test_a_reader_that_was_stopped_holds_up_no_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log can't be emptied under a reader; a writer must not wait for it, nor try again at every commit."""
    path = made(tmp_path)
    reader, writer = Connection(str(path)), Connection(str(path))
    folds = 0
    whole = Connection._fold_back

    def counted(self: Connection) -> bool:
        nonlocal folds
        folds += 1
        return whole(self)

    monkeypatch.setattr(Connection, "_fold_back", counted)
    with reader.read() as tx:
        tx.one("evidence.cached_check", inputs="a")
        for number in range(40):
            with writer.write() as other:
                other.run("evidence.cache_check", inputs=str(number), result=f'"{"x" * 400_000}"', now_ms=1)
    assert 1 < folds <= 5
    assert writer.pragma("busy_timeout") == [(30_000,)]
    with writer.write() as other:
        other.run("evidence.cache_check", inputs="last", result=f'"{"x" * 4_000_000}"', now_ms=1)
    assert os.stat(f"{path}-wal").st_size == 0
    reader.close()
    writer.close()
