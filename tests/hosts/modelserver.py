"""A model provider that follows a script, on loopback. It speaks the Responses API, Anthropic Messages, chat
completions and Gemini's streaming API, so that a real agent CLI runs with every model answer decided by the test. It
counts the tokens that it hands out, which is what a test compares LoopX's books with. It never judges what the CLI
did.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from tests.hosts import wire
from tests.hosts.script import Cut, Fail, Hold, Say, Silence, Spoken, Step, Tokens


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it came in."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    aside: bool
    """The CLI's own errand (a title, a routing question), not the agent's turn."""


class ModelServer(ThreadingHTTPServer):
    """The script and the counters. `requests` and `totals` are read after the CLI has ended."""

    daemon_threads = True

    def __init__(self, steps: Sequence[Step]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self._lock = threading.Lock()
        self._steps = list(steps)
        self._failed = 0
        self.requests: list[Request] = []
        self.answered: list[Tokens] = []
        """Of the agent's own turns, in order."""
        self.aside_answered: list[Tokens] = []
        self.closing = threading.Event()
        self.silent = threading.Event()
        """Set once a request has been left without an answer (`Silence`, `Hold`)."""
        self.release = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is part of the plan."""

    def next_step(self, request: Request) -> Step:
        """The step that answers this request; when the script is over, a plain closing message."""
        with self._lock:
            self.requests.append(request)
            if request.aside:
                self.aside_answered.append(Tokens(input=7, cached=0, output=3, reasoning=0))
                return Say(text=wire.aside_answer(request.body), tokens=self.aside_answered[-1])
            step = self._steps[0] if self._steps else Say(text="Nothing left to do.")
            if isinstance(step, Fail):
                self._failed += 1
                if self._failed >= step.times:
                    self._failed = 0
                    self._steps.pop(0)
            elif self._steps and not isinstance(step, Cut | Silence):
                self._steps.pop(0)
            if isinstance(step, Hold):
                self.answered.append(step.then.tokens)
            if isinstance(step, Spoken):
                self.answered.append(step.tokens)
            return step

    def extend(self, steps: Sequence[Step]) -> None:
        """What the next run of the same session will be told; steps that stay for ever are dropped."""
        with self._lock:
            self._steps = list(steps)
            self._failed = 0

    def totals(self, *, asides: bool = False) -> Tokens:
        """The sum over the agent's turns, and over the CLI's errands too when asked."""
        with self._lock:
            every = self.answered + (self.aside_answered if asides else [])
        return Tokens(
            input=sum(one.input for one in every),
            cached=sum(one.cached for one in every),
            output=sum(one.output for one in every),
            reasoning=sum(one.reasoning for one in every),
        )


class Handler(BaseHTTPRequestHandler):
    """One connection: reads the request, finds the dialect by its path, and plays the next step."""

    protocol_version = "HTTP/1.1"
    server: ModelServer

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self._whole(200, {"object": "list", "data": [], "models": []})

    def do_HEAD(self) -> None:
        self._whole(200, {})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            body = json.loads(raw or b"{}")
        except ValueError:
            body = {}
        dialect = wire.dialect_of(self.path)
        if dialect is None:
            self._whole(200, {"input_tokens": 1, "totalTokens": 1})
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(path=self.path, body=body, headers=headers, aside=dialect.is_aside(self.path, body))
        self._play(dialect, request, self.server.next_step(request))

    def _play(self, dialect: wire.Dialect, request: Request, step: Step) -> None:
        if isinstance(step, Hold):
            self.server.silent.set()
            self.server.release.wait()
            step = step.then
        if isinstance(step, Fail):
            self._whole(step.status, dialect.refusal(step), step.headers)
        elif dialect.unary(request.path, request.body) and isinstance(step, Say):
            self._whole(200, dialect.whole(step))
        elif isinstance(step, Cut):
            self._stream(dialect.begin(step.text))
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
        elif isinstance(step, Silence):
            self._stream([])
            self.server.silent.set()
            self.server.closing.wait()
            self.close_connection = True
        else:
            assert isinstance(step, Spoken)
            self._stream(dialect.answer(step, request.body))
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()

    def _stream(self, events: Sequence[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.flush()

    def _whole(self, status: int, body: Mapping[str, Any], headers: Sequence[tuple[str, str]] = ()) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)
        self.wfile.flush()


@contextmanager
def serving(*steps: Step) -> Iterator[ModelServer]:
    """A server that follows `steps`, on a port of its own, until the block ends."""
    server = ModelServer(steps)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.release.set()
        server.shutdown()
        server.server_close()
        thread.join()
