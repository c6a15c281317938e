"""Governed capabilities: what only LoopX may do for an agent, declared by a person in `loopx.toml`.

    [capabilities.push]
    argv = ["git", "push", "origin", "{branch}"]
    parameters = { branch = "[a-z0-9/-]{1,60}" }   # each must match in full; an agent gives values, never words
    policy = "ask"                                 # ask | grant | never
    secrets = ["GITHUB_TOKEN"]                     # variables of LoopX's own environment, handed to this command only
    idempotent = false                             # true: may simply run again when nobody saw how it ended
    readback = ["git", "ls-remote", "--exit-code", "origin", "{branch}"]   # exit 0 proves that it happened
    timeout_s = 600

The agent asks, a person or the policy grants, LoopX runs. A declaration that differs from what a person wrote is
always asked about. This module runs nothing; `capability_run` does.
"""

from __future__ import annotations

import enum
import re
import shlex
from typing import Annotated, Protocol

import msgspec

from loopx.control_plane.canonical import sha256_hex
from loopx.control_plane.errors import ConflictError, LoopXError, NotFoundError, UsageError
from loopx.control_plane.ids import AgentId, GateId, GoalId, TodoId
from loopx.control_plane.turn_driver.journal import GateDraft
from loopx.control_plane.work_items.gate import GateKind
from loopx.runtime import project_file
from loopx.runtime.project import Project
from loopx.store import capabilities as intents
from loopx.store import events, gates, turns
from loopx.store.capabilities import Intent
from loopx.store.codec import dump
from loopx.store.connection import Tx
from loopx.store.store import Store

TABLE = "capabilities"
_PLACE = re.compile(r"\{([a-z_][a-z0-9_]*)\}")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_REASON_CHARS = 500
_TOLD = 3


class Policy(enum.StrEnum):
    """Who decides about a request: a person each time, the declaration itself, or nobody ever."""

    ASK = "ask"
    GRANT = "grant"
    NEVER = "never"


