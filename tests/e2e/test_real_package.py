"""The main job on real input: the `parse` package from PyPI with a historic kind of bug (12-hour clocks), repaired by
the real Codex CLI, whose every answer is scripted: one honest step, one false "done", one finish.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts import npm
from tests.hosts.harness import Rig, rig
from tests.hosts.modelserver import serving
from tests.hosts.script import Say, Shell, Tokens

PACKAGE = "parse==1.20.2"
_MIDNIGHT = ('if am == "AM" and H == 12:', 'if am == "AM" and H == 0:')
_MIDDAY = ('elif am == "PM" and H == 12:', 'elif am == "PM" and H == 13:')


def _source(into: Path) -> Path:
    """The package's source distribution, downloaded once and unpacked fresh."""
    cache = npm.cache().parent / "sdist"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(cache.glob("parse-*.tar.gz")):
            words = ["download", "-q", "--no-deps", "--no-binary", ":all:", PACKAGE, "-d", str(cache)]
            subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=240)
    archive = next(cache.glob("parse-*.tar.gz"))
    with tarfile.open(archive) as tar:
        tar.extractall(into, filter="data")
    return next(into.glob("parse-*"))


def _replace(path: Path, pair: tuple[str, str]) -> None:
    text = path.read_text()
    assert text.count(pair[0]) == 1
    path.write_text(text.replace(*pair))


def _git(root: Path, *words: str) -> str:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True, env=env)
    return done.stdout.strip()


@contextlib.contextmanager
def _broken_package(bench: Rig) -> Iterator[Path]:
    source = _source(bench.root / "unpacked")
    shutil.copytree(source, bench.work, dirs_exist_ok=True)
    _replace(bench.work / "parse.py", _MIDNIGHT)
    _replace(bench.work / "parse.py", _MIDDAY)
    _git(bench.work, "init", "-q", "-b", "main")
    _git(bench.work, "add", "-A")
    _git(bench.work, "-c", "user.name=T", "-c", "user.email=t@localhost", "commit", "-q", "-m", "start")
    yield bench.work


def _loopx(bench: Rig, *words: str) -> tuple[int, list[dict[str, Any]]]:
    env = dict(bench.env)
    env["LOOPX_STATE_DIR"] = str(bench.root / "state")
    env["PATH"] = os.pathsep.join([str(Path(bench.program).parent), str(Path(sys.executable).parent), env["PATH"]])
    done = subprocess.run(
        [sys.executable, "-m", "loopx", *words, "--json"],
        cwd=bench.work,
        env=env,
        capture_output=True,
        text=True,
        timeout=280,
        stdin=subprocess.DEVNULL,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.strip()]
    assert lines, done.stderr
    return done.returncode, lines


def _fix(pair: tuple[str, str]) -> str:
    wrong, right = pair[1], pair[0]
    return f"sed -i 's/{wrong}/{right}/' parse.py"


@pytest.mark.timeout(600)
def test_codex_repairs_a_real_package_and_its_false_done_is_refused() -> None:
    tokens = Tokens(input=1000, cached=200, output=50, reasoning=10)
    steps = (
        Shell(command=_fix(_MIDDAY), tokens=tokens),
        Say(text="Noon is right now.", tokens=tokens),
        Say(text="All tests pass. The work is complete.", tokens=tokens),
        Shell(command=_fix(_MIDNIGHT), tokens=tokens),
        Say(text="Midnight is right too.", tokens=tokens),
    )
    with serving(*steps) as server, rig("codex", server) as bench, _broken_package(bench) as work:
        check = f"{sys.executable} -m pytest -q -p no:cacheprovider tests/test_bugs.py tests/test_parse.py"
        code, lines = _loopx(
            bench,
            "run",
            "make 12-hour times right at noon and midnight",
            "--check",
            check,
            "--engine",
            "codex",
            "--model",
            "mock-model",
            "--permission",
            "bypass",  # the container has no kernel sandbox that Codex could use
            "--goal-id",
            "twelve",
        )
        result = lines[-1]
        assert code == 0, lines[-3:]
        assert result["type"] == "result"
        assert result["disposition"] == "terminal"
        assert result["result_kind"] == "validated_completion"
        assert result["spent_slots"] == 2

        turns = [line for line in lines if line["type"] == "turn"]
        assert [turn["result_kind"] for turn in turns] == [
            "validated_progress",
            "validation_failed",
            "validated_completion",
        ]
        assert [turn["slots"] for turn in turns] == [1, 0, 1]
        assert turns[2]["confirmed_in_snapshot"]

        _, [ledger] = _loopx(bench, "quota", "ledger", "twelve")
        spends = sorted(ledger["entries"], key=lambda entry: entry["run_index"])
        assert [entry["turn_key"] for entry in spends] == [turns[0]["turn_key"], turns[2]["turn_key"]]
        _, [journal] = _loopx(bench, "turn", "journal", turns[2]["turn_key"])
        assert [phase["phase"] for phase in journal["phases"]][-1] == "scheduler_ack"
        _, [evidence] = _loopx(bench, "evidence", "list", "twelve")
        verified = [one for one in evidence["evidence"] if one["produced"] == "verified" and one["kind"] == "check"]
        assert any(one["verdict"] == "green" and one["turn_key"] == turns[2]["turn_key"] for one in verified)
        assert all(one["verdict"] != "green" for one in verified if one["turn_key"] == turns[1]["turn_key"])

        total = server.totals()
        assert sum(turn["tokens"] or 0 for turn in turns) == total.input + total.output
        assert _git(work, "rev-parse", "--abbrev-ref", "HEAD") == "main"
        trailers = _git(work, "log", "--format=%(trailers:key=LoopX-Turn,valueonly)", "loopx/twelve")
        assert turns[0]["turn_key"] in trailers and turns[2]["turn_key"] in trailers
        assert _MIDNIGHT[0] in (work / "parse.py").read_text()
