"""The programs that are compared, each in an environment of its own. What can not be installed is reported missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("LOOPX_BENCH_DIR", Path.home() / ".cache" / "loopx-bench"))
RIVAL = "loopx==2.1.1"
NODE = "node@22"
DBOS = "dbos"


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One installed program. `problem` says why it is missing."""

    name: str
    python: str = ""
    program: str = ""
    path: str = ""
    version: str = ""
    problem: str = ""


def _pip(folder: Path, *what: str) -> str:
    """Install into a fresh environment, once; what went wrong, or an empty text."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    done = subprocess.run([str(python), "-m", "pip", "install", "-q", *what], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def _version(python: str, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return done.stdout.strip()


def ours() -> Arm:
    """This checkout, installed without extras as a user would have it."""
    folder = CACHE / "ours"
    problem = _pip(folder, "--force-reinstall", "--no-deps", str(ROOT)) or _pip(folder, str(ROOT))
    python = str(folder / "bin" / "python")
    return Arm(
        name="LoopX",
        python=python,
        program=str(folder / "bin" / "loopx"),
        version=_version(python, "loopx-control"),
        problem=problem,
    )


def rival() -> Arm:
    """The rival of the same name from the package index, with the Node that it needs from the npm registry."""
    folder, node = CACHE / "rival", CACHE / "node22"
    problem = _pip(folder, RIVAL)
    if not problem and not (node / "node_modules" / ".bin" / "node").exists():
        node.mkdir(parents=True, exist_ok=True)
        words = ["npm", "install", "--no-save", "--no-audit", "--no-fund", "--prefix", str(node), NODE]
        try:
            done = subprocess.run(words, capture_output=True, text=True)
            problem = "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]
        except FileNotFoundError:
            problem = "npm is not installed"
    return Arm(
        name="rival",
        python=str(folder / "bin" / "python"),
        program=str(folder / "bin" / "loopx"),
        path=str(node / "node_modules" / ".bin"),
        version=RIVAL.partition("==")[2],
        problem=problem,
    )


def dbos() -> Arm:
    """The durable-execution framework, for a seven-step workflow on the same kind of store."""
    folder = CACHE / "dbos"
    problem = _pip(folder, DBOS)
    python = str(folder / "bin" / "python")
    return Arm(name="DBOS", python=python, version=_version(python, "dbos") if not problem else "", problem=problem)
