"""What a report of a goal holds: the goal's page, and each of its turns with its change, up to a bound.

It reads what the page reads, so that both say the same. It writes nothing.
"""

from __future__ import annotations

import msgspec

from loopx.runtime import turn_views, views
from loopx.runtime.project import Project
from loopx.runtime.turn_views import DiffView, TurnView
from loopx.runtime.views import GoalView
from loopx.store.store import Store

TURNS = 60
DIFF_BYTES = 40_000
ALL_DIFFS_BYTES = 1_500_000


class TurnReport(msgspec.Struct, frozen=True, kw_only=True):
    """One turn with its change."""

    view: TurnView
    patch: DiffView


class ReportView(msgspec.Struct, frozen=True, kw_only=True):
    """A goal and its turns, the oldest first. `left_out`: older turns that are not in it."""

    goal: GoalView
    turns: tuple[TurnReport, ...]
    since_ms: int | None
    left_out: int


def report_view(store: Store, project: Project, goal_id: str, since_ms: int | None = None) -> ReportView:
    """The report of a goal, of the turns that began since an instant. Raises NotFoundError (`goal_unknown`)."""
    goal = views.goal_view(store, goal_id, turn_limit=TURNS)
    wanted = [line for line in goal.turns if since_ms is None or line.started_at_ms >= since_ms]
    found: list[TurnReport] = []
    left = ALL_DIFFS_BYTES
    for line in reversed(wanted):
        view = turn_views.turn_view(store, goal_id, line.number)
        patch = turn_views.turn_diff(store, project, goal_id, view.tree_before, view.tree_after)
        kept = _cut(patch, min(DIFF_BYTES, left))
        left -= len(kept.text)
        found.append(TurnReport(view=view, patch=kept))
    shown = msgspec.structs.replace(goal, turns=tuple(wanted), older_turns=False)
    return ReportView(goal=shown, turns=tuple(found), since_ms=since_ms, left_out=goal.turn_count - len(found))


def _cut(patch: DiffView, limit: int) -> DiffView:
    if len(patch.text) <= limit:
        return patch
    kept = patch.text[: max(0, limit)]
    return msgspec.structs.replace(patch, text=kept[: kept.rfind("\n") + 1], truncated=True)
