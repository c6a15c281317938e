"""The loop controller: the last receipt and a fresh decision in, what the loop does next out (contracts, section 6).

One pure, total function over typed values. A refusal is not a disposition: it says that the inputs are stale or
forged, and the loop reads fresh ones. Nothing here reads a clock; which receipt is handed in, and until when, is the
caller's rule (contracts, section 6, "Which receipt is handed in").
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from loopx.control_plane.canonical import canonical_json
from loopx.control_plane.effect_program import EffectReceipt
from loopx.control_plane.errors import UsageError
from loopx.control_plane.ids import AgentId, GoalId, TodoId, TurnKey
from loopx.control_plane.quota.turn_envelope import TurnEnvelope
from loopx.control_plane.turn_driver.driver import HostBinding, LoopXTurnRoute, RouteReason, route_turn
from loopx.control_plane.turn_driver.transaction import (
    PHASES,
    HostRetry,
    LoopXTurnResultKind,
    ReceiptReport,
    TurnReceipt,
    TurnRecovery,
    TurnStep,
    decode_receipt,
    require_valid,
    validate_receipt,
)
from loopx.control_plane.work_items.todo import Continuation, ContinuationKind


class LoopDisposition(enum.StrEnum):
    """What the loop does next. The three properties are the declared costs of acting on it."""

    RUN_NOW = "run_now"
    CAPABILITY_ACTION_REQUIRED = "capability_action_required"
    WAIT = "wait"
    STOP = "stop"
    USER_ACTION_REQUIRED = "user_action_required"
    REPAIR = "repair"
    REPLAN = "replan"
    TERMINAL = "terminal"

    @property
    def spends_quota(self) -> bool:
        """Whether acting on it can spend a slot."""
        return self in _HOST_DISPOSITIONS

    @property
    def launches_host(self) -> bool:
        """Whether acting on it starts an engine."""
        return self in _HOST_DISPOSITIONS

    @property
    def writes_state(self) -> bool:
        """Whether acting on it writes to the goal's state."""
        return self in _WRITING_DISPOSITIONS


_HOST_DISPOSITIONS: Final = frozenset({LoopDisposition.RUN_NOW, LoopDisposition.REPAIR, LoopDisposition.REPLAN})
_WRITING_DISPOSITIONS: Final = _HOST_DISPOSITIONS | {LoopDisposition.CAPABILITY_ACTION_REQUIRED}

ROUTE_DISPOSITION: Final = {
    LoopXTurnRoute.READY_FOR_HOST: LoopDisposition.RUN_NOW,
    LoopXTurnRoute.CAPABILITY_ACTION_REQUIRED: LoopDisposition.CAPABILITY_ACTION_REQUIRED,
    LoopXTurnRoute.REPLAN_REQUIRED: LoopDisposition.REPLAN,
    LoopXTurnRoute.REPAIR_REQUIRED: LoopDisposition.REPAIR,
    LoopXTurnRoute.USER_ACTION_REQUIRED: LoopDisposition.USER_ACTION_REQUIRED,
    LoopXTurnRoute.WAIT: LoopDisposition.WAIT,
    LoopXTurnRoute.BLOCKED: LoopDisposition.WAIT,
}
"""Every legal route. `contract_error` has none: it is refused first."""

TODO_ROUTES: Final = frozenset({LoopXTurnRoute.READY_FOR_HOST, LoopXTurnRoute.REPAIR_REQUIRED})
"""The routes that need a selected todo."""

_KIND_DISPOSITION: Final = {
    LoopXTurnResultKind.REPLAN_REQUIRED: LoopDisposition.REPLAN,
    LoopXTurnResultKind.REPAIR_REQUIRED: LoopDisposition.REPAIR,
    LoopXTurnResultKind.USER_ACTION_REQUIRED: LoopDisposition.USER_ACTION_REQUIRED,
    LoopXTurnResultKind.WAIT: LoopDisposition.WAIT,
    LoopXTurnResultKind.ITERATION_FAILED: LoopDisposition.STOP,
}


