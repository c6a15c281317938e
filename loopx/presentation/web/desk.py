"""What the page's handlers have at hand: a session of the store for each request, secrets, and short notices.

A request opens its own session and closes it, because a store's connection belongs to one thread.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator

import msgspec

from loopx.presentation.web.access import Access
from loopx.runtime import looking
from loopx.runtime.project import Project
from loopx.runtime.session import Session

MOST_NOTICES = 64
STREAMS = 32
"""So many pages may follow at once."""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """What the last action came to, told once on the next page."""

    tone: str
    text: str
    hint: str = ""


class Desk:
    """Shared by all handlers of one server."""

    def __init__(self, open_session: Callable[[], Session], access: Access, project: str, person: str) -> None:
        self._open = open_session
        self.access = access
        self.project = project
        self.person = person
        """The name on the record of what is done here."""
        self._notices: OrderedDict[str, Notice] = OrderedDict()
        self._lock = threading.Lock()
        self._looked: int | None = None
        self.streams = threading.Semaphore(STREAMS)

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """One open session, for one request."""
        opened = self._open()
        try:
            yield opened
        finally:
            opened.close()

    def last_look(self, project: Project, now_ms: int) -> int:
        """When the person looked before this server was started; the look at this page is noted for the next time."""
        with self._lock:
            if self._looked is None:
                self._looked = looking.last(project, now_ms)
        looking.remember(project, now_ms)
        return self._looked

    def leave(self, notice: Notice) -> str:
        """Keep a notice for the next page; the name under which it is taken."""
        name = secrets.token_urlsafe(9)
        with self._lock:
            self._notices[name] = notice
            while len(self._notices) > MOST_NOTICES:
                self._notices.popitem(last=False)
        return name

    def take(self, name: str) -> Notice | None:
        """The notice of that name, once."""
        with self._lock:
            return self._notices.pop(name, None)
