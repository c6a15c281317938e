"""The real page on a free port of this machine, and a plain client that says exactly what it is told."""

from __future__ import annotations

import contextlib
import http.client
import threading
import urllib.parse
from collections.abc import Iterator, Mapping

import msgspec

from loopx.presentation.web.server import Binding, Server
from loopx.runtime.session import open_session
from tests.web.world import World


@contextlib.contextmanager
def served(world: World, binding: Binding | None = None) -> Iterator[Server]:
    """A running server for this world's project."""
    server = Server(binding or Binding(), lambda: open_session(world.box.root), "~/shop", "ada")
    thread = threading.Thread(target=server.run, name="serve", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(timeout=30)
        server.close()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    text: str


def ask(
    server: Server,
    path: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    form: Mapping[str, str] | None = None,
    cookie: bool = False,
    bearer: bool = False,
) -> Answer:
    """One request, with nothing added but what is asked for. `None` as a header's value leaves it out."""
    sent = {"Host": f"127.0.0.1:{server.port}", "Accept": "text/html"}
    if cookie:
        sent["Cookie"] = f"{server.access.cookie}={server.access.session}"
    if bearer:
        sent["Authorization"] = f"Bearer {server.access.token}"
    sent.update(headers or {})
    body = urllib.parse.urlencode(form).encode() if form is not None else b""
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        line.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in sent.items():
            line.putheader(name, value)
        if method == "POST":
            line.putheader("Content-Type", "application/x-www-form-urlencoded")
            line.putheader("Content-Length", str(len(body)))
        line.endheaders(body or None)
        answer = line.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(status=answer.status, headers=found, text=answer.read().decode("utf-8", "replace"))
    finally:
        line.close()


def origin(server: Server) -> dict[str, str]:
    """What a browser says when a page of this server posts."""
    return {"Origin": f"http://127.0.0.1:{server.port}", "Sec-Fetch-Site": "same-origin"}
