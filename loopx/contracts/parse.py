"""From what a person wrote (a command line's `--check`, a TOML table) to a valid contract, or a typed refusal.

It validates definitions only; whether a program exists is asked through a function that the caller passes in. Every
refusal is a `UsageError` whose code begins with `check_` or `contract_` (loops, "The contract: the only judge").
"""

from __future__ import annotations

import enum
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from loopx.contracts import commands, shell_words
from loopx.contracts.model import (
    DEFAULT_TIMEOUT_S,
    MAX_TIMEOUT_S,
    Check,
    CheckKind,
    Contract,
    DifferentialRule,
    Expect,
    ExpectKind,
    ProtectPolicy,
)
from loopx.control_plane.errors import UsageError

_NAMED = re.compile(r"([a-z][a-z0-9_-]*)=(.*\S.*)", re.DOTALL)
_DURATION = re.compile(r"(\d+)\s*(s|m|h)?")
_NAME_LENGTH = 60
_MAX_WORKERS = 64
_MAX_RETRIES = 10
_Enum = TypeVar("_Enum", bound=enum.StrEnum)

_CHECK_KEYS = frozenset(
    [
        "name",
        "command",
        "timeout",
        "timeout_s",
        "expect",
        "kind",
        "against",
        "compare",
        "pointer",
        "tolerance_percent",
        "primary",
        "held_out",
        "flaky_retries",
        "cwd",
        "junit",
    ]
)
_CONTRACT_KEYS = frozenset(["checks", "policy", "protected", "confirm_in_snapshot", "dependency_dirs", "workers"])


def parse_command_line(lines: Iterable[str]) -> tuple[Check, ...]:
    """The checks of repeated `--check TEXT` options.

    TEXT is a command. `name=command` gives it a name when the name is lower-case (`[a-z][a-z0-9_-]*`), so `FOO=1 cmd`
    stays an assignment. Without a name, the path that a single-path test run names is the name, else the command.
    Where only a shell can run the text it is kept as a shell line, else it is split into words.
    """
    found: list[Check] = []
    for text in lines:
        found.append(_parse_text(text, found))
    return validate_checks(found)


def _parse_text(text: str, others: Sequence[Check]) -> Check:
    named = _NAMED.fullmatch(text.strip())
    command = parse_command(named[2] if named else text)
    if named is None and any(check.command == command for check in others):
        raise _refuse("check_duplicate", f"the check {text!r} is given twice", "Give it once.")
    name = named[1] if named else _free_name(derive_name(command), {check.name for check in others})
    return _check({"name": name}, command)


def parse_command(text: str) -> tuple[str, ...] | str:
    """One command as an argv, or as a shell line where it needs a shell. Raises `UsageError` (`check_empty`)."""
    line = text.strip()
    if not line or "\0" in line:
        raise _refuse("check_empty", "a check has no command", 'Write for example --check "pytest -q".')
    return line if shell_words.needs_shell(line) else tuple(shlex.split(line))


def derive_name(command: tuple[str, ...] | str) -> str:
    """A short name for people: the one path that a test run names, else the command itself, at most 60 characters."""
    found = commands.invocations(command)
    if len(found) == 1 and found[0].tool in commands.RUNNERS:
        paths = [arg for arg in found[0].positional if "/" in arg or "." in arg]
        if len(paths) == 1 and paths == list(found[0].positional) and paths[0] not in {".", "./..."}:
            return _shorten(paths[0])
    return _shorten(command if isinstance(command, str) else shlex.join(command))


