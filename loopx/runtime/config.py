"""`loopx.toml`: a project's defaults for new goals, read strictly. What it does not know, it refuses and names.

It only reads. The tables `capabilities`, `notifications`, `hosts` and `retention` are read by whoever owns them; here
they are only known to exist. A file is never needed: every value has a default, and a command's own flag wins.
"""

from __future__ import annotations

import os
import re
import tomllib

import msgspec

from loopx.contracts.model import Contract
from loopx.contracts.parse import parse_contract, parse_timeout
from loopx.control_plane.errors import UsageError
from loopx.control_plane.goal import Permission
from loopx.control_plane.quota import budgets
from loopx.control_plane.quota.policy import QuotaPolicy

NAME = "loopx.toml"
UNLIMITED = "unlimited"
MAX_TURNS, MAX_MINUTES = 24, 120

TEMPLATE = """\
# LoopX: defaults for goals of this project. Everything here is optional; a command's own flag wins.

# engine = "codex"            # or a list, the best first: ["codex", "claude"]
# fallback = false            # may a goal go on with the next engine when the first one is not available?
# model = "..."               # handed to every engine
# permission = "workspace"    # read_only | workspace | bypass
# worktree = false            # give each goal a git worktree of its own
# max_turns = 24              # of one run; "unlimited" is spelled out
# minutes = 120
# budgets = ["tokens=2M/goal", "usd=5/1d"]
# scope = ["src/**"]          # what an agent may write; empty: the whole tree

# [contract]
# checks = ["pytest -q"]      # what decides whether a goal is done
# protected = []              # files beside the tests that no agent may weaken
# policy = "both_ways"        # refuse | both_ways | disclose

# [quota]
# window_hours = 24
# allowed_slots = 48          # turns that count, in one window
# outcome_floor = 3

# [capabilities.push]         # what only LoopX may do for an agent
# argv = ["git", "push", "origin", "HEAD:refs/heads/proposal"]
# policy = "ask"              # ask | grant | never
"""


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file as it is written."""

    engine: str | tuple[str, ...] = ()
    fallback: bool = False
    model: str | None = None
    permission: Permission = Permission.WORKSPACE
    worktree: bool = False
    setup: str | tuple[str, ...] = ()
    max_turns: int | str = MAX_TURNS
    minutes: int | str = MAX_MINUTES
    budgets: tuple[str, ...] = ()
    scope: tuple[str, ...] = ()
    replan_preview: bool = False
    breaker: int = 3
    turn_timeout: int | str = "1h"
    contract: dict[str, object] | None = None
    quota: dict[str, object] = {}
    capabilities: dict[str, object] = {}
    notifications: dict[str, object] = {}
    hosts: dict[str, object] = {}
    retention: dict[str, object] = {}


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """A project's defaults. A limit of None is `unlimited`, spelled out; `present`: the file exists."""

    present: bool = False
    engines: tuple[str, ...] = ()
    fallback: bool = False
    model: str | None = None
    permission: Permission = Permission.WORKSPACE
    worktree: bool = False
    setup: tuple[str, ...] = ()
    max_turns: int | None = MAX_TURNS
    minutes: int | None = MAX_MINUTES
    budgets: tuple[budgets.BudgetChange, ...] = ()
    scope: tuple[str, ...] = ()
    replan_preview: bool = False
    breaker: int = 3
    turn_timeout_s: int = 3600
    contract: Contract = Contract()
    quota: QuotaPolicy = QuotaPolicy()


def read(root: str) -> Config:
    """The defaults of the project at `root`.

    Raises UsageError (`config_malformed`, `config_invalid`) naming the file and the line or the field.
    """
    path = os.path.join(root, NAME)
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except FileNotFoundError:
        return Config()
    except OSError as error:
        raise UsageError("config_malformed", f"{path} can't be read: {error.strerror}", hint="check it") from error
    return parse(raw)


def parse(raw: bytes) -> Config:
    """The defaults that this text says. Raises UsageError as `read` does."""
    try:
        text = raw.decode("utf-8")
        table = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise UsageError("config_malformed", f"{NAME}: not UTF-8 at byte {error.start}", hint="save it so") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError("config_malformed", f"{NAME}: {error}", hint=f"mend {NAME}; it is TOML") from error
    try:
        file = msgspec.convert(table, _File)
    except msgspec.ValidationError as error:
        raise _invalid(text, _field_of(str(error)), _what(str(error))) from error
    return _config(file, text)


