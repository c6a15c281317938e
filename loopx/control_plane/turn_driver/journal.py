"""The journal of one turn as values: the turn, its committed phases, its typed result, and the steps that extend it.

The ordered prefix of completed phases is the only progress scale (architecture, sentence 2). A step is what one commit
may add; the store writes a step's phase row, effect and event in one transaction, keyed by its `effect_ref`.
"""

from __future__ import annotations

import enum

import msgspec

from loopx.control_plane.ids import AgentId, EffectRef, Epoch, GoalId, TodoId, TurnKey
from loopx.control_plane.quota.facts import ContractState, PendingWait
from loopx.control_plane.turn_driver.driver import LoopXTurnRoute
from loopx.control_plane.turn_driver.transaction import (
    LoopXTurnPhase,
    LoopXTurnResultKind,
    TurnRecovery,
    TurnStep,
)
from loopx.control_plane.work_items.delivery_outcome import DeliveryOutcome, DeliveryTurnKind
from loopx.control_plane.work_items.gate import GateKind
from loopx.control_plane.work_items.todo import Continuation


class TurnState(enum.StrEnum):
    """`blocked`: the journal is inconsistent, and a person repairs it."""

    OPEN = "open"
    CLOSED = "closed"
    BLOCKED = "blocked"


class TurnPurpose(enum.StrEnum):
    """What the host is asked to do."""

    WORK = "work"
    REPAIR = "repair"
    REPLAN = "replan"


class Closeout(enum.StrEnum):
    """The terminal closeout of a completion with `no_followup`."""

    NONE = "none"
    PENDING = "pending"
    FAILED = "failed"
    DONE = "done"


class EvidenceKind(enum.StrEnum):
    CHECK = "check"
    DIFF = "diff"
    METRIC = "metric"
    LINK = "link"
    NOTE = "note"
    GUARD = "guard"


class Producer(enum.StrEnum):
    """Who produced a piece of evidence: LoopX itself, or the agent by its own word."""

    VERIFIED = "verified"
    CLAIMED = "claimed"