def _shorten(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _NAME_LENGTH else flat[: _NAME_LENGTH - 3] + "..."


def _free_name(name: str, taken: set[str]) -> str:
    number = 2
    free = name
    while free in taken:
        free = f"{name} ({number})"
        number += 1
    return free


def parse_contract(table: Mapping[str, object]) -> Contract:
    """A contract from a TOML table or a dictionary; a check may be a table or a text as after `--check`.

    Raises `UsageError` with the code of the first thing that is wrong.
    """
    _known_keys(table, _CONTRACT_KEYS, "contract_unknown_key", "the contract")
    checks = parse_checks(table.get("checks"))
    workers = _integer(table.get("workers", 1), "workers", 1, _MAX_WORKERS)
    return Contract(
        checks=checks,
        policy=_member(ProtectPolicy, table.get("policy", "both_ways"), "policy"),
        protected=_texts(table.get("protected", ()), "protected"),
        confirm_in_snapshot=_flag(table.get("confirm_in_snapshot", True), "confirm_in_snapshot"),
        dependency_dirs=_texts(table.get("dependency_dirs", ()), "dependency_dirs"),
        workers=workers,
    )


def parse_checks(entries: object) -> tuple[Check, ...]:
    """A list of checks (tables or command texts), as a goal or a todo carries it. Raises `UsageError`."""
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        raise _refuse(
            "contract_empty", "no check: without one, done can't be told from said", 'Add one: --check "CMD".'
        )
    found: list[Check] = []
    for entry in entries:
        found.append(_parse_text(entry, found) if isinstance(entry, str) else _parse_entry(entry))
    return validate_checks(found)


def _parse_entry(entry: object) -> Check:
    if not isinstance(entry, Mapping):
        raise _refuse("check_type", f"a check is a table or a command, not {entry!r}")
    _known_keys(entry, _CHECK_KEYS, "check_unknown_key", f"the check {entry.get('name', '?')!r}")
    given = entry.get("command")
    command = parse_command(given) if isinstance(given, str) else _texts(given or (), "command")
    if not command or not command[0].strip():
        raise _refuse("check_empty", f"the check {entry.get('name', '?')!r} has no command")
    return _check({"name": derive_name(command), **entry}, command)


def _check(table: Mapping[str, object], command: tuple[str, ...] | str) -> Check:
    if "timeout" in table and "timeout_s" in table:
        raise _refuse("check_timeout", "a check has both `timeout` and `timeout_s`", "Keep one of them.")
    pointer = _optional_text(table.get("pointer"), "pointer")
    return Check(
        name=_text(table["name"], "name").strip(),
        command=command,
        timeout_s=parse_timeout(table.get("timeout", table.get("timeout_s", DEFAULT_TIMEOUT_S))),
        expect=parse_expect(table.get("expect", "exit_zero")),
        kind=_member(CheckKind, table.get("kind", "check"), "kind"),
        against=_optional_text(table.get("against"), "against"),
        compare=_member(DifferentialRule, table.get("compare", "same"), "compare"),
        pointer=None if pointer is None else _pointer(pointer),
        tolerance_percent=_integer(table.get("tolerance_percent", 0), "tolerance_percent", 0, 1000),
        primary=_flag(table.get("primary", False), "primary"),
        held_out=_flag(table.get("held_out", False), "held_out"),
        flaky_retries=_integer(table.get("flaky_retries", 0), "flaky_retries", 0, _MAX_RETRIES),
        cwd=_inside(_text(table.get("cwd", "."), "cwd"), "cwd"),
        junit=None if table.get("junit") is None else _inside(_text(table["junit"], "junit"), "junit"),
    )


def validate_checks(checks: Sequence[Check]) -> tuple[Check, ...]:
    """The rules that hold among checks. Raises `UsageError`."""
    if not checks:
        raise _refuse(
            "contract_empty", "no check: without one, done can't be told from said", 'Add one: --check "CMD".'
        )
    seen: set[str] = set()
    for check in checks:
        _validate_one(check)
        if check.name in seen:
            raise _refuse("check_duplicate", f"two checks are named {check.name!r}", "Give each its own name.")
        seen.add(check.name)
    captures = {check.name for check in checks if check.kind is CheckKind.BASELINE}
    for check in checks:
        if check.kind is CheckKind.DIFFERENTIAL and check.against not in captures:
            raise _refuse(
                "check_against_missing",
                f"the differential check {check.name!r} names no baseline check ({check.against!r})",
                'Set against = "NAME" to a check of kind "baseline".',
            )
    if captures == seen:
        raise _refuse(
            "contract_empty",
            "every check is a baseline capture, so nothing judges the work",
            "Add a check, or a differential check against a capture.",
        )
    return tuple(checks)


def _validate_one(check: Check) -> None:
    if not check.name or any(ord(char) < 32 for char in check.name):
        raise _refuse("check_name", f"{check.name!r} is not a usable name for a check")
    if check.expect.kind is ExpectKind.EXIT_ZERO and commands.is_version_command(check.command):
        raise _refuse(
            "check_version_command",
            f"the check {check.name!r} only prints a version, so it can never be red",
            "Name a command that fails while the work is not done.",
        )
    if check.kind is not CheckKind.DIFFERENTIAL and check.against is not None:
        raise _refuse("check_against", f"`against` is for differential checks, and {check.name!r} is none")


def parse_timeout(value: object) -> int:
    """Seconds from an integer or from `90s`, `5m`, `1h`. Raises `UsageError` (`check_timeout`)."""
    seconds: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        seconds = value
    elif isinstance(value, str) and (found := _DURATION.fullmatch(value.strip())):
        seconds = int(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2] or "s"]
    if seconds is None or not 1 <= seconds <= MAX_TIMEOUT_S:
        raise _refuse(
            "check_timeout",
            f"{value!r} is not a time-out",
            f"Use whole seconds from 1 to {MAX_TIMEOUT_S}, or for example 90s, 5m, 1h.",
        )
    return seconds


