"""The real agent CLIs, at pinned versions, installed once from npm into a cache folder outside the repository. It never
touches a CLI that the person has installed, nor the person's home folder beyond that cache.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

PACKAGES = {
    "codex": ("@openai/codex", "0.171.0"),
    "claude": ("@anthropic-ai/claude-code", "2.1.197"),
    "opencode": ("opencode-ai", "1.18.33"),
    "gemini": ("@google/gemini-cli", "0.61.0"),
}


def cache() -> Path:
    """LOOPX_TEST_NPM_DIR, or a folder in the person's cache."""
    return Path(os.environ.get("LOOPX_TEST_NPM_DIR") or Path.home() / ".cache" / "loopx-tests" / "npm")


def program(engine: str) -> str:
    """The path of a CLI's program, installed first if need be; the test is skipped where there is no npm."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("node and npm are needed to install the real agent CLIs")
    folder = cache() / engine
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _installed(folder, engine):
            _install(folder, engine)
    return str(folder / "node_modules" / ".bin" / engine)


def _installed(folder: Path, engine: str) -> bool:
    package, version = PACKAGES[engine]
    manifest = folder / "node_modules" / package / "package.json"
    return (folder / ".complete").exists() and manifest.exists() and f'"version": "{version}"' in manifest.read_text()


def _install(folder: Path, engine: str) -> None:
    package, version = PACKAGES[engine]
    command = ["npm", "install", "--no-save", "--no-audit", "--no-fund", "--prefix", str(folder)]
    done = subprocess.run([*command, f"{package}@{version}"], capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        pytest.skip(f"npm could not install {package}@{version}: {done.stderr[-500:]}")
    (folder / ".complete").touch()
