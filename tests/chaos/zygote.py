"""A process that has imported LoopX and forks one child per order: a fresh LoopX in two milliseconds.

It opens no store and starts no thread itself, so each child is as clean as a new process. It answers on standard
output, one JSON line per order; whoever starts it ends it by closing its standard input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import Any

from tests.chaos import child


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        if "wait" in order:
            _, status, usage = os.wait4(order["wait"], 0)
            print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_maxrss]), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            _become(order)
        print(json.dumps(pid), flush=True)


def _become(order: dict[str, Any]) -> None:
    """In the child; never returns."""
    code = 99
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os.setpgid(0, 0)
        code = child.main(order)
    except BaseException:  # noqa: BLE001  (the child of a fork must never run its parent's code)
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
