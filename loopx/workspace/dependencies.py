"""Which ignored folders hold dependencies, and what in them decides how a test runner behaves.

Detection looks only at folders that git ignores, so nothing of the work itself is ever taken for a dependency. The
manifest hashes what could make a check green from outside the tree: runner entry points, start-up hooks and the
runners themselves. It judges nothing: the caller compares manifests and decides.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from loopx.control_plane.errors import UsageError
from loopx.workspace.repository import Repository

_FOLDER_NAMES = frozenset(
    {"node_modules", ".venv", "venv", ".tox", ".nox", "__pypackages__", "vendor", ".yarn", ".bundle"}
)
# Build caches are named after tools; the file beside them tells that the tool is in use.
_BUILD_CACHES: Mapping[str, tuple[str, ...]] = {
    "target": ("Cargo.toml", "pom.xml", "build.sbt"),
    ".gradle": ("build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts"),
    "build": ("build.gradle", "build.gradle.kts", "CMakeLists.txt"),
    "deps": ("mix.exs",),
    "_build": ("mix.exs", "dune-project"),
    ".build": ("Package.swift",),
    "Pods": ("Podfile",),
}
_PYTHON_RUNNERS = (
    "pytest",
    "_pytest",
    "pluggy",
    "xdist",
    "nose2",
    "tox",
    "nox",
    "coverage",
    "pytest_cov",
    "behave",
    "robot",
)
_NODE_RUNNERS = (
    "jest",
    "jest-cli",
    "vitest",
    "mocha",
    "ava",
    "tap",
    "jasmine",
    "cypress",
    "playwright",
    "tsx",
    "typescript",
)


class ManifestEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file that decides how checks run. `digest` is its SHA-256, or `link:` and a target outside the folder."""

    path: str
    digest: str


class ManifestChange(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between two manifests; the digest is None where the file is not there."""

    path: str
    before: str | None
    after: str | None


def detect(repo: Repository) -> tuple[str, ...]:
    """The ignored dependency folders and build caches of the project, relative to its top, sorted."""
    also = (f"--exclude-from={repo.private_excludes}",) if repo.private_excludes.is_file() else ()
    listed = repo.git(
        *("ls-files", "-o", "-i", "--exclude-standard", *also, "--directory", "-z"),
        index=repo.private_index if repo.user_index is None else repo.user_index,
    ).items
    folders = (os.fsdecode(item).removesuffix("/") for item in listed)
    return tuple(sorted(path for path in folders if _holds_dependencies(repo.root / path)))


def named(repo: Repository, paths: Sequence[str]) -> tuple[str, ...]:
    """The named paths that exist, checked to lie in the project; raises `UsageError` (`path_outside`)."""
    for path in paths:
        parts = Path(path).parts
        if Path(path).is_absolute() or ".." in parts or not parts or parts[0] in (".git", ".loopx"):
            raise UsageError("path_outside", f"{path!r} is not a folder of the project", data={"path": path})
    return tuple(sorted({str(Path(path)) for path in paths if (repo.root / path).exists()}))


def holds_no_builds(path: str) -> bool:
    """Whether a dependency folder, by its name, holds what was installed and nothing that is built from the sources."""
    return path.rpartition("/")[2] in _FOLDER_NAMES


def virtual_environments(folder: Path) -> Iterator[Path]:
    """The Python environments in a dependency folder: itself, or its direct children (tox, nox)."""
    if (folder / "pyvenv.cfg").is_file():
        yield folder
    elif folder.name in (".tox", ".nox"):
        yield from (child for child in sorted(folder.iterdir()) if (child / "pyvenv.cfg").is_file())


def site_packages(environment: Path) -> Iterator[Path]:
    """The folders of an environment from which Python imports."""
    found = (*environment.glob("lib/python*/site-packages"), *environment.glob("lib/pypy*/site-packages"))
    yield from sorted(path for path in found if not path.parent.parent.is_symlink())


def manifest(root: Path, dependency_dirs: Sequence[str]) -> tuple[ManifestEntry, ...]:
    """Hash runner entry points, start-up hooks and runners in these folders below `root`, sorted by path."""
    found: dict[str, str] = {}
    for name in dependency_dirs:
        top = root / name
        for path in _deciding_files(top):
            found[f"{name}/{path.relative_to(top)}"] = _digest(path, top)
    return tuple(ManifestEntry(path=path, digest=digest) for path, digest in sorted(found.items()))


def compare(before: Sequence[ManifestEntry], after: Sequence[ManifestEntry]) -> tuple[ManifestChange, ...]:
    """Every entry that differs, sorted by path."""
    old = {entry.path: entry.digest for entry in before}
    new = {entry.path: entry.digest for entry in after}
    return tuple(
        ManifestChange(path=path, before=old.get(path), after=new.get(path))
        for path in sorted(old.keys() | new.keys())
        if old.get(path) != new.get(path)
    )


def _holds_dependencies(path: Path) -> bool:
    if not path.is_dir():
        return False
    if path.name in _FOLDER_NAMES or path.name.endswith(".egg-info") or (path / "pyvenv.cfg").is_file():
        return True
    return any((path.parent / tool).is_file() for tool in _BUILD_CACHES.get(path.name, ()))


def _deciding_files(top: Path) -> Iterator[Path]:
    for environment in virtual_environments(top):
        yield from _files(environment / "bin")
        yield environment / "pyvenv.cfg"
        for site in site_packages(environment):
            yield from _python_files(site)
    if top.name == "node_modules":
        yield from _files(top / ".bin")
        for runner in _NODE_RUNNERS:
            yield from _files_below(top / runner, (".js", ".mjs", ".cjs", ".json"))


def _python_files(site: Path) -> Iterator[Path]:
    for pattern in (
        "*.pth",
        "*.egg-link",
        "__editable__*",
        "*.dist-info/entry_points.txt",
        "*.egg-info/entry_points.txt",
    ):
        yield from (path for path in site.glob(pattern) if path.is_file() or path.is_symlink())
    for hook in ("sitecustomize", "usercustomize"):
        yield from (path for path in (site / f"{hook}.py",) if path.exists() or path.is_symlink())
        yield from _files_below(site / hook, (".py",))
    for runner in _PYTHON_RUNNERS:
        yield from _files_below(site / runner, (".py", ".so"))
        yield from (path for path in (site / f"{runner}.py",) if path.is_file())


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (path for path in sorted(folder.iterdir()) if path.is_symlink() or path.is_file())


def _files_below(folder: Path, endings: tuple[str, ...]) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place) / name for name in sorted(names) if name.endswith(endings))


def _digest(path: Path, top: Path) -> str:
    """The content's hash; of a link that leaves the folder, only where it points: nothing outside is read."""
    real = path.resolve()
    if path.is_symlink() and not real.is_relative_to(top.resolve()):
        return f"link:{path.readlink()}"
    try:
        with real.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return "unreadable"
