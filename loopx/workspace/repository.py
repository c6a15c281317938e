"""One project's work tree and the place where LoopX keeps what it records about it.

A `Repository` is the handle every other module here takes: it knows the work tree, the git directory behind it and
LoopX's own folder (`state_dir`). In a git project new objects go to a private object folder in `state_dir` that
borrows from the project's, so that captures leave nothing behind in the project; only checkpoints, which must be
complete there, are copied in (loops, "Where the agent works"). Outside git a private bare repository in `state_dir`
has the project as its work tree, so one code path serves both. It never touches the user's HEAD, branch or index.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from loopx.control_plane.errors import StoreError, UsageError
from loopx.workspace import git

TEMPORARY_PREFIX = ".loopx-tmp-"
"""Files being restored carry this name for an instant; no capture ever sees them."""

OWN_NAMES = (".loopx", TEMPORARY_PREFIX + "*")

PLAIN_EXCLUDES = (
    *OWN_NAMES,
    "node_modules/",
    ".venv/",
    "venv/",
    "__pycache__/",
    ".tox/",
    ".nox/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".hypothesis/",
    ".gradle/",
    ".next/",
    ".cache/",
    "*.egg-info/",
    ".coverage",
    ".DS_Store",
)
"""What a capture leaves out where no .gitignore says so; a .gitignore in the folder can still take any of it in."""


class Kind(enum.StrEnum):
    """Whether the project is a git work tree or a plain folder."""

    GIT = "git"
    PLAIN = "plain"


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """The handle for one work tree. `root` is the top of the tree: every path elsewhere is relative to it."""

    kind: Kind
    root: Path
    state_dir: Path
    git_dir: Path
    common_dir: Path
    spelled: Path

    @property
    def roots(self) -> tuple[Path, ...]:
        """The top of the tree with links resolved, and as the person wrote it: other files may hold either."""
        return (self.root,) if self.spelled == self.root else (self.root, self.spelled)

    @property
    def key(self) -> str:
        """Names this work tree's files in `state_dir` (several work trees of one project share the folder)."""
        return hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]

    @property
    def private_index(self) -> Path:
        return self.state_dir / "trees" / f"{self.key}.index"

    @property
    def private_excludes(self) -> Path:
        """Extra ignore patterns of this work tree (links to dependency folders that LoopX made in it)."""
        return self.state_dir / "trees" / f"{self.key}.exclude"

    @property
    def user_index(self) -> Path | None:
        """The user's own index: read, never written. None outside git."""
        return self.git_dir / "index" if self.kind is Kind.GIT else None

    def scratch(self, purpose: str) -> Path:
        """A path that nobody else uses, in `state_dir` (not created)."""
        return self.state_dir / "scratch" / f"{purpose}-{os.getpid()}-{secrets.token_hex(6)}"

    def object_variables(self) -> dict[str, str]:
        """Send new objects to the private folder and read old ones from everywhere they may be."""
        if self.kind is Kind.PLAIN:
            return {}
        borrowed = [self.common_dir / "objects"]
        private_repository = self.state_dir / "private.git" / "objects"
        if private_repository.is_dir() and private_repository != borrowed[0]:
            borrowed.append(private_repository)
        return {
            "GIT_OBJECT_DIRECTORY": str(self.state_dir / "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(git.quoted_alternate(str(path)) for path in borrowed),
        }

    def variables(self, *, index: Path | None, work_tree: Path | None, into_project: bool) -> dict[str, str]:
        found = {"GIT_DIR": str(self.git_dir), "GIT_WORK_TREE": str(work_tree or self.root)}
        if not into_project:
            found.update(self.object_variables())
        if index is not None:
            found["GIT_INDEX_FILE"] = str(index)
        return found

    def git(
        self,
        *args: str,
        stdin: bytes = b"",
        index: Path | None = None,
        work_tree: Path | None = None,
        into_project: bool = False,
        expect: Sequence[int] = (0,),
        env: Mapping[str, str] | None = None,
    ) -> git.GitResult:
        """Run git on this repository; see `git.run`.

        `index` names the index to use (the user's is only ever read), `work_tree` another folder than the project,
        and `into_project` writes objects and refs where the user's own git sees them.
        """
        variables = self.variables(index=index, work_tree=work_tree, into_project=into_project)
        return git.run(args, cwd=work_tree or self.root, env={**variables, **(env or {})}, stdin=stdin, expect=expect)


def open_repository(root: Path, state_dir: Path, *, kind: Kind | None = None) -> Repository:
    """Find the work tree that `root` lies in and prepare LoopX's folder for it.

    `kind` pins what was found when a goal started, so that a `git init` in the middle of it changes nothing.
    Raises `UsageError` (`project_missing`, `not_a_work_tree`, `bare_repository`, `project_too_broad`, `git_missing`,
    `git_too_old`, `git_unreadable`) and `StoreError` (`state_dir_unwritable`).
    """
    git.version()
    real = real_folder(root)
    state = _prepare_state(state_dir)
    found = None if kind is Kind.PLAIN else discover(real)
    if found is None and kind is Kind.GIT:
        raise UsageError("not_a_work_tree", f"{real} is no longer inside a git work tree", hint="Put its .git back.")
    if found is None:
        return _open_plain(real, state, Path(root).absolute())
    toplevel, git_dir, common_dir = found
    spelled = Path(root).absolute() if toplevel == real else toplevel
    with writing_state(state):
        for part in ("info", "pack"):
            (state / "objects" / part).mkdir(parents=True, exist_ok=True)
    return Repository(
        kind=Kind.GIT, root=toplevel, state_dir=state, git_dir=git_dir, common_dir=common_dir, spelled=spelled
    )


def real_folder(root: Path) -> Path:
    """`root` with links resolved; raises `UsageError` (`project_missing`) when it is not a folder."""
    real = Path(root).resolve()
    if not real.is_dir():
        raise UsageError("project_missing", f"there is no folder {root}", hint="Name a folder that exists.")
    return real


def discover(root: Path) -> tuple[Path, Path, Path] | None:
    """The work tree's top, git directory and common directory; None outside git."""
    places = _places_at_once(root) or _places_one_by_one(root)
    if places is None:
        return None
    toplevel, git_dir, common_dir = places
    if toplevel != root and _ignored_by(toplevel, root):
        return None  # e.g. a project inside a home folder that is itself kept in git
    return toplevel, git_dir, common_dir


def _places_at_once(root: Path) -> tuple[Path, Path, Path] | None:
    """What one process can say of an ordinary work tree; None for all else, and where a path has a line end."""
    asked = ("--is-inside-work-tree", "--absolute-git-dir", "--git-common-dir", "--show-toplevel")
    answer = git.run(["rev-parse", *asked], cwd=root, expect=(0, 128))
    lines = answer.line.split("\n")
    if answer.status or len(lines) != len(asked) or lines[0] != "true":
        return None
    git_dir, common_dir, toplevel = lines[1:]
    return Path(toplevel).resolve(), Path(git_dir).resolve(), Path(root, common_dir).resolve()


def _places_one_by_one(root: Path) -> tuple[Path, Path, Path] | None:
    inside = git.run(["rev-parse", "--is-inside-work-tree", "--is-bare-repository"], cwd=root, expect=(0, 128))
    if inside.status:
        if any((folder / ".git").exists() for folder in (root, *root.parents)):
            raise UsageError(
                "git_unreadable",
                f"git does not open the repository at {root}: {inside.stderr.decode('utf-8', 'replace').strip()}",
                hint="Make `git status` work there first.",
            )
        return None
    in_work_tree, bare = inside.line.split("\n")
    if in_work_tree != "true":
        if bare == "true":
            raise UsageError("bare_repository", f"{root} is a bare repository", hint="Use a work tree of it.")
        raise UsageError("not_a_work_tree", f"{root} is inside a .git folder", hint="Use the folder above it.")
    toplevel = Path(git.run(["rev-parse", "--show-toplevel"], cwd=root).line).resolve()
    git_dir = Path(git.run(["rev-parse", "--absolute-git-dir"], cwd=root).line).resolve()
    common = Path(root, git.run(["rev-parse", "--git-common-dir"], cwd=root).line).resolve()
    return toplevel, git_dir, common


def _ignored_by(toplevel: Path, folder: Path) -> bool:
    relative = f"./{folder.relative_to(toplevel)}"
    # This command alone knows no literal mode; "./" keeps a leading ":" from being read as magic.
    asked = git.run(
        ["check-ignore", "-q", "--", relative], cwd=toplevel, env={"GIT_LITERAL_PATHSPECS": "0"}, expect=(0, 1)
    )
    return asked.status == 0


def _prepare_state(state_dir: Path) -> Path:
    with writing_state(state_dir):
        for part in ("trees", "scratch"):
            (state_dir / part).mkdir(parents=True, exist_ok=True)
        if not os.access(state_dir, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(state_dir))
    return state_dir.resolve()


@contextlib.contextmanager
def writing_state(state_dir: Path) -> Iterator[None]:
    """Turn an operating system error of the block into `StoreError` (`state_dir_unwritable`)."""
    try:
        yield
    except OSError as failed:
        raise StoreError(
            "state_dir_unwritable",
            f"LoopX cannot write in its own folder {state_dir}: {failed.strerror or failed}",
            hint="Check its owner and free space.",
            data={"path": str(failed.filename or state_dir)},
        ) from failed


def _open_plain(root: Path, state: Path, spelled: Path) -> Repository:
    if root in (Path("/"), Path(os.environ.get("HOME", "/")).resolve()):
        raise UsageError(
            "project_too_broad", f"{root} is not a project of its own", hint="Run LoopX in the project's own folder."
        )
    private = state / "private.git"
    if not (private / "info" / "exclude").is_file():
        git.run(["init", "-q", "--bare", "--template=", str(private)], cwd=state)
        with writing_state(state):
            (private / "info").mkdir(exist_ok=True)
            fresh = private / "info" / f"exclude.{secrets.token_hex(4)}"
            fresh.write_text("".join(f"{pattern}\n" for pattern in PLAIN_EXCLUDES), encoding="utf-8")
            fresh.replace(private / "info" / "exclude")
    return Repository(kind=Kind.PLAIN, root=root, state_dir=state, git_dir=private, common_dir=private, spelled=spelled)
