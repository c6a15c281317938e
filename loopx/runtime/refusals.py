"""Puts on record what an agent tried on the command line and was refused, as its tools do by themselves.

Whose attempt it was is told by the token, and without one by the host from which the command was started. It refuses
nothing itself, and a record that can't be written never replaces the refusal.
"""

from __future__ import annotations

import contextlib

from loopx.control_plane.errors import LoopXError, NotFoundError, UsageError
from loopx.runtime import agent_service, ancestry
from loopx.runtime.agent_service import TurnCaller
from loopx.store import turns
from loopx.store.store import Store


def record(store: Store, token: str | None, what: str, error: LoopXError) -> None:
    """Add `agent_refused` to the log of the goal whose agent tried it; nothing where no open turn is behind it."""
    with contextlib.suppress(LoopXError):
        caller = _caller(store, token)
        if caller is not None:
            agent_service.refuse(store, caller, what, error)


def _caller(store: Store, token: str | None) -> TurnCaller | None:
    """The turn from whose host the command came: it is the one that tried, whatever token it showed."""
    key = ancestry.hosting_turn(store)
    if key is not None:
        with store.read() as tx, contextlib.suppress(NotFoundError):
            turn = turns.get(tx, key)
            return TurnCaller(turn_key=turn.turn_key, goal_id=turn.goal_id, agent_id=turn.agent_id)
    if token is None:
        return None
    with contextlib.suppress(UsageError):
        return agent_service.by_token(store, token)
    return None


def require_own_token(store: Store, turn_key: str) -> None:
    """Raises UsageError (`token_foreign`): a process inside one turn's host shows the token of another turn."""
    hosting = ancestry.hosting_turn(store)
    if hosting is not None and hosting != turn_key:
        raise UsageError(
            "token_foreign", "this token belongs to another turn", hint="use the token that the turn was given"
        )
