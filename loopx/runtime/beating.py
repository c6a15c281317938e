"""A host's own automation reports that its clock fired, and gets the should-run answer for that beat, once.

The verdict is pure (`control_plane/scheduler/heartbeat_commit.py`); here it is asked and recorded in one transaction,
so that a repeat, whoever sends it, gets the first answer. A beat starts nothing and spends nothing.
"""

from __future__ import annotations

import msgspec

from loopx.control_plane.errors import ConflictError, LoopXError, UsageError
from loopx.control_plane.ids import AgentId, GoalId
from loopx.control_plane.quota import decision as decisions
from loopx.control_plane.scheduler.heartbeat_commit import (
    MAX_KEY,
    Heartbeat,
    HeartbeatReceipt,
    HeartbeatRefusal,
    plan_heartbeat,
)
from loopx.runtime.reading import facts_to_write, outside
from loopx.store import events, schedules
from loopx.store.codec import dump, load
from loopx.store.store import Store


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt of a beat, with what a caller acts on. `exit_code` is that of the beat's own answer."""

    receipt: HeartbeatReceipt
    next_command: tuple[str, ...]
    exit_code: int


class Beating(msgspec.Struct, frozen=True, kw_only=True):
    """One beat as the host's automation tells it. `at_ms` and `revision` None: now, and what is applied."""

    goal_id: str
    agent_id: AgentId
    key: str
    at_ms: int | None = None
    revision: int | None = None
    slot_key: str | None = None


def beat(store: Store, told: Beating) -> Beat:
    """Take a beat. A repeat of its key returns the first receipt with the first answer.

    Raises NotFoundError (`goal_unknown`), UsageError (`beat_key_invalid`, `owner_not_host`), ConflictError
    (`schedule_closed`, `beat_revision_stale`, `beat_revision_unknown`, `beat_in_future`, `slot_already_run`,
    `beat_of_another`).
    """
    around = outside(store, told.goal_id, told.agent_id)
    with store.write() as tx:
        facts = facts_to_write(store, tx, told.goal_id, told.agent_id, around)
        made = decisions.decide(facts)
        schedule = schedules.get(tx, told.goal_id)
        row = tx.one("schedules.get_beat", goal_id=told.goal_id, beat_key=told.key)
        known = load(row["receipt"], Beat) if row is not None else None
        verdict = plan_heartbeat(
            Heartbeat(
                goal_id=GoalId(told.goal_id),
                agent_id=told.agent_id,
                beat_key=told.key,
                at_ms=facts.now_ms if told.at_ms is None else told.at_ms,
                revision=schedule.applied_revision if told.revision is None else told.revision,
                slot_key=told.slot_key,
            ),
            known.receipt if known is not None else None,
            schedule,
            now_ms=facts.now_ms,
            should_run=made.should_run,
            effective_action=made.effective_action,
        )
        if verdict.refusal is not None or verdict.receipt is None:
            raise _refused(verdict.refusal, told.goal_id)
        if known is not None:
            return msgspec.structs.replace(known, receipt=verdict.receipt)
        receipt = verdict.receipt
        taken = Beat(receipt=receipt, next_command=made.next_command, exit_code=decisions.exit_code(made))
        tx.run(
            "schedules.insert_beat",
            goal_id=told.goal_id,
            beat_key=told.key,
            receipt=dump(taken),
            now_ms=facts.now_ms,
        )
        body = {"beat_key": told.key, "revision": receipt.revision, "should_run": receipt.should_run}
        events.append(tx, told.goal_id, "heartbeat", facts.now_ms, body)
    return taken


def _refused(refusal: HeartbeatRefusal | None, goal_id: str) -> LoopXError:
    shown = f"loopx schedule show {goal_id}"
    match refusal:
        case HeartbeatRefusal.BEAT_KEY_INVALID:
            data: dict[str, str | int | float | bool | None] = {"field": "key"}
            return UsageError("beat_key_invalid", f"key: 1 to {MAX_KEY} characters", hint="--key KEY", data=data)
        case HeartbeatRefusal.OWNER_NOT_HOST:
            return UsageError(
                "owner_not_host",
                f"the engine's own automation does not own the cadence of {goal_id}",
                hint=f"loopx schedule set {goal_id} --every 30m --owner host",
            )
        case HeartbeatRefusal.SCHEDULE_CLOSED:
            return ConflictError("schedule_closed", f"goal {goal_id} has ended; nothing is due", hint=shown)
        case HeartbeatRefusal.REVISION_STALE:
            return ConflictError("beat_revision_stale", "this beat comes by an older cadence", hint=shown)
        case HeartbeatRefusal.REVISION_UNKNOWN:
            return ConflictError("beat_revision_unknown", "this beat's cadence was never applied", hint=shown)
        case HeartbeatRefusal.BEAT_IN_FUTURE:
            return ConflictError("beat_in_future", "this beat's instant has not come yet", hint="check the clocks")
        case HeartbeatRefusal.SLOT_ALREADY_RUN:
            return ConflictError("slot_already_run", "that occurrence was run already", hint=shown)
        case HeartbeatRefusal.BEAT_OF_ANOTHER | None:
            return ConflictError(
                "beat_of_another", "that key names a beat of another agent", hint="give each beat a key of its own"
            )
