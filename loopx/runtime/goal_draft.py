"""From what a person asks for (flags over `loopx.toml`) to a goal's definition, or a typed refusal.

It stores nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loopx.contracts.model import Check, Contract, ProtectPolicy
from loopx.contracts.parse import parse_command_line, parse_timeout, validate_checks
from loopx.control_plane.errors import EngineError, UsageError
from loopx.control_plane.goal import Boundary, GoalDefinition, Permission, TreeMode
from loopx.control_plane.quota import budgets
from loopx.control_plane.quota.budgets import BudgetChange, Metering
from loopx.control_plane.quota.policy import Budget, QuotaPolicy
from loopx.hosts import registry
from loopx.hosts.protocol import Executable, ProbeResult, SignedIn
from loopx.runtime.config import Config
from loopx.runtime.goal_service import encode_contract

_REPORT_NO_DOLLARS = frozenset({"codex", "gemini", "native"})


class GoalWish(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for; None, or empty, where nothing was said."""

    objective: str | None = None
    checks: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    check_timeout: str | None = None
    engines: tuple[str, ...] = ()
    fallback: tuple[str, ...] = ()
    no_fallback: bool = False
    model: str | None = None
    permission: str | None = None
    budgets: tuple[str, ...] = ()
    protect: tuple[str, ...] = ()
    scope: tuple[str, ...] = ()
    policy: str | None = None
    snapshot: bool | None = None
    worktree: bool | None = None
    setup: str | None = None
    allowed_slots: int | None = None
    compute: float | None = None
    window_hours: float | None = None
    slot_minutes: float | None = None
    outcome_floor: int | None = None
    breaker: int | None = None
    turn_timeout: str | None = None
    replan_preview: bool | None = None

    @property
    def said(self) -> tuple[str, ...]:
        """The names of what was said, for the record of an edit."""
        silent: tuple[object, ...] = (None, ())
        quiet = ("no_fallback",)
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return tuple(
            name for name, value in values if value not in silent and (value is not False or name not in quiet)
        )


def definition(
    wish: GoalWish, config: Config, root: str, env: dict[str, str], *, engine_needed: bool = True
) -> GoalDefinition:
    """A new goal's definition; without `engine_needed`, one without an engine where none is named or evident.

    Raises UsageError (`no_check`, and what parsing refuses), EngineError (`no_engine`).
    """
    contract = _contract(wish, config.contract)
    if not [check for check in contract.checks if not check.held_out]:
        raise no_check(root)
    engines = wish.engines or config.engines or _evident_engine(env, needed=engine_needed)
    base = GoalDefinition(
        objective=wish.objective or "",
        contract=encode_contract(contract),
        engines=engines,
        fallback=config.fallback,
        model=config.model,
        permission=config.permission,
        quota=config.quota,
        budgets=_budgets((), config.budgets, engines),
        boundary=Boundary(write_scope=config.scope),
        tree_mode=TreeMode.WORKTREE if config.worktree else TreeMode.IN_PLACE,
        setup=config.setup,
        replan_preview=config.replan_preview,
        breaker_threshold=config.breaker,
        turn_timeout_s=config.turn_timeout_s,
    )
    return edited(base, msgspec.structs.replace(wish, checks=(), held_out=(), check_timeout=None, engines=()))


def edited(old: GoalDefinition, wish: GoalWish) -> GoalDefinition:
    """The definition with everything that was said put in its place. Raises UsageError for what can't be used."""
    engines = wish.engines or old.engines
    engines += tuple(engine for engine in wish.fallback if engine not in engines)
    contract = _contract(wish, msgspec.json.decode(old.contract, type=Contract))
    scope = wish.scope or old.boundary.write_scope
    mode = old.tree_mode
    if wish.worktree is not None:
        mode = TreeMode.WORKTREE if wish.worktree else TreeMode.IN_PLACE
    for engine in engines:
        registry.kind_of(engine)
    return msgspec.structs.replace(
        old,
        objective=old.objective if wish.objective is None else wish.objective,
        contract=encode_contract(contract),
        engines=engines,
        fallback=(old.fallback or bool(wish.fallback)) and not wish.no_fallback,
        model=old.model if wish.model is None else wish.model or None,
        permission=old.permission if wish.permission is None else _permission(wish.permission),
        quota=_quota(old.quota, wish),
        budgets=_budgets(old.budgets, tuple(budgets.parse_budget(text) for text in wish.budgets), engines),
        boundary=Boundary(write_scope=scope, protected=contract.protected),
        tree_mode=mode,
        setup=old.setup if wish.setup is None else ("sh", "-c", wish.setup),
        replan_preview=old.replan_preview if wish.replan_preview is None else wish.replan_preview,
        breaker_threshold=wish.breaker or old.breaker_threshold,
        turn_timeout_s=old.turn_timeout_s if wish.turn_timeout is None else parse_timeout(_number(wish.turn_timeout)),
    )


