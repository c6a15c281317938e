"""Putting a goal's start on record before anybody works: its baseline, for people with a runner of their own.

`loopx run` does this by itself. A baseline is taken once; work is judged against it and never becomes part of it.
"""

from __future__ import annotations

from loopx.contracts.baseline import Baseline
from loopx.control_plane.errors import ConflictError
from loopx.runtime import goal_work
from loopx.runtime.progress import silent
from loopx.runtime.project import Project
from loopx.store.store import Store


def put_on_record(store: Store, project: Project, goal_id: str, env: dict[str, str]) -> Baseline:
    """Run all checks on the tree as it is and keep that as the goal's start.

    Raises ConflictError (`baseline_known`) when the start is on record already, UsageError (`no_check`,
    `check_program_missing`), NotFoundError (`goal_unknown`).
    """
    work = goal_work.open_goal(store, project, goal_id)
    if goal_work.baseline_of(store, goal_id) is not None:
        raise ConflictError(
            "baseline_known", f"the start of {goal_id} is on record already", hint=f"loopx check run {goal_id}"
        )
    goal_work.prepare_tree(store, project, work)
    return goal_work.take_baseline(store, work, env, silent, lambda: False, lambda: None)
