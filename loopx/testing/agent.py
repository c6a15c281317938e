"""A scripted agent: a real program that plays one act per turn, and leaves a line for each time it was started.

It runs as any other program does (`command:...`), under the keeper, in the work tree, and its claims are believed as
little as any agent's. The act is chosen by the turn and not by the number of starts, so that a turn that is run twice
does the same thing twice, and shows it.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence

import msgspec

_PROGRAM = """
import json, os, signal, subprocess, sys, time
HERE = {folder!r}
ACTS = json.loads({acts!r})
turn = os.environ["LOOPX_TURN_KEY"]
sys.stdin.read()
with open(os.path.join(HERE, "started"), "a+") as log:
    log.write(turn + "\\n")
    log.flush()
    log.seek(0)
    turns = list(dict.fromkeys(log.read().split()))
act = ACTS[min(turns.index(turn), len(ACTS) - 1)]
if act["ignore_term"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if act["leave_grandchild"]:
    subprocess.Popen(["sleep", "600"], start_new_session=True)
if act["print_bytes"]:
    piece = b"x" * 65536
    for _ in range(act["print_bytes"] // len(piece) + 1):
        os.write(1, piece)
    os.write(1, b"\\n")
if act["say"]:
    print(act["say"], flush=True)
for name in (act["cue"],) if act["cue"] else ():
    open(os.path.join(HERE, name), "w").close()
while act["wait_for"] and not os.path.exists(os.path.join(HERE, act["wait_for"])):
    time.sleep(0.01)
for name, text in act["write"].items():
    if os.path.dirname(name):
        os.makedirs(os.path.dirname(name), exist_ok=True)
    with open(name + ".partial", "w") as file:
        file.write(text)
    os.replace(name + ".partial", name)
if act["claim"]:
    claim = {{"turn_key": turn, "kind": act["claim"], "summary": act["say"] or "done"}}
    with open(os.environ["LOOPX_RESULT_FILE"], "w") as file:
        json.dump(claim, file)
with open(os.path.join(HERE, "finished"), "a") as log:
    log.write(turn + "\\n")
sys.exit(act["exit_code"])
"""


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent does in one turn, in this order.

    `cue` and `wait_for` are names of files in the agent's own folder: the first is made, the second waited for, so
    that a test and an agent can take turns. `write` maps paths in the work tree to their new content. `claim` is the
    kind of a typed result (`completion`, `no_change`, ...).
    """

    say: str = ""
    cue: str = ""
    wait_for: str = ""
    write: Mapping[str, str] = {}
    claim: str = ""
    exit_code: int = 0
    ignore_term: bool = False
    leave_grandchild: bool = False
    print_bytes: int = 0
    """So many bytes in one line."""


class ScriptedAgent:
    """The program and what it left behind. After the last act, that act is played again."""

    def __init__(self, folder: str, acts: Sequence[Act]) -> None:
        self.folder = os.path.abspath(folder)
        os.makedirs(self.folder, exist_ok=True)
        self.program = os.path.join(self.folder, "agent.py")
        text = _PROGRAM.format(folder=self.folder, acts=msgspec.json.encode(list(acts) or [Act()]).decode())
        with open(self.program, "w", encoding="utf-8") as file:
            file.write(text)

    @property
    def engine(self) -> str:
        """The engine word under which LoopX runs it."""
        return f"command:{shlex.quote(sys.executable)} -I -S {shlex.quote(self.program)}"

    @property
    def started(self) -> tuple[str, ...]:
        """The turn of each start, in order."""
        return self._turns("started")

    @property
    def finished(self) -> tuple[str, ...]:
        """The turn of each act that was played to its end."""
        return self._turns("finished")

    def has_cued(self, name: str) -> bool:
        """Whether the act has made the file of this name."""
        return os.path.exists(os.path.join(self.folder, name))

    def cue(self, name: str) -> None:
        """Make the file that an act waits for."""
        with open(os.path.join(self.folder, name), "w", encoding="utf-8"):
            pass

    def _turns(self, name: str) -> tuple[str, ...]:
        try:
            with open(os.path.join(self.folder, name), encoding="utf-8") as file:
                return tuple(file.read().split())
        except FileNotFoundError:
            return ()
