"""A goal with a turn open and capabilities declared before its start: what tests of capabilities work with."""

from __future__ import annotations

import json
import os
from typing import Any

from loopx.control_plane.quota import decision as decisions
from loopx.runtime import capabilities
from loopx.runtime.capability_run import RunState, run_granted
from loopx.runtime.session import Session
from loopx.store import capabilities as intents
from loopx.store import facts, gates
from tests.e2e import services_kit as kit

ASK = '[capabilities.deploy]\nargv = ["sh", "-c", "echo ran >> LOG"]\n'
GRANT = ASK + 'policy = "grant"\n'


class Desk:
    """A goal with a turn open, capabilities declared before its start, and what a person and LoopX do about them."""

    def __init__(self, world: kit.World, session: Session, declared: str) -> None:
        self.world = world
        self.session = session
        self.store = session.store
        self.log = world.folder / "log"
        world.write("loopx.toml", declared.replace("LOG", str(self.log)))
        world.commit("declare")
        self.goal = kit.goal(session)
        kit.take_baseline(session, self.goal.goal_id)
        self.turn = kit.open_turn(session, self.goal.goal_id)
        self.env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}

    def ask(self, name: str = "deploy", **values: str) -> capabilities.Requested:
        return capabilities.request(self.store, self.session.project, self.turn, name, values)

    def run(self) -> RunState:
        return run_granted(self.store, self.session.project, self.goal.goal_id, self.env)

    def answer(self, gate_id: str | None, text: str) -> None:
        assert gate_id is not None
        with self.store.write() as tx:
            gates.answer(tx, gates.get(tx, gate_id), text, "ada", self.store.now_ms())

    def intent(self) -> intents.Intent:
        with self.store.read() as tx:
            return intents.latest(tx, self.goal.goal_id, 1)[0]

    def receipt(self) -> dict[str, Any]:
        found = self.intent().receipt
        assert found is not None
        return json.loads(bytes(found))

    def decision(self) -> decisions.QuotaDecision:
        with self.store.read() as tx:
            return decisions.decide(facts.read(tx, self.goal.goal_id, kit.AGENT, self.store.now_ms()))

    def runs(self) -> int:
        """How often the command really ran: each run adds a line."""
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0
