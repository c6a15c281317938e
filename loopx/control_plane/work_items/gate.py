"""A gate: a concrete question to a person. Answered only through a channel that no agent has a credential for."""

from __future__ import annotations

import enum

import msgspec

from loopx.control_plane.canonical import sha256_hex
from loopx.control_plane.ids import GateId, GoalId, TodoId, TurnKey


class GateStatus(enum.StrEnum):
    OPEN = "open"
    ANSWERED = "answered"
    EXPIRED = "expired"


class GateKind(enum.StrEnum):
    """What the gate is about; decides what an answer does."""

    QUESTION = "question"
    SIGN_IN = "sign_in"
    CONFIGURATION = "configuration"
    BLOCKER = "blocker"
    BUDGET = "budget"
    CAPABILITY = "capability"
    REPLAN_PREVIEW = "replan_preview"
    BREAKER = "breaker"


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """One question. Empty `todos` blocks the whole goal; otherwise just those todos."""

    gate_id: GateId
    goal_id: GoalId
    kind: GateKind
    question: str
    options: tuple[str, ...] = ()
    todos: tuple[TodoId, ...] = ()
    dedupe_key: str = ""
    status: GateStatus = GateStatus.OPEN
    answer: str | None = None
    answered_by: str | None = None
    fix: str = ""
    """A command that a person can run to resolve it."""
    turn_key: TurnKey | None = None
    created_at_ms: int = 0
    answered_at_ms: int | None = None
    expires_at_ms: int | None = None


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A standing answer with scope (`capability:NAME`, `question:KEY`) and an optional expiry."""

    grant_id: str
    goal_id: GoalId
    scope: str
    answer: str
    granted_by: str
    created_at_ms: int
    expires_at_ms: int | None = None
    revoked: bool = False


def question_key(question: str) -> str:
    """The key by which a question is known again, whatever its case and spaces; the scope of a standing answer."""
    return sha256_hex(" ".join(question.lower().split()))[:12]
