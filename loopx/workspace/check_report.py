"""Asking a check's test runner for a machine-readable report, and reading it.

The person's command stays what decides; the report only tells its parts. Nothing is asked for that would change which
tests run, and a report older than the run is not read.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec

from loopx.contracts.commands import Invocation, Tool, invocations
from loopx.contracts.model import Check, ExpectKind, Machine, PartCounts
from loopx.contracts.reports import GoScanner, read_jest
from loopx.contracts.summaries import (
    AnyScanner,
    CargoScanner,
    Found,
    JavaScriptScanner,
    Scanner,
    TapScanner,
    UnittestScanner,
    weigh_report,
)

MAX_REPORT_BYTES = 128 * 1024 * 1024
_CHUNK = 256 * 1024
_HIDING = frozenset({Tool.MAKE, Tool.TOX, Tool.NPM_SCRIPT, Tool.SCRIPT})
"""Tools that start a runner which the command does not name."""


class FileState(msgspec.Struct, frozen=True, kw_only=True):
    """What tells a rewritten file from the one that lay there before."""

    inode: int
    size: int
    modified_ns: int


class Plan(msgspec.Struct, kw_only=True):
    """How one check is run and where its report will be. `command` may have gained report options."""

    command: tuple[str, ...] | str
    env: dict[str, str]
    root: str
    junit: Path | None = None
    junit_before: FileState | None = None
    source: str = "junit"
    json_file: Path | None = None
    scanner: Scanner | None = None
    asked: bool = True


def plan_report(check: Check, root: str, env: dict[str, str], folder: Path) -> Plan:
    """Decide how to learn the check's parts. `folder` is empty, outside the tree, and lives as long as the run."""
    plan = Plan(command=check.command, env=dict(env), root=root)
    found = invocations(check.command)
    if check.junit is not None:
        _named_junit(plan, Path(root, check.junit))
        return plan
    pytests = [item for item in found if item.tool is Tool.PYTEST]
    if len(pytests) == 1:
        _ask_pytest(plan, check, pytests[0], folder)
        return plan
    runners = [item for item in found if _runs_tests(item)]
    if not pytests and len(runners) == 1:
        _ask_runner(plan, check, runners[0], folder)
    elif not pytests and not runners and any(_may_hide_runner(item) for item in found):
        _add_pytest_option(plan, folder)
        plan.scanner = AnyScanner()
    else:
        plan.asked = False
    return plan


def _runs_tests(item: Invocation) -> bool:
    return item.tool not in _HIDING and item.tool is not Tool.OTHER


def _may_hide_runner(item: Invocation) -> bool:
    return item.tool in _HIDING or (item.tool is Tool.OTHER and "/" in item.program)


def _named_junit(plan: Plan, path: Path) -> None:
    plan.junit = path
    plan.junit_before = _state(path)


def _ask_pytest(plan: Plan, check: Check, item: Invocation, folder: Path) -> None:
    plan.source = "pytest"
    if any("junitxml" in arg and arg.startswith("no:") for arg in item.args) or any(
        name == "PYTEST_ADDOPTS" for name, _ in item.assignments
    ):
        plan.asked = False
        return
    own = _option(item.args, ("--junitxml", "--junit-xml"))
    if own is not None:
        _named_junit(plan, Path(plan.root, check.cwd, item.directory, own))
        return
    _add_pytest_option(plan, folder)


def _add_pytest_option(plan: Plan, folder: Path) -> None:
    plan.junit = folder / "junit.xml"
    plan.source = "pytest"
    option = f"--junitxml={shlex.quote(str(plan.junit))}"
    plan.env["PYTEST_ADDOPTS"] = f"{plan.env.get('PYTEST_ADDOPTS', '')} {option}".strip()


def _option(args: tuple[str, ...], names: tuple[str, ...]) -> str | None:
    for index, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name in names:
            return value if equals else (args[index + 1] if index + 1 < len(args) else None)
    return None


def _ask_runner(plan: Plan, check: Check, item: Invocation, folder: Path) -> None:
    match item.tool:
        case Tool.UNITTEST:
            plan.scanner = UnittestScanner()
        case Tool.CARGO_TEST:
            plan.scanner = CargoScanner()
        case Tool.NODE_TEST:
            plan.scanner = TapScanner()
            _ask_node(plan, item)
        case Tool.TAP:
            plan.scanner = TapScanner()
        case Tool.GO_TEST:
            _ask_go(plan, check, item)
        case Tool.JEST | Tool.VITEST:
            plan.scanner = JavaScriptScanner(item.tool.value)
            plan.source = item.tool.value
            _ask_javascript(plan, item, folder)
        case _:
            plan.asked = False


def _ask_node(plan: Plan, item: Invocation) -> None:
    if isinstance(plan.command, tuple) and _option(item.args, ("--test-reporter",)) is None:
        at = plan.command.index("--test") + 1
        plan.command = (*plan.command[:at], "--test-reporter=tap", *plan.command[at:])


def _ask_go(plan: Plan, check: Check, item: Invocation) -> None:
    if check.expect.kind is not ExpectKind.EXIT_ZERO:  # the expectation is about the text as people see it
        plan.asked = False
        return
    plan.scanner = GoScanner()
    if "-json" not in item.args:
        plan.env["GOFLAGS"] = f"{plan.env.get('GOFLAGS', '')} -json".strip()


def _ask_javascript(plan: Plan, item: Invocation, folder: Path) -> None:
    if not isinstance(plan.command, tuple) or "--" in item.args or "--json" in item.args:
        return
    if any(arg.startswith("--outputFile") for arg in item.args):
        return
    plan.json_file = folder / "report.json"
    if item.tool is Tool.JEST:
        more = ("--json", f"--outputFile={plan.json_file}")
    else:
        default = () if _option(item.args, ("--reporter",)) else ("--reporter=default",)
        more = (*default, "--reporter=json", f"--outputFile.json={plan.json_file}")
    plan.command = (*plan.command, *more)


def read_report(plan: Plan, exit_code: int) -> Found:
    """The check's parts, once its command ended by itself with this exit code."""
    if not plan.asked:
        return None, Machine.NOT_ASKED
    parts = _read_junit_file(plan)
    if parts is None and plan.json_file is not None:
        parts = _read_json_file(plan.json_file, plan)
    if parts is not None:
        return weigh_report(parts, exit_code)
    return plan.scanner.found(exit_code) if plan.scanner is not None else (None, Machine.MISSING)


def _read_junit_file(plan: Plan) -> PartCounts | None:
    if plan.junit is None:
        return None
    state = _state(plan.junit)
    if state is None or state == plan.junit_before or state.size > MAX_REPORT_BYTES:
        return None
    from loopx.contracts.junit import read_junit

    return read_junit(_chunks(plan.junit), plan.source)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _read_json_file(path: Path, plan: Plan) -> PartCounts | None:
    state = _state(path)
    if state is None or state.size > MAX_REPORT_BYTES:
        return None
    return read_jest(path.read_bytes(), os.path.realpath(plan.root), plan.source)


def _state(path: Path) -> FileState | None:
    """The state of a regular file; links, pipes and devices are no reports."""
    try:
        found = path.lstat()
    except OSError:
        return None
    if not path.is_file() or path.is_symlink():
        return None
    return FileState(inode=found.st_ino, size=found.st_size, modified_ns=found.st_mtime_ns)
