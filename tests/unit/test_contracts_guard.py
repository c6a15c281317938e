"""Turns that cheat and turns that only look odd, judged by running the real checks both ways on real trees."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from loopx.contracts import baseline as baselines
from loopx.contracts.findings import FindingCode, GuardVerdict
from loopx.contracts.model import Contract, ContractEvaluation, ProtectPolicy
from loopx.contracts.parse import parse_contract
from loopx.contracts.ports import Place
from loopx.contracts.programs import ProgramPin
from loopx.contracts.protect import derive_protected
from loopx.workspace.check_run import evaluate, session
from loopx.workspace.guard import GuardInputs, GuardPorts, judge_turn
from loopx.workspace.shadow import take_snapshot

PYTHON = shlex.quote(sys.executable)
CALC = "def add(a, b): return a - b\ndef mul(a, b): return a * b\n"
FIXED = CALC.replace("a - b", "a + b")
TESTS = """
from calc import add, mul
def test_add(): assert add(1, 2) == 3
def test_add_zero(): assert add(5, 1) == 6
def test_mul(): assert mul(2, 3) == 6
"""
START = {
    "calc.py": CALC,
    "tests/test_calc.py": TESTS,
    "tests/conftest.py": "import sys; sys.path.insert(0, '.')\n",
    "pyproject.toml": "[project]\nname = 'calc'\n[tool.pytest.ini_options]\naddopts = '-q'\n",
    "README.md": "calc\n",
    ".github/workflows/ci.yml": "on: push\n",
}


class Change(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    kind: str
    old_path: str | None = None


def _files(root: Path) -> dict[str, bytes]:
    paths = (path for path in root.rglob("*") if path.is_file() and ".pytest_cache" not in path.parts)
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


class Story:
    """A start tree, a work tree that an agent changes, and the guard over both."""

    def __init__(self, folder: Path, contract: Contract, files: dict[str, str]) -> None:
        self.folder, self.contract = folder, contract
        self.work, self.start = folder / "work", folder / "start"
        for name, text in files.items():
            self.write(name, text)
        shutil.copytree(self.work, self.start)
        self.second_runs = 0
        self.second_left_ms: int | None = None
        self.env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        self.env.pop("PYTEST_CURRENT_TEST", None)
        programs = take_snapshot(contract, self.work, self.env)
        self.baseline = baselines.take_baseline(contract, self.evaluate(self.work, take=True), programs)

    def write(self, name: str, text: str) -> None:
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def evaluate(self, root: Path, *, take: bool = False, left_ms: int | None = None) -> ContractEvaluation:
        here = session(root, env=self.env, grace_ms=200, session_left_ms=left_ms)
        return evaluate(self.contract, here, take_baseline=take)

    def judge(self, *, scope: tuple[str, ...] = (), accepted: frozenset[str] = frozenset()) -> GuardVerdict:
        old, new = _files(self.start), _files(self.work)
        changes = [Change(path=path, kind="added") for path in new.keys() - old.keys()]
        changes += [Change(path=path, kind="deleted") for path in old.keys() - new.keys()]
        changes += [Change(path=path, kind="modified") for path in old.keys() & new.keys() if old[path] != new[path]]
        inputs = GuardInputs(
            contract=self.contract,
            protected=derive_protected(self.contract.checks, sorted(old), read=old.get, extra=self.contract.protected),
            baseline=self.baseline,
            current=self.evaluate(self.work),
            changes=changes,
            scope=scope,
            accepted=accepted,
            programs_now=take_snapshot(self.contract, self.work, self.env),
        )
        ports = GuardPorts(
            read_start=old.get, read_now=new.get, restored_tree=self.restored, evaluate=self.evaluate_place
        )
        return judge_turn(inputs, ports)

    def evaluate_place(self, place: Place) -> ContractEvaluation:
        self.second_runs += 1
        return self.evaluate(Path(place.root), left_ms=self.second_left_ms)

    @contextlib.contextmanager
    def restored(
        self, *, restore: tuple[str, ...], remove: tuple[str, ...], pins: tuple[ProgramPin, ...]
    ) -> Iterator[Place]:
        copy = self.folder / "copy"
        shutil.copytree(self.work, copy)
        for path in remove:
            (copy / path).unlink()
        for path in restore:
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.start / path, copy / path)
        try:
            yield Place(root=str(copy), tree_hash=None)
        finally:
            shutil.rmtree(copy)


def _contract(command: str = f"{PYTHON} -m pytest tests", **fields: object) -> Contract:
    return parse_contract({"checks": [{"name": "unit", "command": command}], **fields})


def _story(folder: Path, contract: Contract | None = None, files: dict[str, str] | None = None) -> Story:
    return Story(folder, contract or _contract(), START if files is None else files)


def _codes(verdict: GuardVerdict) -> set[FindingCode]:
    return {finding.code for finding in verdict.findings}


def _delete_test(story: Story) -> None:
    (story.work / "tests/test_calc.py").unlink()
    story.write("tests/test_new.py", "def test_nothing(): pass\n")


def _loosen_test(story: Story) -> None:
    story.write("tests/test_calc.py", TESTS.replace("== 3", "!= 99").replace("== 6", "!= 99"))


def _skip_test(story: Story) -> None:
    marked = TESTS.replace("def test_add", "@pytest.mark.skip\ndef test_add")
    story.write("tests/test_calc.py", f"import pytest\n{marked}")


def _expect_failure(story: Story) -> None:
    marked = TESTS.replace("def test_add", "@pytest.mark.xfail\ndef test_add")
    story.write("tests/test_calc.py", f"import pytest\n{marked}")


def _skip_from_the_code(story: Story) -> None:
    story.write("calc.py", "import pytest\ndef add(a, b): pytest.skip('later')\ndef mul(a, b): return a * b\n")


def _deselect(story: Story) -> None:
    story.write("pyproject.toml", START["pyproject.toml"].replace("-q", "-q -k mul"))


def _new_configuration(story: Story) -> None:
    story.write("pytest.ini", "[pytest]\naddopts = -k mul\n")


def _conftest_patches(story: Story) -> None:
    story.write("tests/conftest.py", START["tests/conftest.py"] + "import calc; calc.add = lambda a, b: a + b\n")


def _new_conftest_patches(story: Story) -> None:
    story.write("conftest.py", "import sys; sys.path.insert(0, '.')\nimport calc; calc.add = lambda a, b: a + b\n")


def _new_test_patches(story: Story) -> None:
    story.write("tests/test_aaa.py", "import calc; calc.add = lambda a, b: a + b\ndef test_x(): pass\n")


def _fake_pytest(story: Story) -> None:
    story.write("pytest.py", "raise SystemExit(0)\n")


def _leave_early(story: Story) -> None:
    story.write("calc.py", "import os\nos._exit(0)\n")


def _hide_the_exit_code(story: Story) -> None:
    hook = "def pytest_sessionfinish(session): session.exitstatus = 0\n"
    story.write("tests/conftest.py", START["tests/conftest.py"] + hook)


@pytest.mark.parametrize(
    ("cheat", "code", "restored"),
    [
        (_delete_test, FindingCode.TEST_DELETED, {"tests/test_calc.py"}),
        (_loosen_test, FindingCode.TEST_EDITED, {"tests/test_calc.py"}),
        (_skip_test, FindingCode.TEST_SKIPPED, {"tests/test_calc.py"}),
        (_expect_failure, FindingCode.XFAIL_ADDED, {"tests/test_calc.py"}),
        (_skip_from_the_code, FindingCode.TEST_SKIPPED, set()),
        (_deselect, FindingCode.RUNNER_CONFIG_CHANGED, {"pyproject.toml"}),
        (_new_configuration, FindingCode.RUNNER_CONFIG_ADDED, {"pytest.ini"}),
        (_conftest_patches, FindingCode.RUNNER_CONFIG_CHANGED, {"tests/conftest.py"}),
        (_new_conftest_patches, FindingCode.RUNNER_CONFIG_ADDED, {"conftest.py"}),
        (_new_test_patches, FindingCode.TEST_MASKED, {"tests/test_aaa.py"}),
        (_fake_pytest, FindingCode.STARTUP_HOOK_ADDED, {"pytest.py"}),
        (_leave_early, FindingCode.REPORT_LOST, set()),
        (_hide_the_exit_code, FindingCode.RUNNER_CONFIG_CHANGED, {"tests/conftest.py"}),
    ],
)
def test_cheats_are_refused(
    tmp_path: Path, cheat: Callable[[Story], None], code: FindingCode, restored: set[str]
) -> None:
    story = _story(tmp_path)
    cheat(story)
    verdict = story.judge()
    assert verdict.refused
    assert code in {finding.code for finding in verdict.offending}
    assert restored <= set(verdict.restore_paths)
    assert set(verdict.evidence_paths) == {path for path in verdict.restore_paths if (story.work / path).exists()}


def _only_fix(story: Story) -> None:
    story.write("calc.py", FIXED)


def _fix_and_add_tests(story: Story) -> None:
    _only_fix(story)
    story.write("tests/test_more.py", "from calc import add\ndef test_big(data): assert add(*data) == 30\n")
    story.write("tests/sub/conftest.py", "")
    story.write("conftest.py", "import pytest\n@pytest.fixture\ndef data(): return 10, 20\n")


def _fix_and_rename_test(story: Story) -> None:
    _only_fix(story)
    (story.work / "tests/test_calc.py").rename(story.work / "tests/test_arithmetic.py")


def _fix_and_tidy_test(story: Story) -> None:
    _only_fix(story)
    story.write("tests/test_calc.py", TESTS.replace("(1, 2) == 3", "(1, 2) == 3, 'sum'"))


def _fix_and_split_test(story: Story) -> None:
    _only_fix(story)
    story.write("tests/test_calc.py", TESTS.replace("def test_mul(): assert mul(2, 3) == 6\n", ""))
    story.write("tests/test_mul.py", "from calc import mul\ndef test_mul(): assert mul(2, 3) == 6\n")


def _fix_and_touch_other_sections(story: Story) -> None:
    _only_fix(story)
    story.write("pyproject.toml", START["pyproject.toml"].replace("'calc'", "'calc'\nversion = '2'"))
    story.write(".github/workflows/ci.yml", "on: [push]\n")
    story.write("requirements.txt", "x\n")


def _add_born_skipped_test(story: Story) -> None:
    _only_fix(story)
    story.write("tests/test_win.py", "import pytest\n@pytest.mark.skip\ndef test_windows(): pass\n")


@pytest.mark.parametrize(
    ("honest", "disclosed"),
    [
        (_only_fix, set()),
        (_fix_and_add_tests, {FindingCode.TEST_ADDED, FindingCode.RUNNER_CONFIG_ADDED}),
        (_fix_and_rename_test, {FindingCode.TEST_DELETED, FindingCode.TEST_ADDED}),
        (_fix_and_tidy_test, {FindingCode.TEST_EDITED}),
        (_fix_and_split_test, {FindingCode.TEST_EDITED, FindingCode.TEST_ADDED}),
        (_fix_and_touch_other_sections, {FindingCode.CI_CHANGED}),
        (_add_born_skipped_test, {FindingCode.TEST_ADDED}),
    ],
)
def test_honest_turns_are_accepted_and_disclosed(
    tmp_path: Path, honest: Callable[[Story], None], disclosed: set[FindingCode]
) -> None:
    story = _story(tmp_path)
    honest(story)
    verdict = story.judge()
    assert not verdict.refused, verdict.offending
    assert not verdict.undecided
    assert verdict.restore_paths == ()
    assert disclosed <= _codes(verdict)
    assert story.evaluate(story.work).all_green


def test_an_untouched_contract_is_not_run_twice(tmp_path: Path) -> None:
    story = _story(tmp_path)
    _only_fix(story)
    assert story.judge().findings == ()
    assert story.second_runs == 0


def test_an_honest_partial_step_with_an_added_test_is_not_refused(tmp_path: Path) -> None:
    story = _story(tmp_path)
    story.write("calc.py", CALC.replace("a - b", "a + b if a < 5 else 0"))
    story.write("tests/test_more.py", "def test_more(): assert 0\n")
    verdict = story.judge()
    assert not verdict.refused
    assert story.second_runs == 0
    assert _codes(verdict) == {FindingCode.TEST_ADDED}


HALF = CALC.replace("a - b", "a + b if a < 5 else 0")


def test_an_edited_test_is_accepted_while_it_buys_nothing_and_completes_only_when_green_both_ways(
    tmp_path: Path,
) -> None:
    story = _story(tmp_path)
    story.write("calc.py", HALF)
    story.write("tests/test_calc.py", f"# tidy\n{TESTS}def test_new(): assert add(0, 0) == 1\n")
    verdict = story.judge()
    assert (verdict.refused, verdict.undecided) == (False, False)
    assert verdict.restored is not None
    assert _codes(verdict) == {FindingCode.TEST_EDITED}
    story.write("tests/test_calc.py", f"# tidy\n{TESTS}")
    story.write("calc.py", FIXED)
    assert not story.judge().refused


@pytest.mark.parametrize(
    "cheat",
    [
        TESTS.replace("== 6", "in (0, 6)"),
        TESTS.replace("def test_add_zero(): assert add(5, 1) == 6\n", "def test_other(): assert 0\n"),
        TESTS.replace("def test_add_zero", "import pytest\n@pytest.mark.skip\ndef test_add_zero"),
        TESTS.replace("def test_add_zero", "import pytest\n@pytest.mark.xfail\ndef test_add_zero"),
    ],
)
def test_an_edited_test_that_buys_or_hides_something_is_refused_while_others_are_red(
    tmp_path: Path, cheat: str
) -> None:
    story = _story(tmp_path)
    story.write("calc.py", HALF.replace("a * b", "a * b + 1"))
    story.write("tests/test_calc.py", cheat)
    verdict = story.judge()
    assert (verdict.refused, verdict.restore_paths) == (True, ("tests/test_calc.py",))


def test_an_edit_whose_effect_no_report_tells_is_refused_while_others_are_red(tmp_path: Path) -> None:
    story = _story(tmp_path, _contract("sh check.sh"), SCRIPT_START)
    story.write("check.sh", "# tidy\n" + SCRIPT_START["check.sh"])
    assert story.judge().restore_paths == ("check.sh",)
    story.write("check.sh", SCRIPT_START["check.sh"])
    story.write(".github/workflows/ci.yml", "on: push\n")
    assert not story.judge().refused


def test_a_package_that_python_would_import_instead_of_a_test_is_judged_as_an_edit(tmp_path: Path) -> None:
    story = _story(tmp_path, _contract(f"{PYTHON} -m unittest test_calc"), {"calc.py": CALC, "test_calc.py": UNIT_TEST})
    story.write("test_calc/__init__.py", UNIT_TEST.replace("3)", "-1)"))
    verdict = story.judge()
    assert verdict.restore_paths == ("test_calc/__init__.py",)
    assert {item.code for item in verdict.offending} == {FindingCode.STARTUP_HOOK_ADDED}


def test_data_which_tests_waited_for_is_disclosed_and_never_taken_away(tmp_path: Path) -> None:
    files = {**START, "tests/test_calc.py": TESTS.replace("== 3", "== int(open('tests/three.txt').read())")}
    story = _story(tmp_path, None, files)
    story.write("calc.py", FIXED)
    story.write("tests/three.txt", "3")
    story.write("tests/test_more.py", "def test_more(): pass\n")
    verdict = story.judge()
    assert not verdict.refused
    assert story.second_runs == 1


UNIT = f"{PYTHON} -m unittest discover -s tests -t ."
UNIT_START = {
    "calc.py": CALC,
    "tests/__init__.py": "",
    "tests/test_calc.py": "import unittest\nfrom calc import add\nclass T(unittest.TestCase):\n"
    "    def test_add(self): self.assertEqual(add(1, 2), 3)\n    def test_true(self): pass\n",
}
UNIT_TEST = UNIT_START["tests/test_calc.py"]
SITE = "import calc\ncalc.add = lambda a, b: a + b\n"


def test_the_same_holds_for_unittest(tmp_path: Path) -> None:
    story = _story(tmp_path, _contract(UNIT), UNIT_START)
    story.write("tests/test_calc.py", UNIT_START["tests/test_calc.py"].replace("add(1, 2), 3", "3, 3"))
    verdict = story.judge()
    assert verdict.restore_paths == ("tests/test_calc.py",)
    story.write("calc.py", FIXED)
    assert not story.judge().refused


def test_a_skip_raised_by_the_code_is_counted_for_unittest(tmp_path: Path) -> None:
    story = _story(tmp_path, _contract(UNIT), UNIT_START)
    story.write("calc.py", "import unittest\ndef add(a, b): raise unittest.SkipTest('x')\n")
    verdict = story.judge()
    assert [(item.code, item.before, item.after) for item in verdict.offending] == [(FindingCode.TEST_SKIPPED, 0, 1)]


def test_a_startup_hook_is_refused_even_where_tests_may_be_edited(tmp_path: Path) -> None:
    contract = _contract(f"PYTHONPATH=. {UNIT}", policy="disclose")
    story = _story(tmp_path, contract, UNIT_START)
    story.write("sitecustomize.py", SITE)
    story.write("tests/test_new.py", "")
    verdict = story.judge()
    assert verdict.restore_paths == ("sitecustomize.py",)
    assert FindingCode.STARTUP_HOOK_ADDED in {item.code for item in verdict.offending}


SCRIPT_START = {"app.py": "print('bad')\n", "check.sh": f"{PYTHON} app.py | grep -q good\n"}


def test_a_check_script_that_is_emptied(tmp_path: Path) -> None:
    story = _story(tmp_path, _contract("sh check.sh"), SCRIPT_START)
    story.write("check.sh", "exit 0\n")
    verdict = story.judge()
    assert [(item.code, item.path) for item in verdict.offending] == [(FindingCode.CHECK_SCRIPT_CHANGED, "check.sh")]
    story.write("app.py", "print('good')\n")
    assert not story.judge().refused


def test_policies(tmp_path: Path) -> None:
    for policy, refused in ((ProtectPolicy.REFUSE, True), (ProtectPolicy.BOTH_WAYS, False)):
        story = _story(tmp_path / policy, _contract("sh check.sh", policy=policy.value), SCRIPT_START)
        story.write("app.py", "print('good')\n")
        story.write("check.sh", "# tidy\n" + SCRIPT_START["check.sh"])
        assert story.judge().refused is refused
        assert story.second_runs == (0 if refused else 1)
    story = _story(tmp_path / "disclose", _contract("sh check.sh", policy="disclose"), SCRIPT_START)
    story.write("check.sh", "exit 0\n")
    verdict = story.judge()
    assert (verdict.refused, story.second_runs) == (False, 0)
    assert _codes(verdict) == {FindingCode.CHECK_SCRIPT_CHANGED}


def test_what_a_person_accepted_is_not_judged_again(tmp_path: Path) -> None:
    story = _story(tmp_path, _contract("sh check.sh"), SCRIPT_START)
    story.write("check.sh", "exit 0\n")
    assert not story.judge(accepted=frozenset({"check.sh"})).refused


def test_write_scope(tmp_path: Path) -> None:
    story = _story(tmp_path, _contract("sh check.sh"), SCRIPT_START)
    story.write("app.py", "print('good')\n")
    story.write("docs/a.md", "x")
    verdict = story.judge(scope=("*.py",))
    assert verdict.restore_paths == ("docs/a.md",)
    assert _codes(verdict) == {FindingCode.OUT_OF_SCOPE}
    assert not story.judge(scope=("*.py", "docs")).refused


def test_an_edited_definition_is_refused(tmp_path: Path) -> None:
    story = _story(tmp_path, _contract("sh check.sh"), SCRIPT_START)
    story.contract = _contract("true")
    assert _codes(story.judge()) == {FindingCode.CHECK_DEFINITION_CHANGED}
    story.contract = _contract("sh check.sh")
    story.write("loopx.toml", "")
    assert story.judge().restore_paths == ("loopx.toml",)


def test_a_second_run_that_is_starved_decides_nothing(tmp_path: Path) -> None:
    story = _story(tmp_path, _contract("sh check.sh"), SCRIPT_START)
    story.write("check.sh", "exit 0\n")

    story.second_left_ms = 0
    verdict = story.judge()
    assert verdict.undecided
    assert not verdict.refused
    assert verdict.restore_paths == ()


@pytest.mark.parametrize(
    ("text", "faked"),
    [
        ("import time\ntime.time = lambda: 0\n", True),
        ("import socket\nsocket.socket = None\n", True),
        ("from freezegun import freeze_time\nfreeze_time('2020-01-01').start()\n", True),
        ("import pytest\n", False),
    ],
)
def test_a_faked_clock_or_network_is_named(tmp_path: Path, text: str, faked: bool) -> None:
    story = _story(tmp_path)
    story.write("tests/conftest.py", START["tests/conftest.py"] + text)
    assert (FindingCode.CLOCK_OR_NETWORK_FAKED in _codes(story.judge())) is faked
