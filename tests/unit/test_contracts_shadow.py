"""A check's program is the one that it was at the baseline: not shadowed on PATH, in the tree, or by a startup file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loopx.contracts.findings import Finding, FindingCode
from loopx.contracts.model import Contract
from loopx.contracts.parse import parse_contract
from loopx.contracts.programs import compare_programs
from loopx.workspace.shadow import take_snapshot


def _tool(path: Path, text: str = "#!/bin/sh\nexit 1\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def _contract(command: str) -> Contract:
    return parse_contract({"checks": [{"name": "c", "command": command}]})


class World:
    def __init__(self, folder: Path, command: str) -> None:
        self.root = folder / "tree"
        self.root.mkdir()
        self.bin = folder / "bin"
        _tool(self.bin / "runner")
        _tool(self.bin / "python")
        self.contract = _contract(command)
        self.env = {"PATH": f"node_modules/.bin:tools:{self.bin}:{os.environ['PATH']}"}
        self.venv = self.root / ".venv"

    def make_venv(self) -> Path:
        _tool(self.venv / "bin" / "python", "#!/bin/sh\n")
        _tool(self.venv / "bin" / "pytest", f"#!{self.venv}/bin/python\n")
        (self.venv / "pyvenv.cfg").write_text("home = x\n")
        packages = self.venv / "lib" / "python3.11" / "site-packages"
        (packages / "_pytest").mkdir(parents=True)
        (packages / "_pytest" / "main.py").write_text("x\n")
        return packages


def _compare(world: World, change: object, *, dependencies_changed: bool = False) -> list[Finding]:
    before = take_snapshot(world.contract, world.root, world.env)
    assert callable(change)
    change()
    after = take_snapshot(world.contract, world.root, world.env)
    return list(compare_programs(before, after, dependencies_changed=dependencies_changed))


def _facts(found: list[Finding]) -> list[tuple[FindingCode, bool, str | None]]:
    return [(item.code, item.refused, item.path) for item in found]


def test_nothing_changed(tmp_path: Path) -> None:
    assert _compare(World(tmp_path, "runner -q"), lambda: None) == []


@pytest.mark.parametrize("place", ["tools/runner", "node_modules/.bin/runner"])
def test_a_program_shadowed_in_the_tree(tmp_path: Path, place: str) -> None:
    world = World(tmp_path, "runner -q")
    found = _compare(world, lambda: _tool(world.root / place, "#!/bin/sh\nexit 0\n"))
    assert _facts(found) == [(FindingCode.PROGRAM_SHADOWED, True, place)]


def test_a_shadow_behind_a_wrapper_and_a_cd(tmp_path: Path) -> None:
    world = World(tmp_path, "cd sub && timeout 5 runner -q")
    found = _compare(world, lambda: _tool(world.root / "sub/tools/runner", "#!/bin/sh\nexit 0\n"))
    assert (FindingCode.PROGRAM_SHADOWED, True, "sub/tools/runner") in _facts(found)


def test_a_link_into_the_tree_counts_as_in_the_tree(tmp_path: Path) -> None:
    world = World(tmp_path, "runner -q")
    _tool(world.root / "fake", "#!/bin/sh\nexit 0\n")

    def link() -> None:
        (world.bin / "runner").unlink()
        (world.bin / "runner").symlink_to(world.root / "fake")

    (finding,) = _compare(world, link)
    assert (finding.code, finding.refused) == (FindingCode.PROGRAM_SHADOWED, True)


def test_another_version_outside_the_tree_is_disclosed(tmp_path: Path) -> None:
    world = World(tmp_path, "runner -q")
    (finding,) = _compare(world, lambda: _tool(world.bin / "runner", "#!/bin/sh\n# new\nexit 1\n"))
    assert (finding.code, finding.refused, finding.detail) == (FindingCode.PROGRAM_CHANGED, False, "content")


def test_a_program_that_appeared_is_disclosed(tmp_path: Path) -> None:
    world = World(tmp_path, "./build/app")
    (finding,) = _compare(world, lambda: _tool(world.root / "build/app"))
    assert (finding.refused, finding.detail) == (False, "appeared")


def test_an_installed_runner_that_was_edited(tmp_path: Path) -> None:
    world = World(tmp_path, ".venv/bin/pytest -q")
    packages = world.make_venv()
    edit = (packages / "_pytest" / "main.py").write_text
    (finding,) = _compare(world, lambda: edit("exit 0\n"))
    assert (finding.refused, finding.path) == (True, ".venv/lib/python3.11/site-packages/_pytest")
    (upgraded,) = _compare(world, lambda: edit("version 2\n"), dependencies_changed=True)
    assert not upgraded.refused
    script = world.venv / "bin" / "pytest"
    assert _facts(_compare(world, lambda: _tool(script, "#!/bin/sh\nexit 0\n")))[0] == (
        FindingCode.PROGRAM_SHADOWED,
        True,
        ".venv/bin/pytest",
    )
    again = _compare(world, lambda: _tool(script, "#!/bin/sh\nexit 2\n"), dependencies_changed=True)
    assert (again[0].code, again[0].refused) == (FindingCode.PROGRAM_CHANGED, False)


@pytest.mark.parametrize(
    ("name", "text", "refused"),
    [
        ("sitecustomize.py", "import os\n", True),
        ("evil.pth", "import os; os._exit(0)\n", True),
        ("project.pth", "/work/src\n", False),
        ("__editable__.calc.pth", "import finder; finder.install()\n", False),
        ("distutils-precedence.pth", "import os\n", False),
    ],
)
def test_startup_files_of_an_interpreter(tmp_path: Path, name: str, text: str, refused: bool) -> None:
    world = World(tmp_path, ".venv/bin/python -m pytest")
    packages = world.make_venv()
    (finding,) = _compare(world, lambda: (packages / name).write_text(text))
    assert (finding.code, finding.refused) == (FindingCode.STARTUP_HOOK_ADDED, refused)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("pytest.py", FindingCode.PROGRAM_SHADOWED),
        ("unittest/__init__.py", FindingCode.PROGRAM_SHADOWED),
        ("time.py", FindingCode.CLOCK_OR_NETWORK_FAKED),
        ("socket.py", FindingCode.CLOCK_OR_NETWORK_FAKED),
    ],
)
def test_modules_that_stand_before_the_real_ones(tmp_path: Path, path: str, code: FindingCode) -> None:
    world = World(tmp_path, "python -m pytest")

    def add() -> None:
        (world.root / path).parent.mkdir(exist_ok=True)
        (world.root / path).write_text("")

    (finding,) = _compare(world, add)
    assert (finding.code, finding.refused) == (code, True)


def test_a_module_that_was_there_is_the_projects(tmp_path: Path) -> None:
    world = World(tmp_path, "python -m pytest")
    (world.root / "time.py").write_text("")
    assert _compare(world, lambda: (world.root / "time.py").write_text("x = 1\n")) == []
