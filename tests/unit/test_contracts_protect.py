"""Protected paths are derived from what the checks run; shared files are protected by section."""

from __future__ import annotations

import pytest

from loopx.contracts import globs
from loopx.contracts.model import Check
from loopx.contracts.protect import ProtectedPaths, Role, derive_protected
from loopx.contracts.sections import protected_section_changed

PYTHON_TREE = {
    "src/pkg/dates.py": b"",
    "src/pkg/testing.py": b"",
    "tests/test_dates.py": b"",
    "tests/test_other.py": b"",
    "tests/helpers.py": b"",
    "tests/data/in.json": b"",
    "tests/conftest.py": b"",
    "src/pkg/test_inline.py": b"",
    "pyproject.toml": b"[tool.pytest.ini_options]\ntestpaths = ['tests']\n",
    "pytest.ini": b"",
    "Makefile": b"PY = python3\nall: build\nbuild:\n\tcc x\ntest: unit\n\t@echo ok\nunit:\n\t$(PY) -m pytest tests\n",
    "package.json": b'{"scripts": {"test": "jest --ci", "pretest": "sh scripts/prepare.sh"}}',
    "scripts/prepare.sh": b"echo\n",
    "scripts/verify.py": b"",
    "main.py": b"",
    "run_all": b"#!/bin/sh\npython -m unittest discover -s tests\n",
    ".github/workflows/ci.yml": b"",
}


def _derive(command: str | tuple[str, ...], tree: dict[str, bytes] | None = None, **fields: str) -> ProtectedPaths:
    files = PYTHON_TREE if tree is None else tree
    check = Check(name="c", command=command, cwd=fields.get("cwd", "."), junit=fields.get("junit"))
    return derive_protected([check], sorted(files), read=files.get)


@pytest.mark.parametrize(
    ("command", "protected", "free"),
    [
        (
            "pytest -q tests/test_dates.py",
            ["tests/test_dates.py", "tests/helpers.py", "tests/data/in.json", "tests/conftest.py", "pytest.ini"],
            ["src/pkg/dates.py", "tests/test_other.py", "src/pkg/testing.py", "Makefile"],
        ),
        ("pytest tests/test_dates.py::test_x", ["tests/test_dates.py"], ["tests/test_other.py"]),
        ("pytest tests", ["tests/test_other.py", "tests/helpers.py", "tests/new_file.py"], ["src/pkg/test_inline.py"]),
        ("pytest src", ["src/pkg/test_inline.py"], ["src/pkg/dates.py", "tests/test_dates.py"]),
        ("pytest", ["tests/test_dates.py", "tests/data/in.json"], ["src/pkg/dates.py"]),
        ("pytest tests/test_new.py", ["tests/test_new.py"], ["src/pkg/dates.py"]),
        ("cd src && python -m pytest pkg", ["src/pkg/test_inline.py"], ["src/pkg/dates.py"]),
        ("python -m unittest discover -s tests", ["tests/test_dates.py", "tests/helpers.py"], ["src/pkg/dates.py"]),
        ("python -m unittest tests.test_dates.T.test_x", ["tests/test_dates.py"], ["tests/test_other.py"]),
        ("make test", ["Makefile", "tests/test_dates.py", "pytest.ini"], ["src/pkg/dates.py", "main.py"]),
        (
            "npm test",
            ["scripts/prepare.sh", "a.test.js", "src/__tests__/b.js", "jest.config.js"],
            ["main.py", "src/a.js"],
        ),
        ("python scripts/verify.py", ["scripts/verify.py"], ["main.py", "scripts/other.py"]),
        ("sh run_all", ["run_all", "tests/test_dates.py"], ["main.py"]),
        ("./run_all", ["run_all", "tests/test_dates.py"], ["main.py"]),
        ("python main.py tests/data/in.json", ["tests/data/in.json"], ["main.py"]),
        ("go test ./...", ["a/b_test.go", "a/testdata/x", "go.sum"], ["a/b.go", "go.mod"]),
        ("cargo test", ["tests/it.rs", "x/tests/it.rs", "Cargo.lock"], ["src/lib.rs"]),
        ("ruff check .", ["ruff.toml"], ["src/pkg/dates.py", "main.py"]),
        ("node --test", ["a.test.js", "x/b-test.js"], ["a.js"]),
    ],
)
def test_derivation(command: str, protected: list[str], free: list[str]) -> None:
    found = _derive(command)
    assert [path for path in protected if found.role_of(path) is None] == []
    assert [path for path in free if found.role_of(path) is not None] == []


@pytest.mark.parametrize(
    ("path", "role"),
    [
        (".github/workflows/new.yml", Role.CI),
        (".gitlab-ci.yml", Role.CI),
        ("conftest.py", Role.RUNNER_CONFIG),
        ("deep/er/conftest.py", Role.RUNNER_CONFIG),
        ("sitecustomize.py", Role.HOOK),
        ("x.pth", Role.HOOK),
        ("pytest.py", Role.HOOK),
        ("unittest/__init__.py", Role.HOOK),
        ("time.py", Role.HOOK),
        ("src/pkg/time.py", None),
        ("uv.lock", Role.LOCK),
        ("loopx.toml", Role.OWN),
        (".loopx/x", Role.OWN),
        ("README.md", None),
    ],
)
def test_roles_around_pytest(path: str, role: Role | None) -> None:
    assert _derive("pytest").role_of(path) is role


def test_modules_that_were_there_at_the_start_are_the_projects_own() -> None:
    found = _derive("pytest", {"time.py": b"", "http/server.py": b"", "tests/test_a.py": b""})
    assert found.role_of("time.py") is None
    assert found.role_of("http/server.py") is None
    assert found.role_of("socket.py") is Role.HOOK


