"""What is left to do after a turn and after a run, for whoever is not watching: tell people, and set the next wake.

It never fails a run and never keeps one waiting: what can't be done now is done by the next run or by the worker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from loopx.control_plane.errors import LoopXError
from loopx.control_plane.ids import AgentId
from loopx.runtime import outbox_sender, pace, waking
from loopx.runtime.progress import RunEnded
from loopx.runtime.project import Project
from loopx.store import goals, outbox
from loopx.store.connection import Tx
from loopx.store.store import Store

_TOLD_ENDS = frozenset({12, 13})
"""A limit, or an engine that failed. A question (11) was announced when it was asked."""


def after_turn(store: Store, project: Project, goal_id: str, env: Mapping[str, str]) -> None:
    """Announce an unusual use, and have sent what is due."""
    with contextlib.suppress(LoopXError), store.write() as tx:
        _notice_spike(tx, goal_id, store.now_ms())
    outbox_sender.flush(store, project, env)


def after_run(
    store: Store, project: Project, agent_id: AgentId, ended: RunEnded, env: Mapping[str, str], *, explicit: bool
) -> None:
    """Announce an end that a person should hear of, compute the next wake, and have sent what is due.

    `explicit`: a person started this run, so that its own limits are worth telling; a worker's are its daily work.
    """
    with contextlib.suppress(LoopXError):
        with store.write() as tx:
            _notice_end(tx, ended, store.now_ms(), explicit=explicit)
        waking.settle(store, ended.goal_id, agent_id, held=ended.exit_code == 130)
    outbox_sender.flush(store, project, env)


def _notice_end(tx: Tx, ended: RunEnded, now_ms: int, *, explicit: bool) -> None:
    if ended.exit_code not in _TOLD_ENDS or (ended.exit_code == 12 and not explicit):
        return
    row = goals.row_of(tx, ended.goal_id)
    # One message for one row of failures, however often a worker tries again.
    first = int(row["turn_count"]) - int(row["host_failure_streak"])
    data = {"reason": ended.reason, "exit_code": ended.exit_code, "turns": ended.turns}
    outbox.notify(tx, ended.goal_id, f"{ended.goal_id}:{ended.reason}:{first}"[:300], "run_stopped", data, now_ms)


def _notice_spike(tx: Tx, goal_id: str, now_ms: int) -> None:
    """One message for one run, about the first unit in which it stands out."""
    for one in pace.spikes(tx, goal_id)[:1]:
        data = {"latest": one.latest, "median": one.median, "unit": str(one.unit)}
        outbox.notify(tx, goal_id, f"spike:{one.run_id}", "spike", data, now_ms)
