"""Goals: the row that hot queries read, and the definition that a person wrote, one per revision."""

from __future__ import annotations

import msgspec

from loopx.control_plane.errors import ConflictError, NotFoundError
from loopx.control_plane.goal import Goal, GoalDefinition, GoalState
from loopx.control_plane.ids import GoalId
from loopx.control_plane.quota.facts import ContractState
from loopx.store import events, meters
from loopx.store.codec import dump, load
from loopx.store.connection import Param, Row, Tx

HOUR_MS = 3_600_000
MINUTE_MS = 60_000


class GoalStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A goal's running state beside its definition: streaks, trees, waits."""

    turn_count: int
    contract: ContractState
    contract_tree: str | None
    base_tree: str | None
    last_checkpoint: str | None
    has_baseline: bool
    floor_streak: int
    idle_streak: int
    failure_streak: int
    host_failure_streak: int
    replan_tried: bool
    due_at_ms: int | None
    tree_key: str
    health: str
    health_detail: str


def allowed_slots(definition: GoalDefinition) -> int:
    """Slots in one window: as given, else round(window_hours * 60 / slot_minutes * compute)."""
    quota = definition.quota
    if quota.allowed_slots is not None:
        return quota.allowed_slots
    return round(quota.window_hours * 60 / quota.slot_minutes * quota.compute)


def _policy(definition: GoalDefinition) -> dict[str, Param]:
    quota = definition.quota
    return {
        "objective": definition.objective,
        "engine": definition.engines[0] if definition.engines else "",
        "compute": float(quota.compute),
        "window_ms": round(quota.window_hours * HOUR_MS),
        "slot_ms": round(quota.slot_minutes * MINUTE_MS),
        "allowed_slots": allowed_slots(definition),
        "outcome_floor": quota.outcome_floor,
        "breaker_threshold": definition.breaker_threshold,
        "budget_count": len(definition.budgets),
    }


def create(tx: Tx, goal_id: GoalId, definition: GoalDefinition, root: str, tree_key: str, now_ms: int) -> None:
    """Raises ConflictError (`goal_exists`)."""
    if exists(tx, goal_id):
        raise ConflictError("goal_exists", f"goal {goal_id} exists", hint=f"loopx run {goal_id}, or another --goal-id")
    tx.run(
        "goals.insert",
        goal_id=goal_id,
        root=root,
        tree_key=tree_key,
        due_at_ms=now_ms,
        now_ms=now_ms,
        **_policy(definition),
    )
    tx.run("goals.insert_revision", goal_id=goal_id, revision=1, definition=dump(definition), now_ms=now_ms)
    events.append(tx, goal_id, "goal_created", now_ms, {"objective": definition.objective, "revision": 1})


def exists(tx: Tx, goal_id: str) -> bool:
    return tx.one("goals.exists", goal_id=goal_id) is not None


def row_of(tx: Tx, goal_id: str) -> Row:
    """The goal's row. Raises NotFoundError (`goal_unknown`) that names near ids; nothing is created."""
    row = tx.one("goals.get", goal_id=goal_id)
    if row is None:
        near = _near(tx, goal_id)
        hint = f"did you mean {', '.join(near)}?" if near else "loopx goal list"
        raise NotFoundError("goal_unknown", f"no goal {goal_id!r} in this project", hint=hint)
    return row


def _near(tx: Tx, goal_id: str) -> list[str]:
    """Ids that a mistyped one may have meant."""
    import difflib

    known = [str(found["goal_id"]) for found in tx.all("goals.page", after="", limit=1000)]
    begins = [str(found["goal_id"]) for found in tx.all("goals.similar", pattern=f"{goal_id[:4]}%")]
    return list(dict.fromkeys([*difflib.get_close_matches(goal_id, known, 3), *begins]))[:5]


def definition_of(tx: Tx, goal_id: str, revision: int) -> GoalDefinition:
    row = tx.one("goals.definition", goal_id=goal_id, revision=revision)
    if row is None:
        raise NotFoundError("goal_unknown", f"goal {goal_id} has no revision {revision}", hint="loopx doctor")
    return load(row["definition"], GoalDefinition)


def get(tx: Tx, goal_id: str) -> Goal:
    """Raises NotFoundError (`goal_unknown`)."""
    row = row_of(tx, goal_id)
    return from_row(row, definition_of(tx, goal_id, row["revision"]))


def from_row(row: Row, definition: GoalDefinition) -> Goal:
    return Goal(
        goal_id=GoalId(row["goal_id"]),
        state=GoalState(row["state"]),
        revision=row["revision"],
        definition=definition,
        root=row["root"],
        run_index=row["run_index"],
        created_at_ms=row["created_at_ms"],
        updated_at_ms=row["updated_at_ms"],
    )


def status_of(row: Row) -> GoalStatus:
    return GoalStatus(
        turn_count=row["turn_count"],
        contract=ContractState(row["contract_state"]),
        contract_tree=row["contract_tree"],
        base_tree=row["base_tree"],
        last_checkpoint=row["last_checkpoint"],
        has_baseline=row["baseline"] is not None,
        floor_streak=row["floor_streak"],
        idle_streak=row["idle_streak"],
        failure_streak=row["failure_streak"],
        host_failure_streak=row["host_failure_streak"],
        replan_tried=bool(row["replan_tried"]),
        due_at_ms=row["due_at_ms"],
        tree_key=row["tree_key"],
        health=row["health"],
        health_detail=row["health_detail"],
    )


def edit(tx: Tx, goal_id: GoalId, revision: int, definition: GoalDefinition, now_ms: int, what: object) -> int:
    """Write a new revision; its number. Raises ConflictError (`stale_revision`) when another edit came first."""
    row = row_of(tx, goal_id)
    before = definition_of(tx, goal_id, row["revision"])
    same_contract = bytes(before.contract) == bytes(definition.contract)
    changed = tx.run(
        "goals.edit",
        goal_id=goal_id,
        revision=revision,
        contract_state=row["contract_state"] if same_contract else "unknown",
        now_ms=now_ms,
        **_policy(definition),
    )
    if changed != 1:
        raise ConflictError(
            "stale_revision",
            f"goal {goal_id} is at revision {row['revision']}, not {revision}",
            hint=f"loopx goal show {goal_id}",
        )
    tx.run("goals.insert_revision", goal_id=goal_id, revision=revision + 1, definition=dump(definition), now_ms=now_ms)
    tx.run("goals.set_capped", goal_id=goal_id, capped=int(meters.capped(tx, goal_id, definition.budgets)))
    events.append(tx, goal_id, "goal_edited", now_ms, {"revision": revision + 1, "what": what})
    return revision + 1


def set_state(
    tx: Tx, goal_id: GoalId, expected: GoalState, state: GoalState, now_ms: int, by: str, reason: str = ""
) -> None:
    """Move a goal from one state to another. Raises ConflictError (`state_moved`) when it is elsewhere by now."""
    due = now_ms if state is GoalState.ACTIVE else None
    changed = tx.run("goals.set_state", goal_id=goal_id, expected=expected, state=state, due_at_ms=due, now_ms=now_ms)
    if changed != 1:
        raise ConflictError("state_moved", f"goal {goal_id} is no longer {expected}", hint=f"loopx goal show {goal_id}")
    events.append(tx, goal_id, f"goal_{state}", now_ms, {"from": expected, "by": by, "reason": reason})