def _number(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def _contract(wish: GoalWish, old: Contract) -> Contract:
    """New visible checks replace the old visible ones, new held-out ones the old held-out ones."""
    visible = tuple(check for check in old.checks if not check.held_out)
    held_out = tuple(check for check in old.checks if check.held_out)
    if wish.checks:
        visible = parse_command_line(wish.checks)
    if wish.check_timeout is not None:
        seconds = parse_timeout(_number(wish.check_timeout))
        visible = tuple(msgspec.structs.replace(check, timeout_s=seconds) for check in visible)
    if wish.held_out:
        held_out = tuple(
            msgspec.structs.replace(check, held_out=True, name=_apart(check, visible))
            for check in parse_command_line(wish.held_out)
        )
    checks = visible + held_out
    return msgspec.structs.replace(
        old,
        checks=validate_checks(checks) if checks else (),
        policy=_policy(wish.policy) if wish.policy else old.policy,
        protected=old.protected + tuple(glob for glob in wish.protect if glob not in old.protected),
        confirm_in_snapshot=old.confirm_in_snapshot if wish.snapshot is None else wish.snapshot,
    )


def _apart(check: Check, visible: Sequence[Check]) -> str:
    taken = {other.name for other in visible}
    return f"{check.name} (held out)" if check.name in taken else check.name


def _policy(word: str) -> ProtectPolicy:
    if word not in tuple(ProtectPolicy):
        raise UsageError("policy_unknown", f"no policy {word!r}", hint=f"one of: {', '.join(ProtectPolicy)}")
    return ProtectPolicy(word)


def _permission(word: str) -> Permission:
    if word not in tuple(Permission):
        raise UsageError("permission_unknown", f"no permission {word!r}", hint=f"one of: {', '.join(Permission)}")
    return Permission(word)


def _quota(old: QuotaPolicy, wish: GoalWish) -> QuotaPolicy:
    names = ("allowed_slots", "compute", "window_hours", "slot_minutes", "outcome_floor")
    written = {name: getattr(wish, name) for name in names if getattr(wish, name) is not None}
    return budgets.read_quota_policy(written, base=old) if written else old


def _budgets(
    old: tuple[Budget, ...], changes: tuple[BudgetChange, ...], engines: tuple[str, ...]
) -> tuple[Budget, ...]:
    return budgets.apply_changes(old, changes, meterings=meterings(engines))


def meterings(engines: Sequence[str]) -> tuple[Metering, ...]:
    """What the engines report of themselves; any command may report in its result file."""
    return tuple(
        Metering(engine=engine, reports_dollars=registry.inner_word(engine) not in _REPORT_NO_DOLLARS)
        for engine in engines
    )


def no_check(root: str) -> UsageError:
    """The refusal of a goal without a check, naming what this project seems to be checked with."""
    from loopx.runtime.suggestions import check_programs

    found = check_programs(root)
    named = f"   (found in this project: {', '.join(found)})" if found else ""
    return UsageError(
        "no_check",
        "no check: without one, LoopX can't tell done from said.",
        hint=f'add  --check "CMD"{named}',
        data={"found": ", ".join(found) or None},
    )


def _evident_engine(env: dict[str, str], *, needed: bool) -> tuple[str, ...]:
    try:
        return (only_ready_engine(env),)
    except (UsageError, EngineError):
        if needed:
            raise
        return ()


def only_ready_engine(env: dict[str, str]) -> str:
    """The one agent CLI that is here and not signed out. Raises UsageError or EngineError (`no_engine`)."""
    probes = [(word, registry.adapter_for(word).probe(tuple(env.items()))) for word in registry.CLIS]
    here = [(word, found) for word, found in probes if found.executable is Executable.READY]
    ready = [word for word, found in here if found.signed_in is not SignedIn.NO]
    if len(ready) == 1:
        return ready[0]
    if len(ready) > 1:
        raise UsageError(
            "engine_ambiguous",
            f"several engines are here: {', '.join(ready)}",
            hint=f"choose one:  --engine {ready[0]}   (or set  engine = {ready[0]!r}  in loopx.toml)",
            data={"ready": ", ".join(ready)},
        )
    raise EngineError(
        "no_engine",
        f"no engine is ready here: {', '.join(_state(word, found) for word, found in probes)}",
        hint=_mend(here) or f"install one of {', '.join(registry.CLIS)}, or name any program: --engine 'command:WORDS'",
    )


def _state(word: str, found: ProbeResult) -> str:
    if found.executable is not Executable.READY:
        return f"{word} {'is broken' if found.executable is Executable.BROKEN else 'is not installed'}"
    return f"{word} is not signed in"


def _mend(here: Sequence[tuple[str, ProbeResult]]) -> str:
    return "; ".join(found.fix for _, found in here if found.fix)


def require_runnable(definition: GoalDefinition, root: str, env: dict[str, str]) -> None:
    """Refuse, before anything is made, what could not run here: a missing program, a repository in a merge.

    Raises UsageError (`check_program_missing`, `check_unreadable`, `tree_in_progress`).
    """
    from pathlib import Path

    from loopx.workspace import check_run
    from loopx.workspace.identity import inspect

    contract = msgspec.json.decode(definition.contract, type=Contract)
    here = check_run.session(root, env=env)
    unreadable = check_run.unreadable_check(contract, here)
    if unreadable is not None:
        check, said = unreadable
        raise UsageError(
            "check_unreadable",
            f"check {check.name}: no shell can read it: {said}",
            hint="look for a quote or a word that is not closed",
            data={"check": check.name},
        )
    missing = check_run.missing_programs(contract, here)
    if missing and not definition.setup:
        first = missing[0]
        what = "can't be executed" if first.not_executable else "does not exist"
        better = f"did you mean {first.suggestion}?" if first.suggestion else "install it, or name another check"
        raise UsageError(
            "check_program_missing",
            f"check {first.check}: the program {first.program!r} {what}",
            hint=better,
            data={"check": first.check, "program": first.program},
        )
    if definition.tree_mode is TreeMode.WORKTREE:
        return
    status = inspect(Path(root))
    if status.in_progress is not None:
        raise UsageError(
            "tree_in_progress",
            f"{root} is in the middle of a {status.in_progress}",
            hint="finish or abort it first, or give the goal its own tree: --worktree",
            data={"in_progress": str(status.in_progress)},
        )
