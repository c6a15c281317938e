"""Evidence as people read it and add to it. What they add is claimed: only LoopX's own findings are verified."""

from __future__ import annotations

import msgspec

from loopx.control_plane.errors import NotFoundError, UsageError
from loopx.control_plane.ids import GoalId
from loopx.control_plane.turn_driver.journal import EvidenceDraft, EvidenceKind, Producer
from loopx.runtime.agent_service import EvidenceAdded
from loopx.store import events, evidence, goals
from loopx.store.codec import dump
from loopx.store.evidence import Evidence
from loopx.store.store import Store

TEXT_CHARS = 20_000
_HELD_OUT = b'"held_out":true'


class EvidencePage(msgspec.Struct, frozen=True, kw_only=True):
    """`next_after`: the cursor of the next page, None at the end."""

    evidence: tuple[Evidence, ...]
    next_after: str | None = None


def page(
    store: Store, goal_id: str, *, after: str, limit: int, turn_key: str | None, without_held_out: bool
) -> EvidencePage:
    """A goal's evidence by id, the oldest first; bodies without the checks' output.

    Raises NotFoundError (`goal_unknown`, `turn_unknown`).
    """
    with store.read() as tx:
        goals.row_of(tx, goal_id)
        if turn_key is not None:
            found = _of_turn(tx_rows=evidence.of_turn(tx, turn_key), goal_id=goal_id, turn_key=turn_key, after=after)
        else:
            rows = tx.all("evidence.page", goal_id=goal_id, after=after, limit=limit + 1)
            found = tuple(evidence.from_row(row) for row in rows)
    more = len(found) > limit
    shown = found[:limit]
    visible = tuple(_short(one) for one in shown if not (without_held_out and is_held_out(one)))
    return EvidencePage(evidence=visible, next_after=shown[-1].evidence_id if more and shown else None)


def _of_turn(*, tx_rows: tuple[Evidence, ...], goal_id: str, turn_key: str, after: str) -> tuple[Evidence, ...]:
    if tx_rows and tx_rows[0].goal_id != goal_id:
        raise NotFoundError("turn_unknown", f"{goal_id} has no turn {turn_key!r}", hint=f"loopx turn list {goal_id}")
    return tuple(one for one in tx_rows if one.evidence_id > after)


def is_held_out(one: Evidence) -> bool:
    """Whether this is the result of a check that no agent may know of."""
    return one.kind is EvidenceKind.CHECK and _HELD_OUT in bytes(one.body)


def _short(one: Evidence) -> Evidence:
    """Without the output of a check, which `evidence show` has."""
    if one.kind is not EvidenceKind.CHECK:
        return one
    body = msgspec.json.decode(one.body, type=dict[str, object])
    body.pop("output", None)
    return msgspec.structs.replace(one, body=msgspec.Raw(dump(body).encode()))


def get(store: Store, evidence_id: str, *, without_held_out: bool) -> Evidence:
    """Raises NotFoundError (`evidence_unknown`)."""
    with store.read() as tx:
        found = evidence.get(tx, evidence_id)
    if without_held_out and is_held_out(found):
        raise NotFoundError("evidence_unknown", f"no evidence {evidence_id!r}", hint="loopx evidence list GOAL")
    return found


def add(
    store: Store, goal_id: str, name: str, *, text: str = "", link: str = "", metric: float | None = None, by: str
) -> EvidenceAdded:
    """Put a person's word on record. Raises NotFoundError (`goal_unknown`), UsageError (`name_empty`, `text_long`)."""
    if not name.strip():
        raise UsageError("name_empty", "evidence needs a name", hint="say what it is about")
    if len(text) > TEXT_CHARS:
        raise UsageError("text_long", f"a note has at most {TEXT_CHARS} characters", hint="link to it instead: --link")
    kind = EvidenceKind.METRIC if metric is not None else EvidenceKind.LINK if link else EvidenceKind.NOTE
    body: dict[str, object] = {"text": text, "link": link, "metric": metric, "by": by}
    said = {key: value for key, value in body.items() if value not in ("", None)}
    draft = EvidenceDraft(
        kind=kind, produced=Producer.CLAIMED, name=name.strip()[:200], body=msgspec.Raw(dump(said).encode())
    )
    evidence_id, now = store.ids.new("ev"), store.now_ms()
    with store.write() as tx:
        goals.row_of(tx, goal_id)
        evidence.insert(tx, evidence_id, GoalId(goal_id), draft, now)
        told = {"evidence_id": evidence_id, "kind": kind, "produced": Producer.CLAIMED, "by": by}
        events.append(tx, goal_id, "evidence_added", now, told)
    return EvidenceAdded(evidence_id=evidence_id)
