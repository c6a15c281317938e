"""Which programs the checks really run: resolved paths, contents, and what could stand in front of the real ones.

It reads and hashes; it runs nothing and judges nothing (`contracts.programs` does). Taken at the baseline and again
when a turn is judged.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from loopx.contracts.commands import PYTHON, Invocation, Tool, base_name, invocations, normalize
from loopx.contracts.model import Check, Contract
from loopx.contracts.programs import HOOK_FILES, SCRIPT, SHADOWING_MODULES, ProgramIdentity, ProgramPin, ProgramSnapshot
from loopx.contracts.shell_words import is_shell_word

_HASHED_BYTES = 16 * 1024 * 1024
_KEPT_BYTES = 16 * 1024
_RUNNER_PACKAGES = ("_pytest", "pytest", "pluggy")
_SHEBANG = re.compile(rb"#!\s*(\S+)(?:\s+(\S+))?")


def take_snapshot(contract: Contract, root: str | Path, env: Mapping[str, str]) -> ProgramSnapshot:
    """The identities of all programs that the contract's checks name, as seen with this environment."""
    top = Path(root)
    programs: dict[tuple[str, str], ProgramIdentity] = {}
    shadows: set[str] = set()
    hooks: dict[str, str] = {}
    for check in contract.checks:
        for item in invocations(check.command):
            place = normalize(f"{check.cwd}/{item.directory}")
            for name in _program_names(item):
                if (check.name, name) not in programs:
                    programs[check.name, name] = _identity(check, name, top, place, env)
            if _is_python(item):
                shadows.update(_shadowing_modules(top, place))
                hooks.update(_interpreter_files(programs[check.name, item.program].path, top))
                hooks.update(_files_of_the_surroundings(programs[check.name, item.program].path, top, place, env))
    return ProgramSnapshot(programs=tuple(programs.values()), hooks=hooks, shadows=tuple(sorted(shadows)))


def _program_names(item: Invocation) -> list[str]:
    """The program behind the wrappers first, then the wrapper itself."""
    names = [item.program]
    first = item.words[len(item.assignments)]
    if first != item.program:
        names.append(first)
    return [name for name in names if not is_shell_word(name)] or [item.program]


def _is_python(item: Invocation) -> bool:
    return item.tool in {Tool.PYTEST, Tool.UNITTEST} or PYTHON.match(base_name(item.program)) is not None


def _identity(check: Check, name: str, top: Path, place: str, env: Mapping[str, str]) -> ProgramIdentity:
    found = _look_up(name, top, place, env)
    real = found.resolve() if found is not None else None
    in_tree = found is not None and (_inside(found, top) or (real is not None and _inside(real, top)))
    content = None if real is None else _content(real, whole=in_tree)
    return ProgramIdentity(
        check=check.name,
        program=name,
        path=None if found is None else _shown(found, top),
        in_tree=in_tree,
        content=content,
        script=_text(real) if real is not None and content is not None and content.startswith(SCRIPT) else None,
    )


def _look_up(name: str, top: Path, place: str, env: Mapping[str, str]) -> Path | None:
    cwd = top / place
    if "/" in name:
        path = cwd / name
        return path if path.is_file() else None
    local = cwd / "node_modules" / ".bin" / name  # where npx and npm scripts look first
    if local.is_file():
        return local
    # Relative entries of PATH are relative to where the check stands.
    path_list = os.pathsep.join(str(cwd / entry) for entry in env.get("PATH", os.defpath).split(os.pathsep))
    found = shutil.which(name, path=path_list)
    return None if found is None else Path(found)


def _inside(path: Path, top: Path) -> bool:
    return path.is_relative_to(top) or path.is_relative_to(top.resolve())


def _shown(path: Path, top: Path) -> str:
    for base in (top, top.resolve()):
        if path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    return str(path)


