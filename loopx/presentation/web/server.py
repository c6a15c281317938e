"""Binds the page to an address and serves it until it is stopped. It says where; it keeps no log, since addresses hold
the token.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from loopx.control_plane.errors import UsageError
from loopx.presentation.web.access import Access, new_access
from loopx.presentation.web.desk import Desk
from loopx.runtime.session import Session

if TYPE_CHECKING:
    import uvicorn

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
GRACE_S = 1


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """Where to listen. `names`: further host names under which it may be asked for."""

    host: str = "127.0.0.1"
    port: int = 0
    allow_remote: bool = False
    tls_cert: str | None = None
    tls_key: str | None = None
    names: tuple[str, ...] = ()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_safe(binding: Binding) -> None:
    """Raises UsageError: `remote_not_allowed`, `tls_missing`, `tls_incomplete`, `tls_unreadable`."""
    if (binding.tls_cert is None) != (binding.tls_key is None):
        raise UsageError("tls_incomplete", "TLS needs a certificate and its key", hint="--tls-cert FILE --tls-key FILE")
    for path in (binding.tls_cert, binding.tls_key):
        if path is not None and not os.access(path, os.R_OK):
            raise UsageError("tls_unreadable", f"{path} can't be read", hint="name a PEM file that exists")
    if is_loopback(binding.host):
        return
    if not binding.allow_remote:
        raise UsageError(
            "remote_not_allowed",
            f"{binding.host} can be reached from other machines, and whoever has the token can act as you",
            hint="--allow-remote --tls-cert FILE --tls-key FILE, or ssh -L PORT:127.0.0.1:PORT",
        )
    if binding.tls_cert is None:
        raise UsageError(
            "tls_missing",
            "other machines only over TLS: the token would be readable",
            hint="--tls-cert FILE --tls-key FILE",
        )


class Server:
    """A bound, not yet running server. `url` has the token; `run` blocks until `stop` or a signal."""

    def __init__(self, binding: Binding, open_session: Callable[[], Session], project: str, person: str) -> None:
        """Raises what `require_safe` raises, and UsageError (`address_taken`)."""
        require_safe(binding)
        self._binding = binding
        self.socket = _bind(binding.host, binding.port)
        self.port: int = self.socket.getsockname()[1]
        secure = binding.tls_cert is not None
        self.access: Access = new_access(_names(binding), self.port, secure=secure)
        self._desk = Desk(open_session, self.access, project, person)
        self._server: uvicorn.Server | None = None

    @property
    def address(self) -> str:
        """Where it is, without the token."""
        scheme = "https" if self.access.secure else "http"
        host = self._binding.host
        if host in ("0.0.0.0", "::"):
            host = self._binding.names[0] if self._binding.names else socket.gethostname()
        shown = f"[{host}]" if ":" in host else host
        return f"{scheme}://{shown}:{self.port}/"

    @property
    def url(self) -> str:
        return f"{self.address}?token={self.access.token}"

    def run(self, on_ready: Callable[[], None] | None = None) -> None:
        """Serve until stopped."""
        import asyncio

        import uvicorn

        from loopx.presentation.web.app import build

        config = uvicorn.Config(
            build(self._desk),
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            lifespan="off",
            timeout_graceful_shutdown=GRACE_S,
            ssl_certfile=self._binding.tls_cert,
            ssl_keyfile=self._binding.tls_key,
        )
        self._server = uvicorn.Server(config)
        if on_ready is not None:
            on_ready()
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(self._server.serve(sockets=[self.socket]))

    def stop(self) -> None:
        """End `run`, from any thread."""
        if self._server is not None:
            self._server.should_exit = True

    def close(self) -> None:
        self.socket.close()


def _names(binding: Binding) -> tuple[str, ...]:
    if is_loopback(binding.host):
        return (*LOOPBACK_NAMES, binding.host, *binding.names)
    own = (socket.gethostname(), socket.getfqdn()) if binding.host in ("0.0.0.0", "::") else (binding.host,)
    return (*own, *binding.names)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(128)
    except OSError as error:
        made.close()
        raise UsageError(
            "address_taken", f"{host}:{port} can't be listened on: {error.strerror}", hint="--port 0 takes a free one"
        ) from error
    return made
