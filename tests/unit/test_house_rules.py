"""The rules of the house that a linter does not know: sizes, words, first paragraphs, what hot commands import."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import check_sizes

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = {".py", ".sh", ".md", ".toml", ".sql", ".json", ".html", ".css", ".js", ".yml", ".yaml", ".cfg", ""}

# Joined here, so that this file does not contain what it forbids.
FORBIDDEN = tuple(
    re.compile(words)
    for words in (
        "FIX" + "ME",
        r"\bXX" + r"X\b",
        "HAC" + "K:",
        "/wo" + "rk/(main|shared)",
        r"\.\./sha" + "red",
        "shared/" + "(design|seeds)",
        r"\bissue" + r" #?\d",
        "Co-Authored" + "-By",
        r"as an? (AI|language)" + " model",
    )
)
THIRD_PARTY = {"msgspec", "typing_extensions"}
"""What a hot command may import besides the standard library: the wire structs, and what they themselves import."""

HEAVY = {
    "asyncio",
    "concurrent",
    "dataclasses",
    "email",
    "http",
    "importlib.metadata",
    "logging",
    "multiprocessing",
    "pathlib",
    "pydantic",
    "shutil",
    "socket",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "unittest",
    "urllib",
    "xml",
    "zoneinfo",
}
"""Of the standard library, what costs more than a hot command may spend."""

ROOMS = {
    "help": ("loopx", "loopx.__main__", "loopx.cli", "loopx.cli_commands", "loopx.control_plane"),
    "should_run": (
        "loopx",
        "loopx.__main__",
        "loopx.cli",
        "loopx.cli_commands",
        "loopx.control_plane",
        "loopx.store",
        "loopx.runtime",
        "loopx.presentation",
        "loopx.status",
    ),
}


def _tracked() -> Iterator[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in listed.decode().split("\0"):
        path = ROOT / name
        if name and path.suffix in TEXT and path.is_file():
            yield path


def _modules() -> list[Path]:
    return sorted((ROOT / "loopx").rglob("*.py"))


def test_no_module_and_no_function_is_too_long() -> None:
    assert list(check_sizes.problems()) == []


def test_no_forbidden_word_is_anywhere() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in _tracked()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        for word in FORBIDDEN
        if word.search(line)
    ]
    assert found == []


def test_each_module_begins_with_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in _modules()
        if path.stat().st_size and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_an_exception_from_the_type_checker_or_the_linter_has_its_reason() -> None:
    """`# noqa: X - why`, `# type: ignore[x]  # why`; in the product only."""
    allowed = re.compile(r"# (noqa: \w+(, \w+)*|type: ignore\[[\w-]+\])\s+\S.{9,}")
    bare = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in _modules()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"# (noqa|type: ignore)", line) and not allowed.search(line)
    ]
    assert bare == []


def test_values_are_structs_and_our_own_code_is_not_mocked() -> None:
    heavy = re.compile(r"^\s*(from|import) (dataclasses|pydantic|attrs?)\b")
    mocks = re.compile(r"^\s*(from|import) unittest\.mock\b|^\s*from unittest import .*\bmock\b")
    found = [str(path.relative_to(ROOT)) for path in _modules() if _matches(path, heavy)]
    found += [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("*.py")) if _matches(path, mocks)]
    assert found == []


def _matches(path: Path, pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(line) for line in path.read_text(encoding="utf-8").splitlines())


def _imports(*words: str, env: dict[str, str] | None = None) -> set[str]:
    """The modules that a Python process imported, as the interpreter itself reports them."""
    command = [sys.executable, "-X", "importtime", *words]
    done = subprocess.run(
        command, cwd=env["HOME"] if env else ROOT, env=env, capture_output=True, text=True, check=False
    )
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


def _of_a_command(home: Path, *words: str) -> set[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("LOOPX_")}
    env |= {"HOME": str(home), "LOOPX_STATE_DIR": str(home / "state"), "PYTHONPATH": str(ROOT)}
    return _imports("-m", "loopx", *words, env=env) - _imports("-c", "pass", env=env)


def _under(name: str, tops: set[str] | tuple[str, ...]) -> bool:
    return any(name == top or name.startswith(f"{top}.") for top in tops)


def _judge(imported: set[str], rooms: tuple[str, ...]) -> list[str]:
    """What was imported and may not be."""
    ours = {name for name in imported if _under(name, {"loopx"})}
    known = set(sys.stdlib_module_names) | THIRD_PARTY
    foreign = {name for name in imported - ours if name.partition(".")[0] not in known}
    heavy = {name for name in imported if _under(name, HEAVY)}
    outside = {name for name in ours if name != "loopx" and not _under(name, set(rooms) - {"loopx"})}
    return sorted(foreign | heavy | outside)


def test_help_imports_no_command_and_nothing_heavy(tmp_path: Path) -> None:
    imported = _of_a_command(tmp_path, "--help")
    assert "loopx.cli" in imported
    assert _judge(imported, ROOMS["help"]) == []
    commands = {name for name in imported if _under(name, {"loopx.cli_commands"})}
    assert commands == {"loopx.cli_commands", "loopx.cli_commands.base"}


@pytest.mark.parametrize(
    "words",
    [
        ("quota", "should-run", "--json", "g"),
        ("quota", "should-run", "g"),
        ("status", "--json"),
        ("todo", "claim", "--json", "g", "--agent-id", "a"),
    ],
    ids=" ".join,
)
def test_a_hot_command_imports_only_light_things(tmp_path: Path, words: tuple[str, ...]) -> None:
    """On an existing store, so that the whole path is walked."""
    _a_project_with_a_goal(tmp_path)
    imported = _of_a_command(tmp_path, *words)
    assert "loopx.store.connection" in imported
    assert _judge(imported, ROOMS["should_run"]) == []


def _a_project_with_a_goal(home: Path) -> None:
    env = {**os.environ, "HOME": str(home), "LOOPX_STATE_DIR": str(home / "state")}
    words = ["goal", "create", "be green", "--check", "test -e done", "--goal-id", "g", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "loopx", *words], cwd=home, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
