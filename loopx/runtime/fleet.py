"""Which goals a worker starts next: fair between goals, one at a time per work tree, never more than the limit.

Pure: values in, goal ids out. What is due is decided elsewhere, and a start may still be refused by the store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from loopx.control_plane.ids import GoalId
from loopx.control_plane.quota.plan import PlanEntry, start_order


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A goal that could run now. `resume`: a turn of it was interrupted, and keeps its work tree until it goes on."""

    goal_id: GoalId
    tree_key: str
    at_ms: int
    started_at_ms: int | None = None
    resume: bool = False


def choose(
    candidates: Iterable[Candidate], running: Mapping[str, str], busy_trees: Collection[str], most: int
) -> tuple[Candidate, ...]:
    """The goals to start now, in order. `running` maps the goals that run to their work trees.

    Interrupted turns go first: nothing else can use their tree. Then the goal that ran longest ago, so that none
    starves however many are always eligible.
    """
    by_id = {one.goal_id: one for one in candidates if one.goal_id not in running}
    trees = {*running.values(), *busy_trees}
    chosen: list[Candidate] = []
    for candidate in (*_resumed(by_id.values()), *_fair(by_id)):
        if len(chosen) + len(running) >= most:
            break
        if candidate.tree_key not in trees:
            chosen.append(candidate)
            trees.add(candidate.tree_key)
    return tuple(chosen)


def _resumed(candidates: Iterable[Candidate]) -> list[Candidate]:
    return sorted((one for one in candidates if one.resume), key=lambda one: (one.at_ms, one.goal_id))


def _fair(by_id: Mapping[GoalId, Candidate]) -> list[Candidate]:
    entries = [
        PlanEntry(goal_id=one.goal_id, at_ms=one.at_ms, started_at_ms=one.started_at_ms)
        for one in by_id.values()
        if not one.resume
    ]
    return [by_id[entry.goal_id] for entry in start_order(entries)]
