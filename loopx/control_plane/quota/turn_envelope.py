"""The turn envelope: what the quota decision hands to the turn driver, signed over every field (contracts, section 1).

The signature proves integrity between the decision and the driver, not who made it. This module builds, signs, decodes
and recomputes; it never decides whether a turn may run, and never trusts a hash that it did not compute itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from loopx.control_plane.canonical import sha256_hex
from loopx.control_plane.errors import UsageError
from loopx.control_plane.goal import Boundary
from loopx.control_plane.ids import AgentId, GoalId
from loopx.control_plane.quota.facts import CapabilityIntent, TodoRef
from loopx.control_plane.quota.states import QuotaState

if TYPE_CHECKING:
    from loopx.control_plane.quota.decision import QuotaDecision

TURN_ENVELOPE_SCHEMA: Final = "loopx_turn_envelope_v0"


class EnvelopeAction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the turn is asked to do. `recommended_action` is for people; the driver reads `effective_action`."""

    recommended_action: str
    delivery_allowed: bool
    must_attempt: bool
    quiet_noop_allowed: bool
    selected_todo: TodoRef | None = None
    capability_intent: CapabilityIntent | None = None


class UserAction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that a person can do: the gate that asks for it, when there is one, and the question."""

    question: str
    gate_id: str | None = None
    options: tuple[str, ...] = ()


class UserChannel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the decision asks of a person."""

    action_required: bool = False
    notify: bool = False
    actions: tuple[UserAction, ...] = ()


class EnvelopeScheduler(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who owns the cadence, at which revision, and the next wake that the decision knows (UTC milliseconds)."""

    owner: str = "loopx"
    revision: int = 0
    wake_after_ms: int | None = None


class Signature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`source_hash` is over the decision's fields, `envelope_hash` over the envelope's; `matches` is their equality."""

    source_hash: str
    envelope_hash: str
    matches: bool


class TurnEnvelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One decision for one goal and agent. Every field but the signature itself is signed."""

    schema_version: str = TURN_ENVELOPE_SCHEMA
    goal_id: GoalId
    agent_id: AgentId
    should_run: bool
    state: QuotaState
    effective_action: str
    """An open word: what only a newer version says takes the driver's default route."""
    reason: str
    action: EnvelopeAction
    user: UserChannel = UserChannel()
    boundary: Boundary = Boundary()
    scheduler: EnvelopeScheduler = EnvelopeScheduler()
    action_signature: Signature | None = None


class _SchemaOnly(msgspec.Struct):
    schema_version: str


_SIGNED_FIELDS: Final = tuple(name for name in TurnEnvelope.__struct_fields__ if name != "action_signature")


def envelope_hash(envelope: TurnEnvelope) -> str:
    """SHA-256 over the canonical JSON of every field of the envelope but its signature."""
    return sha256_hex({name: getattr(envelope, name) for name in _SIGNED_FIELDS})


def sign(envelope: TurnEnvelope) -> TurnEnvelope:
    """The same envelope with a signature that holds. Signing twice changes nothing."""
    digest = envelope_hash(envelope)
    signature = Signature(source_hash=digest, envelope_hash=digest, matches=True)
    return msgspec.structs.replace(envelope, action_signature=signature)


def signature_holds(envelope: TurnEnvelope) -> bool:
    """Whether the signature is there, says that it matches, and equals the hash recomputed here and now."""
    signature = envelope.action_signature
    if signature is None or not signature.matches:
        return False
    return signature.source_hash == signature.envelope_hash == envelope_hash(envelope)


def encode_envelope(envelope: TurnEnvelope) -> bytes:
    """The envelope as JSON; `decode_envelope` reads it back unchanged."""
    return msgspec.json.encode(envelope)


def decode_envelope(raw: bytes | str) -> TurnEnvelope:
    """Read an envelope strictly: unknown fields, missing fields and wrong types are refused.

    Raises `UsageError` with the code `envelope_malformed` or `envelope_schema_unsupported`. A well-formed envelope with
    a wrong signature is returned as it is: refusing it is the driver's word (`contract_error`).
    """
    try:
        schema = msgspec.json.decode(raw, type=_SchemaOnly).schema_version
        if schema != TURN_ENVELOPE_SCHEMA:
            raise UsageError(
                "envelope_schema_unsupported",
                f"turn envelope schema {schema!r} is not supported",
                hint=f"make the envelope again with this version; it speaks {TURN_ENVELOPE_SCHEMA}",
            )
        return msgspec.json.decode(raw, type=TurnEnvelope)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise UsageError(
            "envelope_malformed",
            f"the turn envelope is not well formed: {error}",
            hint="pass the envelope exactly as `loopx turn plan --json` printed it",
        ) from error


def envelope_from_decision(
    decision: QuotaDecision,
    *,
    boundary: Boundary | None = None,
    scheduler: EnvelopeScheduler | None = None,
) -> TurnEnvelope:
    """The signed envelope of one should-run decision. The decision's own wake instant stands when none is given."""
    chosen = scheduler or EnvelopeScheduler(wake_after_ms=decision.wake_after_ms)
    return sign(
        TurnEnvelope(
            goal_id=decision.goal_id,
            agent_id=decision.agent_id,
            should_run=decision.should_run,
            state=decision.state,
            effective_action=str(decision.effective_action),
            reason=decision.reason,
            action=EnvelopeAction(
                recommended_action=str(decision.effective_action),
                delivery_allowed=decision.delivery_allowed,
                must_attempt=decision.must_attempt,
                quiet_noop_allowed=decision.quiet_noop_allowed,
                selected_todo=decision.selected_todo,
                capability_intent=decision.capability_intent,
            ),
            user=UserChannel(
                action_required=decision.user_action_required,
                notify=decision.user_notify,
                actions=decision.user_actions,
            ),
            boundary=boundary or Boundary(),
            scheduler=chosen,
        )
    )
