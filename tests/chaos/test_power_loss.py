"""Power cuts in the middle of real turns: no acknowledged commit is lost, and nothing is corrupt.

A goal runs with the real runner over a recording disk. Then the power is cut after any of its operations, and the
files that may be found are opened with the real library: they must hold exactly the state of the last acknowledged
commit, or of the one that was on its way. The same harness shows that `synchronous = NORMAL` would fail.
"""

from __future__ import annotations

import bisect
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loopx.store import connection as connections
from loopx.testing import Act, Sandbox
from tests.chaos import disk, kit

IMAGES = 250
MANY_IMAGES = 6000
ACTS = (Act(write={"n.txt": "1\n"}), Act(write={"n.txt": "2\n"}))
CHECKS = ("grep -q -e 1 -e 2 n.txt", "grep -q 2 n.txt")


def recorded(folder: Path, monkeypatch: pytest.MonkeyPatch, settle: Callable[[str], str]) -> disk.Record:
    """Two real turns in two sessions, with the log folded back often; what they did to the disk."""
    with Sandbox(str(folder), files={"n.txt": "0\n"}) as sandbox:
        goal_id = sandbox.goal(*ACTS, checks=CHECKS).goal_id
        database = Path(sandbox.store.path)
    record = disk.Record(database.parent)
    record.begin(database)
    with monkeypatch.context() as patched:
        patched.setattr(connections, "CHECKPOINT_BYTES", 150_000)
        before = connections.use_driver(disk.driver(record, settle))
        try:
            for turns in (1, 8):
                with Sandbox(str(folder)) as sandbox:
                    end = sandbox.run(goal_id, max_turns=turns)
        finally:
            connections.use_driver(before)
    assert end.exit_code == 0
    return record


class Outcome:
    """How the images of a record came out."""

    def __init__(self) -> None:
        self.images = 0
        self.lost = 0
        self.torn = 0
        self.corrupt = 0
        self.first = ""

    def tell(self) -> str:
        return f"{self.images} crash images: {self.lost} lost a commit, {self.torn} were torn, {self.corrupt} corrupt"


def cut_power(record: disk.Record, folder: Path, images: int, seed: int) -> Outcome:
    """Cut it so many times; every image is judged against the commits that were acknowledged before the cut."""
    folder.mkdir(exist_ok=True)
    states = [disk_state(record), *record.acks]
    acknowledged = [at for at, op in enumerate(record.ops) if isinstance(op, disk.Ack)]
    outcome = Outcome()
    for number in range(images):
        rng = random.Random(f"{seed}-{number}")
        cut = rng.randrange(len(record.ops) + 1)
        promised = bisect.bisect_left(acknowledged, cut)
        found = disk.found_after(disk.image(record, cut, rng), folder)
        outcome.images += 1
        if found in states[promised : promised + 2]:
            continue
        outcome.first = outcome.first or f"image {number} of seed {seed}, cut {cut}: {found}"
        if found.startswith("corrupt"):
            outcome.corrupt += 1
        elif found in states[:promised]:
            outcome.lost += 1
        else:
            outcome.torn += 1
    return outcome


def disk_state(record: disk.Record) -> str:
    """What was in the store before the record began."""
    place = record.folder / "begun"
    place.mkdir(exist_ok=True)
    return disk.found_after(record.begun, place)


def test_no_acknowledged_commit_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    power(tmp_path, monkeypatch, capsys, IMAGES)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_no_acknowledged_commit_is_lost_in_thousands_of_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    power(tmp_path, monkeypatch, capsys, MANY_IMAGES)


def power(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], images: int) -> None:
    seed = kit.seed()
    print(f"{kit.SEED_VARIABLE}={seed}")
    record = recorded(folder, monkeypatch, disk.as_it_is)
    writes = [op for op in record.ops if isinstance(op, disk.Write)]
    assert len(record.acks) > 15
    assert len({op.inode for op in writes}) >= 3, "the log was folded back, and a new one was begun"
    outcome = cut_power(record, folder / "image", images, seed)
    shutil.rmtree(folder / "image")
    with capsys.disabled():
        print(f"\n{outcome.tell()} ({len(record.ops)} operations, {len(record.acks)} commits)")
    assert (outcome.lost, outcome.torn, outcome.corrupt) == (0, 0, 0), outcome.first


