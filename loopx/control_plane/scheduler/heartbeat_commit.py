"""A host's own automation reports its beats; each is taken once, whatever is repeated or late.

Pure: the store appends the receipt under its key in the transaction that asked for the verdict. A beat starts nothing
and never spends: it says that the host's clock fired, and gets the should-run answer for it.
"""

from __future__ import annotations

import enum

import msgspec

from loopx.control_plane.ids import AgentId, GoalId
from loopx.control_plane.scheduler.schedule import Schedule, ScheduleOwner, ScheduleState

MAX_KEY = 128
MAX_AHEAD_MS = 5 * 60_000
"""A beat may be this far ahead of LoopX's clock: two machines' clocks differ."""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """One beat. `beat_key` is the host's own name for it, the same at every repeat; `slot_key` its occurrence."""

    goal_id: GoalId
    agent_id: AgentId
    beat_key: str
    at_ms: int
    revision: int
    slot_key: str | None = None


class HeartbeatReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What was recorded for a beat, first and only once."""

    goal_id: GoalId
    agent_id: AgentId
    beat_key: str
    at_ms: int
    revision: int
    should_run: bool
    effective_action: str
    replayed: bool = False


class HeartbeatOutcome(enum.StrEnum):
    """What the store does with a beat."""

    COMMIT = "commit"
    REPLAY = "replay"
    REFUSED = "refused"


class HeartbeatRefusal(enum.StrEnum):
    """Why a beat is not taken."""

    BEAT_KEY_INVALID = "beat_key_invalid"
    OWNER_NOT_HOST = "owner_not_host"
    SCHEDULE_CLOSED = "schedule_closed"
    REVISION_STALE = "revision_stale"
    REVISION_UNKNOWN = "revision_unknown"
    BEAT_IN_FUTURE = "beat_in_future"
    SLOT_ALREADY_RUN = "slot_already_run"
    BEAT_OF_ANOTHER = "beat_of_another"


class HeartbeatVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly the field of its outcome is set."""

    outcome: HeartbeatOutcome
    receipt: HeartbeatReceipt | None = None
    refusal: HeartbeatRefusal | None = None


def plan_heartbeat(
    beat: Heartbeat,
    existing: HeartbeatReceipt | None,
    schedule: Schedule,
    *,
    now_ms: int,
    should_run: bool,
    effective_action: str,
) -> HeartbeatVerdict:
    """What to do with a beat; `existing` is the receipt under its key, `should_run` the decision of this snapshot.

    A repeat returns the first receipt, with the first answer, even after the cadence changed.
    """
    if existing is not None:
        return _replay(beat, existing)
    refusal = _refusal(beat, schedule, now_ms)
    if refusal is not None:
        return HeartbeatVerdict(outcome=HeartbeatOutcome.REFUSED, refusal=refusal)
    receipt = HeartbeatReceipt(
        goal_id=beat.goal_id,
        agent_id=beat.agent_id,
        beat_key=beat.beat_key,
        at_ms=beat.at_ms,
        revision=beat.revision,
        should_run=should_run,
        effective_action=effective_action,
    )
    return HeartbeatVerdict(outcome=HeartbeatOutcome.COMMIT, receipt=receipt)


def _replay(beat: Heartbeat, existing: HeartbeatReceipt) -> HeartbeatVerdict:
    if (existing.goal_id, existing.agent_id, existing.beat_key) != (beat.goal_id, beat.agent_id, beat.beat_key):
        return HeartbeatVerdict(outcome=HeartbeatOutcome.REFUSED, refusal=HeartbeatRefusal.BEAT_OF_ANOTHER)
    receipt = msgspec.structs.replace(existing, replayed=True)
    return HeartbeatVerdict(outcome=HeartbeatOutcome.REPLAY, receipt=receipt)


def _refusal(beat: Heartbeat, schedule: Schedule, now_ms: int) -> HeartbeatRefusal | None:
    if not beat.beat_key.strip() or len(beat.beat_key) > MAX_KEY:
        return HeartbeatRefusal.BEAT_KEY_INVALID
    if schedule.owner is not ScheduleOwner.HOST:
        return HeartbeatRefusal.OWNER_NOT_HOST
    if schedule.state is ScheduleState.CLOSED:
        return HeartbeatRefusal.SCHEDULE_CLOSED
    # An applied revision is enough: a host that beats by it plainly has it, acknowledged or not.
    if beat.revision < schedule.acked_revision:
        return HeartbeatRefusal.REVISION_STALE
    if beat.revision > schedule.applied_revision:
        return HeartbeatRefusal.REVISION_UNKNOWN
    if beat.at_ms > now_ms + MAX_AHEAD_MS:
        return HeartbeatRefusal.BEAT_IN_FUTURE
    if beat.slot_key is not None and beat.slot_key <= (schedule.last_slot_key or ""):
        return HeartbeatRefusal.SLOT_ALREADY_RUN
    return None
