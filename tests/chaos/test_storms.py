"""Storms of kill -9: zero lost, zero doubled. The printed seed replays a storm."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import kit, storm

SLICE = 8
GOALS = 320
PARTS = 16


@pytest.fixture(scope="module")
def zygote() -> Iterator[kit.Zygote]:
    with kit.Zygote() as running:
        yield running


def storms(zygote: kit.Zygote, folder: Path, goals: int, seed: int) -> storm.Tally:
    total = storm.Tally()
    for number in range(goals):
        place = folder / str(number)
        total += storm.weather(zygote, place, seed + number)
        shutil.rmtree(place)
    return total


def test_some_storms(zygote: kit.Zygote, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = kit.seed()
    print(f"{kit.SEED_VARIABLE}={seed}")
    total = storms(zygote, tmp_path, SLICE, seed)
    with capsys.disabled():
        print(f"\n{total.tell()}")
    assert (total["goals"], total["lost"], total["doubled"]) == (SLICE, 0, 0)


@pytest.mark.chaos
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(PARTS))
def test_hundreds_of_storms(zygote: kit.Zygote, tmp_path: Path, part: int, capsys: pytest.CaptureFixture[str]) -> None:
    seed = random.Random(kit.seed() + part).randrange(1 << 40)
    print(f"{kit.SEED_VARIABLE}={seed}")
    total = storms(zygote, tmp_path, GOALS // PARTS, seed)
    with capsys.disabled():
        print(f"\n{total.tell()}")
    assert (total["goals"], total["lost"], total["doubled"]) == (GOALS // PARTS, 0, 0)
    assert total["killed loopx"] > 0
