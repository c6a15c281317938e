"""Understanding a check's command: which program it runs, which test runner that is, and with which arguments.

Pure and best-effort: an unknown program is `Tool.OTHER`, never an error. It runs nothing and reads no file.
"""

from __future__ import annotations

import enum
import re

import msgspec

from loopx.contracts.shell_words import simple_commands, split_assignments


class Tool(enum.StrEnum):
    """What a simple command is, as far as judging its result needs to know."""

    PYTEST = "pytest"
    UNITTEST = "unittest"
    JEST = "jest"
    VITEST = "vitest"
    NODE_TEST = "node_test"
    GO_TEST = "go_test"
    CARGO_TEST = "cargo_test"
    TAP = "tap"
    NPM_SCRIPT = "npm_script"
    MAKE = "make"
    TOX = "tox"
    SCRIPT = "script"
    OTHER = "other"


RUNNERS = frozenset(
    {Tool.PYTEST, Tool.UNITTEST, Tool.JEST, Tool.VITEST, Tool.NODE_TEST, Tool.GO_TEST, Tool.CARGO_TEST, Tool.TAP}
)
"""The tools that run tests themselves, whose report can be read."""


class Invocation(msgspec.Struct, frozen=True, kw_only=True):
    """One simple command. `words` are as written; `program` and `args` are what is left without wrappers.

    `args` are the tool's own (after `-m pytest`, `go test`, `npm run`); `directory` follows a leading `cd`.
    """

    words: tuple[str, ...]
    program: str
    args: tuple[str, ...]
    tool: Tool
    directory: str = "."
    assignments: tuple[tuple[str, str], ...] = ()

    @property
    def positional(self) -> tuple[str, ...]:
        """The arguments that are not options, values of options included (they can't be told apart in general)."""
        return tuple(arg for arg in self.args if not arg.startswith("-"))


PYTHON = re.compile(r"^(python|pypy)[\d.]*(\.exe)?$")
_SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh"})
_SCRIPT_RUNNERS = frozenset({"node", "deno", "bun", "ruby", "perl", "php", "lua", "tsx", "ts-node", "Rscript"})
_NODE_MANAGERS = frozenset({"npm", "pnpm", "yarn", "bun"})
# Wrappers: the words after them are the real command. The value: options that take a value of their own.
_WRAPPERS: dict[str, frozenset[str]] = {
    "env": frozenset({"-u", "--unset", "-C", "--chdir"}),
    "nice": frozenset({"-n"}),
    "ionice": frozenset({"-c", "-n"}),
    "nohup": frozenset(),
    "time": frozenset({"-o", "-f"}),
    "exec": frozenset(),
    "command": frozenset(),
    "stdbuf": frozenset({"-i", "-o", "-e"}),
    "setsid": frozenset(),
    "xvfb-run": frozenset({"-s", "-n"}),
    "npx": frozenset({"-p", "--package"}),
    "bunx": frozenset(),
}
_RUN_WRAPPERS: dict[tuple[str, str], frozenset[str]] = {
    ("uv", "run"): frozenset(
        {"--with", "--extra", "--group", "-p", "--python", "--project", "--env-file", "--package"}
    ),
    ("poetry", "run"): frozenset(),
    ("pipenv", "run"): frozenset(),
    ("pdm", "run"): frozenset({"-p"}),
    ("hatch", "run"): frozenset(),
    ("rye", "run"): frozenset(),
    ("pixi", "run"): frozenset({"-e", "--environment"}),
    ("conda", "run"): frozenset({"-n", "-p"}),
    ("bundle", "exec"): frozenset(),
    ("pnpm", "exec"): frozenset(),
    ("npm", "exec"): frozenset(),
    ("yarn", "exec"): frozenset(),
    ("coverage", "run"): frozenset({"--source", "--rcfile", "--include", "--omit", "--data-file", "--concurrency"}),
}
_PYTHON_VALUES = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_MAX_DEPTH = 6


def invocations(command: tuple[str, ...] | str) -> tuple[Invocation, ...]:
    """Every simple command that a check's command names, in order; `bash -c LINE` is looked into."""
    return _invocations(command, ".", _MAX_DEPTH)


