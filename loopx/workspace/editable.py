"""Making a copied Python environment speak about the copied project.

An editable install is a path file (or a finder) in the environment that points at the project's own folder, and a
console script names its interpreter by an absolute path. In a copy both would lead back to the original tree, and a
check in the copy would test the original. This module replaces the project's path by the copy's, as plain text, in
exactly these files of the copy. It never changes the original.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from loopx.workspace.dependencies import site_packages, virtual_environments

_SHEBANG_LIMIT = 127
_READ_LIMIT = 4 * 1024 * 1024
# What may stand around a path: "/home/me/app" is neither part of "/home/me/app2" nor of "/mnt/home/me/app".
_START = rb"(?<![A-Za-z0-9_.\-])"
_END = rb"(?=[/\\'\"\s:;,)\]}]|$)"


def points_into(environment_folder: Path, roots: Iterable[Path]) -> bool:
    """Whether any environment in this dependency folder has an editable install of a tree below `roots`."""
    pattern = _pattern(roots)
    return any(
        pattern.search(_read(path))
        for environment in virtual_environments(environment_folder)
        for site in site_packages(environment)
        for path in _path_files(site)
    )


def rewrite(environment_folder: Path, roots: Iterable[Path], new_root: Path) -> tuple[str, ...]:
    """Replace every spelling of the project's path in a *copied* dependency folder; the changed files, sorted."""
    pattern = _pattern(roots)
    changed: list[str] = []
    for environment in virtual_environments(environment_folder):
        for path in _files_to_rewrite(environment):
            if _rewrite_file(path, pattern, new_root):
                changed.append(str(path.relative_to(environment_folder)))
        _rewrite_links(environment / "bin", pattern, new_root)
    if environment_folder.name == "node_modules":
        for folder in (environment_folder, *environment_folder.glob("@*"), environment_folder / ".bin"):
            _rewrite_links(folder, pattern, new_root)
    return tuple(sorted(changed))


def redirected(variables: Mapping[str, str], roots: Iterable[Path], new_root: Path) -> dict[str, str]:
    """The environment variables with the project's path replaced (PATH, VIRTUAL_ENV, PYTHONPATH, ...).

    When the active Python environment lies outside the project and has an editable install of it, the copy's folders
    are put first on PYTHONPATH, because that environment itself must not be changed.
    """
    spellings = tuple(roots)
    pattern = _pattern(spellings)
    new = os.fsencode(new_root)
    found = {name: os.fsdecode(pattern.sub(lambda _: new, os.fsencode(value))) for name, value in variables.items()}
    outside = variables.get("VIRTUAL_ENV")
    if outside and found.get("VIRTUAL_ENV") == outside:
        ahead = list(_editable_folders(Path(outside), pattern, new))
        behind = [found["PYTHONPATH"]] if found.get("PYTHONPATH") else []
        if ahead:
            found["PYTHONPATH"] = os.pathsep.join([*ahead, *behind])
    return found


def _editable_folders(environment: Path, pattern: re.Pattern[bytes], new: bytes) -> Iterator[str]:
    for site in site_packages(environment):
        for path in sorted(site.glob("*.pth")):
            for line in _read(path).splitlines():
                if pattern.match(line):
                    yield os.fsdecode(pattern.sub(lambda _: new, line).strip())


def _pattern(roots: Iterable[Path]) -> re.Pattern[bytes]:
    spellings = sorted({os.fsencode(root) for root in roots}, key=len, reverse=True)
    return re.compile(
        _START + b"(?:" + b"|".join(re.escape(spelling) for spelling in spellings) + b")" + _END, re.MULTILINE
    )


def _path_files(site: Path) -> Iterator[Path]:
    for pattern in ("*.pth", "*.egg-link", "__editable__*.py"):
        yield from sorted(path for path in site.glob(pattern) if path.is_file() and not path.is_symlink())


def _files_to_rewrite(environment: Path) -> Iterator[Path]:
    for site in site_packages(environment):
        yield from _path_files(site)
    scripts = environment / "bin"
    if scripts.is_dir():
        yield from sorted(path for path in scripts.iterdir() if path.is_file() and not path.is_symlink())
    yield from (path for path in (environment / "pyvenv.cfg",) if path.is_file())


def _rewrite_file(path: Path, pattern: re.Pattern[bytes], new_root: Path) -> bool:
    old = _read(path)
    if b"\0" in old:  # a program, not a script
        return False
    new = os.fsencode(new_root)
    text = pattern.sub(lambda _: new, old)
    if text == old:
        return False
    mode = path.stat().st_mode
    path.unlink()  # the copy may share its bytes with another file of the copy through a hard link
    path.write_bytes(_short_shebang(text))
    path.chmod(mode)
    for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        stale.unlink(missing_ok=True)
    return True


def _short_shebang(text: bytes) -> bytes:
    """A shebang that the kernel would cut off is handed to the shell instead, in a form that Python reads too."""
    first, newline, rest = text.partition(b"\n")
    if not first.startswith(b"#!") or len(first) <= _SHEBANG_LIMIT or b"python" not in first:
        return text
    return b"#!/bin/sh\n'''exec' \"" + first[2:].strip() + b'" "$0" "$@"\n\' \'\'\'' + newline + rest


def _rewrite_links(folder: Path, pattern: re.Pattern[bytes], new_root: Path) -> None:
    """Absolute links into the original project (scripts, workspace packages) lead into the copy instead."""
    if not folder.is_dir() or folder.is_symlink():
        return
    for path in sorted(folder.iterdir()):
        if path.is_symlink() and pattern.match(os.fsencode(path.readlink())):
            aim = pattern.sub(lambda _: os.fsencode(new_root), os.fsencode(path.readlink()))
            path.unlink()
            path.symlink_to(os.fsdecode(aim))


def _read(path: Path) -> bytes:
    """The whole file; nothing for one that is far too large to be a script or a path file."""
    try:
        return path.read_bytes() if path.stat().st_size <= _READ_LIMIT else b""
    except OSError:
        return b""
