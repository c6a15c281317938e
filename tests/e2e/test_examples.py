"""The examples run as they stand, in a folder of their own, and end as they promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def _environment(home: Path) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("LOOPX_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    return {**env, "HOME": str(home), "LOOPX_STATE_DIR": str(home / "state"), "PATH": path}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_it_runs_and_ends_with_0(example: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(example)],
        cwd=tmp_path,
        env=_environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
