"""What state a work tree is in, whether the user's side of it moved, and what names it.

It only looks: the callers decide what to refuse (a repository in the middle of a merge, a second goal on one tree).
"""

from __future__ import annotations

import enum
import hashlib
import os
import re
from pathlib import Path

import msgspec

from loopx.control_plane.errors import UsageError
from loopx.workspace import git
from loopx.workspace.repository import Kind, discover, real_folder

_IN_PROGRESS_FILES = (
    ("rebase-merge", "rebase"),
    ("rebase-apply", "rebase"),
    ("MERGE_HEAD", "merge"),
    ("CHERRY_PICK_HEAD", "cherry-pick"),
    ("REVERT_HEAD", "revert"),
    ("BISECT_LOG", "bisect"),
)

# Where SQLite's shared memory and file locks cannot be relied upon.
_REMOTE_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "gpfs", "ncpfs"}
    | {"fuse.sshfs", "fuse.rclone", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs", "virtiofs", "drvfs", "davfs"}
)


_RULE_SETTINGS = re.compile(
    rb"core\.(autocrlf|eol|excludesfile|worktree|bare|filemode|symlinks|sparsecheckout|hookspath|fsmonitor)\n"
)
_FILTER_SETTINGS = re.compile(rb"filter\.|core\.attributesfile\n")
_LARGE_FILES = re.compile(rb"filter\.lfs\.(?:clean\ngit-lfs clean|smudge\ngit-lfs smudge|process\ngit-lfs |required\n)")
_OCTAL = re.compile(r"\\([0-7]{3})")


class InProgress(enum.StrEnum):
    """An operation that the user has begun and not finished; a start is refused then."""

    MERGE = "merge"
    REBASE = "rebase"
    CHERRY_PICK = "cherry-pick"
    REVERT = "revert"
    BISECT = "bisect"


class WorkTreeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a work tree. `index_digest` covers what the index means, so `git status` does not change it.

    `rules_digest` covers the settings outside the tree that decide what git sees and runs: line ends, ignore rules and
    hooks kept in the git directory. `filters_digest` covers content filters and the attributes outside the tree which
    assign them: whoever edits those can make a tree say something else than the files do (the well-known filter for
    large files is left out). `local_filesystem` is None where it could not be told.
    """

    kind: Kind
    toplevel: str
    key: str
    head: str | None
    branch: str | None
    index_digest: str | None
    rules_digest: str | None
    filters_digest: str | None
    in_progress: InProgress | None
    unborn: bool
    bare: bool
    git_version: str
    local_filesystem: bool | None


class UserMove(enum.StrEnum):
    """What of the user's repository changed between two looks; LoopX itself changes none of these."""

    REPOSITORY = "repository"
    BRANCH = "branch"
    HEAD = "head"
    INDEX = "index"
    RULES = "rules"
    FILTERS = "filters"


def inspect(root: Path) -> WorkTreeStatus:
    """Look at the work tree that `root` lies in.

    Raises `UsageError` (`project_missing`, `git_missing`, `git_too_old`, `git_unreadable`, `not_a_work_tree`).
    """
    git.version()
    real = real_folder(root)
    bare, found = _discover(real)
    if found is None:
        return WorkTreeStatus(
            kind=Kind.GIT if bare else Kind.PLAIN,
            toplevel=str(real),
            key=_key(real),
            head=None,
            branch=None,
            index_digest=None,
            rules_digest=None,
            filters_digest=None,
            in_progress=None,
            unborn=False,
            bare=bare,
            git_version=_version(),
            local_filesystem=is_local(real),
        )
    return look(*found)


def look(toplevel: Path, git_dir: Path, common_dir: Path) -> WorkTreeStatus:
    """The same of a git work tree whose places are known. Raises `UsageError` (`git_missing`, `git_too_old`)."""
    head, branch = _head_and_branch(toplevel)
    asked = (("config", "--list", "-z", "--includes"), ("ls-files", "-v", "-s", "-z"))
    configured, indexed = git.run_together([(words, {}) for words in asked], cwd=toplevel)
    settings = configured.items
    return WorkTreeStatus(
        kind=Kind.GIT,
        toplevel=str(toplevel),
        key=_key(git_dir),
        head=head,
        branch=branch,
        index_digest=hashlib.sha256(indexed.stdout).hexdigest(),
        rules_digest=_rules_digest(settings, common_dir, _RULE_SETTINGS, ("exclude",), hooks=True),
        filters_digest=_rules_digest(settings, common_dir, _FILTER_SETTINGS, ("attributes",), hooks=False),
        in_progress=in_progress(git_dir),
        unborn=head is None,
        bare=False,
        git_version=_version(),
        local_filesystem=is_local(toplevel),
    )


