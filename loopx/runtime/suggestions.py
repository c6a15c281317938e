"""What a project seems to be checked with, for the hint of an error.

It runs nothing, and nothing acts on it by itself.
"""

from __future__ import annotations

import os
import shutil

import msgspec

_MOST = 4
_READ_BYTES = 256 * 1024


def check_programs(root: str) -> tuple[str, ...]:
    """Commands that would probably check this project, the most telling first; at most four."""
    found: list[str] = []
    names = _names(root)
    if _has_pytest(root, names):
        found.append("pytest")
    elif _has_python_tests(root, names):
        found.append("python3 -m unittest")
    found += _from_manifests(root, names)
    for program, marks in (("ruff", ("ruff.toml", ".ruff.toml")), ("mypy", ("mypy.ini", ".mypy.ini"))):
        if any(mark in names for mark in marks) or f"[tool.{program}" in _text(root, "pyproject.toml"):
            found.append(program)
    return tuple(dict.fromkeys(found))[:_MOST]


def _from_manifests(root: str, names: frozenset[str]) -> list[str]:
    found = []
    if "package.json" in names and _npm_test(root):
        found.append("npm test")
    if "Cargo.toml" in names:
        found.append("cargo test")
    if "go.mod" in names:
        found.append("go test ./...")
    makefile = next((name for name in ("Makefile", "makefile", "GNUmakefile") if name in names), None)
    if makefile is not None:
        lines = _text(root, makefile).splitlines()
        found += [f"make {goal}" for goal in ("test", "check") if any(line.startswith(f"{goal}:") for line in lines)]
    return found


def _names(root: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(root))
    except OSError:
        return frozenset()


def _has_pytest(root: str, names: frozenset[str]) -> bool:
    configured = "pytest.ini" in names or "[tool.pytest" in _text(root, "pyproject.toml")
    if configured or "conftest.py" in names or "[tool:pytest]" in _text(root, "setup.cfg"):
        return True
    installed = any(os.path.exists(os.path.join(root, folder, "bin", "pytest")) for folder in (".venv", "venv"))
    return _has_python_tests(root, names) and (installed or shutil.which("pytest") is not None)


def _has_python_tests(root: str, names: frozenset[str]) -> bool:
    if any(name.startswith("test_") and name.endswith(".py") for name in names):
        return True
    inside = (_names(os.path.join(root, folder)) for folder in ("tests", "test") if folder in names)
    return any(name.startswith("test") and name.endswith(".py") for folder in inside for name in folder)


def _npm_test(root: str) -> bool:
    try:
        manifest = msgspec.json.decode(_text(root, "package.json"))
    except msgspec.DecodeError:
        return False
    scripts = manifest.get("scripts") if isinstance(manifest, dict) else None
    return isinstance(scripts, dict) and "no test specified" not in str(scripts.get("test", "no test specified"))


def _text(root: str, name: str) -> str:
    try:
        with open(os.path.join(root, name), encoding="utf-8", errors="replace") as file:
            return file.read(_READ_BYTES)
    except OSError:
        return ""
