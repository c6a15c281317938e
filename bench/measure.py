"""Measuring whole processes and loops: several runs, the operating system's own accounting, medians."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The median cost of one process over its runs. `cpu_ms` is user and system together."""

    wall_ms: float
    cpu_ms: float
    peak_mib: float
    exit_code: int
    runs: int


def process(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, runs: int = 7, warmup: int = 1) -> Cost:
    """Run a command several times and take the medians of what the kernel says each one cost."""
    samples = [_once(argv, env, cwd) for _ in range(runs + warmup)][warmup:]
    return Cost(
        wall_ms=statistics.median(sample[0] for sample in samples),
        cpu_ms=statistics.median(sample[1] for sample in samples),
        peak_mib=statistics.median(sample[2] for sample in samples),
        exit_code=samples[-1][3],
        runs=runs,
    )


def _once(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> tuple[float, float, float, int]:
    started = time.perf_counter()
    child = subprocess.Popen(
        argv, env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    wall = (time.perf_counter() - started) * 1000
    return wall, (usage.ru_utime + usage.ru_stime) * 1000, usage.ru_maxrss / 1024, child.returncode


def folder_mib(folder: Path) -> float:
    """The size of all regular files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) / 2**20
