"""Charging a slot from outside a turn's own run: what proves it, and who appends it.

A spend stands for the durable writeback of a material result, so its evidence is a turn. A turn's own spend belongs to
its journal and is taken from there; this room appends a row by itself only where an earlier one was voided.
"""

from __future__ import annotations

import msgspec

from loopx.control_plane.errors import ConflictError, NotFoundError, UsageError
from loopx.control_plane.ids import AgentId, EffectRef, TurnKey
from loopx.control_plane.quota.spend_commit import LedgerEntry
from loopx.control_plane.turn_driver.journal import Turn
from loopx.control_plane.turn_driver.transaction import MATERIAL_RESULT_KINDS, PHASES, LoopXTurnPhase
from loopx.runtime.progress import silent
from loopx.runtime.project import Project
from loopx.runtime.turn_runner import TurnRunner
from loopx.store import goals, ledger, todos, turns
from loopx.store.connection import Tx
from loopx.store.store import Store

_WRITTEN_BACK = PHASES.index(LoopXTurnPhase.DURABLE_WRITEBACK) + 1


class SpendAsked(msgspec.Struct, frozen=True, kw_only=True):
    """A wish to charge a slot. The evidence is a turn, or a todo whose last turn is meant."""

    goal_id: str
    effect_ref: str | None = None
    turn_key: str | None = None
    todo_id: str | None = None
    run_index: int | None = None
    """What the caller read as the goal's run index; None compares with nothing."""


class SpendDone(msgspec.Struct, frozen=True, kw_only=True):
    """The entry that stands for the effect, whoever committed it."""

    entry: LedgerEntry
    replayed: bool


def known(store: Store, asked: SpendAsked) -> LedgerEntry | None:
    """The entry that this effect has already: a repeat counts as committed, whatever changed since.

    Raises NotFoundError (`goal_unknown`), ConflictError (`effect_of_another`).
    """
    with store.read() as tx:
        goals.row_of(tx, asked.goal_id)
        entry = ledger.by_effect(tx, asked.effect_ref) if asked.effect_ref is not None else None
    if entry is None:
        return None
    same_turn = asked.turn_key is None or asked.turn_key == entry.turn_key
    if entry.goal_id != asked.goal_id or not same_turn:
        raise ConflictError(
            "effect_of_another",
            f"{asked.effect_ref} is on record for {entry.turn_key or entry.goal_id}",
            hint=f"loopx quota ledger {entry.goal_id}",
        )
    return entry


def proved_turn(store: Store, asked: SpendAsked) -> Turn:
    """The turn that the spend is for, with its writeback committed.

    Raises UsageError (`evidence_missing`, `spend_refused`), NotFoundError (`turn_unknown`, `todo_unknown`).
    """
    with store.read() as tx:
        key = asked.turn_key or _turn_of_todo(tx, asked)
        turn = turns.load_journal(tx, key).turn
    if turn.goal_id != asked.goal_id:
        raise NotFoundError(
            "turn_unknown", f"turn {key} is not of {asked.goal_id}", hint=f"loopx turn list {asked.goal_id}"
        )
    if turn.intended_kind not in MATERIAL_RESULT_KINDS or turn.completed < _WRITTEN_BACK:
        raise UsageError(
            "spend_refused",
            f"no durable writeback of a material result stands behind turn {key}",
            hint=f"loopx turn show {asked.goal_id} {key}",
            data={"turn_key": key, "kind": turn.intended_kind, "completed": turn.completed},
        )
    return turn


def _turn_of_todo(tx: Tx, asked: SpendAsked) -> TurnKey:
    if asked.todo_id is None:
        raise UsageError(
            "evidence_missing",
            "a spend needs the turn, or the todo, whose writeback it charges",
            hint=f"add --turn KEY, or settle the work in one go: loopx turn settle {asked.goal_id} --todo TODO",
        )
    key = todos.get(tx, asked.todo_id, asked.goal_id).last_turn
    if key is None:
        raise UsageError(
            "spend_refused",
            f"no turn has worked on todo {asked.todo_id}, so nothing was written back",
            hint=f"loopx turn settle {asked.goal_id} --todo {asked.todo_id}",
        )
    return key


def require_index(store: Store, asked: SpendAsked) -> None:
    """Raises ConflictError (`spend_conflict`) when the ledger is not where the caller read it."""
    with store.read() as tx:
        current = int(goals.row_of(tx, asked.goal_id)["run_index"])
    if asked.run_index is not None and asked.run_index != current:
        raise ConflictError(
            "spend_conflict",
            f"the ledger of {asked.goal_id} is at {current}, not {asked.run_index}",
            hint=f"read it again, and look for your effect_ref first: loopx quota ledger {asked.goal_id}",
            data={"run_index": current, "expected": asked.run_index},
        )


def finish(store: Store, project: Project, turn: Turn, env: dict[str, str]) -> Turn:
    """Take a written-back turn to its end: its spend is its own, with its own `effect_ref`."""
    runner = TurnRunner(store, project, turn.goal_id, AgentId(turn.agent_id), silent, env)
    return runner.resume(turn.turn_key).turn


def append(store: Store, asked: SpendAsked, turn: Turn, reference: EffectRef) -> SpendDone:
    """The entry of this effect: found, or appended where the turn's own was voided."""
    with store.write() as tx:
        standing = ledger.live_spend_of_turn(tx, turn.turn_key)
        if standing is not None and standing.effect_ref != reference:
            raise ConflictError(
                "turn_already_spent",
                f"turn {turn.turn_key} was charged by {standing.effect_ref}",
                hint=f"void that first: loopx quota void {turn.goal_id} {standing.run_index} --reason WHY",
                data={"effect_ref": standing.effect_ref, "run_index": standing.run_index},
            )
        done = ledger.spend(
            tx,
            asked.goal_id,
            reference,
            1,
            store.now_ms(),
            turn_key=turn.turn_key,
            expected_index=asked.run_index,
            reason="quota_spend",
            reserved=False,
        )
    return SpendDone(entry=done.entry, replayed=done.replayed)