class EvidenceDraft(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence to be stored. `body` is JSON whose shape belongs to its kind."""

    kind: EvidenceKind
    produced: Producer
    name: str
    verdict: str | None = None
    tree_hash: str | None = None
    body: msgspec.Raw = msgspec.Raw(b"{}")


class GateDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A question to be asked; the same open `dedupe_key` is asked once."""

    kind: GateKind
    question: str
    dedupe_key: str
    options: tuple[str, ...] = ()
    blocks_goal: bool = True
    todos: tuple[TodoId, ...] = ()
    fix: str = ""


class NewTodo(msgspec.Struct, frozen=True, kw_only=True):
    """A todo that a replan adds."""

    title: str
    body: str = ""
    priority: int = 0


class ReplanDelta(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of what a replan turn may change: todos added, dropped, reordered. Never the contract."""

    add: tuple[NewTodo, ...] = ()
    drop: tuple[TodoId, ...] = ()
    order: tuple[TodoId, ...] = ()


class RestoreOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Offending files that go back to the base; the agent's copies stay in `evidence_tree`."""

    paths: tuple[str, ...]
    base_tree: str
    evidence_tree: str


class RunUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What one host run used, as deltas; None is unknown and is not metered."""

    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_microusd: int | None = None
    raw: msgspec.Raw = msgspec.Raw(b"null")
    """The host's own counters, as the base of the next delta of the same session."""


class HostReport(msgspec.Struct, frozen=True, kw_only=True):
    """How the host's part of a turn ended; the receipt of `host_execute`. `end_kind` is the host room's word."""

    run_id: str
    engine: str
    end_kind: str
    handed_over: bool
    exit_code: int | None = None
    session_id: str | None = None
    adopted: bool = False
    wall_ms: int = 0
    tool_calls: int = 0
    usage: RunUsage = RunUsage()
    message: str = ""
    """The host's last words, capped and redacted: for people, never for a decision."""
    end: msgspec.Raw = msgspec.Raw(b"null")
    """The whole typed end, for the judge."""


class TurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """What LoopX itself found out about the turn; what validation accepts and writeback writes."""

    kind: LoopXTurnResultKind
    continuation: Continuation | None = None
    recovery: TurnRecovery | None = None
    failure: str | None = None
    """The LoopFailure word, when the loop was not green."""
    reason: str = ""
    """A stable code for why this kind was chosen."""
    outcome: DeliveryOutcome | None = None
    turn_kind: DeliveryTurnKind | None = None
    tree_before: str | None = None
    tree_after: str | None = None
    tree_left: str | None = None
    """The tree once the checks had run: they may have written into it themselves."""
    changed: bool = False
    contract: ContractState = ContractState.UNKNOWN
    evaluation: msgspec.Raw = msgspec.Raw(b"null")
    """The encoded evaluation that this verdict stands on; the reference of later progress once it is written back."""
    checks_green: int = 0
    checks_total: int = 0
    signatures: tuple[str, ...] = ()
    recurring: bool = False
    no_change: bool = False
    """Neither tree nor checks nor evidence nor todos changed: counts toward the breaker."""
    evidence: tuple[EvidenceDraft, ...] = ()
    gate: GateDraft | None = None
    wait: PendingWait | None = None
    delta: ReplanDelta | None = None
    restore: RestoreOrder | None = None
    findings: tuple[str, ...] = ()
    retryable: bool = False
    retry_not_before_ms: int | None = None
    attempts_left: int = 0
    confirmed_in_snapshot: bool = False
    message: str = ""
    accepted_paths: tuple[str, ...] = ()
    """Protected paths whose change was judged both ways and accepted."""


class PassedOver(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that was preferred and could not be had; `code` says why."""

    engine: str
    code: str


class EngineChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Which engine was asked for, and who stepped aside before the one that was resolved (loops, "Engines")."""

    asked: str
    explicit: bool = False
    """A person named it for this run."""
    passed_over: tuple[PassedOver, ...] = ()


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One bounded attempt. `turn_key` was chosen before anything ran; `completed` counts the committed phases."""

    turn_key: TurnKey
    goal_id: GoalId
    agent_id: AgentId
    todo_id: TodoId | None
    number: int
    goal_revision: int
    purpose: TurnPurpose
    route: LoopXTurnRoute
    state: TurnState
    completed: int
    intended_kind: LoopXTurnResultKind | None
    result_kind: LoopXTurnResultKind | None
    failed_phase: TurnStep | None
    closeout: Closeout
    epoch: Epoch
    engine: str
    predecessor: TurnKey | None
    discharged: bool
    slots: int
    tree_before: str | None
    checkpoint: str | None
    result: TurnResult | None
    started_at_ms: int
    ended_at_ms: int | None
    violation: str | None = None
    choice: EngineChoice | None = None
    """How `engine`, the resolved one, came to be chosen; None where nobody chose (settled from outside)."""


class PhaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One committed phase and the receipt of its effect."""

    phase: LoopXTurnPhase
    effect_ref: EffectRef
    receipt: msgspec.Raw
    epoch: Epoch
    committed_at_ms: int


class TurnJournal(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one turn after its last commit. `host` is set once the host's end is recorded."""

    turn: Turn
    phases: tuple[PhaseRecord, ...]
    host: HostReport | None = None


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """What every write of a turn carries: the lease's resource and the epoch that must still be its."""

    resource: str
    epoch: Epoch


class HostEnded(msgspec.Struct, frozen=True, tag="host_ended"):
    """Not a phase: the host's end is on record and metered, so it never runs again for this turn."""

    report: HostReport


class HostExecuted(msgspec.Struct, frozen=True, tag="host_execute"):
    """Phase 1: the host did its part, as far as the machinery goes."""

    report: HostReport


class ResultTyped(msgspec.Struct, frozen=True, tag="typed_result"):
    """Phase 2: the result is typed and stored as the turn's intent."""

    result: TurnResult


class Validated(msgspec.Struct, frozen=True, tag="validation"):
    """Phase 3: LoopX accepts the result as material."""


class Restored(msgspec.Struct, frozen=True, tag="restored"):
    """Not a phase: the offending files of a refused turn are back at the base."""


class WrittenBack(msgspec.Struct, frozen=True, tag="durable_writeback"):
    """Phase 4: todos, contract state and delta are written; `checkpoint` is the commit on the goal's branch."""

    checkpoint: str | None


class SlotSpent(msgspec.Struct, frozen=True, tag="quota_spend"):
    """Phase 5: one ledger entry, keyed by the effect_ref."""


class NextDue(msgspec.Struct, frozen=True, kw_only=True):
    """When the goal's own cadence wants it next; `slot_key` names the occurrence that this turn served."""

    at_ms: int | None = None
    slot_key: str | None = None
    misses: int = 0


class ScheduleApplied(msgspec.Struct, frozen=True, tag="scheduler_apply"):
    """Phase 6: the wanted cadence and the next due instant are written."""

    due: NextDue


class ScheduleAcked(msgspec.Struct, frozen=True, tag="scheduler_ack"):
    """Phase 7: the owner is known to have the applied cadence."""


class ClosedOut(msgspec.Struct, frozen=True, tag="terminal_closeout"):
    """The goal, its todo and its schedule are closed."""


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """The turn ends here without a material result, or with a declared failure."""

    kind: LoopXTurnResultKind
    failed_phase: TurnStep | None
    code: str = ""
    """The code of the error that kept a proved turn from settling; for people."""


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """Every phase that the result asked for is committed: the turn closes."""


JournalStep = (
    HostEnded
    | HostExecuted
    | ResultTyped
    | Validated
    | Restored
    | WrittenBack
    | SlotSpent
    | ScheduleApplied
    | ScheduleAcked
    | ClosedOut
    | Stopped
    | Finished
)
"""What one commit may add to a journal."""
