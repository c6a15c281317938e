"""Whether a todo's work is proved, for agents that complete it outside a turn: LoopX runs the checks itself.

The todo's own checks decide; a todo without any is proved only by the goal's whole contract. It changes nothing.
"""

from __future__ import annotations

import msgspec

from loopx.contracts.model import Check, Contract, ContractEvaluation
from loopx.control_plane.errors import RedChecksError
from loopx.control_plane.quota.facts import ContractState
from loopx.control_plane.work_items.todo import Todo
from loopx.runtime import goal_work, standing
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
    """The green evaluation. Raises RedChecksError (`todo_unproved`): what is red, or what judges and was changed.

    A goal that was started has a start to compare with, so that weakened checks prove nothing here either.
    """
    own = msgspec.json.decode(todo.checks, type=tuple[Check, ...])
    baseline = goal_work.baseline_of(store, todo.goal_id)
    changed: tuple[str, ...] = ()
    if baseline is None:
        evaluation = evaluate_checks(store, project, todo.goal_id, env, only=own or None)
        proved = evaluation.all_green
    else:
        work = goal_work.open_goal(store, project, todo.goal_id)
        seen = standing.look(store, work, baseline, env, silent, todo_checks=own)
        evaluation, changed = seen.own or seen.shown, seen.refused
        sound = not seen.guard.refused and not seen.guard.undecided
        proved = sound and (evaluation.all_green if own else seen.contract is ContractState.GREEN)
    if proved:
        return evaluation
    raise _unproved(todo, evaluation, changed, own=bool(own))


def _unproved(todo: Todo, evaluation: ContractEvaluation, changed: tuple[str, ...], *, own: bool) -> RedChecksError:
    red = [result.name for result in evaluation.results if result.verdict != "green" and not result.held_out]
    whose = "its checks" if own else "the goal's checks, as it has none of its own,"
    why = f"{whose} are not green" + (f": {', '.join(red)}" if red else "")
    if changed:
        why = f"what judges it was changed: {', '.join(changed)}"
    return RedChecksError(
        "todo_unproved",
        f"todo {todo.todo_id} is not proved: {why}",
        hint=f'make them green, or give it checks of its own: loopx todo update {todo.todo_id} --check "CMD"',
        data={"red": ", ".join(red), "changed": ", ".join(changed)},
    )