def test_a_large_tree_needs_few_rules() -> None:
    """What is looked up for every changed path may not grow with the tree."""
    paths = [f"p{n % 200}/tests/test_{n}.py" for n in range(20_000)]
    found = derive_protected([Check(name="c", command="pytest")], paths)
    assert len(found.rules) < 200
    assert all(found.role_of(path) is Role.TEST for path in paths)


def test_scripts_that_look_like_the_work_are_disclosed() -> None:
    found = _derive("python main.py | grep ok")
    assert found.unprotected_scripts == ("main.py",)
    assert _derive("python scripts/verify.py").unprotected_scripts == ()
    named = derive_protected([Check(name="c", command="python main.py")], ["main.py"], extra=["main.py"])
    assert named.unprotected_scripts == ()


def test_a_person_names_more() -> None:
    found = derive_protected([Check(name="c", command="true")], ["a"], extra=["golden/**", "*.snap"])
    assert found.role_of("golden/x/y") is Role.PERSON
    assert found.role_of("deep/a.snap") is Role.PERSON


def test_configuration_given_by_an_option() -> None:
    tree = {"cfg/strict.ini": b"", "tests/test_a.py": b""}
    assert _derive("pytest -c cfg/strict.ini", tree).role_of("cfg/strict.ini") is Role.RUNNER_CONFIG
    assert _derive("mypy --config-file=cfg/strict.ini src", tree).role_of("cfg/strict.ini") is Role.RUNNER_CONFIG


def test_configured_test_files_and_paths() -> None:
    tree = {"pytest.ini": b"[pytest]\npython_files = check_*.py\ntestpaths = qa\n", "qa/check_a.py": b"", "b/x.py": b""}
    found = _derive("pytest", tree)
    assert found.role_of("qa/check_a.py") is Role.TEST
    assert found.role_of("b/x.py") is None


def test_without_any_known_runner_usual_tests_are_protected() -> None:
    found = _derive("./build/checker", {"spec/a_spec.rb": b""})
    assert found.role_of("spec/a_spec.rb") is Role.TEST


def test_a_report_planted_beforehand_is_protected() -> None:
    assert _derive("true", junit="out/report.xml").role_of("out/report.xml") is Role.HOOK


PYPROJECT = b'[project]\nname = "x"\n[tool.pytest.ini_options]\naddopts = "-q"\n[tool.ruff]\nline-length = 80\n'


@pytest.mark.parametrize(
    ("path", "old", "new", "changed"),
    [
        ("pyproject.toml", PYPROJECT, PYPROJECT.replace(b'"x"', b'"y"'), False),
        ("pyproject.toml", PYPROJECT, PYPROJECT.replace(b"80", b"90"), False),
        ("pyproject.toml", PYPROJECT, PYPROJECT.replace(b"-q", b"-q --deselect a"), True),
        ("pyproject.toml", PYPROJECT, b'[project]\nname = "x"\n', True),
        ("pyproject.toml", PYPROJECT, None, True),
        ("pyproject.toml", None, PYPROJECT, True),
        ("pyproject.toml", None, b'[project]\nname = "x"\n', False),
        ("pyproject.toml", PYPROJECT, b"[broken", True),
        ("pyproject.toml", b"[broken", b"[broken too", True),
        ("pyproject.toml", b'[project]\nname="x"\n', b'[project]\nname="x"\n[tool.coverage.run]\nomit=["*"]\n', True),
        ("sub/setup.cfg", b"[metadata]\nname=x\n", b"[metadata]\nname=y\n", False),
        ("setup.cfg", b"[metadata]\n", b"[metadata]\n[tool:pytest]\naddopts=-x\n", True),
        ("tox.ini", b"[pytest]\na=1\n", b"[pytest]\na=2\n", True),
        (
            "package.json",
            b'{"version":"1","scripts":{"test":"jest"}}',
            b'{"version":"2","scripts":{"test":"jest"}}',
            False,
        ),
        ("package.json", b'{"scripts":{"test":"jest"}}', b'{"scripts":{"test":"exit 0"}}', True),
        ("package.json", b"{}", b'{"jest":{"testPathIgnorePatterns":["a"]}}', True),
        ("package.json", b"{}", b"[]", True),
        ("Cargo.toml", b'[package]\nname="a"\n', b'[package]\nname="a"\n[dependencies]\nx="1"\n', False),
        ("Cargo.toml", b'[package]\nname="a"\n', b'[package]\nname="a"\n[lib]\ntest=false\n', True),
        ("Cargo.toml", b'[[bin]]\nname="a"\n', b'[[bin]]\nname="a"\ntest=false\n', True),
        ("pytest.ini", b"a", b"b", True),
    ],
)
def test_sections(path: str, old: bytes | None, new: bytes | None, changed: bool) -> None:
    assert protected_section_changed(path, old, new) is changed


def test_sections_belong_to_tools() -> None:
    changed = PYPROJECT.replace(b"80", b"90")
    assert protected_section_changed("pyproject.toml", PYPROJECT, changed, frozenset({"ruff"}))


@pytest.mark.parametrize(
    ("pattern", "path", "matched"),
    [
        ("src/*.py", "src/a.py", True),
        ("src/*.py", "src/a/b.py", False),
        ("src/**/*.py", "src/a/b.py", True),
        ("src/**/*.py", "src/b.py", True),
        ("src", "src/a/b", True),
        ("src/", "src/a", True),
        ("docs", "x/docs/a", True),
        ("/docs", "x/docs/a", False),
        ("./docs", "docs/a", True),
        ("./docs", "x/docs/a", False),
        ("*.md", "a/b.md", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("a.c", "abc", False),
        ("**", "any/thing", True),
    ],
)
def test_globs(pattern: str, path: str, matched: bool) -> None:
    assert globs.matches(pattern, path) is matched