def _config(file: _File, text: str) -> Config:
    reader = _Reader(text)
    return Config(
        present=True,
        engines=(file.engine,) if isinstance(file.engine, str) else file.engine,
        fallback=file.fallback,
        model=file.model,
        permission=file.permission,
        worktree=file.worktree,
        setup=("sh", "-c", file.setup) if isinstance(file.setup, str) else file.setup,
        max_turns=reader.limit("max_turns", file.max_turns),
        minutes=reader.limit("minutes", file.minutes),
        budgets=tuple(reader.budget(one) for one in file.budgets),
        scope=file.scope,
        replan_preview=file.replan_preview,
        breaker=reader.limit("breaker", file.breaker) or MAX_TURNS,
        turn_timeout_s=reader.timeout(file.turn_timeout),
        contract=reader.contract(file.contract) if file.contract is not None else Contract(),
        quota=reader.quota(file.quota),
    )


class _Reader:
    """Reads single values, so that each refusal names its field and line."""

    def __init__(self, text: str) -> None:
        self._text = text

    def limit(self, field: str, value: int | str) -> int | None:
        if value == UNLIMITED:
            return None
        if isinstance(value, str) or value < 1:
            raise _invalid(self._text, field, f'{value!r} is no limit: a whole number above 0, or "{UNLIMITED}"')
        return value

    def budget(self, text: str) -> budgets.BudgetChange:
        try:
            return budgets.parse_budget(text)
        except UsageError as error:
            raise _invalid(self._text, "budgets", error.message, error.hint) from error

    def timeout(self, value: int | str) -> int:
        try:
            return parse_timeout(value)
        except UsageError as error:
            raise _invalid(self._text, "turn_timeout", error.message, error.hint) from error

    def contract(self, table: dict[str, object]) -> Contract:
        try:
            if "checks" in table:
                return parse_contract(table)
            # Checks may come from the command line; the rest of the table is read beside a stand-in.
            read = parse_contract({**table, "checks": ["false"]})
            return msgspec.structs.replace(read, checks=())
        except UsageError as error:
            raise _invalid(self._text, "contract", error.message, error.hint) from error

    def quota(self, table: dict[str, object]) -> QuotaPolicy:
        try:
            return budgets.read_quota_policy(table)
        except UsageError as error:
            field = error.data.get("field")
            raise _invalid(self._text, f"quota.{field}" if field else "quota", error.message, error.hint) from error


_PATH = re.compile(r"at `\$\.?([^`]*)`")
_UNKNOWN = re.compile(r"unknown field `([^`]+)`")


def _field_of(message: str) -> str:
    path = _PATH.search(message)
    unknown = _UNKNOWN.search(message)
    parts = [path[1] if path else "", unknown[1] if unknown else ""]
    return ".".join(part for part in parts if part)


def _what(message: str) -> str:
    if _UNKNOWN.search(message):
        return "there is no such key"
    return message.partition(" - at")[0]


def _invalid(text: str, field: str, what: str, hint: str = "") -> UsageError:
    line = line_of(text, field)
    where = f"{NAME}, line {line}" if line is not None else NAME
    known = ", ".join(_File.__struct_fields__)
    return UsageError(
        "config_invalid",
        f"{where}: {field}: {what}",
        hint=hint or f"known keys: {known}",
        data={"file": NAME, "field": field, "line": line},
    )


def line_of(text: str, field: str) -> int | None:
    """The line that sets a field (`quota.compute`), from 1; None where it can't be told."""
    names = [name for name in re.split(r"[.\[\]]", field) if name and not name.isdigit()]
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.fullmatch(r"\s*\[+\s*([^\]]+?)\s*\]+\s*(#.*)?", line)
        if header:
            table = header[1]
            if names and table.split(".") == names:
                return number
            continue
        key = re.match(r"\s*([A-Za-z0-9_\-.\"]+)\s*=", line)
        if key is None:
            continue
        here = [part for part in [*table.split("."), *key[1].replace('"', "").split(".")] if part]
        if here == names[: len(here)] and len(here) > len(names) - 2 and here:
            return number
    return None


def write_template(root: str) -> bool:
    """Write a commented `loopx.toml` where there is none; whether it did."""
    path = os.path.join(root, NAME)
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(TEMPLATE)
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(
            "project_unwritable", f"{path} can't be written: {error.strerror}", hint="check the folder's owner"
        ) from error
    return True