class Capability(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One declaration. `parameters` maps a name to the pattern that its value must match in full."""

    argv: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    policy: Policy = Policy.ASK
    description: str = ""
    secrets: tuple[str, ...] = ()
    parameters: dict[str, str] = {}
    idempotent: bool = False
    readback: tuple[str, ...] = ()
    timeout_s: Annotated[int, msgspec.Meta(ge=1, le=86_400)] = 600


class Caller(Protocol):
    """The agent of an open turn, known by its token."""

    @property
    def turn_key(self) -> str: ...
    @property
    def goal_id(self) -> str: ...
    @property
    def agent_id(self) -> str: ...


class Requested(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a request: `requested` (a person is asked), `granted`, `refused`, or already further on."""

    intent_id: str
    capability: str
    status: str
    command: tuple[str, ...]
    gate_id: str | None = None


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """A declaration, and whether a person stands behind exactly this one."""

    name: str
    capability: Capability
    trusted: bool


def parse(content: bytes) -> dict[str, Capability]:
    """The declarations of a project file. Raises UsageError: `config_malformed`, `config_invalid`."""
    found: dict[str, Capability] = {}
    for name, value in project_file.table(content, TABLE).items():
        where = f"{TABLE}.{name}"
        if not _NAME.fullmatch(name):
            raise UsageError("config_invalid", f"{project_file.NAME}: {where}: not a name", hint="a-z, 0-9, - and _")
        capability = project_file.convert(value, Capability, where)
        _require_sound(where, capability)
        found[name] = capability
    return found


def _require_sound(where: str, capability: Capability) -> None:
    used = set(_PLACE.findall(" ".join((*capability.argv, *capability.readback))))
    if used != set(capability.parameters):
        odd = ", ".join(sorted(used ^ set(capability.parameters)))
        raise UsageError(
            "config_invalid",
            f"{project_file.NAME}: {where}: parameters and the places in argv differ: {odd}",
            hint="each {name} in argv needs a pattern under parameters, and the other way round",
        )
    for name, pattern in capability.parameters.items():
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(
                "config_invalid", f"{project_file.NAME}: {where}.parameters.{name}: {error}", hint="mend the pattern"
            ) from error


def declared(store: Store, project: Project, goal_id: str | None) -> dict[str, Declared]:
    """The project's capabilities as they stand on disk, each told apart from what an agent may have changed."""
    file = project_file.read(store, project, goal_id)
    now = parse(file.now)
    if file.is_trusted:
        return {name: Declared(name=name, capability=one, trusted=True) for name, one in now.items()}
    try:
        known = parse(file.trusted)
    except UsageError:
        known = {}
    return {name: Declared(name=name, capability=one, trusted=known.get(name) == one) for name, one in now.items()}


def secret_names(project: Project) -> frozenset[str]:
    """The variables that belong to capabilities alone. A file that can't be read names none."""
    try:
        with open(project_file.path_of(project), "rb") as file:
            found = parse(file.read())
    except (OSError, LoopXError):
        return frozenset()
    return frozenset(name for capability in found.values() for name in capability.secrets)


def names_for_agent(project: Project) -> tuple[str, ...]:
    """What an agent may ask for: each name with its parameters; what is never allowed is not offered."""
    try:
        with open(project_file.path_of(project), "rb") as file:
            found = parse(file.read())
    except (OSError, LoopXError):
        return ()
    return tuple(
        " ".join((name, *(f"{key}=<{pattern}>" for key, pattern in one.parameters.items())))
        for name, one in found.items()
        if one.policy is not Policy.NEVER
    )


def without_secrets(project: Project, env: dict[str, str]) -> dict[str, str]:
    """What hosts and checks get of an environment: everything but the capabilities' own secrets."""
    names = secret_names(project)
    return {name: value for name, value in env.items() if name not in names} if names else env


def preview(capability: Capability, values: dict[str, str]) -> tuple[str, ...]:
    """Exactly the words that would run.

    Raises UsageError (`parameter_missing`, `parameter_unknown`, `parameter_refused`) naming the parameter.
    """
    unknown = sorted(set(values) - set(capability.parameters))
    if unknown:
        raise UsageError("parameter_unknown", f"no parameter {unknown[0]!r}", hint=_takes(capability))
    for name, pattern in capability.parameters.items():
        if name not in values:
            raise UsageError("parameter_missing", f"parameter {name!r} is missing", hint=_takes(capability))
        if not re.fullmatch(pattern, values[name]):
            raise UsageError("parameter_refused", f"parameter {name!r} must match {pattern}", hint=_takes(capability))
    return filled(capability.argv, values)


def filled(words: tuple[str, ...], values: dict[str, str]) -> tuple[str, ...]:
    """Words with their places filled; a value never becomes more than a part of one word."""
    return tuple(_PLACE.sub(lambda place: values[place.group(1)], word) for word in words)


def _takes(capability: Capability) -> str:
    pairs = [f"{name}=<{pattern}>" for name, pattern in capability.parameters.items()]
    return f"parameters: {' '.join(pairs)}" if pairs else "it takes no parameters"


def request(
    store: Store,
    project: Project,
    caller: Caller,
    name: str,
    values: dict[str, str] | None = None,
    reason: str = "",
) -> Requested:
    """Record what an agent asks for; the same request in the same turn is answered with the first one.

    Raises NotFoundError (`capability_unknown`), UsageError for bad parameters, ConflictError (`turn_over`). A refusal
    by policy is no error: it is on record, and its status says so.
    """
    known = declared(store, project, caller.goal_id)
    if name not in known:
        _record_refusal(store, caller, name, "unknown")
        raise NotFoundError(
            "capability_unknown", f"no capability {name!r} is declared", hint=f"declared: {', '.join(known) or 'none'}"
        )
    found = known[name]
    given = dict(values or {})
    command = preview(found.capability, given)
    effect_ref = f"{caller.turn_key}/capability/{sha256_hex([name, command])[:16]}"
    now = store.now_ms()
    with store.write() as tx:
        if tx.one("turns.is_open", turn_key=caller.turn_key) is None:
            raise ConflictError("turn_over", "the turn of this token is over", hint="a token dies with its turn")
        before = intents.by_effect(tx, effect_ref)
        if before is not None:
            return _told(before)
        status = _status(tx, caller.goal_id, found, now)
        definition = msgspec.structs.replace(found.capability, readback=filled(found.capability.readback, given))
        intent = Intent(
            intent_id=store.ids.new("ci"),
            goal_id=GoalId(caller.goal_id),
            agent_id=AgentId(caller.agent_id),
            turn_key=caller.turn_key,
            capability=name,
            command=command,
            definition=msgspec.Raw(dump(definition).encode()),
            reason=reason[:_REASON_CHARS],
            status=status,
            effect_ref=effect_ref,
            attempt=1,
            gate_id=None,
            receipt=None,
            created_at_ms=now,
            updated_at_ms=now,
        )
        intents.insert(tx, intent, now)
        if status != intents.REQUESTED:
            return _told(intent)
        gate_id = _ask(tx, store, intent, found, now)
        return msgspec.structs.replace(_told(intent), gate_id=gate_id)


def _status(tx: Tx, goal_id: str, found: Declared, now_ms: int) -> str:
    policy = found.capability.policy
    if policy is Policy.NEVER:
        return intents.REFUSED
    if not found.trusted:
        return intents.REQUESTED
    grant = gates.live_grant(tx, goal_id, f"capability:{found.name}", now_ms)
    if grant is not None and grant.answer.strip().lower() not in intents.YES_WORDS:
        return intents.REFUSED
    return intents.GRANTED if grant is not None or policy is Policy.GRANT else intents.REQUESTED


def _ask(tx: Tx, store: Store, intent: Intent, found: Declared, now_ms: int) -> GateId:
    """One question, with the exact command in it; only the turn's own todo waits for the answer if others go on."""
    turn = turns.load_journal(tx, intent.turn_key or "").turn
    others = tx.number("todos.any_unended_but", goal_id=intent.goal_id, todo_id=turn.todo_id or "")
    scoped = bool(others) and turn.todo_id is not None
    changed = "" if found.trusted else "  (declared or changed by an agent)"
    draft = GateDraft(
        kind=GateKind.CAPABILITY,
        question=f"{intent.capability}: {shlex.join(intent.command)}{changed}",
        dedupe_key=f"capability:{intent.effect_ref}",
        options=("yes", "no") if not found.trusted else ("yes", "always", "no"),
        blocks_goal=not scoped,
        todos=(TodoId(turn.todo_id),) if scoped and turn.todo_id is not None else (),
    )
    gate_id = gates.ask(tx, intent.goal_id, store.ids.new("g"), draft, now_ms)
    intents.ask(tx, intent, gate_id, now_ms)
    return gate_id


def _told(intent: Intent) -> Requested:
    return Requested(
        intent_id=intent.intent_id,
        capability=intent.capability,
        status=intent.status,
        command=intent.command,
        gate_id=intent.gate_id,
    )


def _record_refusal(store: Store, caller: Caller, name: str, why: str) -> None:
    with store.write() as tx:
        body = {"capability": name[:80], "reason": why, "agent_id": caller.agent_id}
        events.append(tx, caller.goal_id, "capability_refused", store.now_ms(), body, caller.turn_key)


def outcomes(tx: Tx, goal_id: str) -> tuple[str, ...]:
    """The last few requests and what became of them, for the next prompt: one short line each."""
    ended = (intents.DONE, intents.FAILED, intents.REFUSED)
    return tuple(
        f"capability {one.capability}: {one.status}"
        for one in intents.latest(tx, goal_id, _TOLD)
        if one.status in ended
    )
