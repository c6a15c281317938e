"""Which paths a goal protects: the files that its checks run, runner configuration, CI, and what a person names.

Pure: derived from the checks' commands, the listing of the start's tree and (where given) its files' contents
(loops, "The contract: the only judge"). It judges no change; `verdict` does.
"""

from __future__ import annotations

import enum
import functools
import itertools
import re
from collections.abc import Iterable, Sequence

import msgspec

from loopx.contracts import globs, tool_files
from loopx.contracts.commands import PYTHON, Invocation, Tool, base_name, invocations, normalize
from loopx.contracts.model import Check
from loopx.contracts.ports import ReadFile
from loopx.contracts.programs import SHADOWING_MODULES
from loopx.contracts.sections import SHARED_FILES, package_script, pytest_settings

_MAX_DEPTH = 4
_MAX_SCRIPT_LINES = 400
_MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
_PYTHON_TOOLS = frozenset({Tool.PYTEST, Tool.UNITTEST, Tool.TOX})
_SHELL_SHEBANG = re.compile(rb"#!.*\b(?:ba|da|z|k)?sh\b")


class Role(enum.StrEnum):
    """Why a path is protected."""

    TEST = "test"
    SCRIPT = "script"
    RUNNER_CONFIG = "runner_config"
    HOOK = "hook"
    CI = "ci"
    LOCK = "lock"
    OWN = "own"
    PERSON = "person"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One pattern (see `globs`) and why it is there."""

    role: Role
    pattern: str


class ProtectedPaths(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one contract on one start tree.

    `shared_tools` own sections of shared files (`pyproject.toml` and such). `unprotected_scripts` are run by a check
    but look like the work itself; they are disclosed, and a person may protect them by name.
    """

    rules: tuple[Rule, ...] = ()
    shared_tools: frozenset[str] = frozenset()
    unprotected_scripts: tuple[str, ...] = ()

    def role_of(self, path: str) -> Role | None:
        """Why this path is protected, by the first rule that matches; None for a path that is free, or shared."""
        places = {path, *_folders(path)}
        for role, literals, patterns in _grouped(self.rules):
            if not places.isdisjoint(literals) or globs.matches_any(patterns, path):
                return role
        return None

    def is_shared(self, path: str) -> bool:
        """Whether only some sections of this file are protected."""
        return path.rpartition("/")[2] in SHARED_FILES and bool(self.shared_tools)


@functools.lru_cache(maxsize=64)
def _grouped(rules: tuple[Rule, ...]) -> tuple[tuple[Role, frozenset[str], tuple[str, ...]], ...]:
    """The rules by role, in order: plain paths to look up, and patterns to match."""
    roles = dict.fromkeys(rule.role for rule in rules)
    grouped = []
    for role in roles:
        patterns = [rule.pattern for rule in rules if rule.role is role]
        literals = frozenset(pattern.strip("/") for pattern in patterns if globs.is_literal(pattern))
        grouped.append((role, literals, tuple(pattern for pattern in patterns if not globs.is_literal(pattern))))
    return tuple(grouped)


def derive_protected(
    checks: Iterable[Check],
    paths: Sequence[str],
    *,
    read: ReadFile | None = None,
    extra: Sequence[str] = (),
) -> ProtectedPaths:
    """The protected paths of these checks. `paths` lists the start's tree; `read` gives its files' contents.

    Without `read`, what a Makefile, an npm script or a shell script runs is not looked into.
    """
    finding = _Derivation(paths, read)
    for pattern in extra:
        finding.add(Role.PERSON, pattern)
    for check in checks:
        finding.follow_command(check.command, check.cwd, _MAX_DEPTH)
        if check.junit is not None:
            finding.add(Role.HOOK, globs.literal(check.junit))
    return finding.finish()


