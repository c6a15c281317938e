"""Ctrl-C while the command is still loading its modules: cancelled like any other, without a traceback."""

from __future__ import annotations

import subprocess
import sys

_INTERRUPTED = """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "loopx.cli_commands.base":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from loopx.cli import main
sys.exit(main(["status"]))
"""


def test_ctrl_c_while_loading_is_a_cancel() -> None:
    ran = subprocess.run([sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=60)

    assert (ran.returncode, ran.stderr) == (130, "")
