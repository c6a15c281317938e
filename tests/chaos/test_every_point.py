"""LoopX is ended at every point at which it touches the store, a file or a process, and started again.

The points are counted by instrumentation (`loopx.testing.faults`) while a goal runs undisturbed: its baseline, a turn
that makes progress, a turn that is refused and whose file goes back, and a turn that completes the goal. For each
point and each side of it, one LoopX dies there (`os._exit`) and another goes on. Whatever the point: one writeback and
one spend per turn, every agent started once, and a final state that is equal to the undisturbed run's.
"""

from __future__ import annotations

import collections
import random
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopx.testing import Act, Sandbox, faults, find_leaks
from tests.chaos import child, kit, picture

FEWEST = 700
"""The number of points may not shrink unseen: something would no longer be counted."""
SLICE = 12
TORN_SLICE = 3
PARTS = 12

FILES = {"n.txt": "0\n", "check.sh": "grep -q 2 n.txt\n", ".gitignore": "*.log\n"}
ACTS = (
    Act(write={"n.txt": "1\n"}, say="the first half"),
    Act(write={"check.sh": "true\n"}, claim="completion"),
    Act(write={"n.txt": "2\n"}, claim="completion"),
)
CHECKS = ("grep -q -e 1 -e 2 n.txt", "sh check.sh")


def stage(folder: Path) -> str:
    """A goal that has not run yet; its id."""
    with Sandbox(str(folder), files=FILES) as sandbox:
        return sandbox.goal(*ACTS, checks=CHECKS).goal_id


class Undisturbed:
    """What the goal leaves behind, and the points that it passes, when nobody dies."""

    def __init__(self, zygote: kit.Zygote, folder: Path) -> None:
        self.goal_id = stage(folder)
        points = folder / "points"
        assert zygote.run(folder=str(folder), goal_id=self.goal_id, points=str(points)) == 0
        self.labels = points.read_text().splitlines()
        self.picture = picture.of(folder, self.goal_id)