def parse_expect(value: object) -> Expect:
    """`exit_zero`, `contains TEXT`, `$json:POINTER=VALUE`, or a table `{contains = "TEXT"}`.

    VALUE is JSON; text that is not JSON is taken as a string. Raises `UsageError` (`check_expect`, `check_pointer`).
    """
    if isinstance(value, Mapping) and len(value) == 1 and isinstance(value.get("contains"), str):
        value = f"contains {value['contains']}"
    if not isinstance(value, str):
        raise _bad_expect(value)
    text = value.strip()
    if text in {"exit_zero", "exit zero", "exit 0"}:
        return Expect()
    for prefix in ("output contains", "contains"):
        if text.startswith(prefix) and (wanted := text[len(prefix) :].lstrip(": ")):
            return Expect(kind=ExpectKind.CONTAINS, text=wanted)
    if not text.startswith("$json:"):
        raise _bad_expect(value)
    pointer, equals, wanted = text[len("$json:") :].partition("=")
    if not equals:
        raise _bad_expect(value)
    return Expect(kind=ExpectKind.JSON, pointer=_pointer(pointer), value=_json_value(wanted))


def _json_value(text: str) -> str:
    try:
        document: object = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        document = text
    return msgspec.json.encode(document, order="sorted").decode()


def _pointer(pointer: str) -> str:
    if (pointer and not pointer.startswith("/")) or re.search(r"~(?![01])", pointer):
        raise _refuse(
            "check_pointer",
            f"{pointer!r} is not a JSON pointer",
            "A pointer is empty or begins with `/`; write `~0` for `~` and `~1` for `/`.",
        )
    return pointer


class MissingProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration fact: a check's program can't be run. `suggestion` is a program that can, where one was found."""

    check: str
    program: str
    not_executable: bool = False
    suggestion: str | None = None


class ProgramState(enum.StrEnum):
    """What looking for a program found."""

    FOUND = "found"
    MISSING = "missing"
    NOT_EXECUTABLE = "not_executable"


def missing_program(
    check: Check, find: Callable[[str, str], ProgramState], *, near: Sequence[str] = (".venv/bin", "venv/bin")
) -> MissingProgram | None:
    """Whether the check's own program is absent, with the fix named where there is one.

    `find(program, directory)` looks a program up as a shell standing in that directory (relative to the tree) would.
    Only the first simple command is judged: what follows it may be created by it.
    """
    found = commands.invocations(check.command)
    if not found or not _can_be_looked_up(found[0].words):
        return None
    directory = commands.normalize(f"{check.cwd}/{found[0].directory}")
    program = found[0].words[len(found[0].assignments)] if isinstance(check.command, tuple) else found[0].program
    state = find(program, directory)
    if state is ProgramState.FOUND:
        return None
    if state is ProgramState.NOT_EXECUTABLE:
        return MissingProgram(check=check.name, program=program, not_executable=True)
    candidates = [f"{folder}/{program}" for folder in near] if "/" not in program else []
    candidates += ["python3"] if program == "python" else []
    suggestion = next((name for name in candidates if find(name, ".") is ProgramState.FOUND), None)
    return MissingProgram(check=check.name, program=program, suggestion=suggestion)


def _can_be_looked_up(words: tuple[str, ...]) -> bool:
    command = shell_words.split_assignments(words)[1]
    return bool(command) and not shell_words.is_shell_word(command[0])


def _refuse(code: str, message: str, hint: str = "") -> UsageError:
    return UsageError(code, message, hint=hint)


def _bad_expect(value: object) -> UsageError:
    return _refuse(
        "check_expect",
        f"{value!r} is not an expectation",
        "Use exit_zero, `contains TEXT`, or `$json:/pointer=value`.",
    )


def _known_keys(table: Mapping[str, object], known: frozenset[str], code: str, what: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise _refuse(code, f"{what} has an unknown key {unknown[0]!r}", f"Known: {', '.join(sorted(known))}.")


def _text(value: object, key: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _refuse("check_type", f"`{key}` must be text, not {value!r}")
    return value


def _optional_text(value: object, key: str) -> str | None:
    if value is None or (key == "pointer" and value == ""):
        return None if value is None else ""
    return _text(value, key)


def _texts(value: object, key: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
        raise _refuse("check_type", f"`{key}` must be a list of texts, not {value!r}")
    return tuple(value)


def _flag(value: object, key: str) -> bool:
    if not isinstance(value, bool):
        raise _refuse("check_type", f"`{key}` must be true or false, not {value!r}")
    return value


def _integer(value: object, key: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _refuse("check_type", f"`{key}` must be a whole number from {low} to {high}, not {value!r}")
    return value


def _inside(path: str, key: str) -> str:
    clean = commands.normalize(path)
    if clean == ".." or clean.startswith(("/", "../")):
        raise _refuse("check_type", f"`{key}` must lie inside the project, and {path!r} does not")
    return clean


def _member(kind: type[_Enum], value: object, key: str) -> _Enum:
    for member in kind:
        if member.value == value:
            return member
    raise _refuse("check_type", f"`{key}` must be one of {', '.join(kind)}, not {value!r}")
