"""`loopx.toml` as a person wrote it: what an agent may have changed of it is told apart and never acted on by itself.

The file lies in the work tree, where agents write. So it is compared with the goal's start, and with what people
changed between turns since; only that is trusted. It runs nothing.
"""

from __future__ import annotations

import os
from typing import TypeVar

import msgspec

from loopx.control_plane.errors import LoopXError, NotFoundError, UsageError
from loopx.runtime.project import Project
from loopx.runtime.tree_port import WorkTree
from loopx.store import goals, turns
from loopx.store.connection import Row
from loopx.store.store import Store
from loopx.workspace import tree

NAME = "loopx.toml"
T = TypeVar("T")

Table = dict[str, object]


class ProjectFile(msgspec.Struct, frozen=True, kw_only=True):
    """`now` is the file on disk, `trusted` what a person stands behind; the same bytes unless somebody else wrote."""

    now: bytes = b""
    trusted: bytes = b""

    @property
    def is_trusted(self) -> bool:
        return self.now == self.trusted


def path_of(project: Project) -> str:
    return os.path.join(project.root, NAME)


def read(store: Store, project: Project, goal_id: str | None) -> ProjectFile:
    """The project's file, judged against the start of `goal_id` (None: of whatever goal has a turn open here)."""
    now = _on_disk(project)
    row = _judge(store, goal_id)
    if row is None or row["base_tree"] is None:
        return ProjectFile(now=now, trusted=now)
    work = WorkTree(store, row["goal_id"], project.root, project.trees)
    try:
        base = _in_tree(work, project, str(row["base_tree"]))
        accepted: dict[str, str | None] = msgspec.json.decode(row["accepted"]) if row["accepted"] else {}
        if now == base or accepted.get(_path_in(work, project), "") == _blob(work, now):
            return ProjectFile(now=now, trusted=now)
        left = _left_by_last_turn(store, row["goal_id"])
        if left is not None and _in_tree(work, project, left) != now:
            return ProjectFile(now=now, trusted=now)
    except LoopXError:
        # Nothing to compare with: what can't be proved to be a person's is not trusted.
        return ProjectFile(now=now, trusted=b"")
    return ProjectFile(now=now, trusted=base)


def table(content: bytes, name: str) -> Table:
    """One top-level table; empty where there is none. Raises UsageError (`config_malformed`)."""
    if not content:
        return {}
    import tomllib

    try:
        found = tomllib.loads(content.decode("utf-8")).get(name, {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError("config_malformed", f"{NAME} can't be read: {error}", hint=f"mend {NAME}") from error
    if not isinstance(found, dict):
        raise UsageError("config_malformed", f"{NAME}: {name} must be a table", hint=f"[{name}]")
    return found


def convert(value: object, kind: type[T], where: str) -> T:
    """A table as a value. Raises UsageError (`config_invalid`) naming the field."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise UsageError("config_invalid", f"{NAME}: {where}: {error}", hint=f"mend [{where}] in {NAME}") from error


def _judge(store: Store, goal_id: str | None) -> Row | None:
    """The goal against whose start the file is judged."""
    with store.read() as tx:
        row = goals.row_of(tx, goal_id) if goal_id else None
        if row is not None and row["base_tree"] is not None:
            return row
        open_turn = next(iter(tx.all("turns.open_all", limit=1)), None)
        return goals.row_of(tx, open_turn["goal_id"]) if open_turn is not None else row


def _left_by_last_turn(store: Store, goal_id: str) -> str | None:
    """The tree that the last turn left; None while one is open. What differs from it since is a person's edit."""
    with store.read() as tx:
        if turns.open_turn(tx, goal_id) is not None:
            return None
        last = turns.last_of_goal(tx, goal_id)
    if last is None or last.result is None:
        return None
    return last.result.tree_left or last.result.tree_after


def _on_disk(project: Project) -> bytes:
    try:
        with open(path_of(project), "rb") as file:
            return file.read()
    except (FileNotFoundError, IsADirectoryError):
        return b""
    except OSError as error:
        raise UsageError("config_malformed", f"{NAME} can't be read: {error}", hint="check its permissions") from error


def _path_in(work: WorkTree, project: Project) -> str:
    return os.path.relpath(os.path.join(os.path.realpath(project.root), NAME), work.repository.root)


def _in_tree(work: WorkTree, project: Project, tree_hash: str) -> bytes:
    try:
        return tree.read_file(work.repository, tree_hash, _path_in(work, project))
    except NotFoundError as error:
        if error.code != "path_not_in_tree":
            raise
        return b""


def _blob(work: WorkTree, content: bytes) -> str:
    return work.repository.git("hash-object", "--stdin", stdin=content).line
