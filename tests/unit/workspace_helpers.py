"""Real git repositories for the workspace tests, driven with the git program as a user would."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from loopx.workspace.repository import Repository, open_repository

USER = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
}


def git(where: Path, *args: str, stdin: bytes = b"", check: bool = True) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    done = subprocess.run(
        ["git", "-c", "protocol.file.allow=always", *args],
        cwd=where,
        env={**clean, **USER},
        input=stdin,
        capture_output=True,
        check=False,
    )
    if check and done.returncode:
        raise AssertionError(f"git {args}: {done.stderr.decode()}")
    return os.fsdecode(done.stdout.removesuffix(b"\n"))


def write(root: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def new_repository(place: Path, files: dict[str, str | bytes] | None = None) -> Path:
    """A repository on branch main with one commit (none when `files` is empty)."""
    place.mkdir(parents=True, exist_ok=True)
    git(place, "init", "-q", "-b", "main")
    if files is None:
        files = {"a.txt": "one\n", "src/b.py": "print(1)\n", ".gitignore": "ignored/\n*.log\n"}
    write(place, files)
    if files:
        git(place, "add", "-A")
        git(place, "commit", "-q", "-m", "first")
    return place


def opened(root: Path, tmp_path: Path) -> Repository:
    return open_repository(root, tmp_path / "state")


def user_side(root: Path) -> dict[str, str]:
    """Everything of the user's that must stay byte for byte: index, HEAD, branches, config, ignore rules."""
    kept = {}
    for name in ("index", "HEAD", "config", "info/exclude", "packed-refs", "ORIG_HEAD", "logs/HEAD"):
        path = root / ".git" / name
        kept[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "absent"
    for path in sorted((root / ".git" / "refs").rglob("*")):
        if path.is_file() and "loopx" not in path.parts:
            kept[str(path.relative_to(root))] = path.read_text()
    return kept


def names(repo: Repository, tree_hash: str) -> set[str]:
    from loopx.workspace.tree import list_paths

    return {entry.path for entry in list_paths(repo, tree_hash)}