class RefusalCode(enum.StrEnum):
    """Why the inputs were refused."""

    CONTRACT_ERROR = "contract_error"
    STALE_RECEIPT = "stale_receipt"
    MISSING_TODO = "missing_todo"
    MISSING_BUDGET = "missing_budget"
    UNDECLARED_SUCCESSOR = "undeclared_successor"
    COMPLETED_TODO_RESELECTED = "completed_todo_reselected"
    NO_FOLLOWUP_WITHOUT_TERMINAL_FRONTIER = "no_followup_without_terminal_frontier"


class DispositionReason(enum.StrEnum):
    """Which rule chose the disposition."""

    ROUTE = "route"
    USER_GATE = "user_gate"
    FRONTIER_TERMINAL = "frontier_terminal"
    BUDGET_EXHAUSTED = "budget_exhausted"
    RESULT_KIND = "result_kind"
    HOST_RETRY = "host_retry"
    HOST_ATTEMPTS_SPENT = "host_attempts_spent"
    VALIDATION_REPLAN = "validation_replan"
    FAILURE_REPAIR = "failure_repair"


class LoopDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The disposition, the route it stands on, and the rule that chose it. `same_turn`: the wait ends in a retry of
    the receipt's own turn, not in a new one."""

    disposition: LoopDisposition
    route: LoopXTurnRoute
    reason: DispositionReason
    same_turn: bool = False


class LoopRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs are stale or forged; read fresh ones. `route_reason` is set for `contract_error`."""

    code: RefusalCode
    route_reason: RouteReason | None = None


class TurnExecution(msgspec.Struct, frozen=True, kw_only=True):
    """What an executed turn leaves: its receipt, and however many receipts its effects have."""

    receipt: TurnReceipt
    phase_receipts: tuple[EffectReceipt, ...] = ()


class ValidatedTurnReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt that passed validation; made by `from_execution`, compared by its enums."""

    receipt: TurnReceipt
    report: ReceiptReport

    @classmethod
    def from_execution(
        cls,
        execution: TurnExecution | TurnReceipt | Mapping[str, object],
        *,
        expected_turn_key: TurnKey | None = None,
    ) -> ValidatedTurnReceipt:
        """Validate what a turn left, typed or in its JSON form.

        Raises `UsageError`: `receipt_malformed`, `receipt_invalid` (with the error codes), `receipt_foreign_effect`
        when an effect's receipt belongs to another turn or to a phase that the receipt does not claim, or
        `completion_without_continuation`.
        """
        if isinstance(execution, Mapping):
            execution = decode_receipt(canonical_json(dict(execution)), expected_turn_key=expected_turn_key)
        if isinstance(execution, TurnReceipt):
            execution = TurnExecution(receipt=execution)
        receipt = execution.receipt
        report = validate_receipt(receipt, expected_turn_key=expected_turn_key)
        require_valid(report)
        _require_own_effects(execution)
        _require_continuation(receipt)
        return cls(receipt=receipt, report=report)

    @property
    def result_kind(self) -> LoopXTurnResultKind:
        return self.receipt.result_kind

    @property
    def turn_key(self) -> TurnKey:
        return self.receipt.turn_key

    @property
    def goal_id(self) -> GoalId:
        return self.receipt.goal_id

    @property
    def agent_id(self) -> AgentId:
        return self.receipt.agent_id

    @property
    def todo_id(self) -> TodoId | None:
        return self.receipt.todo_id

    @property
    def continuation(self) -> Continuation | None:
        return self.receipt.continuation

    @property
    def recovery(self) -> TurnRecovery | None:
        return self.receipt.recovery

    @property
    def retry(self) -> HostRetry | None:
        return self.receipt.retry


class TurnBudget(msgspec.Struct, frozen=True, kw_only=True):
    """How many turns the caller bounded this run to, and how many of them are used."""

    limit: int
    used: int

    @property
    def exhausted(self) -> bool:
        return self.used >= self.limit


class DispositionInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the disposition may look at.

    `predecessor_turn_key`: the turn that the caller believes came last. `frontier_terminal`: the goal's frontier is
    proved terminal (nothing open, contract green).
    """

    envelope: TurnEnvelope
    receipt: ValidatedTurnReceipt | None = None
    predecessor_turn_key: TurnKey | None = None
    budget: TurnBudget | None = None
    frontier_terminal: bool = False
    binding: HostBinding | None = None


class _Facts(msgspec.Struct, frozen=True):
    """The inputs with the route already derived and the user rule applied."""

    inputs: DispositionInputs
    route: LoopXTurnRoute
    selected: TodoId | None


def decide_loop_disposition(inputs: DispositionInputs) -> LoopDecision | LoopRefusal:
    """The next disposition, or a typed refusal; total, first match wins (contracts, section 6)."""
    routed = route_turn(inputs.envelope, inputs.binding)
    if routed.route is LoopXTurnRoute.CONTRACT_ERROR:
        return LoopRefusal(code=RefusalCode.CONTRACT_ERROR, route_reason=routed.reason)
    receipt = inputs.receipt
    if receipt is not None and _is_stale(inputs, receipt):
        return LoopRefusal(code=RefusalCode.STALE_RECEIPT)
    todo = inputs.envelope.action.selected_todo
    gated = inputs.envelope.user.action_required
    facts = _Facts(
        inputs,
        LoopXTurnRoute.USER_ACTION_REQUIRED if gated else routed.route,
        None if todo is None else todo.todo_id,
    )
    if _takes_capability(facts.route, receipt):
        return _by_route(facts)
    if receipt is None:
        return _without_receipt(facts)
    if receipt.result_kind is LoopXTurnResultKind.VALIDATED_COMPLETION:
        return _after_completion(facts, receipt)
    if facts.selected is not None and facts.selected != receipt.todo_id:
        return LoopRefusal(code=RefusalCode.STALE_RECEIPT)
    if receipt.result_kind is LoopXTurnResultKind.VALIDATED_PROGRESS:
        return _after_progress(facts)
    return _after_other(facts, receipt)


def _is_stale(inputs: DispositionInputs, receipt: ValidatedTurnReceipt) -> bool:
    """Not the predecessor's receipt, or of another goal. Another agent's is fine: a todo may change hands."""
    if inputs.predecessor_turn_key is None or inputs.predecessor_turn_key != receipt.turn_key:
        return True
    return receipt.goal_id != inputs.envelope.goal_id


def _takes_capability(route: LoopXTurnRoute, receipt: ValidatedTurnReceipt | None) -> bool:
    if route is not LoopXTurnRoute.CAPABILITY_ACTION_REQUIRED:
        return False
    return receipt is None or receipt.result_kind in _CAPABILITY_KINDS


_CAPABILITY_KINDS: Final = frozenset({LoopXTurnResultKind.VALIDATED_PROGRESS, LoopXTurnResultKind.VALIDATED_COMPLETION})


def _by_route(facts: _Facts) -> LoopDecision:
    gated = facts.route is LoopXTurnRoute.USER_ACTION_REQUIRED
    return LoopDecision(
        disposition=ROUTE_DISPOSITION[facts.route],
        route=facts.route,
        reason=DispositionReason.USER_GATE if gated else DispositionReason.ROUTE,
    )


def _by_route_with_todo(facts: _Facts) -> LoopDecision | LoopRefusal:
    if facts.selected is None and facts.route in TODO_ROUTES:
        return LoopRefusal(code=RefusalCode.MISSING_TODO)
    return _by_route(facts)


def _terminal(facts: _Facts) -> LoopDecision:
    return LoopDecision(
        disposition=LoopDisposition.TERMINAL, route=facts.route, reason=DispositionReason.FRONTIER_TERMINAL
    )


def _without_receipt(facts: _Facts) -> LoopDecision | LoopRefusal:
    return _terminal(facts) if facts.inputs.frontier_terminal else _by_route_with_todo(facts)


def _after_completion(facts: _Facts, receipt: ValidatedTurnReceipt) -> LoopDecision | LoopRefusal:
    continuation = receipt.continuation
    kind = None if continuation is None else continuation.kind
    successors = () if continuation is None else continuation.successors
    if kind is ContinuationKind.NO_FOLLOWUP:
        return _after_no_followup(facts, receipt, successors)
    if facts.selected is None:
        return _by_route_with_todo(facts)
    if kind is ContinuationKind.SUCCESSOR and facts.selected not in successors:
        return LoopRefusal(code=RefusalCode.UNDECLARED_SUCCESSOR)
    if kind is not ContinuationKind.SUCCESSOR and facts.selected == receipt.todo_id:
        return LoopRefusal(code=RefusalCode.COMPLETED_TODO_RESELECTED)
    return _by_route(facts)


def _after_no_followup(
    facts: _Facts, receipt: ValidatedTurnReceipt, successors: tuple[TodoId, ...]
) -> LoopDecision | LoopRefusal:
    """Terminal, or another todo goes on. A successor of a completion that declared none is a contradiction."""
    if facts.inputs.frontier_terminal:
        return _terminal(facts)
    if facts.selected is None or facts.selected == receipt.todo_id or facts.selected in successors:
        return LoopRefusal(code=RefusalCode.NO_FOLLOWUP_WITHOUT_TERMINAL_FRONTIER)
    return _by_route(facts)


def _after_progress(facts: _Facts) -> LoopDecision | LoopRefusal:
    if facts.selected is None and facts.route in TODO_ROUTES:
        return LoopRefusal(code=RefusalCode.MISSING_TODO)
    if facts.route is LoopXTurnRoute.USER_ACTION_REQUIRED:
        return _by_route(facts)
    budget = facts.inputs.budget
    if budget is None:
        return LoopRefusal(code=RefusalCode.MISSING_BUDGET)
    if budget.exhausted:
        return LoopDecision(
            disposition=LoopDisposition.REPLAN, route=facts.route, reason=DispositionReason.BUDGET_EXHAUSTED
        )
    return _by_route(facts)


def _after_other(facts: _Facts, receipt: ValidatedTurnReceipt) -> LoopDecision:
    if facts.route is LoopXTurnRoute.USER_ACTION_REQUIRED:
        return _by_route(facts)
    kind = receipt.result_kind
    if kind in _KIND_DISPOSITION:
        return LoopDecision(
            disposition=_KIND_DISPOSITION[kind], route=facts.route, reason=DispositionReason.RESULT_KIND
        )
    if kind is LoopXTurnResultKind.HOST_FAILURE:
        return _after_host_failure(facts, receipt.retry)
    if kind is LoopXTurnResultKind.VALIDATION_FAILED and receipt.recovery is TurnRecovery.REPLAN_REQUIRED:
        return LoopDecision(
            disposition=LoopDisposition.REPLAN, route=facts.route, reason=DispositionReason.VALIDATION_REPLAN
        )
    return LoopDecision(disposition=LoopDisposition.REPAIR, route=facts.route, reason=DispositionReason.FAILURE_REPAIR)


def _after_host_failure(facts: _Facts, retry: HostRetry | None) -> LoopDecision:
    if facts.route in {LoopXTurnRoute.REPLAN_REQUIRED, LoopXTurnRoute.REPAIR_REQUIRED}:
        return _by_route(facts)
    if retry is not None and retry.retryable and retry.attempts_left > 0:
        return LoopDecision(
            disposition=LoopDisposition.WAIT,
            route=facts.route,
            reason=DispositionReason.HOST_RETRY,
            same_turn=True,
        )
    return LoopDecision(
        disposition=LoopDisposition.REPAIR, route=facts.route, reason=DispositionReason.HOST_ATTEMPTS_SPENT
    )


def _require_own_effects(execution: TurnExecution) -> None:
    receipt = execution.receipt
    claimed = {*receipt.completed_phases, TurnStep.TERMINAL_CLOSEOUT}
    for effect in execution.phase_receipts:
        if effect.turn_key != receipt.turn_key or effect.step not in claimed:
            raise UsageError(
                "receipt_foreign_effect",
                f"effect {effect.effect_ref!r} ({effect.step}) is not one that turn {receipt.turn_key!r} claims",
                hint="look at the turn's journal: loopx turn journal",
                data={"effect_ref": effect.effect_ref, "step": str(effect.step), "phases": len(PHASES)},
            )


def _require_continuation(receipt: TurnReceipt) -> None:
    if receipt.result_kind is not LoopXTurnResultKind.VALIDATED_COMPLETION:
        return
    continuation = receipt.continuation
    named = continuation is not None and continuation.kind is ContinuationKind.SUCCESSOR
    if continuation is None or (named and not continuation.successors):
        raise UsageError(
            "completion_without_continuation",
            f"the completion of turn {receipt.turn_key!r} does not say what follows it",
            hint="state a successor (with its ids), active_goal, or no_followup",
        )