def _invocations(command: tuple[str, ...] | str, directory: str, depth: int) -> tuple[Invocation, ...]:
    found: list[Invocation] = []
    for words in simple_commands(command) if isinstance(command, str) else (command,):
        assignments, rest = split_assignments(words)
        rest = _unwrap(rest)
        if not rest:
            continue
        if rest[0] in {"cd", "pushd"} and len(rest) > 1:
            directory = _join(directory, rest[1])
            continue
        line = _shell_line(rest)
        if line is not None and depth:
            found.extend(_invocations(line, directory, depth - 1))
            continue
        program, args, tool = _identify(rest)
        found.append(
            Invocation(words=words, program=program, args=args, tool=tool, directory=directory, assignments=assignments)
        )
    return tuple(found)


def base_name(program: str) -> str:
    """The last part of a program's path."""
    return program.rsplit("/", 1)[-1]


def _join(directory: str, part: str) -> str:
    if part.startswith("/"):
        return part
    return normalize(f"{directory}/{part}")


def normalize(path: str) -> str:
    """A `/` path without empty and `.` parts, with `..` resolved; `.` for the root itself."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return ("/" if path.startswith("/") else "") + "/".join(parts) or "."


def _unwrap(words: tuple[str, ...]) -> tuple[str, ...]:
    for _ in range(_MAX_DEPTH):
        if not words:
            return words
        name = base_name(words[0])
        if name == "timeout":
            words = _skip_options(words[1:], frozenset({"-k", "-s", "--kill-after", "--signal"}))[1:]
        elif name in _WRAPPERS and len(words) > 1:
            words = split_assignments(_skip_options(words[1:], _WRAPPERS[name]))[1]
        elif len(words) > 2 and (name, words[1]) in _RUN_WRAPPERS:
            words = _after_run(words, _RUN_WRAPPERS[name, words[1]])
        else:
            return words
    return words


def _after_run(words: tuple[str, ...], values: frozenset[str]) -> tuple[str, ...]:
    rest = words[2:]
    while rest and rest[0].startswith("-") and rest[0] not in {"-m", "--module", "--"}:
        rest = rest[2:] if rest[0] in values else rest[1:]
    if rest and rest[0] in {"-m", "--module"}:  # `uv run -m pytest`, `coverage run -m pytest`
        return ("python", "-m", *rest[1:])
    return rest[1:] if rest and rest[0] == "--" else rest


def _skip_options(words: tuple[str, ...], values: frozenset[str]) -> tuple[str, ...]:
    while words and words[0].startswith("-"):
        if words[0] == "--":
            return words[1:]
        words = words[2:] if words[0] in values else words[1:]
    return words


def _shell_line(words: tuple[str, ...]) -> str | None:
    """The text of `bash -c TEXT` (also `-ec`, `-lc`)."""
    if base_name(words[0]) not in _SHELLS:
        return None
    for index, word in enumerate(words[1:], start=1):
        if not word.startswith("-"):
            return None
        if word.endswith("c") and not word.startswith("--") and index + 1 < len(words):
            return words[index + 1]
    return None


def _identify(words: tuple[str, ...]) -> tuple[str, tuple[str, ...], Tool]:
    program, args = words[0], words[1:]
    name = base_name(program)
    if PYTHON.match(name):
        return _identify_python(program, args)
    if name in _NODE_MANAGERS:
        return _identify_node_manager(program, args)
    if name in _SHELLS:
        return program, _skip_options(args, frozenset({"-o"})), Tool.SCRIPT
    if name in _SCRIPT_RUNNERS:
        return _identify_script_runner(program, args)
    first = args[0] if args else ""
    if name == "go" and first == "test":
        return program, args[1:], Tool.GO_TEST
    if name == "cargo" and first in {"test", "t", "nextest"}:
        return program, args[1:], Tool.CARGO_TEST
    return program, args, _BY_NAME.get(name, Tool.OTHER)


_BY_NAME = {
    "pytest": Tool.PYTEST,
    "py.test": Tool.PYTEST,
    "pytest-3": Tool.PYTEST,
    "jest": Tool.JEST,
    "jest.js": Tool.JEST,
    "vitest": Tool.VITEST,
    "vitest.mjs": Tool.VITEST,
    "prove": Tool.TAP,
    "make": Tool.MAKE,
    "gmake": Tool.MAKE,
    "tox": Tool.TOX,
    "nox": Tool.TOX,
}
_BY_MODULE = {
    "pytest": Tool.PYTEST,
    "py.test": Tool.PYTEST,
    "unittest": Tool.UNITTEST,
    "tox": Tool.TOX,
    "nox": Tool.TOX,
}


def _identify_python(program: str, args: tuple[str, ...]) -> tuple[str, tuple[str, ...], Tool]:
    rest = args
    while rest and rest[0].startswith("-"):
        if rest[0] in {"-m", "-c"}:
            break
        rest = rest[2:] if rest[0] in _PYTHON_VALUES else rest[1:]
    if not rest or rest[0] == "-c":
        return program, rest, Tool.OTHER
    if rest[0] != "-m":
        return program, rest, Tool.SCRIPT
    module, after = (rest[1] if len(rest) > 1 else ""), rest[2:]
    if module == "coverage" and after[:1] == ("run",):
        return _identify_python(program, _after_run(("coverage", *after), _RUN_WRAPPERS["coverage", "run"])[1:])
    tool = _BY_MODULE.get(module)
    return (program, after, tool) if tool is not None else (program, rest, Tool.OTHER)


def _identify_node_manager(program: str, args: tuple[str, ...]) -> tuple[str, tuple[str, ...], Tool]:
    rest = _skip_options(args, frozenset({"--prefix", "-C", "--filter", "--workspace", "-w"}))
    if not rest:
        return program, args, Tool.OTHER
    if rest[0] in {"run", "run-script"} and len(rest) > 1:
        return program, rest[1:], Tool.NPM_SCRIPT
    if rest[0] in {"test", "t", "tst"}:
        return program, ("test", *rest[1:]), Tool.NPM_SCRIPT
    tool = _BY_NAME.get(rest[0])
    if base_name(program) != "npm" and tool in {Tool.JEST, Tool.VITEST}:
        return rest[0], rest[1:], tool
    return program, args, Tool.OTHER


def _identify_script_runner(program: str, args: tuple[str, ...]) -> tuple[str, tuple[str, ...], Tool]:
    if base_name(program) == "node" and "--test" in args:
        return program, tuple(arg for arg in args if arg != "--test"), Tool.NODE_TEST
    rest = _skip_options(args, frozenset({"-r", "--require", "--import", "--loader", "-I"}))
    if not rest:
        return program, args, Tool.OTHER
    tool = _BY_NAME.get(base_name(rest[0]))
    if tool in {Tool.JEST, Tool.VITEST}:
        return program, rest[1:], tool
    return program, rest, Tool.SCRIPT


_VERSION_FLAGS = frozenset({"--version", "-V", "-version", "--help", "-h", "version"})
_LOWER_V = frozenset({"node", "npm", "pnpm", "yarn", "php", "ruby", "perl"})
_PYTHON_TOOLS = frozenset({"pytest", "unittest", "pip", "mypy", "ruff", "tox", "nox", "coverage", "flake8", "black"})


def is_version_command(command: tuple[str, ...] | str) -> bool:
    """Whether the command does nothing but print a tool's version or help; a program of the project may do so."""
    found = invocations(command)
    return bool(found) and all(map(_prints_version, found))


def _prints_version(invocation: Invocation) -> bool:
    if "/" in invocation.program:
        return False
    name = base_name(invocation.program)
    args = invocation.args
    if PYTHON.match(name) and invocation.tool is Tool.SCRIPT:
        return False
    if PYTHON.match(name) and args[:1] == ("-m",):
        if args[1:2] and args[1] not in _PYTHON_TOOLS:
            return False
        args = args[2:]
    if not args and PYTHON.match(name):
        args = invocation.words[1:]
    flags = _VERSION_FLAGS | {"-v"} if name in _LOWER_V else _VERSION_FLAGS
    return len(args) == 1 and args[0] in flags
