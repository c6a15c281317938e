"""What an agent says of its own turn, from its tools and from its typed result file: claims, never verdicts."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from loopx.hosts.result_file import ResultFileKind, TypedResult


class ClaimKind(enum.StrEnum):
    """The agent's verbs that say how its turn ended."""

    COMPLETION = "completion"
    QUESTION = "question"
    BLOCKER = "blocker"
    NO_CHANGE = "no_change"


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One claim. `choices` belong to a question; `successors` to a completion."""

    kind: ClaimKind
    text: str = ""
    choices: tuple[str, ...] = ()
    todo_id: str | None = None
    successors: tuple[str, ...] = ()
    outcome: str | None = None
    """A delivery outcome that the agent claims; it can lower the derived one, never raise it."""


_FROM_FILE = {
    ResultFileKind.COMPLETION: ClaimKind.COMPLETION,
    ResultFileKind.QUESTION: ClaimKind.QUESTION,
    ResultFileKind.BLOCKER: ClaimKind.BLOCKER,
    ResultFileKind.NO_CHANGE: ClaimKind.NO_CHANGE,
}


def from_result(result: TypedResult | None) -> tuple[Claim, ...]:
    """The claims of a typed result file."""
    if result is None or result.kind not in _FROM_FILE:
        return ()
    question = result.question
    return (
        Claim(
            kind=_FROM_FILE[result.kind],
            text=question.text if question is not None else result.summary,
            choices=question.choices if question is not None else (),
            successors=result.continuation.todo_ids if result.continuation is not None else (),
        ),
    )


def last_of(claims: Iterable[Claim], kind: ClaimKind) -> Claim | None:
    """The newest claim of one kind."""
    found: Claim | None = None
    for claim in claims:
        if claim.kind is kind:
            found = claim
    return found
