"""The repairs that are provably safe: what they change can be read off from what else is on record.

Counts are recounted, holds of turns that are over are let go, halves of files are removed. Nothing here guesses at a
journal, touches a process, or changes a ledger entry or an event.
"""

from __future__ import annotations

import contextlib
import os
import shutil

import msgspec

from loopx.control_plane.ids import AgentId
from loopx.runtime import care, waking
from loopx.runtime.care import Code, Finding
from loopx.runtime.project import Project
from loopx.runtime.session import DEFAULT_AGENT
from loopx.runtime.turn_service import recovery_of
from loopx.store import events, todos, turns
from loopx.store.store import Store


class Mended(msgspec.Struct, frozen=True, kw_only=True):
    """One repair that was made, or why it was not."""

    code: Code
    subject: str
    done: bool


def mend(store: Store, project: Project, findings: tuple[Finding, ...]) -> tuple[Mended, ...]:
    """Make the repairs of what `care` called mendable; each is checked again before it is made."""
    return tuple(
        Mended(code=one.code, subject=one.subject, done=_mend(store, project, one)) for one in findings if one.mendable
    )


def _mend(store: Store, project: Project, finding: Finding) -> bool:
    match finding.code:
        case Code.JOURNAL_BLOCKED:
            return _unblock(store, finding.subject)
        case Code.COUNTERS_WRONG:
            return _recount(store, finding.subject)
        case Code.RESERVATION_OF_NOBODY:
            return _unreserve(store, finding.subject)
        case Code.CLAIM_OF_NOBODY:
            return _release(store, finding.subject)
        case Code.LAUNCH_OF_NOBODY:
            return _abandon(store, finding.subject)
        case Code.SPOOL_OF_NOBODY:
            return _remove_folder(finding.subject, project)
        case Code.LEFTOVER_FILE:
            return _remove_file(finding.subject, project)
        case _:
            return False


def _unblock(store: Store, turn_key: str) -> bool:
    """Open a blocked turn whose journal contradicts itself no longer."""
    with store.write() as tx:
        journal = turns.load_journal(tx, turn_key)
        if recovery_of(tx, journal).violation is not None:
            return False
        changed = tx.run("turns.unblock", turn_key=turn_key) == 1
        if changed:
            body = {"was": journal.turn.violation}
            events.append(tx, journal.turn.goal_id, "journal_unblocked", store.now_ms(), body, turn_key)
    return changed


def _recount(store: Store, todo_id: str) -> bool:
    """Set a todo's counts to what is there."""
    with store.write() as tx:
        row = next((one for one in tx.all("care.counters") if one["todo_id"] == todo_id), None)
        if row is None:
            return False
        tx.run("care.set_counters", todo_id=todo_id, deps=row["deps"], gates=row["gates"])
        body = {"todo_id": todo_id, "deps": row["deps"], "gates": row["gates"], "by": "doctor"}
        events.append(tx, row["goal_id"], "todo_recounted", store.now_ms(), body)
    waking.settle(store, row["goal_id"], AgentId(DEFAULT_AGENT))
    return True


def _unreserve(store: Store, turn_key: str) -> bool:
    with store.write() as tx:
        held = any(one["turn_key"] == turn_key for one in tx.all("care.reservations"))
        return held and tx.run("meters.unreserve", turn_key=turn_key) > 0


def _release(store: Store, todo_id: str) -> bool:
    """Open a todo again whose claim has run out while nobody works on it."""
    now = store.now_ms()
    with store.write() as tx:
        row = next((one for one in tx.all("care.claims", now_ms=now) if one["todo_id"] == todo_id), None)
        if row is None or not todos.release(tx, todo_id, now):
            return False
        body = {"todo_id": todo_id, "from": "claimed", "reason": "claim_expired", "by": "doctor"}
        events.append(tx, row["goal_id"], "todo_open", now, body)
    return True


def _abandon(store: Store, run_id: str) -> bool:
    """File a launch of a finished turn that nothing runs for: nobody waits for its end any more."""
    with store.write() as tx:
        row = next((one for one in tx.all("care.launches") if one["run_id"] == run_id), None)
        if row is None or care.alive(row["spool_dir"]) is not None:
            return False
        return tx.run("care.abandon", run_id=run_id, now_ms=store.now_ms()) == 1


def _remove_folder(path: str, project: Project) -> bool:
    inside = os.path.dirname(os.path.abspath(path)) == os.path.abspath(project.spools)
    if not inside or os.path.islink(path) or care.alive(path) is not None:
        return False
    shutil.rmtree(path, ignore_errors=True)
    return not os.path.exists(path)


def _remove_file(path: str, project: Project) -> bool:
    if os.path.dirname(os.path.abspath(path)) != os.path.dirname(os.path.abspath(project.database)):
        return False
    with contextlib.suppress(OSError):
        os.unlink(path)
    return not os.path.exists(path)
