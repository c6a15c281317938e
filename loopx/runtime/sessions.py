"""Whether a turn goes on in its host's last session or starts a fresh one.

Fresh is the rule: a short context pack costs less than a history that was compacted, or that no host can load any more.
A session is resumed only where work was under way when the line broke, and only a few times.
"""

from __future__ import annotations

from collections.abc import Sequence

from loopx.control_plane.turn_driver.journal import HostReport, Turn
from loopx.hosts import transcripts
from loopx.hosts.protocol import HostEndKind
from loopx.store import hosts, turns
from loopx.store.connection import Tx

MOST_RUNS = 3
"""Runs of one session, its first one included; then a fresh one, however the last ended."""

BROKEN_OFF = frozenset(
    {
        HostEndKind.TRANSPORT_LOST,
        HostEndKind.EXECUTOR_TIMEOUT,
        HostEndKind.PROVIDER_OVERLOADED,
        HostEndKind.PROVIDER_CAPACITY,
        HostEndKind.RATE_LIMITED,
        HostEndKind.QUOTA_EXHAUSTED,
    }
)
"""Ends that say nothing against what the session holds: the work was only interrupted."""


def to_resume(tx: Tx, turn: Turn, env: Sequence[tuple[str, str]]) -> str | None:
    """The session in which this turn should go on; None for a fresh one.

    Same todo, same engine, broken off with a tool already used, and a transcript that can still be loaded.
    """
    last = _last_run(tx, turn)
    if last is None or last.session_id is None or last.engine != turn.engine or not _was_working(last.report):
        return None
    if last.end_kind not in BROKEN_OFF or hosts.runs_of_session(tx, last.session_id) >= MOST_RUNS:
        return None
    verdict = transcripts.resume(turn.engine, last.session_id, env)
    return last.session_id if verdict in (transcripts.Resume.FINE, transcripts.Resume.UNKNOWN) else None


def found_dead(report: HostReport, resumes: str | None) -> bool:
    """Whether a resume met no session, so that nothing was attempted yet."""
    return resumes is not None and report.end_kind == HostEndKind.SESSION_MISSING


def _last_run(tx: Tx, turn: Turn) -> hosts.HostRun | None:
    before = turns.last_of_todo(tx, turn.todo_id) if turn.todo_id is not None else None
    return hosts.last_of_turn(tx, before.turn_key) if before is not None else None


def _was_working(report: HostReport | None) -> bool:
    return report is not None and report.tool_calls > 0
