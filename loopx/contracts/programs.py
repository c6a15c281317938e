"""Which programs the checks really run, as values, and what a change of them means.

Pure: looking programs up is done elsewhere (loops, "The contract: the only judge").
"""

from __future__ import annotations

import re

import msgspec

from loopx.contracts.findings import Finding, FindingCode

FAKED_MODULES = frozenset({"time", "datetime", "socket", "ssl", "http", "urllib", "random", "requests", "httpx"})
SHADOWING_MODULES = FAKED_MODULES | {
    "_pytest",
    "asyncio",
    "builtins",
    "doctest",
    "importlib",
    "inspect",
    "os",
    "pluggy",
    "pytest",
    "runpy",
    "signal",
    "site",
    "subprocess",
    "sys",
    "threading",
    "traceback",
    "unittest",
}
"""Module names that no project needs in the folder where its checks start, and that would change what a check means."""
HOOK_FILES = frozenset({"sitecustomize.py", "usercustomize.py"})
# Startup files that package installers write; they are disclosed, because honest installs make them.
_INSTALLER_HOOKS = re.compile(
    r"(?:distutils-precedence|__editable__\..+|.+-nspkg|.*coverage.*|pytest-cov|_virtualenv|easy-install)\.pth"
)


SCRIPT = "script:"
"""What the identity of a program begins with that is a script outside the tree, known by its bytes."""


class ProgramIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """One program as a check finds it; `path` is None when it was not found, `content` identifies the file's bytes.

    `script` is the text of a small script outside the tree, so that it can be run again as it was.
    """

    check: str
    program: str
    path: str | None
    in_tree: bool
    content: str | None
    script: str | None = None


class ProgramPin(msgspec.Struct, frozen=True, kw_only=True):
    """A program as it was at the baseline, to be found first on PATH in a second run: its text, or where it was."""

    program: str
    path: str
    """Where the check finds the program now."""
    script: str | None
    target: str | None


class ProgramSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Programs, startup files of their interpreters (path to digest), and modules that shadow well-known ones."""

    programs: tuple[ProgramIdentity, ...] = ()
    hooks: dict[str, str] = {}
    """Startup files of the interpreters; the digest of a `.pth` that runs code begins with `code:`."""
    shadows: tuple[str, ...] = ()


def compare_programs(
    before: ProgramSnapshot, after: ProgramSnapshot, *, dependencies_changed: bool = False
) -> tuple[Finding, ...]:
    """What changed between the baseline and now.

    `dependencies_changed`: the turn changed a lock or manifest file, which explains another content of an installed
    program.
    """
    found: list[Finding] = []
    known = {(item.check, item.program): item for item in before.programs}
    for now in after.programs:
        then = known.get((now.check, now.program))
        if then is not None and now.path is not None and then != now:
            found.append(_changed_program(then, now, dependencies_changed=dependencies_changed))
    for path in sorted(set(after.shadows) - set(before.shadows)):
        faked = path.rpartition("/")[2].removesuffix(".py") in FAKED_MODULES
        code = FindingCode.CLOCK_OR_NETWORK_FAKED if faked else FindingCode.PROGRAM_SHADOWED
        found.append(Finding(code=code, refused=True, path=path, detail="module_shadowed"))
    installed = dependencies_changed or any(item.detail == "appeared" for item in found)
    found.extend(_changed_hooks(before.hooks, after.hooks, installed=installed))
    return tuple(found)


def program_pins(before: ProgramSnapshot, after: ProgramSnapshot) -> tuple[ProgramPin, ...]:
    """The programs outside the tree that changed and can be run as they were: their change is judged both ways."""
    known = {(item.check, item.program): item for item in before.programs}
    pins: dict[str, ProgramPin] = {}
    for now in after.programs:
        then = known.get((now.check, now.program))
        if then is None or now.path is None or then == now or not _can_be_pinned(then, now):
            continue
        moved = then.path != now.path
        pins[now.program] = ProgramPin(
            program=now.program,
            path=now.path,
            script=then.script,
            target=then.path if then.script is None and moved else None,
        )
    return tuple(pins.values())


def _can_be_pinned(then: ProgramIdentity, now: ProgramIdentity) -> bool:
    if "/" in now.program or then.path is None or then.in_tree or now.in_tree:
        return False
    return then.script is not None or then.path != now.path


def _changed_program(then: ProgramIdentity, now: ProgramIdentity, *, dependencies_changed: bool) -> Finding:
    moved = then.path is not None and then.path != now.path
    appeared = then.path is None
    replaced = now.in_tree or (not _can_be_pinned(then, now) and _is_script(now))
    suspicious = replaced and not appeared and (moved or not dependencies_changed)
    return Finding(
        code=FindingCode.PROGRAM_SHADOWED if suspicious else FindingCode.PROGRAM_CHANGED,
        refused=suspicious,
        path=now.path,
        check=now.check,
        detail="moved" if moved else "appeared" if appeared else "content",
    )


def _is_script(program: ProgramIdentity) -> bool:
    return program.content is not None and program.content.startswith(SCRIPT)


def _changed_hooks(before: dict[str, str], after: dict[str, str], *, installed: bool) -> list[Finding]:
    """`installed`: an installation explains other contents of packages, but no startup file that runs code."""
    found: list[Finding] = []
    for path, digest in sorted(after.items()):
        if before.get(path) == digest:
            continue
        name = path.rpartition("/")[2]
        is_startup = name.endswith(".pth") or name in HOOK_FILES
        runs_code = digest.startswith("code:") and (is_startup or not installed)
        code = FindingCode.STARTUP_HOOK_CHANGED if path in before else FindingCode.STARTUP_HOOK_ADDED
        refused = runs_code and _INSTALLER_HOOKS.fullmatch(name) is None
        found.append(Finding(code=code, refused=refused, path=path, detail="interpreter"))
    return found