class _Derivation:
    def __init__(self, paths: Sequence[str], read: ReadFile | None) -> None:
        self.files = frozenset(paths)
        self.folders = frozenset(folder for path in paths for folder in _folders(path))
        self._read = read
        self._rules: dict[Rule, None] = {}
        self._tools: set[str] = set()
        self._unprotected: dict[str, None] = {}

    def add(self, role: Role, *patterns: str) -> None:
        for pattern in patterns:
            self._rules[Rule(role=role, pattern=pattern)] = None

    def read(self, path: str) -> bytes | None:
        return self._read(path) if self._read is not None and path in self.files else None

    def finish(self) -> ProtectedPaths:
        if not any(rule.role is Role.TEST for rule in self._rules):
            self.add(Role.TEST, *tool_files.ANY_TESTS)
        self.add(Role.HOOK, *tool_files.STARTUP_HOOKS)
        self.add(Role.CI, *tool_files.CI_FILES)
        self.add(Role.OWN, *tool_files.OWN_FILES)
        order = [Role.OWN, Role.PERSON, Role.HOOK, Role.RUNNER_CONFIG, Role.SCRIPT, Role.TEST, Role.CI, Role.LOCK]
        rules = sorted(self._rules, key=lambda rule: order.index(rule.role))
        protected = ProtectedPaths(rules=tuple(rules), shared_tools=frozenset(self._tools))
        free = tuple(path for path in self._unprotected if protected.role_of(path) is None)
        return msgspec.structs.replace(protected, unprotected_scripts=free)

    def follow_command(self, command: tuple[str, ...] | str, directory: str, depth: int) -> None:
        for item in invocations(command):
            place = normalize(f"{directory}/{item.directory}")
            if not place.startswith(("/", "..")):
                self._follow(item, place, depth)

    def _follow(self, item: Invocation, place: str, depth: int) -> None:
        tool = item.tool
        self._tools |= tool_files.TOOLS_OF_RUNNER.get(tool, frozenset())
        for name in tool_files.TOOLS_OF_RUNNER.get(tool, frozenset()) | _named_tools(item):
            self.add(Role.RUNNER_CONFIG, *tool_files.CONFIG_FILES.get(name, ()))
            self._tools.add(name)
        self.add(Role.LOCK, *tool_files.LOCKS_OF_RUNNER.get(tool, ()))
        if tool in _PYTHON_TOOLS or PYTHON.match(base_name(item.program)):
            self._protect_modules(place)
        self._protect_named_files(item, place)
        if tool in tool_files.TESTS_BY_NAME:
            self._protect_tests(item, place)
        elif tool is Tool.TOX:
            self.add(Role.TEST, *tool_files.TESTS_BY_NAME[Tool.PYTEST])
        elif tool is Tool.MAKE:
            self._follow_make(item, place, depth)
        elif tool is Tool.NPM_SCRIPT:
            self._follow_npm(item, place, depth)
        elif tool is Tool.SCRIPT or "/" in item.program:
            self._follow_script(item, place, depth)

    def _protect_modules(self, place: str) -> None:
        """Modules that would be found before the real ones, because Python looks in its own folder first."""
        for name in sorted(SHADOWING_MODULES):
            for path in (_join(place, f"{name}.py"), _join(place, name)):
                if path not in self.files and path not in self.folders:  # what was there at the start is the project's
                    self.add(Role.HOOK, globs.literal(path))

    def _protect_named_files(self, item: Invocation, place: str) -> None:
        """Configuration given by an option, and files that a name says to be expected results or tests."""
        previous = ""
        for arg in item.args:
            option, _, value = arg.partition("=") if arg.startswith("-") else ("", "", arg)
            path = _join(place, (value or option).partition("::")[0])
            if path in self.files:
                if previous in {"-c", "--config", "--config-file", "--rcfile"} or option.startswith(("--config", "-c")):
                    self.add(Role.RUNNER_CONFIG, globs.literal(path))
                elif tool_files.TESTISH.search(path) and item.tool is not Tool.SCRIPT:
                    self.add(Role.TEST, globs.literal(path))
            previous = arg

    def _protect_tests(self, item: Invocation, place: str) -> None:
        names = self._test_names(item.tool)
        if item.tool is Tool.UNITTEST:
            names += tuple(value for option, value in itertools.pairwise(item.args) if option in {"-p", "--pattern"})
        chosen = self._chosen_paths(item, place)
        if not chosen:
            self.add(Role.TEST, *(_below(place, name) for name in names))
            self._protect_test_folders(place)
        for path in chosen:
            if path in self.folders and not tool_files.TEST_FOLDER.search(path):
                self.add(Role.TEST, *(_below(path, name) for name in names))
                self._protect_test_folders(path)
            else:
                self.add(Role.TEST, globs.literal(path))
                self._protect_helpers(path, names)

    def _test_names(self, tool: Tool) -> tuple[str, ...]:
        names = tool_files.TESTS_BY_NAME[tool]
        if tool is Tool.PYTEST and self._read is not None:
            return (*names, *pytest_settings(self.read).get("python_files", ()))
        return names

    def _chosen_paths(self, item: Invocation, place: str) -> list[str]:
        """The files and folders that the command names as tests."""
        if item.tool in {Tool.JEST, Tool.VITEST, Tool.GO_TEST, Tool.CARGO_TEST}:
            return []  # their arguments are filters and packages
        if item.tool is Tool.UNITTEST:
            return self._unittest_paths(item, place)
        chosen = []
        for arg in item.positional:
            path = _join(place, arg.partition("::")[0])
            known = path in self.files or path in self.folders
            if known or "::" in arg or re.search(r"\.(py|js|mjs|cjs|ts|t)$", path):
                chosen.append(path)
        if not chosen and item.tool is Tool.PYTEST and self._read is not None:
            testpaths = pytest_settings(self.read).get("testpaths", ())
            chosen = [path for path in (_join(".", name) for name in testpaths) if path in self.folders | self.files]
        return [path for path in chosen if path != "."]

    def _unittest_paths(self, item: Invocation, place: str) -> list[str]:
        if item.args[:1] == ("discover",):
            for name in ("-s", "--start-directory"):
                if name in item.args[:-1]:
                    start = _join(place, item.args[item.args.index(name) + 1])
                    return [start] if start != "." else []
            return [_join(place, item.args[1])] if len(item.args) > 1 and item.args[1][:1] != "-" else []
        found = []
        for arg in item.positional:
            parts = arg.split(".")
            candidates = [arg] if "/" in arg else ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
            for path in (_join(place, name) for name in candidates):
                if path in self.files or f"{path}.py" in self.files or path in self.folders:
                    found.append(f"{path}.py" if f"{path}.py" in self.files else path)
                    break
        return found

    def _protect_test_folders(self, place: str) -> None:
        """Helpers and data of tests lie in folders that are named for tests."""
        self.add(Role.TEST, *(_below(place, name) for name in tool_files.TEST_FOLDERS))

    def _protect_helpers(self, path: str, names: tuple[str, ...]) -> None:
        """Beside one named test file: what lies in its test folder at the start and is no other test."""
        folder = path.rpartition("/")[0]
        if path not in self.files or not tool_files.TEST_FOLDER.search(folder):
            return
        for other in self.files:
            if other.startswith(f"{folder}/") and not globs.matches_any(names, other):
                self.add(Role.TEST, globs.literal(other))

    def _follow_make(self, item: Invocation, place: str, depth: int) -> None:
        named = [item.args[index + 1] for index, arg in enumerate(item.args[:-1]) if arg in {"-f", "--file"}]
        for index, arg in enumerate(item.args[:-1]):
            if arg == "-C":
                place = _join(place, item.args[index + 1])
        candidates = [_join(place, name) for name in named or _MAKEFILES]
        makefile = next((path for path in candidates if path in self.files), candidates[-1])
        self.add(Role.RUNNER_CONFIG, globs.literal(makefile))
        if depth and (data := self.read(makefile)) is not None:
            targets = [arg for arg in item.positional if "=" not in arg and arg not in named and arg != place]
            for line in _recipe(data.decode("utf-8", "replace"), targets):
                self.follow_command(line, place, depth - 1)

    def _follow_npm(self, item: Invocation, place: str, depth: int) -> None:
        manifest = self.read(_join(place, "package.json"))
        script = item.args[0] if item.args else "test"
        for name in (f"pre{script}", script, f"post{script}"):
            if depth and (line := package_script(manifest, name)) is not None:
                self.follow_command(line, place, depth - 1)

    def _follow_script(self, item: Invocation, place: str, depth: int) -> None:
        named = item.args[0] if item.tool is Tool.SCRIPT and item.args else item.program
        path = _join(place, named)
        if path not in self.files:
            return
        data = self.read(path)
        is_shell = path.endswith((".sh", ".bash")) or (data is not None and _SHELL_SHEBANG.match(data) is not None)
        is_shell = is_shell or (item.tool is Tool.SCRIPT and base_name(item.program).endswith("sh"))
        if not is_shell and not tool_files.TESTISH.search(path):
            self._unprotected[path] = None
            return
        self.add(Role.SCRIPT, globs.literal(path))
        if is_shell and depth and data is not None:
            for line in data.decode("utf-8", "replace").splitlines()[:_MAX_SCRIPT_LINES]:
                if line.strip() and not line.lstrip().startswith("#"):
                    self.follow_command(line, place, depth - 1)


