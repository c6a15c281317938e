"""One racer: a process that does the same as seven others at the same instant, and notes what it got."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loopx.control_plane.errors import LoopXError
from loopx.control_plane.ids import AgentId, GoalId, TurnKey
from loopx.control_plane.turn_driver.driver import LoopXTurnRoute
from loopx.control_plane.turn_driver.journal import TurnPurpose
from loopx.runtime import todo_service
from loopx.store import goals, ledger, turns
from loopx.store.store import Store
from loopx.testing import Sandbox


def main(order: dict[str, Any]) -> int:
    meet, racer = Path(order["meet"]), int(order["racer"])
    answers: list[str] = []
    with Sandbox(order["folder"]) as sandbox:
        act = RACES[order["race"]]
        for number in range(order["rounds"]):
            (meet / f"ready-{number}-{racer}").touch()
            while not (meet / f"go-{number}").exists():
                time.sleep(0.0005)
            try:
                answers.append(act(sandbox.store, order["goal_id"], number, racer))
            except LoopXError as error:
                answers.append(error.code)
    (meet / f"answers-{racer}").write_text(json.dumps(answers))
    return 0


def _claim(store: Store, goal_id: str, number: int, racer: int) -> str:
    todo_service.claim(store, goal_id, f"td-{number}", AgentId(f"racer-{racer}"))
    return "claimed"


def _spend(store: Store, goal_id: str, effect: str, index: int | None) -> str:
    with store.write() as tx:
        done = ledger.spend(tx, goal_id, effect, 1, store.now_ms(), expected_index=index)
    return "replayed" if done.replayed else "spent"


def _start_turn(store: Store, goal_id: str, number: int, racer: int) -> str:
    """Each round is one agent, of which eight processes were started by mistake."""
    agent = AgentId(f"agent-{number}")
    with store.read() as tx:
        revision = goals.row_of(tx, goal_id)["revision"]
    request = turns.StartTurn(
        turn_key=TurnKey(f"t-{number}-{racer}"),
        goal_id=GoalId(goal_id),
        agent_id=agent,
        owner=f"racer-{racer}",
        revision=revision,
        purpose=TurnPurpose.REPLAN,
        route=LoopXTurnRoute.REPLAN_REQUIRED,
        engine="command:true",
        todo_id=None,
        new_todo=None,
        predecessor=None,
        tree_before=None,
        envelope="{}",
        decision="{}",
        token_hash=None,
    )
    with store.write() as tx:
        journal, _ = turns.start(tx, request, store.now_ms())
    return journal.turn.turn_key


RACES: dict[str, Callable[[Store, str, int, int], str]] = {
    "claim": _claim,
    "spend_same": lambda store, goal, number, racer: _spend(store, goal, f"effect-{number}", None),
    "spend_at_index": lambda store, goal, number, racer: _spend(store, goal, f"effect-{number}-{racer}", number),
    "spend_each": lambda store, goal, number, racer: _spend(store, goal, f"effect-{number}-{racer}", None),
    "start_turn": _start_turn,
}
