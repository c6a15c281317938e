"""Evidence: what proved something, and who produced it. Also the cache of check results by their inputs."""

from __future__ import annotations

import msgspec

from loopx.control_plane.errors import NotFoundError
from loopx.control_plane.ids import GoalId
from loopx.control_plane.turn_driver.journal import EvidenceDraft, EvidenceKind, Producer
from loopx.store.connection import Row, Tx


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of evidence, bound to the tree that it speaks of."""

    evidence_id: str
    goal_id: GoalId
    turn_key: str | None
    todo_id: str | None
    kind: EvidenceKind
    produced: Producer
    name: str
    verdict: str | None
    tree_hash: str | None
    commit_sha: str | None
    body: msgspec.Raw
    at_ms: int


def insert(
    tx: Tx,
    evidence_id: str,
    goal_id: str,
    draft: EvidenceDraft,
    now_ms: int,
    *,
    turn_key: str | None = None,
    todo_id: str | None = None,
) -> None:
    tx.run(
        "evidence.insert",
        evidence_id=evidence_id,
        goal_id=goal_id,
        turn_key=turn_key,
        todo_id=todo_id,
        kind=draft.kind,
        produced=draft.produced,
        name=draft.name,
        verdict=draft.verdict,
        tree_hash=draft.tree_hash,
        commit_sha=None,
        body=bytes(draft.body).decode(),
        now_ms=now_ms,
    )


def from_row(row: Row) -> Evidence:
    return Evidence(
        evidence_id=row["evidence_id"],
        goal_id=GoalId(row["goal_id"]),
        turn_key=row["turn_key"],
        todo_id=row["todo_id"],
        kind=EvidenceKind(row["kind"]),
        produced=Producer(row["produced"]),
        name=row["name"],
        verdict=row["verdict"],
        tree_hash=row["tree_hash"],
        commit_sha=row["commit_sha"],
        body=msgspec.Raw(row["body"].encode()),
        at_ms=row["at_ms"],
    )


def get(tx: Tx, evidence_id: str) -> Evidence:
    """Raises NotFoundError (`evidence_unknown`)."""
    row = tx.one("evidence.get", evidence_id=evidence_id)
    if row is None:
        raise NotFoundError("evidence_unknown", f"no evidence {evidence_id!r}", hint="loopx evidence list GOAL")
    return from_row(row)


def latest(tx: Tx, goal_id: str, limit: int = 100) -> tuple[Evidence, ...]:
    return tuple(from_row(row) for row in tx.all("evidence.latest", goal_id=goal_id, limit=limit))


def of_turn(tx: Tx, turn_key: str) -> tuple[Evidence, ...]:
    return tuple(from_row(row) for row in tx.all("evidence.of_turn", turn_key=turn_key))
