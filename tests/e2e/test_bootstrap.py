"""The first minute on machines that lack something: an old Python, or one without its venv module."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TOOLS = ("bash", "env", "id", "basename", "cat", "sed")
VERBS = ("demo", "test", "check", "bench", "chaos", "hosts")

SPLIT_OFF = """#!{bash}
# A Python 3.12 as some distributions ship it: there is no ensurepip until its package is installed.
case "$*" in
  *ensurepip*) exit 1 ;;
  *"%d.%d"*) echo 3.12 ;;
  *sys.version_info*) exit 0 ;;
  --version) echo "Python 3.12.3" ;;
  *) echo "python $*" >>"{log}"; exit 9 ;;
esac
"""
OLD = """#!{bash}
case "$1" in
  --version) echo "Python 3.9.2" ;;
  *) exit 1 ;;
esac
"""
APT = """#!{bash}
echo "apt-get $*" >>"{log}"
exit {status}
"""


class Machine:
    """A PATH with little on it, and a log of what was asked of its programs."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.log = folder / "log"
        self.bin.mkdir()
        self.log.touch()
        for name in TOOLS:
            found = shutil.which(name)
            assert found is not None
            (self.bin / name).symlink_to(found)

    def put(self, name: str, text: str, status: int = 0) -> None:
        path = self.bin / name
        path.write_text(text.format(bash=shutil.which("bash"), log=self.log, status=status))
        path.chmod(0o755)

    def bootstrap(self, into: Path) -> subprocess.CompletedProcess[str]:
        command = [str(self.bin / "bash"), str(ROOT / "scripts/venv.sh"), str(into), "all"]
        env = {"PATH": str(self.bin), "HOME": str(into.parent)}
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)

    @property
    def asked(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_any_python_it_says_what_is_needed(machine: Machine, tmp_path: Path) -> None:
    done = machine.bootstrap(tmp_path / "venv")
    assert done.returncode == 2
    assert "Python 3.11 or newer" in done.stderr


def test_an_old_python_is_named(machine: Machine, tmp_path: Path) -> None:
    machine.put("python3", OLD)
    done = machine.bootstrap(tmp_path / "venv")
    assert done.returncode == 2
    assert "found: Python 3.9.2" in done.stderr


def test_without_venv_and_without_apt_it_says_what_to_install(machine: Machine, tmp_path: Path) -> None:
    machine.put("python3", SPLIT_OFF)
    done = machine.bootstrap(tmp_path / "venv")
    assert done.returncode == 2
    assert "venv and ensurepip" in done.stderr
    assert machine.asked == []


@pytest.mark.skipif(os.geteuid() != 0, reason="apt is asked only by root, or through sudo")
def test_root_fetches_the_venv_module(machine: Machine, tmp_path: Path) -> None:
    machine.put("python3", SPLIT_OFF)
    machine.put("apt-get", APT, status=0)
    machine.bootstrap(tmp_path / "venv")
    assert machine.asked == ["apt-get install -y -qq python3.12-venv", f"python -m venv --clear {tmp_path / 'venv'}"]


def test_where_apt_can_do_nothing_the_exact_command_is_printed(machine: Machine, tmp_path: Path) -> None:
    machine.put("python3", SPLIT_OFF)
    machine.put("apt-get", APT, status=100)
    done = machine.bootstrap(tmp_path / "venv")
    assert done.returncode == 2
    assert "sudo apt-get install python3.12-venv" in done.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_is_a_target(verb: str) -> None:
    done = subprocess.run(["make", "-n", verb], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_lock_has_names_and_versions_only() -> None:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    assert lines
    assert [line for line in lines if not _is_pin(line)] == []
    assert "loopx" not in {line.partition("==")[0] for line in lines}


def _is_pin(line: str) -> bool:
    name, equals, version = line.partition("==")
    return bool(equals) and name.replace("-", "").replace("_", "").replace(".", "").isalnum() and " " not in version


def test_the_lock_covers_what_runs_here() -> None:
    """Each library that the product asks for is pinned, so that two machines run the same."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    names = {_name(one) for one in wanted} - {"loopx-control"}
    pinned = {_name(line) for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()}
    assert names - pinned == set()


def _name(requirement: str) -> str:
    for sign in "<>=[; ":
        requirement = requirement.partition(sign)[0]
    return requirement.lower().replace("_", "-")


def test_loopx_and_python_m_loopx_are_the_same(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loopx", "--version"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout.startswith("loopx ")
