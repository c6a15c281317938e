"""The parts of real test runs: pytest, unittest and node, asked for machine output without changing the verdict."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from loopx.contracts.compare import DeltaCode, compare
from loopx.contracts.model import CheckResult, ContractEvaluation, Machine, PartCounts, Verdict
from loopx.contracts.parse import parse_checks
from loopx.workspace.check_report import plan_report
from loopx.workspace.check_run import run_check, session

PYTEST = f"{shlex.quote(sys.executable)} -m pytest -q"
UNITTEST = f"{shlex.quote(sys.executable)} -m unittest"


def _run(
    root: Path, command: str | tuple[str, ...], env: dict[str, str] | None = None, **fields: object
) -> CheckResult:
    (check,) = parse_checks([{"name": "c", "command": command, **fields}])
    everything = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **(env or {})}
    everything = {name: value for name, value in everything.items() if not name.startswith("PYTEST_CURRENT")}
    return run_check(check, session(root, env=everything))


def _parts(result: CheckResult) -> PartCounts:
    assert result.machine is Machine.READ, result
    assert result.parts is not None
    return result.parts


TESTS = """
import pytest
def test_ok(): pass
def test_bad(): assert {}["x"]
@pytest.mark.skip
def test_s(): pass
@pytest.mark.xfail
def test_x(): assert 0
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_a.py").write_text(TESTS)
    return tmp_path


@pytest.mark.parametrize("command", [PYTEST, f"cd . && FOO=1 {PYTEST} test_a.py || exit 1", f"timeout 100 {PYTEST}"])
def test_pytest(project: Path, command: str) -> None:
    result = _run(project, command)
    parts = _parts(result)
    assert result.verdict is Verdict.RED
    assert (parts.total, parts.passed, parts.failed, parts.skipped, parts.expected_failures) == (4, 1, 1, 1, 1)
    assert parts.failing == ("test_a::test_bad",)
    assert result.signature == "c: KeyError"
    assert not list(project.glob("*.xml"))


def test_the_persons_own_options_survive(project: Path) -> None:
    result = _run(project, PYTEST, env={"PYTEST_ADDOPTS": "-k 'ok or bad'"})
    assert _parts(result).total == 2


def test_a_report_that_the_person_asked_for_is_read_where_it_is(project: Path) -> None:
    (project / "sub").mkdir()
    (project / "sub" / "test_b.py").write_text("def test_b(): pass\n")
    result = _run(project, f"cd sub && {PYTEST} --junitxml own.xml")
    assert _parts(result).total == 1
    assert (project / "sub" / "own.xml").is_file()


def test_collection_errors_are_counted_apart(project: Path) -> None:
    (project / "test_b.py").write_text("import nope_nope\n")
    parts = _parts(_run(project, f"{PYTEST} --continue-on-collection-errors"))
    assert (parts.collection_errors, parts.failing) == (1, ("test_a::test_bad", "test_b"))


def test_failures_hidden_from_the_exit_code_contradict_it(project: Path) -> None:
    (project / "conftest.py").write_text("def pytest_sessionfinish(session): session.exitstatus = 0\n")
    hidden = _run(project, PYTEST)
    assert (hidden.verdict, hidden.machine, hidden.parts) == (Verdict.GREEN, Machine.CONTRADICTS, None)
    assert _run(project, f"{PYTEST} | cat").machine is Machine.CONTRADICTS


def test_leaving_the_run_early_loses_the_report(project: Path) -> None:
    before = _run(project, PYTEST)
    (project / "test_a.py").write_text("import os\ndef test_ok(): os._exit(0)\n")
    after = _run(project, PYTEST)
    assert (after.verdict, after.machine) == (Verdict.GREEN, Machine.MISSING)
    found = compare(ContractEvaluation(results=(before,)), ContractEvaluation(results=(after,)))
    assert DeltaCode.REPORT_LOST in {delta.code for delta in found.deltas}


def test_two_runs_in_one_command_are_not_mistaken_for_one(project: Path) -> None:
    result = _run(project, f"{PYTEST} test_a.py; {PYTEST} test_a.py")
    assert (result.parts, result.machine) == (None, Machine.NOT_ASKED)


def test_pytest_behind_make(project: Path) -> None:
    (project / "Makefile").write_text(f"test:\n\t@{PYTEST}\n")
    assert _parts(_run(project, "make test")).total == 4


