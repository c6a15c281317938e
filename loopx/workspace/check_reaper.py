"""The process between LoopX and a command on Linux: it adopts every process that the command leaves behind.

Run by path as a program of its own (`python -I -S check_reaper.py FD LOCALE WORDS...`), so it imports nothing of LoopX.
As the subreaper of the command it stays the ancestor of all that the command starts, daemons with a session of their
own included, until they are gone; LoopX finds them below it and ends them. It writes to FD how the command ended, or
why it could not be started, and signals nobody itself.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_SET_DUMPABLE = 4
_SET_CHILD_SUBREAPER = 36
_NOT_STARTED = 127


def main(words: list[str]) -> int:
    """Start the command, report `ended STATUS` or `failed ERRNO`, and stay until no descendant is left."""
    report = int(words[0])
    os.set_inheritable(report, False)
    system = ctypes.CDLL(None)
    system.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Nobody but root may open the report through /proc: the command can't forge how it ended.
    system.prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    child = os.fork()
    if child == 0:
        _become(words[2:], words[1], report)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _let_go(report)
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return 0
        if pid == child and report >= 0:
            os.write(report, b"ended %d" % status)
            os.close(report)
            report = -1


def _let_go(report: int) -> None:
    """Close the command's streams here, so that their end is seen when the command's processes have closed them."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        if stream != report:
            os.dup2(nowhere, stream)


def _become(command: list[str], locale: str, report: int) -> None:
    """`locale` is what LC_CTYPE was after an equals sign, or nothing where it was not set."""
    os.environ.pop("LC_CTYPE", None)
    if locale:
        os.environ["LC_CTYPE"] = locale[1:]
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as failed:
        os.write(report, b"failed %d " % (failed.errno or 0))
    finally:
        os._exit(_NOT_STARTED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
