"""The board over loopback, of a running `loopx serve`: a small store against one with 1,000 goals and 100,000 turns."""

from __future__ import annotations

import http.client
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench import cases
from bench.arms import ROOT, Arm

PAGES: Mapping[str, str] = {
    "the board": "/",
    "a goal's page": "/goals/focus",
}
SMALL = (10, 10, 10, 10)
LARGE = (100_000, 100_000, 1_000, 10)


@contextmanager
def serving(arm: Arm, folder: Path, counts: tuple[int, ...]) -> Iterator[tuple[int, str]]:
    """The port and the token of a server over a filled store."""
    env, root = cases.filled(arm, folder, counts)
    # The page needs an extra that the bare installation lacks: it is served from this checkout, with its own Python.
    words = [sys.executable, "-m", "loopx", "serve", "--port", "0"]
    server = subprocess.Popen(
        words,
        cwd=root,
        env={**env, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        address, _, token = line.strip().partition("token=")
        yield int(address.partition("127.0.0.1:")[2].partition("/")[0]), token.split()[0]
    finally:
        server.terminate()
        server.wait(timeout=30)


def get(port: int, token: str, path: str) -> float:
    """Milliseconds from the request to the last byte of a page."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    started = time.perf_counter()
    line.request("GET", path, headers={"Authorization": f"Bearer {token}", "Accept": "text/html"})
    answer = line.getresponse()
    body = answer.read()
    took = (time.perf_counter() - started) * 1000
    line.close()
    if answer.status != 200:
        raise RuntimeError(f"{path} answered {answer.status}: {body[:200]!r}")
    return took


def rows(arm: Arm, folder: Path, count: int) -> list[cases.Row]:
    """Each page on both stores in alternation: the medians, and how they grow."""
    found = [cases.Row(case="large store", value="{:,} ledger rows, {:,} turns, {:,} goals, {:,} todos".format(*LARGE))]
    with serving(arm, folder / "small", SMALL) as small, serving(arm, folder / "large", LARGE) as large:
        for name, path in PAGES.items():
            get(*small, path)
            get(*large, path)
            pairs = [(get(*small, path), get(*large, path)) for _ in range(count)]
            few, many = (statistics.median(times) for times in zip(*pairs, strict=True))
            ratio = statistics.median(after / before for before, after in pairs)
            found.append(
                cases.Row(
                    case=f"{name}, large against small, wall",
                    value=f"{ratio:.2f} ({many:.1f} against {few:.1f} ms)",
                    bar="at most 1.25",
                    ok=ratio <= 1.25,
                )
            )
    return found