def _content(path: Path, *, whole: bool) -> str | None:
    """What identifies a file: its bytes in the tree; elsewhere those of scripts, and the size and time of the rest."""
    try:
        state = path.stat()
        if state.st_size <= _HASHED_BYTES:
            if whole:
                return hashlib.sha256(path.read_bytes()).hexdigest()
            if _is_script(path):
                return SCRIPT + hashlib.sha256(path.read_bytes()).hexdigest()
        return f"{state.st_size}:{state.st_mtime_ns}"
    except OSError:
        return None


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _text(path: Path) -> str | None:
    """The text of a small script; None for what is large or no text."""
    try:
        data = path.read_bytes()
        return data.decode() if len(data) <= _KEPT_BYTES else None
    except (OSError, UnicodeDecodeError):
        return None


def _shadowing_modules(top: Path, place: str) -> Iterator[str]:
    """Modules in the folder where Python starts that would be imported instead of well-known ones."""
    for name in sorted(SHADOWING_MODULES):
        for candidate in (f"{name}.py", name):
            if os.path.lexists(top / place / candidate):
                yield normalize(f"{place}/{candidate}")


def _interpreter_files(program: str | None, top: Path) -> dict[str, str]:
    """The startup files and the test runner of the virtual environment that a Python program belongs to."""
    prefix = _environment_of(top / program) if program is not None else None
    if prefix is None:
        return {}
    found: dict[str, str] = {}
    for packages in sorted(prefix.glob("lib/python*/site-packages")):
        for entry in sorted(packages.iterdir()):
            if entry.name.endswith(".pth") or entry.name in HOOK_FILES:
                found[_shown(entry, top)] = _startup_digest(entry)
        for name in _RUNNER_PACKAGES if _inside(packages, top) else ():
            if (packages / name).is_dir():
                found[_shown(packages / name, top)] = _package_digest(packages / name)
    return found


def _files_of_the_surroundings(program: str | None, top: Path, place: str, env: Mapping[str, str]) -> dict[str, str]:
    """The startup files that an interpreter takes from PYTHONPATH, the user's own site folder and its own prefix."""
    found: dict[str, str] = {}
    entries = [top / place / entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    for folder in entries:
        found.update({_shown(path, top): _startup_digest(path) for path in _hook_files(folder)})
    home = env.get("PYTHONUSERBASE") or (f"{env['HOME']}/.local" if env.get("HOME") else None)
    bases = [Path(home)] if home else []
    if program is not None:
        bases.append((top / program).resolve().parent.parent)
    for base in bases:
        for folder in sorted((*base.glob("lib/python3*/site-packages"), *base.glob("lib/python3*/dist-packages"))):
            for path in (*_hook_files(folder), *sorted(folder.glob("*.pth"))):
                found[_shown(path, top)] = _startup_digest(path)
    return found


def _hook_files(folder: Path) -> Iterator[Path]:
    for name in sorted(HOOK_FILES):
        for path in (folder / name, folder / name.removesuffix(".py") / "__init__.py"):
            if path.is_file():
                yield path


def _environment_of(program: Path) -> Path | None:
    """The virtual environment of an interpreter, or of a script whose first line names one."""
    for folder in (program.parent, _shebang_folder(program)):
        if folder is not None and (folder.parent / "pyvenv.cfg").is_file():
            return folder.parent
    return None


def _shebang_folder(program: Path) -> Path | None:
    try:
        with program.open("rb") as file:
            found = _SHEBANG.match(file.read(512))
    except OSError:
        return None
    return None if found is None else Path(os.fsdecode(found[1])).parent


def _startup_digest(path: Path) -> str:
    try:
        data = path.read_bytes()[:_HASHED_BYTES]
    except OSError:
        return "unreadable"
    runs_code = path.suffix != ".pth" or any(line.startswith((b"import ", b"import\t")) for line in data.splitlines())
    return ("code:" if runs_code else "paths:") + hashlib.sha256(data).hexdigest()


def _package_digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"code:{digest.hexdigest()}"


@contextlib.contextmanager
def pinned(pins: Sequence[ProgramPin]) -> Iterator[str | None]:
    """A folder to put first on PATH, in which these programs are as they were; None when there is nothing to pin."""
    if not pins:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="programs-"))
    try:
        for pin in pins:
            program = folder / pin.program
            # Handed on rather than linked: an interpreter finds its environment by the path that it was started with.
            program.write_text(
                pin.script or f'#!/bin/sh\nexec {shlex.quote(pin.target or "")} "$@"\n', encoding="utf-8"
            )
            program.chmod(0o755)
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
