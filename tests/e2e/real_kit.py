"""A goal worked on by a real agent CLI whose every model answer is scripted: the rig's home and program, a project of
its own, and the goal runner over it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from loopx.contracts.model import Contract
from loopx.contracts.parse import parse_command_line
from loopx.control_plane.goal import Goal, GoalDefinition
from loopx.control_plane.ids import AgentId
from loopx.control_plane.quota.policy import BudgetUnit
from loopx.runtime import goal_service
from loopx.runtime.goal_runner import GoalRunner, RunOptions, StopSignal
from loopx.runtime.progress import ProgressEvent, RunEnded, TurnEnded
from loopx.runtime.session import Session, open_session
from loopx.store import gates, hosts, turns
from loopx.workspace.identity import repository_key
from tests.hosts.harness import MODELS, Rig, rig
from tests.hosts.modelserver import ModelServer, serving
from tests.hosts.script import Step

CHECK = "grep -q done one.txt && grep -q done two.txt"


class RealGoal:
    """One rig with a git project in its work tree."""

    def __init__(self, bench: Rig) -> None:
        self.rig = bench
        self.server = bench.server
        self.root = bench.work
        self.state = bench.root / "state"
        (self.root / "one.txt").write_text("open\n")
        (self.root / "two.txt").write_text("open\n")
        for words in (
            ("init", "-q", "-b", "main"),
            ("add", "-A"),
            ("-c", "user.name=T", "-c", "user.email=t@localhost", "commit", "-q", "-m", "start"),
        ):
            subprocess.run(
                ["git", *words], cwd=self.root, check=True, env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
            )
        self.env = dict(bench.env)
        self.env["LOOPX_STATE_DIR"] = str(self.state)
        own = [str(Path(bench.program).parent), str(Path(sys.executable).parent)]
        self.env["PATH"] = os.pathsep.join([*own, self.env["PATH"]])
        self.events: list[ProgressEvent] = []
        os.environ["LOOPX_STATE_DIR"] = str(self.state)
        self.session: Session = open_session(str(self.root), create=True)

    def goal(self, **fields: Any) -> Goal:
        definition = GoalDefinition(
            objective="write done into both files",
            contract=goal_service.encode_contract(Contract(checks=parse_command_line((CHECK,)))),
            engines=(self.rig.engine,),
            model=MODELS[self.rig.engine],
        )
        definition = msgspec.structs.replace(definition, **fields)
        return goal_service.create(
            self.session.store, self.session.project, definition, repository_key(self.root), goal_id="real"
        )

    def script(self, *steps: Step) -> None:
        """What the model says from now on."""
        self.server.extend(steps)

    def run(self, *, wait: bool = False, **options: Any) -> RunEnded:
        return GoalRunner(
            self.session.store,
            self.session.project,
            "real",
            AgentId("loopx"),
            self.events.append,
            self.env,
            RunOptions(max_turns=options.pop("max_turns", 6), wait=wait, **options),
            StopSignal(),
            self.session.clock,
        ).run()

    @property
    def turns(self) -> list[TurnEnded]:
        return [event for event in self.events if isinstance(event, TurnEnded)]

    @property
    def kinds(self) -> list[str]:
        return [turn.result_kind for turn in self.turns]

    def host_runs(self) -> list[hosts.HostRun]:
        """Every launch of the goal, in order."""
        with self.session.store.read() as tx:
            found = turns.page(tx, "real")
            return [run for turn in reversed(found) for run in hosts.of_turn(tx, turn.turn_key)]

    def gate_kinds(self) -> list[str]:
        with self.session.store.read() as tx:
            return [str(gate.kind) for gate in gates.open_gates(tx, "real")]

    def metered(self, unit: BudgetUnit) -> int | None:
        """What the goal's books say it has used."""
        with self.session.store.read() as tx:
            row = tx.one("meters.total", goal_id="real", unit=unit)
        return None if row is None else int(row["cumulative"])

    def assert_books_equal_the_server(self) -> None:
        """Tokens, to the token, in the meters and in the rows of the runs."""
        total = self.server.totals()
        assert self.metered(BudgetUnit.INPUT_TOKENS) == total.input
        assert self.metered(BudgetUnit.OUTPUT_TOKENS) == total.output
        assert self.metered(BudgetUnit.CACHED_TOKENS) == total.cached
        assert self.metered(BudgetUnit.TOKENS) == total.input + total.output
        runs = self.host_runs()
        assert sum(run.usage.input_tokens or 0 for run in runs) == total.input
        assert sum(run.usage.output_tokens or 0 for run in runs) == total.output

    def command(self, *words: str) -> subprocess.Popen[str]:
        """`loopx WORDS --json` as a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "loopx", *words, "--json"],
            cwd=self.root,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def loopx(self, *words: str) -> tuple[int, list[dict[str, Any]]]:
        """The same, to its end: exit status and JSON lines."""
        process = self.command(*words)
        out, err = process.communicate(timeout=240)
        lines = [json.loads(line) for line in out.splitlines() if line.strip()]
        assert lines, err
        return process.returncode, lines


@contextlib.contextmanager
def real_goal(engine: str, *steps: Step) -> Iterator[RealGoal]:
    """A real CLI with a project to work on, until the block ends."""
    server: ModelServer
    with serving(*steps) as server, rig(engine, server) as bench:
        goal = RealGoal(bench)
        try:
            yield goal
        finally:
            goal.session.close()
