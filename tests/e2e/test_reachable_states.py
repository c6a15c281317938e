"""Walks through the states that commands can reach: in each, every surface agrees and the next command is accepted.

A walk is drawn from a seed: people's commands in any order, some of them refused, on a real store. After each, the goal
is asked what it says of itself, and its next command is run exactly as it is printed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.desk import CHECK, PYTHON, Desk

IDLE = "import sys; sys.stdin.read(); print('nothing done')"
RUNS = frozenset({"run_now", "repair", "replan", "capability_action_required"})
REFUSED = frozenset({1, 2, 3, 4, 13, 15})
FAR = "2d"


class Walk:
    """One goal, and a person who does anything."""

    def __init__(self, desk: Desk, seed: int, engine: str, check: str) -> None:
        self.desk = desk
        self.draw = random.Random(seed)
        desk.goal(engine=engine, check=check, allowed=self.draw.choice([None, 1, 2]))
        self.trace: list[str] = []
        self.seen: set[str] = set()

    def say(self, *words: str) -> int:
        self.trace.append(" ".join(words))
        return self.desk.loopx(*words).code

    def todo(self) -> str:
        todos = self.desk.json("todo", "list", "goal")["todos"]
        return str(self.draw.choice(todos)["todo_id"]) if todos else "none"

    def gate(self) -> str:
        gates = self.desk.json("gate", "list", "goal")["gates"]
        return str(self.draw.choice(gates)["gate_id"]) if gates else "none"

    def entry(self) -> str:
        entries = self.desk.json("quota", "ledger", "goal")["entries"]
        return str(self.draw.choice(entries)["run_index"]) if entries else "1"

    def acts(self) -> list[Callable[[], object]]:
        say = self.say
        return [
            lambda: say("goal", self.draw.choice(["pause", "resume", "resume", "stop", "reopen", "close"]), "goal"),
            lambda: say("quota", "raise", "goal", "--compute", self.draw.choice(["0", "1", "1"])),
            lambda: say("quota", "raise", "goal", "--slots", self.draw.choice(["0", "1", "3", "9"])),
            lambda: say("quota", "raise", "goal", "--budget", self.draw.choice(BUDGETS)),
            lambda: say("quota", "cap", self.draw.choice(["launches=1/3h", "launches=50/3h", "unlimited"])),
            lambda: say("quota", "void", "goal", self.entry(), "--reason", "a mistake"),
            lambda: say("todo", "add", "goal", "more work", "--priority", self.draw.choice(["0", "5"])),
            lambda: say("todo", "add", "goal", "watch it", "--monitor", "true", "--every", "3h"),
            lambda: say("todo", "add", "goal", "later", "--wake-at", FAR),
            lambda: say("todo", "block", self.todo(), "--reason", "stuck"),
            lambda: say("todo", "defer", self.todo(), "--wake-at", FAR),
            lambda: say("todo", "supersede", self.todo()),
            lambda: say("todo", "complete", self.todo(), "--note", "by hand"),
            lambda: say("gate", "ask", "goal", f"really {self.draw.random()}?", "--option", "yes", "--option", "no"),
            lambda: say("gate", "ask", "goal", f"this {self.draw.random()}?", "--option", "yes", "--todo", self.todo()),
            lambda: say("gate", "answer", self.gate(), "yes"),
            lambda: say("schedule", "set", "goal", *self.draw.choice([("--every", "1d"), ("--none",)])),
            lambda: say("goal", "edit", "goal", "--check", self.draw.choice([CHECK, "false", "true"])),
            lambda: say("goal", "edit", "goal", "--outcome-floor", "1"),
            lambda: say("turn", "run-once", "goal"),
            lambda: say("turn", "run-once", "goal"),
            lambda: self.merge(),
        ]

    def merge(self) -> None:
        """Leave the work tree in the middle of a merge, or end it."""
        self.trace.append("merge")
        head = Path(self.desk.root, ".git", "MERGE_HEAD")
        if head.exists():
            head.unlink()
        else:
            head.write_text(self.desk.git("rev-parse", "HEAD"))

    def agree(self) -> dict[str, Any]:
        """Ask every surface; the packet that they agree on."""
        packet = self.desk.json("quota", "should-run", "goal")
        names = ("should_run", "state", "effective_action", "rule", "reason")
        answer = [packet[name] for name in names]
        plan = self.desk.json("turn", "plan", "goal")
        surfaces = {
            "status": self.desk.json("status", "goal")["goals"][0],
            "why": self.desk.json("why", "goal"),
            "driver": plan["decision"],
            "quota": self.desk.json("quota", "status", "goal"),
        }
        for name, one in surfaces.items():
            assert [one[field] for field in names] == answer, (name, self.trace)
        went = (packet["rule"], plan["disposition"], plan["route"], plan["reason"], "\n".join(self.trace))
        assert packet["should_run"] == (plan["disposition"] in RUNS), went
        self.seen.add(packet["rule"])
        return dict(packet)

    def obey(self, packet: dict[str, Any]) -> None:
        """Run the next command as printed."""
        words = packet["next_command"]
        assert words[0] == "loopx"
        code = self.say(*words[1:])
        assert code not in REFUSED, (code, packet["rule"], "\n".join(self.trace))


BUDGETS = (
    "turns=1/goal",
    "turns=40/goal",
    "turns=1/1d",
    "tokens=5k/goal",
    "tokens=unlimited/goal",
    "turns=unlimited/1d",
)


@pytest.mark.parametrize("seed", range(8))
def test_in_every_state_of_a_walk_all_agree_and_the_next_command_is_accepted(
    desk: Desk, tmp_path: Path, seed: int
) -> None:
    (tmp_path / "idle.py").write_text(IDLE)
    idle = f"command:{PYTHON} {tmp_path / 'idle.py'}"
    # A run would sleep through a wait that is shorter than its own time.
    (desk.root / "loopx.toml").write_text("minutes = 1\n")
    walk = Walk(desk, seed, desk.engine if seed % 2 else idle, CHECK if seed % 3 else "false")
    walk.obey(walk.agree()) if seed % 2 else walk.agree()
    for step in range(14):
        walk.draw.choice(walk.acts())()
        packet = walk.agree()
        # A run to the end of its road costs seconds: not after each step.
        if packet["next_command"][1] != "run" or step % 7 == 6:
            walk.obey(packet)
            walk.agree()
