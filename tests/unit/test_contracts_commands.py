"""A check's command is understood well enough to know its runner and arguments."""

from __future__ import annotations

import pytest

from loopx.contracts.commands import Tool, invocations
from loopx.contracts.shell_words import needs_shell, simple_commands


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("pytest -q tests", [(Tool.PYTEST, ("-q", "tests"), ".")]),
        (
            "cd sub && X=1 python -W error -m pytest -x 2>&1 | tee out",
            [(Tool.PYTEST, ("-x",), "sub"), (Tool.OTHER, ("out",), "sub")],
        ),
        ("uv run --with x pytest a", [(Tool.PYTEST, ("a",), ".")]),
        ("coverage run --source=pkg -m pytest tests", [(Tool.PYTEST, ("tests",), ".")]),
        ("python -m coverage run -m unittest", [(Tool.UNITTEST, (), ".")]),
        ("bash -ec 'pytest; ruff check .'", [(Tool.PYTEST, (), "."), (Tool.OTHER, ("check", "."), ".")]),
        ("timeout -k 5 30 make test", [(Tool.MAKE, ("test",), ".")]),
        ("env A=b npx jest --ci", [(Tool.JEST, ("--ci",), ".")]),
        ("node node_modules/jest/bin/jest.js a", [(Tool.JEST, ("a",), ".")]),
        ("npm run test:unit", [(Tool.NPM_SCRIPT, ("test:unit",), ".")]),
        ("npm t", [(Tool.NPM_SCRIPT, ("test",), ".")]),
        ("yarn vitest run", [(Tool.VITEST, ("run",), ".")]),
        ("node --test test/", [(Tool.NODE_TEST, ("test/",), ".")]),
        ("go test ./...", [(Tool.GO_TEST, ("./...",), ".")]),
        ("cargo test --lib", [(Tool.CARGO_TEST, ("--lib",), ".")]),
        ("python3.12 check.py --fast", [(Tool.SCRIPT, ("check.py", "--fast"), ".")]),
        ("sh ./check.sh", [(Tool.SCRIPT, ("./check.sh",), ".")]),
        ("if pytest; then echo ok; fi", [(Tool.PYTEST, (), "."), (Tool.OTHER, ("ok",), ".")]),
        ("python -c 'import x'", [(Tool.OTHER, ("-c", "import x"), ".")]),
        ("'unclosed", []),
    ],
)
def test_invocations(line: str, expected: list[tuple[Tool, tuple[str, ...], str]]) -> None:
    assert [(item.tool, item.args, item.directory) for item in invocations(line)] == expected


def test_an_argv_is_taken_as_it_is() -> None:
    (item,) = invocations(("pytest", "-k", "a && b"))
    assert item.args == ("-k", "a && b")


def test_assignments_are_kept_apart() -> None:
    (item,) = invocations("PYTEST_ADDOPTS=-x pytest")
    assert item.assignments == (("PYTEST_ADDOPTS", "-x"),)


@pytest.mark.parametrize(
    ("line", "shell"),
    [
        ("pytest -q", False),
        ("pytest 'a b'", False),
        ("pytest | tail", True),
        ("echo $HOME", True),
        ('echo "$HOME"', True),
        ("echo '$HOME'", False),
        ("A=b pytest", True),
        ("pytest 'unclosed", True),
        ("cd x", True),
        ("ls a\\ b", False),
    ],
)
def test_needs_shell(line: str, shell: bool) -> None:
    assert needs_shell(line) is shell


def test_redirections_and_operators_are_no_words() -> None:
    assert simple_commands("a 2>err >out b <in && c; d | e\nf") == (("a", "b"), ("c",), ("d",), ("e",), ("f",))
