"""A replan's delta as an agent wrote it: read, bounded, and, where the goal wants it so, put before a person first.

The delta never touches the contract. It decides nothing: whether it counts is the judge's, and whether it is carried
out is the turn's settlement's or a person's.
"""

from __future__ import annotations

import msgspec

from loopx.control_plane.canonical import sha256_hex
from loopx.control_plane.errors import ConflictError
from loopx.control_plane.goal import CLOSED_GOAL_STATES
from loopx.control_plane.ids import GoalId
from loopx.control_plane.turn_driver.journal import GateDraft, NewTodo, ReplanDelta
from loopx.control_plane.work_items.gate import Gate, GateKind
from loopx.hosts import redact
from loopx.store import events, goals, replans, todos, turns
from loopx.store.connection import Tx
from loopx.store.store import Store

YES, NO = "yes", "no"
_FILE_BYTES = 64 * 1024
_MOST_TODOS = 50
_TITLE_CHARS = 300
_BODY_CHARS = 4000
_PRIORITY_MOST = 100
_QUESTION_CHARS = 2000
_LINE_CHARS = 120


def read(tx: Tx, goal_id: str, path: str) -> ReplanDelta | None:
    """The delta in this file, or None: it is not there, malformed, empty, too long, or names todos of elsewhere."""
    try:
        with open(path, "rb") as file:
            delta = msgspec.json.decode(file.read(_FILE_BYTES), type=ReplanDelta)
    except (OSError, msgspec.DecodeError):
        return None
    if not (delta.add or delta.drop or delta.order) or len(delta.add) > _MOST_TODOS:
        return None
    if any(not draft.title.strip() for draft in delta.add):
        return None
    for todo_id in (*delta.drop, *delta.order):
        if tx.one("todos.exists_in_goal", todo_id=todo_id, goal_id=goal_id) is None:
            return None
    return msgspec.structs.replace(delta, add=tuple(_bounded(draft) for draft in delta.add))


def _bounded(draft: NewTodo) -> NewTodo:
    return NewTodo(
        title=_clean(draft.title, _TITLE_CHARS),
        body=_clean(draft.body, _BODY_CHARS),
        priority=max(-_PRIORITY_MOST, min(_PRIORITY_MOST, draft.priority)),
    )


def _clean(text: str, limit: int) -> str:
    clean = redact.redact(text.strip()).replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def preview(tx: Tx, delta: ReplanDelta) -> GateDraft:
    """The question about a delta: each change on a line of its own, `+` added, `-` dropped, `>` the new order."""
    lines = ["change the plan?"]
    lines += [f"+ {_line(draft.title)}" for draft in delta.add]
    lines += [f"- {todo_id} {_line(todos.get(tx, todo_id).title)}" for todo_id in delta.drop]
    lines += [f"> {', '.join(delta.order)}"] if delta.order else []
    question = "\n".join(lines)
    if len(question) > _QUESTION_CHARS:
        question = question[: _QUESTION_CHARS - 1] + "…"
    key = sha256_hex(msgspec.to_builtins(delta))[:16]
    return GateDraft(
        kind=GateKind.REPLAN_PREVIEW, question=question, dedupe_key=f"replan_preview:{key}", options=(YES, NO)
    )


def _line(text: str) -> str:
    one = " ".join(text.split())
    return one if len(one) <= _LINE_CHARS else one[: _LINE_CHARS - 1] + "…"


def answered(tx: Tx, store: Store, gate: Gate, words: str, by: str, now_ms: int) -> None:
    """Carry out what a person confirmed, or drop it, in the transaction of the answer.

    Raises ConflictError (`goal_closed`): a goal that has ended takes no new plan.
    """
    if gate.turn_key is None:
        return
    yes = words == YES
    if yes:
        state = goals.row_of(tx, gate.goal_id)["state"]
        if state in CLOSED_GOAL_STATES:
            raise ConflictError(
                "goal_closed", f"goal {gate.goal_id} is {state}", hint=f"loopx gate answer {gate.gate_id} {NO}"
            )
        result = turns.load_journal(tx, gate.turn_key).turn.result
        if result is not None and result.delta is not None:
            goal_id = GoalId(gate.goal_id)
            replans.apply(tx, goal_id, result.delta, now_ms, store.ids.new, by=by, turn_key=gate.turn_key)
    kind = "replan_applied" if yes else "replan_dropped"
    events.append(tx, gate.goal_id, kind, now_ms, {"gate_id": gate.gate_id, "by": by}, gate.turn_key)
