"""Who gets in: every request is checked, and what is refused changes nothing."""

from __future__ import annotations

import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="starlette is not installed (the extra `web`)")

from loopx.control_plane.errors import UsageError
from loopx.presentation.web.access import HEADERS
from loopx.presentation.web.server import Binding, Server, require_safe
from loopx.store import goals
from tests.web.serving import ask, origin, served
from tests.web.world import World, use

PAGES = ("/", "/goals", "/goals/calm", "/goals/calm/turns/1", "/goals/calm/report", "/live/board", "/live/goals/calm")


@pytest.fixture
def server(world: World) -> Iterator[Server]:
    world.goal("calm", "do little", [use(1, 1)], checks=("test -f never",))
    with served(world) as running:
        yield running


class Stay(urllib.request.HTTPRedirectHandler):
    """Follows nothing."""

    def redirect_request(self, *args: object, **more: object) -> None:
        return None


def state(world: World) -> str:
    with world.box.store.read() as tx:
        return str(goals.row_of(tx, "calm")["state"])


@pytest.mark.parametrize("path", PAGES)
def test_nothing_is_shown_without_the_token(server: Server, path: str) -> None:
    answer = ask(server, path)
    assert answer.status == 401
    assert "calm" not in answer.text


def test_the_address_with_the_token_gives_a_cookie_and_hides_the_token(server: Server) -> None:
    answer = ask(server, f"/goals?token={server.access.token}&after=a")
    assert answer.status == 303
    assert answer.headers["location"] == "/goals?after=a"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert server.access.token not in cookie
    assert ask(server, "/", headers={"Cookie": cookie.partition(";")[0]}).status == 200


def test_a_wrong_token_gives_nothing(server: Server) -> None:
    answer = ask(server, "/?token=wrong")
    assert (answer.status, answer.headers["location"]) == (303, "/enter?wrong=1")
    assert "set-cookie" not in answer.headers
    answer = ask(server, "/enter", method="POST", form={"token": "wrong"}, headers=origin(server))
    assert "set-cookie" not in answer.headers


def test_the_token_may_be_typed_in(server: Server) -> None:
    form = {"token": f" {server.access.token} "}
    answer = ask(server, "/enter", method="POST", form=form, headers=origin(server))
    assert answer.status == 303
    assert server.access.session in answer.headers["set-cookie"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example"]
)
def test_another_host_name_is_not_answered(server: Server, host: str) -> None:
    answer = ask(server, "/", headers={"Host": host}, cookie=True)
    assert answer.status == 421
    assert "calm" not in answer.text


def test_the_loopback_names_are_answered(server: Server) -> None:
    for name in ("127.0.0.1", "localhost", "[::1]"):
        assert ask(server, "/", headers={"Host": f"{name}:{server.port}"}, cookie=True).status == 200


def test_the_policy_is_on_every_answer(server: Server) -> None:
    for path, cookie in (("/", True), ("/", False), ("/nothing", True), ("/static/app.js", False)):
        answer = ask(server, path, cookie=cookie)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert set(HEADERS) <= set(answer.headers)


def test_a_page_has_no_inline_script_no_inline_style_and_no_foreign_address(server: Server) -> None:
    for path in ("/", "/goals", "/goals/calm"):
        text = ask(server, path, cookie=True).text
        assert text.count("<script") == 1
        assert "<style" not in text
        assert " style=" not in text
        assert " onclick" not in text
        assert "http://" not in text.replace("http://www.w3.org", "")
        assert "https://" not in text


def pause(server: Server, **changes: object) -> int:
    """Try to pause the goal as the page's own form would, but for what is changed."""
    given = {"form": {"form": server.access.form, "back": "/"}, "headers": origin(server), "cookie": True, **changes}
    return ask(server, "/goals/calm/pause", method="POST", **given).status  # type: ignore[arg-type]


