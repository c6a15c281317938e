"""Replays a goal's events: what became of every todo, gate and capability, told by the audit log alone.

It is the proof that the log is whole: the states that it yields must equal those in the store. It reads no store, knows
no reasons and keeps no order of work; only where each thing stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from loopx.control_plane.work_items.gate import GateStatus
from loopx.control_plane.work_items.todo import ENDED_TODO_STATUSES, TodoStatus

_TODO_STATUSES = frozenset(status.value for status in TodoStatus)


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """One event as the replay reads it."""

    kind: str
    turn_key: str | None
    body: Mapping[str, object]


class States(msgspec.Struct, frozen=True, kw_only=True):
    """Where everything of a goal stands: a status for each id."""

    todos: dict[str, str]
    gates: dict[str, str]
    capabilities: dict[str, str]


def replay(past: Iterable[Past]) -> States:
    """The states after these events, which are all events of one goal in their order; unknown kinds say nothing."""
    fold = _Fold()
    for event in past:
        fold.read(event)
    return States(todos=fold.todos, gates=fold.gates, capabilities=fold.capabilities)


class _Fold:
    def __init__(self) -> None:
        self.todos: dict[str, str] = {}
        self.gates: dict[str, str] = {}
        self.capabilities: dict[str, str] = {}
        self._turns: dict[str, tuple[str, object]] = {}
        """The todo and the agent of each turn."""
        self._claims: dict[str, object] = {}
        """Who claimed a todo last."""

    def read(self, event: Past) -> None:
        noun, _, word = event.kind.partition("_")
        match noun:
            case "todo" | "todos":
                self._todo(word, event.body)
            case "turn":
                self._turn(word, event)
            case "gate":
                self.gates[str(event.body.get("gate_id"))] = GateStatus.OPEN if word == "asked" else word
            case "capability" if "intent_id" in event.body:
                self.capabilities[str(event.body["intent_id"])] = word
            case "goal" if word in ("completed", "cancelled"):
                self._close()

    def _todo(self, word: str, body: Mapping[str, object]) -> None:
        if word == "woken":
            woken = body.get("todo_ids")
            for todo_id in woken if isinstance(woken, list | tuple) else ():
                self.todos[str(todo_id)] = TodoStatus.OPEN
            return
        todo_id = str(body.get("todo_id"))
        if word == "added":
            self.todos[todo_id] = str(body.get("status", TodoStatus.OPEN))
        elif word == "released":
            self.todos[todo_id] = TodoStatus.OPEN
        elif word in _TODO_STATUSES:
            self.todos[todo_id] = word
            self._claims[todo_id] = body.get("by")

    def _turn(self, word: str, event: Past) -> None:
        key = event.turn_key or ""
        if word == "started" and event.body.get("todo_id") is not None:
            todo_id, agent = str(event.body["todo_id"]), event.body.get("agent_id")
            self._turns[key] = (todo_id, agent)
            self.todos[todo_id], self._claims[todo_id] = TodoStatus.CLAIMED, agent
        elif word == "closed" and key in self._turns:
            todo_id, agent = self._turns[key]
            # A turn that ends gives back what it has not ended, unless another agent has it by now.
            if self.todos.get(todo_id) == TodoStatus.CLAIMED and self._claims.get(todo_id) == agent:
                self.todos[todo_id] = TodoStatus.OPEN

    def _close(self) -> None:
        for todo_id, status in self.todos.items():
            if status not in ENDED_TODO_STATUSES:
                self.todos[todo_id] = TodoStatus.SUPERSEDED
