"""The spool: what the keeper writes is what a reader gets, in bounded memory and on a bounded disk."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopx.control_plane import errors
from loopx.hosts import keeper_records, keeper_spool, runfiles, spool
from tests.hosts import keeper_kit as kit

MIB = 1 << 20


@pytest.fixture
def run(tmp_path: Path) -> Iterator[kit.Run]:
    with kit.run_in(tmp_path) as started:
        yield started


def stream(folder: Path, **sizes: int) -> keeper_spool.Stream:
    return keeper_spool.Stream(
        str(folder), "stdout", **{"segment_bytes": 100, "total_bytes": 500, "line_bytes": 40, **sizes}
    )


def lines_of(folder: Path, from_offset: int = 0) -> list[spool.Line]:
    return list(spool.read_lines(str(folder), from_offset))


def peak_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def test_a_line_of_200_megabytes_in_bounded_memory(run: kit.Run, tmp_path: Path) -> None:
    go = tmp_path / "go"
    kept = run.start(
        kit.shell(f"head -c 200000000 /dev/zero | tr '\\0' x; echo; echo last; until [ -e {go} ]; do sleep 0.01; done")
    )
    kit.until(lambda: spool.tail(run.spool_dir, "stdout", 5) == b"last\n", "the long line is through")
    assert kept.keeper is not None
    assert peak_kib(kept.keeper.pid) < 20 * 1024
    go.touch()
    record = run.follow(kept)
    assert record.exit_code == 0
    assert (record.truncated_lines, record.stdout_bytes) == (1, 200_000_006)
    line_bytes = spool.Limits().line_bytes
    assert [len(line) for line in run.lines] == [line_bytes + len(f" [loopx: {200_000_000 - line_bytes} bytes cut]"), 4]
    assert run.lines[0].endswith(b"x [loopx: %d bytes cut]" % (200_000_000 - line_bytes))


def test_more_than_the_total_keeps_beginning_and_end(run: kit.Run) -> None:
    limits = spool.Limits(segment_bytes=MIB, stdout_bytes=4 * MIB)
    record = run.complete(kit.shell("seq 2000000"), limits)
    kept_lines = lines_of(run.folder)
    numbers = [int(line.data) for line in kept_lines]
    on_disk = sum(path.stat().st_size for path in run.folder.glob("stdout*"))
    assert on_disk <= 4 * MIB + 65536
    assert record.dropped_bytes == record.stdout_bytes - on_disk
    assert numbers[:1000] == list(range(1, 1001))
    assert numbers[-1000:] == list(range(1_999_001, 2_000_001))
    assert [line.lost for line in kept_lines if line.lost] == [record.dropped_bytes]


def test_a_follower_that_keeps_up_sees_what_is_dropped_later(tmp_path: Path) -> None:
    writer = stream(tmp_path)
    reader = spool.Reader(str(tmp_path))
    seen: list[bytes] = []
    sent = [b"line %d" % number for number in range(500)]
    for line in sent:
        writer.feed(line + b"\n")
        seen += [found.data for found in reader.read()]
    writer.close()
    assert seen == sent
    assert writer.dropped_bytes > 0
    reader.close()


@given(
    data=st.lists(st.binary(max_size=60).map(lambda line: line.replace(b"\n", b"")), max_size=40),
    cuts=st.lists(st.integers(0, 3000), max_size=10),
    reads=st.sets(st.integers(0, 10)),
    ended=st.booleans(),
)
def test_whatever_the_pieces_the_lines_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, data: list[bytes], cuts: list[int], reads: set[int], ended: bool
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    raw = b"\n".join(data) + (b"\n" if ended else b"")
    writer = stream(folder, total_bytes=1 << 30)
    reader = spool.Reader(str(folder))
    got: list[spool.Line] = []
    marks = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    for number, (begin, end) in enumerate(itertools.pairwise(marks)):
        writer.feed(raw[begin:end])
        if number in reads:
            got += reader.read()
    writer.close()
    got += reader.read(final=True)
    reader.close()
    expected = raw.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert [line.data for line in got] == [
        line if len(line) <= 40 else line[:40] + b" [loopx: %d bytes cut]" % (len(line) - 40) for line in expected
    ]
    assert writer.truncated_lines == sum(len(line) > 40 for line in expected)
    assert writer.raw_bytes == len(raw)
    assert got == lines_of(folder)
    for line in got:
        assert lines_of(folder, line.offset)[0].data == line.data
    assert [line.offset for line in got[1:]] == [line.end for line in got[:-1]]


def test_reading_from_a_dropped_byte_starts_at_the_next_kept_one(tmp_path: Path) -> None:
    writer = stream(tmp_path)
    for number in range(200):
        writer.feed(b"line %03d\n" % number)
    writer.close()
    found = lines_of(tmp_path, 9 * 50)
    assert found[0].lost > 0
    assert found[-1].data == b"line 199"
    assert lines_of(tmp_path, 9 * 200) == []


def test_a_second_keeper_goes_on_in_the_middle_of_a_line(tmp_path: Path) -> None:
    first = stream(tmp_path)
    first.feed(b"a" * 95 + b"\n" + b"b" * 30)
    second = stream(tmp_path)
    second.resume()
    second.feed(b"b" * 30 + b"\nc\n")
    second.close()
    assert [line.data for line in lines_of(tmp_path)] == [
        b"a" * 40 + b" [loopx: 55 bytes cut]", b"b" * 40 + b" [loopx: 20 bytes cut]", b"c",
    ]  # fmt: skip


def test_a_disk_that_refuses_is_counted_and_marked(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    writer = stream(folder)
    writer.feed(b"lost\n")
    assert (writer.failed, writer.dropped_bytes) == (True, 5)
    folder.mkdir()
    writer.feed(b"kept\n")
    writer.close()
    assert [line.data for line in lines_of(folder)] == [b" [loopx: output lost]", b"kept"]


def test_tail_crosses_files(tmp_path: Path) -> None:
    writer = stream(tmp_path)
    for number in range(30):
        writer.feed(b"line %03d\n" % number)
    writer.close()
    assert len(keeper_records.segments(str(tmp_path), "stdout")) > 1
    whole = b"".join(b"line %03d\n" % number for number in range(30))
    for size in (0, 1, 9, 100, 150, len(whole), len(whole) + 1):
        assert spool.tail(str(tmp_path), "stdout", size) == whole[max(0, len(whole) - size) :]
    assert spool.tail(str(tmp_path / "missing"), "stderr", 10) == b""


def test_prune_keeps_the_records(run: kit.Run, tmp_path: Path) -> None:
    go = tmp_path / "go"
    kept = run.start(kit.shell(f"echo 12345; until [ -e {go} ]; do sleep 0.01; done"))
    with pytest.raises(errors.ConflictError) as refused:
        spool.prune(run.spool_dir)
    assert refused.value.code == "run_not_ended"
    go.touch()
    record = run.follow(kept)
    assert spool.prune(run.spool_dir) == 6
    assert lines_of(run.folder) == []
    assert runfiles.exit_record(run.spool_dir) == record
    assert spool.prune(run.spool_dir) == 0


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=20,
    )
)
def test_the_keepers_json_is_json(value: object) -> None:
    assert json.loads(keeper_records.encode(value)) == value  # type: ignore[arg-type]  # The strategy is Json.


def test_the_exit_record_fits_into_the_space_set_aside(run: kit.Run) -> None:
    run.complete(kit.shell("true"))
    assert (run.folder / "exit.json").stat().st_size < keeper_records.RESERVE_BYTES
    assert not (run.folder / keeper_records.RESERVE).exists()


def test_nothing_of_the_reserve_is_left_in_the_record(tmp_path: Path) -> None:
    keeper_records.reserve(str(tmp_path))
    assert os.stat(tmp_path / keeper_records.RESERVE).st_size == keeper_records.RESERVE_BYTES
    keeper_records.write_exit(str(tmp_path), b"{}")
    assert (tmp_path / "exit.json").read_bytes() == b"{}"