def test_with_normal_the_same_harness_finds_lost_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness is worth something: the setting that would be three times as fast fails it, and is not corrupt."""
    record = recorded(tmp_path, monkeypatch, disk.with_normal)
    outcome = cut_power(record, tmp_path / "image", 80, kit.seed())
    shutil.rmtree(tmp_path / "image")
    assert outcome.lost > 12, outcome.tell()
    assert outcome.corrupt == 0


# -- the same order with the real library ------------------------------------------------------------------------

WORK = """
import os, sys
from pathlib import Path
from loopx.store import connection as c
c.CHECKPOINT_BYTES = 100_000
path, mode = sys.argv[1:3]
if mode == "recorded":
    from tests.chaos import disk
    record = disk.Record(Path(path).parent)
    record.begin(Path(path))
    c.use_driver(disk.driver(record))
one = c.Connection(path)
for number in range(40):
    with one.write() as tx:
        for row in range(number % 4 + 1):
            tx.run("evidence.cache_check", inputs=f"{number}-{row}", result='"' + "x" * 6000 + '"', now_ms=number)
    os.write(1, b"ack\\n")
    if mode == "recorded":
        record.ops.append(None)
one.close()
if mode == "recorded":
    kinds = {"Write": "write", "Sync": "sync", "Truncate": "truncate"}
    names = {1: "main"}
    for op in record.ops:
        kind = type(op).__name__
        if kind == "Create":
            names[op.inode] = "log" if op.name.endswith("-wal") else op.name
        elif kind in kinds:
            print(names[op.inode], kinds[kind], file=sys.stderr)
        elif op is None:
            print("ack", file=sys.stderr)
"""
_CALL = re.compile(r"(pwrite64|write|fsync|fdatasync|ftruncate)\((\d+)(?:<([^>]*)>)?")
_KINDS = {"pwrite64": "write", "fsync": "sync", "fdatasync": "sync", "ftruncate": "truncate"}


def collapsed(steps: list[str]) -> list[str]:
    return [step for at, step in enumerate(steps) if not at or steps[at - 1] != step]


def traced(text: str) -> list[str]:
    """What strace saw of the store's main file and log, and of the acknowledgements."""
    steps: list[str] = []
    for line in text.splitlines():
        found = _CALL.search(line)
        if found is None:
            continue
        call, handle, path = found.groups()
        if call == "write" and handle == "1":
            steps.append("ack")
        elif path and path.endswith(("loopx.db", "loopx.db-wal")) and call in _KINDS:
            steps.append(f"{'log' if path.endswith('-wal') else 'main'} {_KINDS[call]}")
    return collapsed(steps)


def test_the_real_library_writes_and_syncs_in_the_order_of_the_simulated_disk(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    orders: dict[str, list[str]] = {}
    for mode in ("real", "recorded"):
        folder = tmp_path / mode
        folder.mkdir()
        path = folder / "loopx.db"
        connections.Connection(str(path), create=True).close()
        program = [sys.executable, "-c", WORK, str(path), mode]
        trace = folder / "trace"
        watch = ["strace", "-f", "-y", "-s", "1", "-o", str(trace)]
        watch += ["-e", "trace=pwrite64,write,fsync,fdatasync,ftruncate"]
        done = subprocess.run(
            [*(watch if mode == "real" else []), *program], cwd=kit.ROOT, capture_output=True, text=True, check=False
        )
        if mode == "real" and done.returncode and "ptrace" in done.stderr.lower():
            pytest.skip(f"nothing may be traced here: {done.stderr.strip()[:200]}")
        assert done.returncode == 0, done.stderr[-2000:]
        orders[mode] = traced(trace.read_text()) if mode == "real" else collapsed(done.stderr.splitlines())
    real = orders["real"]
    assert real.count("ack") == 40
    for at, step in enumerate(real):
        if step == "ack":
            assert "log sync" in real[max(0, at - 6) : at], f"an acknowledgement without a sync: {real[: at + 1][-8:]}"
    assert any(step == "main write" for step in real), "the log was folded back"
    commits = [_commit(order) for order in orders.values()]
    assert commits[0] == commits[1]


def _commit(order: list[str]) -> list[str]:
    """The order up to the last acknowledgement; what closing does may differ between versions."""
    last = len(order) - order[::-1].index("ack")
    return order[:last]
