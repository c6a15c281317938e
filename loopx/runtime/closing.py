"""Closing a goal whose frontier is terminal without a turn: nothing is left to do, and the contract proves green."""

from __future__ import annotations

from collections.abc import Callable

from loopx.control_plane.quota.facts import ContractState
from loopx.runtime import goal_work, standing
from loopx.runtime.goal_work import GoalWork
from loopx.runtime.progress import Observer
from loopx.store import events, outbox, schedules
from loopx.store.store import Store


def close_terminal_goal(
    store: Store,
    work: GoalWork,
    env: dict[str, str],
    observer: Observer,
    cancelled: Callable[[], bool],
    seen: int,
) -> bool:
    """Close the goal, whose history was seen up to the event `seen` when its frontier was found terminal.

    False when something happened since, or when a whole look at the tree shows that its contract is not green after
    all: then the loop decides again. That it was green when the last todo ended proves no completion: it was not
    confirmed in a clean copy then, and held-out checks had not been asked.
    """
    if not _proves_green(store, work, env, observer, cancelled, seen):
        return False
    now = store.now_ms()
    with store.write() as tx:
        if tx.run("goals.close_seen", goal_id=work.goal_id, seen=seen, now_ms=now) != 1:
            return False
        tx.run("todos.close_all", goal_id=work.goal_id, now_ms=now)
        schedules.close(tx, work.goal_id, now)
        events.append(tx, work.goal_id, "goal_completed", now, {"by": "loopx", "reason": "frontier_terminal"})
        outbox.notify(tx, work.goal_id, f"{work.goal_id}:terminal:{now}", "goal_completed", {}, now)
    return True


def _proves_green(
    store: Store,
    work: GoalWork,
    env: dict[str, str],
    observer: Observer,
    cancelled: Callable[[], bool],
    seen: int,
) -> bool:
    baseline = goal_work.baseline_of(store, work.goal_id)
    if baseline is None:
        return False
    found = standing.look(store, work, baseline, env, observer, cancelled=cancelled)
    green = found.contract is ContractState.GREEN
    with store.write() as tx:
        # What could not be confirmed goes back to work, so that its closeout is not tried again and again.
        tx.run(
            "goals.set_contract_seen",
            goal_id=work.goal_id,
            seen=seen,
            contract_state=ContractState.GREEN if green else ContractState.RED,
            contract_tree=found.tree_hash,
        )
    return green
