"""The typed result that a program may leave in `LOOPX_RESULT_FILE`: parsed strictly, bound to its turn, never trusted
further than its type. It is a candidate, like every word of an agent: LoopX's own checks are the verdict.

    {"turn_key": "...", "kind": "progress", "summary": "...", "question": {"text": "...", "choices": ["yes", "no"]},
     "continuation": {"mode": "successor", "todo_ids": ["..."]}, "usage": {"input_tokens": 10}}
"""

from __future__ import annotations

import enum
import os
from typing import Annotated

import msgspec

from loopx.hosts.protocol import Usage

MAX_BYTES = 64 * 1024

Count = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
ShortText = Annotated[str, msgspec.Meta(max_length=200)]
Paragraph = Annotated[str, msgspec.Meta(max_length=8000)]


class ResultFileKind(enum.StrEnum):
    """What the program says it did."""

    PROGRESS = "progress"
    COMPLETION = "completion"
    QUESTION = "question"
    BLOCKER = "blocker"
    NO_CHANGE = "no_change"
    ERROR = "error"


class ContinuationMode(enum.StrEnum):
    """What a completion is followed by (contracts, section 3)."""

    SUCCESSOR = "successor"
    ACTIVE_GOAL = "active_goal"
    NO_FOLLOWUP = "no_followup"


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A concrete question to a person."""

    text: Annotated[str, msgspec.Meta(min_length=1, max_length=4000)]
    choices: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=20)] = ()


class Continuation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Stated with a completion; ids only with `successor`."""

    mode: ContinuationMode
    todo_ids: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=100)] = ()


class ClaimedUsage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Counters that the program claims for this run; absent ones stay unknown."""

    input_tokens: Count | None = None
    cached_input_tokens: Count | None = None
    output_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    cost_microusd: Count | None = None


class TypedResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    turn_key: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    kind: ResultFileKind
    summary: Paragraph = ""
    question: Question | None = None
    continuation: Continuation | None = None
    usage: ClaimedUsage | None = None


class RejectCode(enum.StrEnum):
    """Why a result file was refused."""

    OVERSIZED = "result_oversized"
    NOT_A_FILE = "result_not_a_file"
    UNREADABLE = "result_unreadable"
    MALFORMED = "result_malformed"
    FOREIGN_TURN = "result_foreign_turn"
    QUESTION_MISSING = "result_question_missing"
    QUESTION_UNEXPECTED = "result_question_unexpected"
    CONTINUATION_UNEXPECTED = "result_continuation_unexpected"
    CONTINUATION_CONTRADICTORY = "result_continuation_contradictory"


class ResultRead(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly one of `result` and `reject` is set, or neither: the program left no file."""

    result: TypedResult | None = None
    reject: RejectCode | None = None
    detail: str = ""


_decoder = msgspec.json.Decoder(TypedResult, strict=True)


def read(path: str, turn_key: str) -> ResultRead:
    """Reads the file of the turn `turn_key`. Never raises; links, devices and folders are refused, not followed."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ResultRead()
    except OSError as problem:
        return ResultRead(reject=RejectCode.NOT_A_FILE, detail=problem.strerror or "")
    try:
        return _read(handle, turn_key)
    except OSError as problem:
        return ResultRead(reject=RejectCode.UNREADABLE, detail=problem.strerror or "")
    finally:
        os.close(handle)


def _read(handle: int, turn_key: str) -> ResultRead:
    import stat

    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        return ResultRead(reject=RejectCode.NOT_A_FILE)
    if found.st_size > MAX_BYTES:
        return ResultRead(reject=RejectCode.OVERSIZED, detail=f"{found.st_size} bytes")
    with open(handle, "rb", closefd=False) as stream:
        return parse(stream.read(MAX_BYTES + 1), turn_key)


def parse(raw: bytes, turn_key: str) -> ResultRead:
    """Judges the bytes of a result file. An empty file counts as none."""
    if len(raw) > MAX_BYTES:
        return ResultRead(reject=RejectCode.OVERSIZED, detail=f"more than {MAX_BYTES} bytes")
    if not raw.strip():
        return ResultRead()
    try:
        result = _decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError, ValueError) as problem:
        return ResultRead(reject=RejectCode.MALFORMED, detail=str(problem)[:200])
    reject = _contradiction(result, turn_key)
    return ResultRead(reject=reject) if reject is not None else ResultRead(result=result)


def usage_of(result: TypedResult) -> Usage:
    """What the program claims to have used; unknown where it claims nothing."""
    claimed = result.usage
    if claimed is None:
        return Usage()
    return Usage(
        input_tokens=claimed.input_tokens,
        cached_input_tokens=claimed.cached_input_tokens,
        output_tokens=claimed.output_tokens,
        reasoning_tokens=claimed.reasoning_tokens,
        cost_microusd=claimed.cost_microusd,
    )


def _contradiction(result: TypedResult, turn_key: str) -> RejectCode | None:
    if result.turn_key != turn_key:
        return RejectCode.FOREIGN_TURN
    if result.kind is ResultFileKind.QUESTION and result.question is None:
        return RejectCode.QUESTION_MISSING
    if result.question is not None and result.kind not in (ResultFileKind.QUESTION, ResultFileKind.BLOCKER):
        return RejectCode.QUESTION_UNEXPECTED
    if result.continuation is None:
        return None
    if result.kind is not ResultFileKind.COMPLETION:
        return RejectCode.CONTINUATION_UNEXPECTED
    named = bool(result.continuation.todo_ids)
    return (
        RejectCode.CONTINUATION_CONTRADICTORY
        if named != (result.continuation.mode is ContinuationMode.SUCCESSOR)
        else None
    )