@pytest.fixture(scope="module")
def zygote() -> Iterator[kit.Zygote]:
    with kit.Zygote() as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(zygote: kit.Zygote, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(zygote, tmp_path_factory.mktemp("undisturbed"))


def die_at_each(zygote: kit.Zygote, folder: Path, wanted: Undisturbed, deaths: list[tuple[int, str]]) -> None:
    """Die at each of the points; every failure is told, not only the first."""
    failures: list[str] = []
    for point, side in deaths:
        try:
            die_at(zygote, folder / f"{point}-{side}", wanted, point, side)
        except AssertionError as error:
            failures.append(str(error))
    assert not failures, "\n\n".join([f"{len(failures)} of {len(deaths)} deaths:", *failures])


def die_at(zygote: kit.Zygote, folder: Path, wanted: Undisturbed, point: int, side: str) -> None:
    """One death, one new start, one comparison."""
    folder.mkdir(parents=True)
    goal_id = stage(folder)
    where = f"{side} point {point} ({wanted.labels[point - 1]})"
    order: dict[str, Any] = {"folder": str(folder), "goal_id": goal_id}
    died = zygote.run(**order, points=str(folder / "points"), point=point, side=side)
    assert died in (child.DIED, -signal.SIGKILL), f"{where}: {died}"
    before = phases_with_result(folder)
    started = starts(folder)
    code = zygote.run(**order)
    found = picture.of(folder, goal_id)
    errors = (folder / "error.txt").read_text() if (folder / "error.txt").exists() else ""
    # Who dies behind the closeout leaves nothing to do: the next run is told so.
    assert code == 0 or errors.startswith("goal_closed"), f"{where}: {code} {errors}"
    assert found == wanted.picture, where
    assert find_leaks(picture.database_of(folder)) == (), where
    after = starts(folder)
    assert list(after.values()) == [1, 1, 1], f"{where}: {after}"
    for turn in before:
        assert after[turn] == started[turn], f"{where}: the host of {turn} ran again after its result was typed"
    shutil.rmtree(folder)


def phases_with_result(folder: Path) -> list[str]:
    """The turns whose result was typed when the first LoopX died."""
    database = picture.database_of(folder)
    return [row["turn_key"] for row in kit.all_of(database, "SELECT turn_key FROM turns WHERE completed >= 2")]


def starts(folder: Path) -> dict[str, int]:
    log = folder / "agent" / "started"
    return dict(collections.Counter(log.read_text().split())) if log.exists() else {}


def test_the_points_are_counted_and_do_not_shrink(undisturbed: Undisturbed, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = collections.Counter(label.split()[0] for label in undisturbed.labels)
    with capsys.disabled():
        print(f"\n{len(undisturbed.labels)} points in three turns: {dict(kinds)}")
    assert len(undisturbed.labels) >= FEWEST
    assert set(kinds) == {"store", "file", "process"}
    labels = set(undisturbed.labels)
    for needed in (
        "store BEGIN IMMEDIATE",
        "store COMMIT",
        "process git commit-tree",
        "process git update-ref",
        # A check, under the reaper that ends what it leaves behind.
        f"process {Path(sys.executable).name}",
        "file replace launch.json.#.tmp",
    ):
        assert needed in labels, needed
    assert any(label.startswith("process posix_spawn") for label in labels), "the keeper's start is a point"


def test_the_undisturbed_run_is_as_it_should_be(undisturbed: Undisturbed) -> None:
    found = undisturbed.picture
    assert [turn["result_kind"] for turn in found["turns"]] == [
        "validated_progress",
        "validation_failed",
        "validated_completion",
    ]
    assert [entry[:3] for entry in found["ledger"]] == [(1, "spend", 1), (2, "spend", 1)]
    assert found["goal"][0]["state"] == "completed"
    assert found["files"]["check.sh"] == FILES["check.sh"]


def test_dying_at_some_points(zygote: kit.Zygote, undisturbed: Undisturbed, tmp_path: Path) -> None:
    """A slice of the whole matrix below, another one each time; the printed seed replays it."""
    seed = kit.seed()
    print(f"{kit.SEED_VARIABLE}={seed}")
    rng = random.Random(seed)
    chosen = rng.sample(range(1, len(undisturbed.labels) + 1), SLICE)
    deaths = [(point, rng.choice((faults.BEFORE, faults.AFTER))) for point in chosen]
    die_at_each(zygote, tmp_path, undisturbed, deaths)


def torn(undisturbed: Undisturbed) -> list[tuple[int, str]]:
    """Every start of a git that writes: it is killed in the middle, together with the LoopX that started it."""
    writing = ("update-ref", "commit-tree", "write-tree", "update-index", "pack-objects", "unpack-objects", "read-tree")
    return [
        (number, faults.WITH_CHILDREN)
        for number, label in enumerate(undisturbed.labels, start=1)
        if label.startswith("process git") and label.endswith(writing)
    ]


def test_killing_some_writing_gits_together_with_loopx(
    zygote: kit.Zygote, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    seed = kit.seed()
    print(f"{kit.SEED_VARIABLE}={seed}")
    die_at_each(zygote, tmp_path, undisturbed, random.Random(seed).sample(torn(undisturbed), TORN_SLICE))


@pytest.mark.chaos
@pytest.mark.timeout(7200)
def test_killing_every_writing_git_together_with_loopx(
    zygote: kit.Zygote, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    for round_ in range(3):
        die_at_each(zygote, tmp_path / str(round_), undisturbed, torn(undisturbed))


@pytest.mark.chaos
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("side", [faults.BEFORE, faults.AFTER])
@pytest.mark.parametrize("part", range(PARTS))
def test_dying_at_every_point(
    zygote: kit.Zygote, undisturbed: Undisturbed, tmp_path: Path, part: int, side: str
) -> None:
    points = range(1 + part, len(undisturbed.labels) + 1, PARTS)
    die_at_each(zygote, tmp_path, undisturbed, [(point, side) for point in points])
