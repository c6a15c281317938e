"""Stopping a goal for good or for now when nobody drives it any more, and putting its tree back.

A live run stops itself when it sees the goal's state. Here the host of a dead run is found and ended, and its turn is
taken to an end, so that nothing goes on behind a person's back.
"""

from __future__ import annotations

import msgspec

from loopx.control_plane.errors import CancelledError, NotFoundError
from loopx.control_plane.goal import CLOSED_GOAL_STATES, GoalState
from loopx.control_plane.ids import AgentId
from loopx.runtime import goal_service
from loopx.runtime import owner as owners
from loopx.runtime.goal_work import open_goal
from loopx.runtime.progress import silent
from loopx.runtime.project import Project
from loopx.runtime.run_guard import held_by
from loopx.runtime.turn_runner import TurnRunner
from loopx.store import events, goals, leases, turns
from loopx.store.store import Store


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """`running`: a living process saw the wish and ends its own turn. `ended_turn`: an orphaned turn was ended here."""

    goal_id: str
    state: str
    running: int | None = None
    ended_turn: str | None = None


class Discarded(msgspec.Struct, frozen=True, kw_only=True):
    """The tree is as it was at the goal's start."""

    goal_id: str
    state: str
    tree: str
    root: str


def stop(store: Store, project: Project, goal_id: str, state: GoalState, by: str, reason: str) -> Stopped:
    """Move the goal, and see that its open turn ends. Raises ConflictError (`goal_closed`)."""
    goal_service.move(store, goal_id, state, by, reason)
    open_turn = _open_turn(store, goal_id)
    if open_turn is None:
        return Stopped(goal_id=goal_id, state=state)
    key, agent, owner = open_turn
    if owner is not None and not owners.is_dead(owner):
        return Stopped(goal_id=goal_id, state=state, running=owners.pid_of(owner))
    _end(store, project, goal_id, agent, key)
    return Stopped(goal_id=goal_id, state=state, ended_turn=key)


def _open_turn(store: Store, goal_id: str) -> tuple[str, str, str | None] | None:
    with store.read() as tx:
        row = tx.one("turns.open_of_goal", goal_id=goal_id)
        if row is None:
            return None
        held = leases.get(tx, turns.turn_resource(goal_id, row["agent_id"]))
        alive = held is not None and held.expires_at_ms > store.now_ms()
    return row["turn_key"], row["agent_id"], held.owner if held is not None and alive else None


def _end(store: Store, project: Project, goal_id: str, agent: str, key: str) -> None:
    """Cancel the orphaned host and close its turn; a turn whose host is done already is judged and settled."""
    import os

    from loopx.control_plane.ids import TurnKey

    env = dict(os.environ)
    try:
        TurnRunner(store, project, goal_id, AgentId(agent), silent, env, stopping=lambda: True).resume(TurnKey(key))
    except CancelledError:
        TurnRunner(store, project, goal_id, AgentId(agent), silent, env).resume(TurnKey(key))


def discard(store: Store, project: Project, goal_id: str, by: str, *, force: bool = False) -> Discarded:
    """End the goal and put its work tree back to the goal's start.

    Raises ConflictError (`goal_running`, `tree_changed`), NotFoundError (`base_missing`) for a goal that never ran.
    """
    work = open_goal(store, project, goal_id)
    open_turn = _open_turn(store, goal_id)
    if open_turn is not None:
        key, agent, owner = open_turn
        if owner is not None and not owners.is_dead(owner):
            raise held_by(goal_id, owner)
        _end(store, project, goal_id, agent, key)
    try:
        tree = work.tree.discard(force=force)
    except NotFoundError as error:
        raise NotFoundError(
            "base_missing",
            f"goal {goal_id} never ran: there is nothing to put back",
            hint=f"loopx goal close {goal_id}",
        ) from error
    state = _close_discarded(store, goal_id, tree, by)
    return Discarded(goal_id=goal_id, state=state, tree=tree, root=work.tree.root)


def _close_discarded(store: Store, goal_id: str, tree: str, by: str) -> str:
    now = store.now_ms()
    with store.write() as tx:
        goal = goals.get(tx, goal_id)
        tx.run("goals.set_contract", goal_id=goal_id, contract_state="unknown", contract_tree=tree)
        events.append(tx, goal_id, "goal_discarded", now, {"tree": tree, "by": by})
    if goal.state in CLOSED_GOAL_STATES:
        return goal.state
    return goal_service.move(store, goal_id, GoalState.CANCELLED, by, "discarded").state
