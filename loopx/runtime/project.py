"""Where a project and its store are: the project's folder holds an id, the user's state folder holds the truth.

The store is not where an agent works (loops, "Where the truth lives"): `.loopx/` in the project has only the id and
ignores itself, so nothing that git tracks changes. It opens no store and starts nothing.
"""

from __future__ import annotations

import os

import msgspec

from loopx.control_plane.errors import StoreError, UsageError

PROJECT_FILE = "project.json"
STATE_VARIABLE = "LOOPX_STATE_DIR"
DATABASE_VARIABLE = "LOOPX_DATABASE_URL"
STORE_NAME = "loopx.db"


class _ProjectFile(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: str
    project_id: str
    root: str


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """One project on this machine.

    `state_dir` holds the store, spools and private git objects. `foreign`: `.loopx/` belongs to another program and
    is left alone. `initialised`: the id is on disk.
    """

    root: str
    project_id: str
    state_dir: str
    database: str
    foreign: bool = False
    initialised: bool = False

    @property
    def spools(self) -> str:
        return os.path.join(self.state_dir, "spool")

    @property
    def trees(self) -> str:
        return os.path.join(self.state_dir, "trees")

    def require_store(self) -> None:
        """Raises StoreError (`store_missing`) when nothing was ever set up here."""
        if not os.path.exists(self.database):
            raise StoreError(
                "store_missing",
                f"{self.root} has no LoopX store yet",
                hint='loopx init, or loopx run "OBJECTIVE" --check CMD',
            )


def state_home() -> str:
    """The user's state folder for LoopX: `LOOPX_STATE_DIR`, else the platform's own place."""
    given = os.environ.get(STATE_VARIABLE)
    if given:
        return os.path.abspath(given)
    import platformdirs

    return platformdirs.user_state_dir("loopx", appauthor=False)


def find_root(start: str) -> str:
    """The nearest folder upwards with a `.loopx/project.json`, else with `.git`, else `start` itself."""
    start = os.path.realpath(start)
    for name in (os.path.join(".loopx", PROJECT_FILE), ".git"):
        folder = start
        while True:
            if os.path.exists(os.path.join(folder, name)):
                return folder
            parent = os.path.dirname(folder)
            if parent == folder:
                break
            folder = parent
    return start


def locate(directory: str | None = None, database: str | None = None) -> Project:
    """Find the project of a directory (default: where we stand). Reads one small file; changes nothing.

    Raises UsageError: `project_missing`, `project_file_malformed`, `database_unsupported`.
    """
    start = os.path.abspath(directory or os.getcwd())
    if not os.path.isdir(start):
        raise UsageError("project_missing", f"no folder {start}", hint="--project DIR takes an existing folder")
    root = find_root(start)
    known = _read(root)
    folder = os.path.join(root, ".loopx")
    foreign = known is None and os.path.isdir(folder) and not _only_ours(folder)
    moved = (
        known is not None and known.root != root and os.path.exists(os.path.join(known.root, ".loopx", PROJECT_FILE))
    )
    if known is None or moved:
        # A copy of a project must not share its original's store, so that it gets an id of its own.
        project_id, initialised = _id_of_path(root), False
    else:
        project_id, initialised = known.project_id, True
    state_dir = os.path.join(state_home(), "projects", project_id)
    return Project(
        root=root,
        project_id=project_id,
        state_dir=state_dir,
        database=_database(database, state_dir),
        foreign=foreign,
        initialised=initialised,
    )


def initialise(project: Project) -> Project:
    """Write the project's id (unless another program owns `.loopx/`) and make the state folder. Idempotent.

    Raises StoreError (`state_dir_unwritable`), UsageError (`project_unwritable`).
    """
    try:
        os.makedirs(project.state_dir, mode=0o700, exist_ok=True)
        os.makedirs(os.path.dirname(project.database), mode=0o700, exist_ok=True)
    except OSError as error:
        raise StoreError(
            "state_dir_unwritable",
            f"the state folder {project.state_dir} can't be made: {error.strerror}",
            hint=f"set {STATE_VARIABLE} to a folder that you may write",
        ) from error
    if project.foreign or project.initialised:
        return project
    folder = os.path.join(project.root, ".loopx")
    try:
        os.makedirs(folder, exist_ok=True)
        _write(os.path.join(folder, ".gitignore"), b"*\n")
        body = _ProjectFile(schema_version="loopx_project_v1", project_id=project.project_id, root=project.root)
        _write(os.path.join(folder, PROJECT_FILE), msgspec.json.encode(body) + b"\n")
    except OSError as error:
        raise UsageError(
            "project_unwritable",
            f"{folder} can't be written: {error.strerror}",
            hint="check the folder's owner and mount",
        ) from error
    return msgspec.structs.replace(project, initialised=True)


def _read(root: str) -> _ProjectFile | None:
    path = os.path.join(root, ".loopx", PROJECT_FILE)
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=_ProjectFile)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(
            "project_file_malformed",
            f"{path} can't be read: {error}",
            hint="remove the file; the store itself is elsewhere and safe",
        ) from error


def _write(path: str, content: bytes) -> None:
    import secrets

    partial = f"{path}.{secrets.token_hex(4)}"
    with open(partial, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def _only_ours(folder: str) -> bool:
    return set(os.listdir(folder)) <= {".gitignore", PROJECT_FILE}


def _id_of_path(root: str) -> str:
    import hashlib

    return f"p{hashlib.sha256(os.fsencode(root)).hexdigest()[:16]}"


def _database(given: str | None, state_dir: str) -> str:
    url = given or os.environ.get(DATABASE_VARIABLE, "")
    if not url:
        return os.path.join(state_dir, STORE_NAME)
    if url.startswith("sqlite:///"):
        return os.path.abspath(url.removeprefix("sqlite://"))
    if "://" in url:
        scheme = url.partition("://")[0]
        raise UsageError(
            "database_unsupported",
            f"this LoopX has no store for {scheme}:// addresses",
            hint="use a path, or sqlite:///PATH",
        )
    return os.path.abspath(url)
