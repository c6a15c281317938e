"""Lets the launches of one account through one after the other, so that no two sign-ins refresh one credential at once.

The turnstile is a short lease: it is held until the agent is heard, or for a few seconds, and whoever waits at it goes
on in any case after a while. It protects a credential and is no fence: nothing is refused because of it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from loopx.control_plane.errors import ConflictError, LoopXError
from loopx.control_plane.ids import Epoch
from loopx.hosts import env as envs
from loopx.hosts import registry
from loopx.hosts.protocol import HostEvent, HostEventKind
from loopx.store import leases
from loopx.store.store import Store

HOLD_MS = 5_000
"""How long a launch keeps the next one of its account waiting at most."""
PATIENCE_S = 60.0
"""After so long a launch goes on, whoever is before it."""
_POLL_S = 0.1
_SIGNED_IN = frozenset({HostEventKind.MESSAGE, HostEventKind.TOOL_CALL, HostEventKind.USAGE, HostEventKind.RESULT})
"""What a host only says once its provider has accepted its credential."""


class Turnstile:
    """One launch's way through. Engines without an account of their own (`command:`) are let through at once."""

    def __init__(self, store: Store, engine: str, env: Sequence[tuple[str, str]], who: str) -> None:
        name = registry.adapter_for(engine).name
        self._store = store
        self._who = who
        self._resource = f"account:{envs.account_key(name, env)}" if name in registry.CLIS else None
        self._epoch: Epoch | None = None

    def enter(self, stopping: Callable[[], bool]) -> None:
        """Wait for the turn of this launch. Returns early when `stopping` says so."""
        patience = time.monotonic() + PATIENCE_S
        while self._resource is not None and time.monotonic() < patience and not stopping():
            try:
                with self._store.write() as tx:
                    self._epoch = leases.acquire(tx, self._resource, self._who, HOLD_MS, self._store.now_ms())
                return
            except ConflictError:
                time.sleep(_POLL_S)

    def rejoin(self) -> None:
        """Take up the place of a launch whose launcher died in it, if it still holds it."""
        if self._resource is None:
            return
        with self._store.read() as tx:
            held = leases.get(tx, self._resource)
        if held is not None and held.owner == self._who:
            self._epoch = held.epoch

    def heard(self, event: HostEvent) -> None:
        """The host said something; the next launch may go once its provider answered."""
        if event.kind in _SIGNED_IN:
            self.leave()

    def leave(self) -> None:
        """Let the next one go. May be called often."""
        if self._epoch is None or self._resource is None:
            return
        epoch, self._epoch = self._epoch, None
        # A store that can't be written now costs the next launch a few seconds.
        with contextlib.suppress(LoopXError), self._store.write() as tx:
            leases.release(tx, self._resource, epoch)