def _named_tools(item: Invocation) -> frozenset[str]:
    """Linters and such, which have configuration of their own."""
    names = {base_name(item.program)}
    if PYTHON.match(base_name(item.program)) and item.args[:1] == ("-m",):
        names.update(item.args[1:2])
    if item.args[:1] == ("clippy",):
        names.add("clippy")
    return frozenset(names & tool_files.CONFIG_FILES.keys())


def _recipe(makefile: str, targets: list[str]) -> list[str]:
    """The recipe lines of these targets and of what they need; of the first target when none is named."""
    rules: dict[str, tuple[list[str], list[str]]] = {}
    current: list[str] = []
    for line in makefile.replace("\\\n", " ").splitlines():
        if line.startswith("\t"):
            for name in current:
                rules[name][1].append(line.strip().lstrip("@-+"))
        elif found := re.match(r"([^\s:=#][^:=]*):(?!=)([^=]*)$", line.partition("#")[0]):
            current = found[1].split()
            for name in current:
                rules.setdefault(name, ([], []))[0].extend(found[2].partition(";")[0].split())
    wanted = targets or [next((name for name in rules if not name.startswith(".")), "")]
    lines: list[str] = []
    seen: set[str] = set()
    while wanted:
        name = wanted.pop(0)
        if name in rules and name not in seen:
            seen.add(name)
            wanted.extend(rules[name][0])
            lines.extend(re.sub(r"\$[({]\w+[)}]\s*(?=-m\b)", "python ", text) for text in rules[name][1])
    return lines


def _folders(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _join(place: str, name: str) -> str:
    return normalize(name if name.startswith("/") else f"{place}/{name}")


def _below(place: str, name: str) -> str:
    """A name pattern, at any depth below a folder."""
    return name if place == "." else f"/{place}/**/{name}"
