"""Whether a todo's work is proved, for agents that complete it outside a turn: LoopX runs the checks itself.

The todo's own checks decide; a todo without any is proved only by the goal's whole contract. It changes nothing.
"""

from __future__ import annotations

import msgspec

from loopx.contracts.model import Check, Contract, ContractEvaluation
from loopx.control_plane.errors import RedChecksError
from loopx.control_plane.work_items.todo import Todo
from loopx.runtime import goal_work
from loopx.runtime.evaluation import Evaluator
from loopx.runtime.progress import Observer, silent
from loopx.runtime.project import Project
from loopx.store.store import Store


def evaluate_checks(
    store: Store,
    project: Project,
    goal_id: str,
    env: dict[str, str],
    observer: Observer = silent,
    only: tuple[Check, ...] | None = None,
) -> ContractEvaluation:
    """Run checks of a goal on its tree as it is now, without any cache. `only`: these instead of the contract's.

    Raises NotFoundError (`goal_unknown`), UsageError for a tree that can't be read.
    """
    work = goal_work.open_goal(store, project, goal_id)
    contract = work.contract if only is None else Contract(checks=only, confirm_in_snapshot=False)
    baseline = goal_work.baseline_of(store, goal_id)
    evaluator = Evaluator(store, work.tree, contract, env, observer, goal_id, "", lambda: None, lambda: False)
    return evaluator.in_place(work.tree.capture(), "", baseline)


def require_proof(store: Store, project: Project, todo: Todo, env: dict[str, str]) -> ContractEvaluation:
    """The green evaluation. Raises RedChecksError (`todo_unproved`) naming what is red."""
    own = msgspec.json.decode(todo.checks, type=tuple[Check, ...])
    evaluation = evaluate_checks(store, project, todo.goal_id, env, only=own or None)
    if evaluation.all_green:
        return evaluation
    red = [result.name for result in evaluation.results if result.verdict != "green" and not result.held_out]
    whose = "its checks" if own else "the goal's checks, as it has none of its own,"
    raise RedChecksError(
        "todo_unproved",
        f"todo {todo.todo_id} is not proved: {whose} are not green: {', '.join(red) or 'a held-out check'}",
        hint=f'make them green, or give it checks of its own: loopx todo update {todo.todo_id} --check "CMD"',
        data={"red": ", ".join(red)},
    )
