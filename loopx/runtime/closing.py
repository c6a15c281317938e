"""Closing a goal whose frontier is terminal without a turn: the contract is green and nothing is left to do."""

from __future__ import annotations

from collections.abc import Callable

from loopx.control_plane.quota.facts import ContractState
from loopx.runtime import goal_work
from loopx.runtime.evaluation import Evaluator
from loopx.runtime.goal_work import GoalWork
from loopx.runtime.progress import Observer
from loopx.store import events, goals, outbox, schedules
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

    False when something happened since, or when a fresh look at the tree shows that its contract is not green after
    all: then the loop decides again.
    """
    tree_hash = work.tree.capture()
    with store.read() as tx:
        row = goals.row_of(tx, work.goal_id)
    if row["contract_tree"] != tree_hash and not _still_green(store, work, env, observer, cancelled, tree_hash, seen):
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


def _still_green(
    store: Store,
    work: GoalWork,
    env: dict[str, str],
    observer: Observer,
    cancelled: Callable[[], bool],
    tree_hash: str,
    seen: int,
) -> bool:
    baseline = goal_work.baseline_of(store, work.goal_id)
    evaluator = Evaluator(store, work.tree, work.contract, env, observer, work.goal_id, "", lambda: None, cancelled)
    evaluation = evaluator.in_place(tree_hash, "", baseline)
    with store.write() as tx:
        tx.run(
            "goals.set_contract_seen",
            goal_id=work.goal_id,
            seen=seen,
            contract_state=ContractState.GREEN if evaluation.all_green else ContractState.RED,
            contract_tree=tree_hash,
        )
    return evaluation.all_green