def head_moved(before: WorkTreeStatus, after: WorkTreeStatus) -> tuple[UserMove, ...]:
    """What of the user's HEAD, branch and index changed between two looks; empty when all is as it was."""
    moves = []
    if (before.kind, before.key) != (after.kind, after.key):
        moves.append(UserMove.REPOSITORY)
    if before.branch != after.branch:
        moves.append(UserMove.BRANCH)
    if before.head != after.head:
        moves.append(UserMove.HEAD)
    if before.index_digest != after.index_digest:
        moves.append(UserMove.INDEX)
    if before.rules_digest != after.rules_digest:
        moves.append(UserMove.RULES)
    if before.filters_digest != after.filters_digest:
        moves.append(UserMove.FILTERS)
    return tuple(moves)


def repository_key(root: Path) -> str:
    """One stable name per work tree, whatever folder in it and whatever link to it `root` is.

    "One goal at a time per tree" is keyed by it; linked work trees of one repository have different keys.
    Raises as `inspect` does.
    """
    real = real_folder(root)
    _, found = _discover(real)
    return _key(found[1] if found else real)


def is_local(path: Path) -> bool | None:
    """Whether the path is on a file system of this machine; None where the system does not tell."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    return local_by(mounts, path)


def local_by(mounts: str, path: Path) -> bool | None:
    """What a mount table (Linux, `mountinfo`) says about the path's file system; the deepest mount point decides."""
    best, file_system = -1, None
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        point = Path(_OCTAL.sub(lambda found: chr(int(found[1], 8)), left.split(" ")[4]))
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, file_system = len(point.parts), right.split(" ")[0]
    return None if file_system is None else file_system not in _REMOTE_FILE_SYSTEMS


def _version() -> str:
    return ".".join(str(number) for number in git.version())


def _key(place: Path) -> str:
    return hashlib.sha256(os.fsencode(place)).hexdigest()[:32]


def _discover(root: Path) -> tuple[bool, tuple[Path, Path, Path] | None]:
    """Whether it is a bare repository, and the places of a work tree."""
    try:
        return False, discover(root)
    except UsageError:
        if _is_bare(root):
            return True, None
        raise


def _head_and_branch(toplevel: Path) -> tuple[str | None, str | None]:
    """The commit, and the branch by its short name, each None where there is none."""
    both = git.run(["rev-parse", "HEAD^{commit}", "--symbolic-full-name", "HEAD"], cwd=toplevel, expect=(0, 1, 128))
    commit, _, ref = both.line.partition("\n")
    if both.status == 0:
        return commit, ref.removeprefix("refs/heads/") if ref.startswith("refs/heads/") else None
    branch = git.run(["symbolic-ref", "-q", "HEAD"], cwd=toplevel, expect=(0, 1))
    return None, branch.line.removeprefix("refs/heads/") if branch.status == 0 else None


def _is_bare(root: Path) -> bool:
    asked = git.run(["rev-parse", "--is-bare-repository", "--is-inside-git-dir"], cwd=root, expect=(0, 128))
    return asked.status == 0 and asked.line == "true\ntrue"


def _rules_digest(
    settings: list[bytes], common_dir: Path, pattern: re.Pattern[bytes], names: tuple[str, ...], *, hooks: bool
) -> str:
    found = hashlib.sha256()
    for setting in sorted(item for item in settings if pattern.match(item) and not _LARGE_FILES.match(item)):
        found.update(setting + b"\0")
    places = [common_dir / "info" / name for name in names]
    if hooks and (common_dir / "hooks").is_dir():
        places += sorted(path for path in (common_dir / "hooks").iterdir() if path.suffix != ".sample")
    for place in places:
        found.update(os.fsencode(place.name) + b"\0" + (place.read_bytes() if place.is_file() else b""))
    return found.hexdigest()


def in_progress(git_dir: Path) -> InProgress | None:
    """The operation that the user has begun there, if any."""
    for name, operation in _IN_PROGRESS_FILES:
        if (git_dir / name).exists():
            return InProgress(operation)
    return None
