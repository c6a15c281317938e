"""The turn as a transaction: result kinds, the seven phases, and what makes a receipt legal (contracts, sections 3-5).

The phases and their order come from `turn_transaction_contract.json`, read once at import; the enums below only give
them names, and the import fails if the file and the names disagree. Pure otherwise: it validates and reports, and never
writes, spends or recovers anything itself.
"""

from __future__ import annotations

import enum
import io
import os
from collections.abc import Sequence
from typing import Final

import msgspec

from loopx.control_plane.errors import UsageError
from loopx.control_plane.ids import AgentId, EffectRef, GoalId, TodoId, TurnKey
from loopx.control_plane.turn_driver.driver import LoopXTurnRoute
from loopx.control_plane.work_items.todo import Continuation

TURN_RECEIPT_SCHEMA: Final = "loopx_turn_receipt_v0"


class _TransactionContract(msgspec.Struct, frozen=True):
    schema_version: str
    phases: tuple[str, ...]
    closeout: str


def _read_contract() -> _TransactionContract:
    # Plain string paths: pathlib costs several milliseconds of every hot command's start.
    folder = __file__.rpartition(os.sep)[0]
    with io.FileIO(f"{folder}{os.sep}..{os.sep}turn_transaction_contract.json") as file:
        return msgspec.json.decode(file.read(), type=_TransactionContract)


_CONTRACT: Final = _read_contract()
_ORDER: Final = (*_CONTRACT.phases, _CONTRACT.closeout)


class _ContractEnum(enum.StrEnum):
    """Takes each member's value from the contract file, in order, and refuses to be imported out of step with it."""

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[str]) -> str:
        if count >= len(_ORDER) or _ORDER[count] != name.lower():
            raise ImportError(f"turn_transaction_contract.json does not name {name.lower()} as step {count + 1}")
        return _ORDER[count]


class LoopXTurnPhase(_ContractEnum):
    """The seven phases of every turn, in order."""

    HOST_EXECUTE = enum.auto()
    TYPED_RESULT = enum.auto()
    VALIDATION = enum.auto()
    DURABLE_WRITEBACK = enum.auto()
    QUOTA_SPEND = enum.auto()
    SCHEDULER_APPLY = enum.auto()
    SCHEDULER_ACK = enum.auto()


class TurnStep(_ContractEnum):
    """The seven phases and the terminal closeout that may follow them: everything that can fail or be next."""

    HOST_EXECUTE = enum.auto()
    TYPED_RESULT = enum.auto()
    VALIDATION = enum.auto()
    DURABLE_WRITEBACK = enum.auto()
    QUOTA_SPEND = enum.auto()
    SCHEDULER_APPLY = enum.auto()
    SCHEDULER_ACK = enum.auto()
    TERMINAL_CLOSEOUT = enum.auto()


PHASES: Final = tuple(LoopXTurnPhase)
STEPS: Final = tuple(TurnStep)
PHASES_BEFORE_CLOSEOUT: Final = PHASES.index(LoopXTurnPhase.QUOTA_SPEND) + 1
"""How many phases must be committed before a terminal closeout may run."""

if tuple(map(str, PHASES)) != _CONTRACT.phases:
    raise ImportError("turn_transaction_contract.json must name exactly the seven phases")


class LoopXTurnResultKind(enum.StrEnum):
    """How a turn ended."""

    VALIDATED_PROGRESS = "validated_progress"
    VALIDATED_COMPLETION = "validated_completion"
    REPAIR_REQUIRED = "repair_required"
    REPLAN_REQUIRED = "replan_required"
    USER_ACTION_REQUIRED = "user_action_required"
    WAIT = "wait"
    ITERATION_FAILED = "iteration_failed"
    HOST_FAILURE = "host_failure"
    VALIDATION_FAILED = "validation_failed"
    WRITEBACK_FAILED = "writeback_failed"
    QUOTA_SPEND_FAILED = "quota_spend_failed"
    TERMINAL_CLOSEOUT_FAILED = "terminal_closeout_failed"


