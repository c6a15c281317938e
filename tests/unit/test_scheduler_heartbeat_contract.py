from __future__ import annotations

import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).parents[2] / "regression" / "automation-loop-heartbeat-poll-contract.py"


def test_the_heartbeat_poll_contract_runs_and_holds() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok ") == 5
