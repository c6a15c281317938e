"""The example scripts of the delivery vocabulary run as their text says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_delivery_turn_kind_smoke_runs() -> None:
    script = ROOT / "examples" / "delivery-turn-kind-enum-smoke.py"
    done = subprocess.run([sys.executable, str(script)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "unknown" in done.stdout
    assert "BAD" not in done.stdout