MATERIAL_RESULT_KINDS: Final = frozenset(
    {
        LoopXTurnResultKind.VALIDATED_PROGRESS,
        LoopXTurnResultKind.VALIDATED_COMPLETION,
        LoopXTurnResultKind.REPAIR_REQUIRED,
        LoopXTurnResultKind.REPLAN_REQUIRED,
    }
)
NO_SPEND_RESULT_KINDS: Final = frozenset(
    {
        LoopXTurnResultKind.USER_ACTION_REQUIRED,
        LoopXTurnResultKind.WAIT,
        LoopXTurnResultKind.ITERATION_FAILED,
        LoopXTurnResultKind.HOST_FAILURE,
        LoopXTurnResultKind.VALIDATION_FAILED,
        LoopXTurnResultKind.WRITEBACK_FAILED,
        LoopXTurnResultKind.QUOTA_SPEND_FAILED,
    }
)
STOP_RESULT_KINDS: Final = frozenset(
    {
        LoopXTurnResultKind.USER_ACTION_REQUIRED,
        LoopXTurnResultKind.WAIT,
        LoopXTurnResultKind.ITERATION_FAILED,
    }
)
FAILURE_PHASE: Final = {
    LoopXTurnResultKind.HOST_FAILURE: TurnStep.HOST_EXECUTE,
    LoopXTurnResultKind.VALIDATION_FAILED: TurnStep.VALIDATION,
    LoopXTurnResultKind.WRITEBACK_FAILED: TurnStep.DURABLE_WRITEBACK,
    LoopXTurnResultKind.QUOTA_SPEND_FAILED: TurnStep.QUOTA_SPEND,
    LoopXTurnResultKind.TERMINAL_CLOSEOUT_FAILED: TurnStep.TERMINAL_CLOSEOUT,
}
"""The step at which each failure kind stopped. A stop names none."""

_KIND_BY_TEXT: Final = {str(kind): kind for kind in LoopXTurnResultKind}


class TurnRecovery(enum.StrEnum):
    """What must follow a result that could not be accepted."""

    REPAIR_REQUIRED = "repair_required"
    REPLAN_REQUIRED = "replan_required"


