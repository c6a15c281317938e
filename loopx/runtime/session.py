"""One process's view of one project: where it is, its open store, and who is asking. The composition root."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopx.runtime import project as projects
from loopx.runtime.clock import SystemClock, SystemIds
from loopx.runtime.project import Project
from loopx.store.connection import Connection
from loopx.store.store import Store

if TYPE_CHECKING:
    from loopx.control_plane.ports import Clock, Ids

DEFAULT_AGENT = "loopx"
"""The agent id of a person's own `loopx run`; agents that share a goal name themselves."""


class Session:
    """An open project. Close it when done."""

    def __init__(self, project: Project, store: Store, clock: Clock) -> None:
        self.project = project
        self.store = store
        self.clock = clock

    def close(self) -> None:
        self.store.close()


def open_session(
    directory: str | None = None,
    database: str | None = None,
    *,
    create: bool = False,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> Session:
    """Open the project that `directory` belongs to.

    With `create`, what is missing (the id, the state folder, the store) is made. Raises StoreError (`store_missing`
    without it), and what `locate` raises.
    """
    project = projects.locate(directory, database)
    if create:
        project = projects.initialise(project)
    else:
        project.require_store()
    used = clock or SystemClock()
    store = Store(Connection(project.database, create=create), used, ids or SystemIds())
    return Session(project, store, used)
