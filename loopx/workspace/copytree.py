"""Copying a dependency folder (`node_modules`, `.venv`, ...) so that the copy is independent of the original.

Uses copy-on-write where the file system can, a full copy elsewhere, and never hard links to the original: writing in
the copy must not reach the original. Links inside are copied as links; nothing outside the folder is read.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from loopx.control_plane.errors import StoreError
from loopx.workspace import git


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder or file to a path that does not exist yet.

    A source that is itself a link to a folder is copied as that folder. Raises `StoreError` (`copy_failed`).
    """
    real = source.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    arguments = ["cp", "-cRp"] if sys.platform == "darwin" else ["cp", "-a", "--reflink=auto"]
    try:
        copied = subprocess.run(
            [*arguments, "--", str(real), str(target)],
            env=git.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        ).returncode
    except OSError:
        copied = 127
    if copied == 0:
        return
    remove_tree(target)
    try:
        if real.is_dir():
            shutil.copytree(real, target, symlinks=True, ignore=_special_files)
        else:
            shutil.copy2(real, target)
    except OSError as failed:
        raise StoreError(
            "copy_failed", f"cannot copy {source} to {target}: {failed}", hint="Free some space on that file system."
        ) from failed


def remove_tree(path: Path) -> None:
    """Remove a file, link or folder, read-only folders inside included; a link's target is never touched."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    elif path.is_dir():
        shutil.rmtree(path, onerror=_open_and_retry)


def _special_files(folder: str, names: list[str]) -> set[str]:
    """Sockets, pipes and devices: reading them could block for ever."""
    return {name for name in names if not _plain(os.lstat(Path(folder) / name).st_mode)}


def _plain(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)


def _open_and_retry(function: Callable[..., object], path: str, _: object) -> None:
    """Some caches are read-only on purpose; make the folder writable and do the same again."""
    place = Path(path)
    if isinstance(sys.exc_info()[1], FileNotFoundError):
        return
    for folder in (place.parent, place):
        if folder.is_dir() and not folder.is_symlink():
            folder.chmod(stat.S_IRWXU)
    if function is os.rmdir or function is os.unlink:
        function(path)
    else:
        shutil.rmtree(path, ignore_errors=True)