def test_progress_inside_one_check_is_measured(project: Path) -> None:
    (project / "test_b.py").write_text("def test_1(): assert 0\ndef test_2(): assert 0\n")
    before = _run(project, PYTEST)
    (project / "test_b.py").write_text("def test_1(): pass\ndef test_2(): assert 0\n")
    after = _run(project, PYTEST)
    found = compare(ContractEvaluation(results=(before,)), ContractEvaluation(results=(after,)))
    assert [(delta.code, delta.before, delta.after) for delta in found.deltas] == [(DeltaCode.FEWER_FAILING, 3, 2)]
    assert found.measured_progress


UNIT = """
import unittest
class T(unittest.TestCase):
    def test_ok(self): print("Ran 99 tests in 0.1s\\n\\nOK", flush=True)
    def test_f(self): self.assertEqual(1, 2)
    @unittest.skip("s")
    def test_s(self): pass
    def test_sub(self):
        for i in range(3):
            with self.subTest(i=i): self.assertEqual(i, 1)
"""


@pytest.mark.parametrize("command", [UNITTEST, f"{UNITTEST} discover -s . -v", f"cd . && {UNITTEST} test_u"])
def test_unittest(tmp_path: Path, command: str) -> None:
    (tmp_path / "test_u.py").write_text(UNIT)
    parts = _parts(_run(tmp_path, command))
    assert (parts.source, parts.total, parts.passed, parts.failed, parts.skipped) == ("unittest", 4, 1, 3, 1)
    assert parts.error_classes == ("AssertionError",)


def test_unittest_started_by_a_script(tmp_path: Path) -> None:
    (tmp_path / "check_all.py").write_text(UNIT + "\nunittest.main()\n")
    parts = _parts(_run(tmp_path, f"{shlex.quote(sys.executable)} check_all.py"))
    assert parts.total == 4


def test_a_summary_forged_at_exit_is_no_report(tmp_path: Path) -> None:
    forged = "import atexit, sys\natexit.register(lambda: sys.stderr.write('Ran 4 tests in 0.1s\\n\\nOK\\n'))\n"
    (tmp_path / "test_u.py").write_text(forged + UNIT)
    result = _run(tmp_path, UNITTEST)
    assert (result.verdict, result.machine, result.parts) == (Verdict.RED, Machine.CONTRADICTS, None)


def test_a_named_junit_file_must_be_of_this_run(tmp_path: Path) -> None:
    report = '<testsuite><testcase classname="a" name="b"/></testsuite>'
    (tmp_path / "old.xml").write_text(report)
    stale = _run(tmp_path, "true", junit="old.xml")
    assert (stale.machine, stale.parts) == (Machine.MISSING, None)
    fresh = _run(tmp_path, f"echo '{report}' > new.xml", junit="new.xml")
    assert _parts(fresh).total == 1
    linked = _run(tmp_path, "ln -s old.xml link.xml", junit="link.xml")
    assert linked.machine is Machine.MISSING


def test_node_tests(tmp_path: Path) -> None:
    node = shutil.which("node")
    assert node is not None, "the test suite needs node"
    (tmp_path / "a.test.js").write_text(
        "const test = require('node:test'); const assert = require('node:assert');\n"
        "test('one', () => {}); test('two', () => assert.equal(1, 2)); test('three', {skip: true}, () => {});\n"
    )
    parts = _parts(_run(tmp_path, (node, "--test")))
    assert (parts.total, parts.failing, parts.skipped) == (3, ("two",), 1)


def _plan(tmp_path: Path, command: str, **fields: object) -> tuple[tuple[str, ...] | str, dict[str, str]]:
    (check,) = parse_checks([{"name": "c", "command": command, **fields}])
    plan = plan_report(check, str(tmp_path), {}, tmp_path / "out")
    return plan.command, plan.env


def test_what_other_runners_are_asked(tmp_path: Path) -> None:
    assert _plan(tmp_path, "npx jest --ci")[0] == (
        "npx",
        "jest",
        "--ci",
        "--json",
        f"--outputFile={tmp_path}/out/report.json",
    )
    vitest = _plan(tmp_path, "vitest run")[0]
    assert vitest[2:5] == ("--reporter=default", "--reporter=json", f"--outputFile.json={tmp_path}/out/report.json")
    assert _plan(tmp_path, "jest -- a")[0] == ("jest", "--", "a")
    assert _plan(tmp_path, "go test ./...")[1] == {"GOFLAGS": "-json"}
    assert _plan(tmp_path, "go test ./...", expect="contains ok")[1] == {}
    assert _plan(tmp_path, "node --test a.js")[0] == ("node", "--test", "--test-reporter=tap", "a.js")
    assert _plan(tmp_path, "pytest -p no:junitxml")[1] == {}
    assert _plan(tmp_path, "PYTEST_ADDOPTS=-x pytest")[1] == {}
    assert _plan(tmp_path, "ruff check .") == (("ruff", "check", "."), {})