class HostRetry(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about trying the same turn again after a host failure; `not_before_ms` is the backoff's end."""

    retryable: bool
    attempts_left: int = 0
    not_before_ms: int | None = None


class ReceiptRoute(msgspec.Struct, frozen=True, kw_only=True):
    kind: LoopXTurnRoute


class TurnReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The last word about one turn, in the shape of its JSON. Legal only as far as `validate_receipt` says so.

    `payload` is what the turn produced, as JSON that nothing here reads. `closed_out`: the terminal closeout committed.
    """

    schema_version: str = TURN_RECEIPT_SCHEMA
    turn_key: TurnKey
    goal_id: GoalId
    agent_id: AgentId
    todo_id: TodoId | None = None
    route: ReceiptRoute
    result_kind: LoopXTurnResultKind
    completed_phases: tuple[LoopXTurnPhase, ...] = ()
    failed_phase: TurnStep | None = None
    continuation: Continuation | None = None
    recovery: TurnRecovery | None = None
    retry: HostRetry | None = None
    payload: msgspec.Raw = msgspec.Raw(b"{}")
    effect_ref: EffectRef | None = None
    closed_out: bool = False


class _RawReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt as text: words that no enum knows get this far, so that they can be named in the report."""

    result_kind: str
    schema_version: str = ""
    turn_key: str = ""
    goal_id: str = ""
    agent_id: str = ""
    completed_phases: tuple[str, ...] = ()
    failed_phase: str | None = None


class ReceiptError(enum.StrEnum):
    """Everything that can be wrong with a receipt."""

    UNKNOWN_RESULT_KIND = "unknown_result_kind"
    PHASES_NOT_ORDERED_PREFIX = "phases_not_ordered_prefix"
    FAILED_PHASE_NOT_NEXT = "failed_phase_not_next"
    FAILED_PHASE_WITHOUT_FAILURE = "failed_phase_without_failure"
    FAILED_PHASE_MISMATCH = "failed_phase_mismatch"
    MATERIAL_WITHOUT_VALIDATION = "material_without_validation"
    NO_SPEND_KIND_SPENT = "no_spend_kind_spent"
    TURN_KEY_MISMATCH = "turn_key_mismatch"
    SCHEMA_UNSUPPORTED = "schema_unsupported"
    IDENTITY_INCOMPLETE = "identity_incomplete"


class ReceiptStatus(enum.StrEnum):
    """How far a receipt (or, for `in_progress`, a journal) got; the first that applies."""

    INVALID = "invalid"
    FAILED = "failed"
    STOPPED = "stopped"
    COMMITTED = "committed"
    VALIDATED = "validated"
    IN_PROGRESS = "in_progress"


class Eligibility(msgspec.Struct, frozen=True, kw_only=True):
    """What this receipt alone allows. Recovery asks by the journal's intended kind instead (`journal_report`)."""

    durable_writeback: bool = False
    quota_spend: bool = False
    scheduler_ack: bool = False


class ReceiptReport(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one receipt; `errors` is sorted and free of duplicates."""

    ok: bool
    status: ReceiptStatus
    errors: tuple[ReceiptError, ...]
    next_phase: TurnStep | None
    eligible: Eligibility


def validate_receipt(receipt: TurnReceipt, *, expected_turn_key: TurnKey | None = None) -> ReceiptReport:
    """Check one typed receipt (contracts, section 4). Total: it reports and never raises."""
    return _validate(receipt, expected_turn_key)


def validate_receipt_json(raw: bytes | str, *, expected_turn_key: TurnKey | None = None) -> ReceiptReport:
    """Check a receipt that comes as JSON, unknown words included.

    Raises `UsageError` (`receipt_malformed`) when it is no JSON object of a receipt's shape at all.
    """
    return _validate(_decode_raw(raw), expected_turn_key)


def decode_receipt(raw: bytes | str, *, expected_turn_key: TurnKey | None = None) -> TurnReceipt:
    """The typed receipt of a legal JSON receipt.

    Raises `UsageError`: `receipt_malformed` for a wrong shape, `receipt_invalid` with the error codes otherwise.
    """
    require_valid(validate_receipt_json(raw, expected_turn_key=expected_turn_key))
    try:
        return msgspec.json.decode(raw, type=TurnReceipt)
    except msgspec.DecodeError as error:
        raise _malformed(error) from error


def require_valid(report: ReceiptReport) -> None:
    """Raise `UsageError` (`receipt_invalid`, with every error code) unless the report is good."""
    if not report.ok:
        codes = ", ".join(report.errors)
        raise UsageError(
            "receipt_invalid",
            f"the turn receipt is not legal: {codes}",
            hint="look at the turn's journal: loopx turn journal",
            data={"errors": codes},
        )


def journal_report(
    intended: LoopXTurnResultKind | None,
    completed: Sequence[str],
    *,
    failed: TurnStep | None = None,
) -> ReceiptReport:
    """The report on an open journal: its *intended* kind decides what it may still do (contracts, section 4).

    Unlike a finished receipt, a journal may lack validation, or even a result; it is then `in_progress`.
    """
    errors = _phase_errors(completed)
    if failed is not None and not _is_next(failed, completed, closeout=failed is TurnStep.TERMINAL_CLOSEOUT):
        errors.add(ReceiptError.FAILED_PHASE_NOT_NEXT)
    if intended in NO_SPEND_RESULT_KINDS and LoopXTurnPhase.QUOTA_SPEND in completed:
        errors.add(ReceiptError.NO_SPEND_KIND_SPENT)
    return _report(errors, intended, completed, failed)


def _validate(receipt: TurnReceipt | _RawReceipt, expected_turn_key: TurnKey | None) -> ReceiptReport:
    kind = _KIND_BY_TEXT.get(receipt.result_kind)
    completed = receipt.completed_phases
    failed = receipt.failed_phase
    errors = _identity_errors(receipt, expected_turn_key) | _phase_errors(completed) | _failure_errors(receipt, kind)
    if kind in MATERIAL_RESULT_KINDS and LoopXTurnPhase.VALIDATION not in completed:
        errors.add(ReceiptError.MATERIAL_WITHOUT_VALIDATION)
    if kind in NO_SPEND_RESULT_KINDS and LoopXTurnPhase.QUOTA_SPEND in completed:
        errors.add(ReceiptError.NO_SPEND_KIND_SPENT)
    return _report(errors, kind, completed, failed)


def _identity_errors(receipt: TurnReceipt | _RawReceipt, expected_turn_key: TurnKey | None) -> set[ReceiptError]:
    errors: set[ReceiptError] = set()
    if receipt.schema_version != TURN_RECEIPT_SCHEMA:
        errors.add(ReceiptError.SCHEMA_UNSUPPORTED)
    if not (receipt.turn_key and receipt.goal_id and receipt.agent_id):
        errors.add(ReceiptError.IDENTITY_INCOMPLETE)
    if expected_turn_key is not None and receipt.turn_key != expected_turn_key:
        errors.add(ReceiptError.TURN_KEY_MISMATCH)
    return errors


def _phase_errors(completed: Sequence[str]) -> set[ReceiptError]:
    return set() if is_ordered_prefix(completed) else {ReceiptError.PHASES_NOT_ORDERED_PREFIX}


def _failure_errors(receipt: TurnReceipt | _RawReceipt, kind: LoopXTurnResultKind | None) -> set[ReceiptError]:
    errors: set[ReceiptError] = set()
    expected = None if kind is None else FAILURE_PHASE.get(kind)
    failed = receipt.failed_phase
    if kind is None:
        errors.add(ReceiptError.UNKNOWN_RESULT_KIND)
    if expected is not None and failed != expected:
        errors.add(ReceiptError.FAILED_PHASE_MISMATCH)
    if failed is not None:
        if expected is None:
            errors.add(ReceiptError.FAILED_PHASE_WITHOUT_FAILURE)
        closeout = expected is TurnStep.TERMINAL_CLOSEOUT and failed == expected
        if not _is_next(failed, receipt.completed_phases, closeout=closeout):
            errors.add(ReceiptError.FAILED_PHASE_NOT_NEXT)
    return errors


def is_ordered_prefix(completed: Sequence[str]) -> bool:
    """Whether `completed` is the first so many of the seven phases, in order."""
    return tuple(completed) == PHASES[: len(completed)]


def _is_next(failed: str, completed: Sequence[str], *, closeout: bool) -> bool:
    """Whether `failed` may follow `completed`; a closeout may follow five, six or seven phases."""
    done = len(completed)
    if closeout:
        return is_ordered_prefix(completed) and done >= PHASES_BEFORE_CLOSEOUT
    return done < len(PHASES) and failed == PHASES[done]


def _report(
    errors: set[ReceiptError],
    kind: LoopXTurnResultKind | None,
    completed: Sequence[str],
    failed: str | None,
) -> ReceiptReport:
    if errors:
        return ReceiptReport(
            ok=False,
            status=ReceiptStatus.INVALID,
            errors=tuple(sorted(errors)),
            next_phase=None,
            eligible=Eligibility(),
        )
    status = _status(kind, completed, failed)
    return ReceiptReport(
        ok=True,
        status=status,
        errors=(),
        next_phase=_next_phase(status, completed, failed),
        eligible=_eligibility(kind, completed),
    )


def _status(kind: LoopXTurnResultKind | None, completed: Sequence[str], failed: str | None) -> ReceiptStatus:
    if failed is not None:
        return ReceiptStatus.FAILED
    if kind in STOP_RESULT_KINDS:
        return ReceiptStatus.STOPPED
    if len(completed) == len(PHASES):
        return ReceiptStatus.COMMITTED
    if LoopXTurnPhase.VALIDATION in completed:
        return ReceiptStatus.VALIDATED
    return ReceiptStatus.IN_PROGRESS


def _next_phase(status: ReceiptStatus, completed: Sequence[str], failed: str | None) -> TurnStep | None:
    if status is ReceiptStatus.STOPPED or status is ReceiptStatus.COMMITTED:
        return None
    return STEPS[len(completed)] if failed is None else TurnStep(failed)


def _eligibility(kind: LoopXTurnResultKind | None, completed: Sequence[str]) -> Eligibility:
    material = kind in MATERIAL_RESULT_KINDS
    return Eligibility(
        durable_writeback=material and LoopXTurnPhase.VALIDATION in completed,
        quota_spend=material and LoopXTurnPhase.DURABLE_WRITEBACK in completed,
        scheduler_ack=LoopXTurnPhase.SCHEDULER_APPLY in completed,
    )


def _decode_raw(raw: bytes | str) -> _RawReceipt:
    try:
        return msgspec.json.decode(raw, type=_RawReceipt)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise _malformed(error) from error


def _malformed(error: Exception) -> UsageError:
    return UsageError(
        "receipt_malformed",
        f"the turn receipt is not well formed: {error}",
        hint="pass a receipt as `loopx turn show --json` prints it",
    )
