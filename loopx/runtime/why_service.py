"""The reason of a decision, now or as it was: the facts, the rule that fired, and what would change the answer.

A turn keeps the facts that it was decided from, so that its decision can be made again by the same pure function.
"""

from __future__ import annotations

import msgspec

from loopx.control_plane.errors import NotFoundError
from loopx.control_plane.ids import AgentId
from loopx.control_plane.quota import decision as decisions
from loopx.control_plane.quota.explain import Explanation, explain
from loopx.control_plane.quota.facts import GoalFacts
from loopx.control_plane.quota.rules import TABLE
from loopx.runtime.reading import read_facts
from loopx.store.codec import load
from loopx.store.connection import Row, Tx
from loopx.store.store import Store


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """A decision with its explanation. `turn_key`: the turn that it let run; None for now.

    `agrees`: the decision made again equals the one that was recorded; None for now.
    """

    goal_id: str
    decided_at_ms: int
    should_run: bool
    state: str
    effective_action: str
    rule: str
    row: int
    rows: int
    reason: str
    wake_after_ms: int | None
    todo_id: str | None
    todo_title: str | None
    explanation: Explanation
    next_command: tuple[str, ...]
    turn_key: str | None = None
    agrees: bool | None = None
    last_result: str | None = None
    last_reason: str | None = None


def now(store: Store, goal_id: str, agent_id: AgentId) -> Why:
    """Raises NotFoundError (`goal_unknown`)."""
    with store.read() as tx:
        facts = read_facts(store, tx, goal_id, agent_id)
        last = tx.all("turns.lines", goal_id=goal_id, before=1 << 62, limit=1)
    made = _why(facts)
    if not last:
        return made
    kind = last[0]["result_kind"] or last[0]["intended_kind"]
    return msgspec.structs.replace(made, last_result=kind, last_reason=_reason(last[0]))


def at_turn(store: Store, goal_id: str, word: str) -> Why:
    """The decision that let a turn run. Raises NotFoundError (`turn_unknown`, `decision_unrecorded`)."""
    with store.read() as tx:
        row = _turn(tx, goal_id, word)
    try:
        facts = msgspec.json.decode(row["decision"], type=GoalFacts)
        recorded = msgspec.json.decode(row["envelope"], type=_Envelope)
    except msgspec.DecodeError as error:
        raise NotFoundError(
            "decision_unrecorded",
            f"turn {row['turn_key']} kept no facts that can be read",
            hint=f"loopx turn show {goal_id} {word}",
        ) from error
    made = _why(facts)
    agrees = (made.should_run, made.state, made.effective_action) == (
        recorded.should_run,
        recorded.state,
        recorded.effective_action,
    )
    kind = row["result_kind"] or row["intended_kind"]
    return msgspec.structs.replace(
        made, turn_key=row["turn_key"], agrees=agrees, last_result=kind, last_reason=_reason(row)
    )


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    should_run: bool
    state: str
    effective_action: str


class _Result(msgspec.Struct, frozen=True, kw_only=True):
    reason: str = ""


def _reason(row: Row) -> str | None:
    return load(row["result"], _Result).reason if row["result"] else None


def _turn(tx: Tx, goal_id: str, word: str) -> Row:
    number = word.removeprefix("#")
    found = tx.one("turns.by_number", goal_id=goal_id, number=int(number)) if number.isdigit() else None
    row = tx.one("turns.get", turn_key=found["turn_key"] if found is not None else word)
    if row is None or row["goal_id"] != goal_id:
        raise NotFoundError("turn_unknown", f"{goal_id} has no turn {word!r}", hint=f"loopx turn list {goal_id}")
    return row


def _why(facts: GoalFacts) -> Why:
    made = decisions.decide(facts)
    explained = explain(facts, made)
    todo = made.selected_todo
    return Why(
        goal_id=facts.goal_id,
        decided_at_ms=facts.now_ms,
        should_run=made.should_run,
        state=made.state,
        effective_action=made.effective_action,
        rule=made.rule,
        row=explained.row,
        rows=len(TABLE),
        reason=made.reason,
        wake_after_ms=made.wake_after_ms,
        todo_id=todo.todo_id if todo is not None else None,
        todo_title=todo.title if todo is not None else None,
        explanation=explained,
        next_command=made.next_command,
    )