def test_the_pages_own_form_acts(server: Server, world: World) -> None:
    assert pause(server) == 303
    assert state(world) == "paused"


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"cookie": False}, 401),
        ({"headers": {}}, 403),
        ({"headers": {"Origin": "http://evil.example"}}, 403),
        ({"headers": {"Origin": "null"}}, 403),
        ({"form": {"back": "/"}}, 400),
        ({"form": {"form": "wrong"}}, 400),
    ],
)
def test_another_pages_form_does_not_act(server: Server, world: World, changes: dict[str, object], status: int) -> None:
    assert pause(server, **changes) == status
    assert state(world) == "active"


def test_a_cross_site_request_does_not_act_even_with_everything(server: Server, world: World) -> None:
    assert pause(server, headers={**origin(server), "Sec-Fetch-Site": "cross-site"}) == 403
    assert state(world) == "active"


def test_reading_never_acts(server: Server, world: World) -> None:
    assert ask(server, "/goals/calm/pause", cookie=True).status in (404, 405)
    assert ask(server, "/goals/calm/pause", method="PUT", cookie=True).status == 405
    assert state(world) == "active"


def test_a_program_acts_with_the_token_in_a_header(server: Server, world: World) -> None:
    plain = {"Accept": "application/json"}
    answer = ask(server, "/goals/calm/pause", method="POST", form={}, headers=plain, bearer=True)
    assert (answer.status, '"ok":true' in answer.text) == (200, True)
    assert state(world) == "paused"
    answer = ask(server, "/goals/nothing/pause", method="POST", form={}, headers=plain, bearer=True)
    assert (answer.status, "goal_unknown" in answer.text) == (404, True)


def test_where_to_go_back_is_always_here(server: Server) -> None:
    for back in ("//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"):
        form = {"form": server.access.form, "back": back}
        answer = ask(server, "/goals/calm/pause", method="POST", form=form, headers=origin(server), cookie=True)
        assert answer.headers["location"].startswith("/?said=")


def test_a_large_form_is_refused(server: Server) -> None:
    form = {"form": server.access.form, "reason": "x" * 70_000}
    answer = ask(server, "/goals/calm/pause", method="POST", form=form, headers=origin(server), cookie=True)
    assert answer.status == 400


def test_no_file_but_its_own_is_served(server: Server) -> None:
    for name in ("../access.py", "..%2faccess.py", "%2e%2e/access.py", "app.css/../../access.py", "nothing"):
        assert ask(server, f"/static/{name}", cookie=True).status == 404


@pytest.mark.parametrize(
    ("binding", "code"),
    [
        (Binding(host="0.0.0.0"), "remote_not_allowed"),
        (Binding(host="192.0.2.1", tls_cert=__file__, tls_key=__file__), "remote_not_allowed"),
        (Binding(host="0.0.0.0", allow_remote=True), "tls_missing"),
        (Binding(tls_cert=__file__), "tls_incomplete"),
        (Binding(tls_cert="/nothing", tls_key="/nothing"), "tls_unreadable"),
    ],
)
def test_other_machines_only_when_asked_for_and_over_tls(binding: Binding, code: str) -> None:
    with pytest.raises(UsageError) as refused:
        require_safe(binding)
    assert refused.value.code == code


def test_with_tls_the_cookie_is_secure(world: World, tmp_path: Path) -> None:
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    try:
        subprocess.run(
            [*make, "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert],
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    with served(world, Binding(host="localhost", tls_cert=cert, tls_key=key)) as server:
        assert server.address.startswith("https://localhost:")
        trust = ssl.create_default_context(cafile=cert)
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=trust), Stay())
        with pytest.raises(urllib.request.HTTPError) as answer:
            opener.open(server.url, timeout=30)
        assert answer.value.code == 303
        assert "; Secure" in answer.value.headers["set-cookie"]


def test_a_port_that_is_taken_is_said_so(server: Server, world: World) -> None:
    with pytest.raises(UsageError) as refused, served(world, Binding(port=server.port)):
        pass
    assert refused.value.code == "address_taken"
