"""Who may see and do anything on the page: one token, one cookie, known names, same origin, and a strict policy.

Plain ASGI around the whole application, so that no route can be forgotten. What it refuses never reaches a handler.
A request that names another host (a rebound DNS name), or writes from another origin, is refused whatever it carries.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode

import msgspec

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

READS = frozenset({"GET", "HEAD"})
OPEN_PATHS = ("/static/", "/enter")
"""What is served without a token: the style sheet, the script, and the form that takes the token."""
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types loopx"
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not `no-referrer`: with that a browser sends `Origin: null` from our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), usb=()",
    "cache-control": "no-store",
}
AUTH = "loopx_auth"
"""The scope's key that says how a request proved itself: `cookie`, `bearer` or nothing."""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """The secrets and names of one running server. `hosts`: values of the Host header, in lower case."""

    token: str
    session: str
    form: str
    """What every form carries, beside the cookie."""
    cookie: str
    hosts: frozenset[str]
    secure: bool


def new_access(names: Iterable[str], port: int, *, secure: bool) -> Access:
    """Fresh secrets for a server that answers to these names on this port.

    The cookie's name has the port, since browsers send one host's cookies to all of its ports.
    """
    default = 443 if secure else 80
    hosts = {f"{_bracketed(name).lower()}:{port}" for name in names}
    if port == default:
        hosts |= {_bracketed(name).lower() for name in names}
    return Access(
        token=secrets.token_hex(24),
        session=secrets.token_hex(24),
        form=secrets.token_hex(24),
        cookie=f"loopx-{port}",
        hosts=frozenset(hosts),
        secure=secure,
    )


def _bracketed(name: str) -> str:
    return f"[{name}]" if ":" in name and not name.startswith("[") else name


def same(given: str | None, wanted: str) -> bool:
    """Whether two secrets are equal, in constant time."""
    return given is not None and hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


class Guard:
    """Wraps the application: checks every request, and adds the policy to every response."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        reply = _with_headers(send)
        refusal = self._refusal(scope)
        if refusal is not None:
            await _text(reply, *refusal)
            return
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        if scope["method"] in READS and "token" in query:
            await self._enter(scope, query, reply)
            return
        scope[AUTH] = self._proof(scope)
        if not scope[AUTH] and not str(scope["path"]).startswith(OPEN_PATHS):
            scope = {**scope, "path": "/enter", "raw_path": b"/enter", "method": "GET", "loopx_asked": scope["path"]}
        await self._app(scope, receive, reply)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        host = _header(scope, b"host")
        if host is None or host.lower() not in self._access.hosts:
            return 421, "This server does not answer to that name."
        method = scope["method"]
        if method not in READS and method != "POST":
            return 405, "Only GET and POST."
        site = _header(scope, b"sec-fetch-site")
        if method == "POST" and not self._same_origin(scope, host, site):
            return 403, "A change can only come from this server's own pages."
        return None

    def _same_origin(self, scope: Scope, host: str, site: str | None) -> bool:
        origin = _header(scope, b"origin")
        if origin is None:
            # Programs send none; a browser always does. A program proves itself by the token in a header.
            return site is None and same(_bearer(scope), self._access.token)
        scheme = "https" if self._access.secure else "http"
        return origin.lower() == f"{scheme}://{host.lower()}" and site in (None, "same-origin")

    def _proof(self, scope: Scope) -> str:
        if same(_bearer(scope), self._access.token):
            return "bearer"
        return "cookie" if same(_cookie(scope, self._access.cookie), self._access.session) else ""

    async def _enter(self, scope: Scope, query: dict[str, list[str]], send: Send) -> None:
        """Take the token out of the address, and give the cookie for it."""
        if not same(query["token"][-1], self._access.token):
            await _redirect(send, "/enter?wrong=1")
            return
        rest = {key: values[-1] for key, values in query.items() if key != "token"}
        path = str(scope["path"])
        await _redirect(send, path + (f"?{urlencode(rest)}" if rest else ""), cookie_header(self._access))


def cookie_header(access: Access) -> str:
    """The cookie that stands for the token from now on."""
    flags = "; Secure" if access.secure else ""
    return f"{access.cookie}={access.session}; Path=/; HttpOnly; SameSite=Strict{flags}"


def _header(scope: Scope, name: bytes) -> str | None:
    """The one value of a header; a doubled one counts as none."""
    found = [value for key, value in scope["headers"] if key == name]
    return found[0].decode("latin-1") if len(found) == 1 else None


def _bearer(scope: Scope) -> str | None:
    kind, _, value = (_header(scope, b"authorization") or "").partition(" ")
    return value.strip() if kind.lower() == "bearer" else None


def _cookie(scope: Scope, name: str) -> str | None:
    jar: SimpleCookie = SimpleCookie()
    try:
        jar.load(_header(scope, b"cookie") or "")
    except CookieError:
        return None
    return jar[name].value if name in jar else None


def _with_headers(send: Send) -> Send:
    async def reply(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {key.lower() for key, _ in message.get("headers", [])}
            added = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in given]
            message = {**message, "headers": [*message.get("headers", []), *added]}
        await send(message)

    return reply


async def _text(send: Send, status: int, words: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{words}\n".encode()})


async def _redirect(send: Send, to: str, cookie: str | None = None) -> None:
    # Two slashes at the beginning would name another host.
    headers = [(b"location", f"/{to.lstrip('/')}".encode("ascii", "ignore"))]
    if cookie is not None:
        headers.append((b"set-cookie", cookie.encode()))
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
