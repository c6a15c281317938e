"""The page in a real Chromium: a turn followed to its end, questions answered, goals paused, resumed and cancelled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="starlette is not installed (the extra `web`)")
pytest.importorskip("playwright", reason="the Python package playwright is not installed (the extra `dev`)")
pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed (the extra `dev`)")

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from loopx.presentation.web.server import Server
from loopx.store import gates, goals
from tests.web import browser as browsers
from tests.web.serving import served
from tests.web.world import World, csv_export, day, use

pytestmark = pytest.mark.skipif(browsers.chromium() is None, reason="chromium is not installed (apt install chromium)")
expect.set_options(timeout=30_000)
IMAGES = os.environ.get("LOOPX_IMAGES")
"""A folder for the pictures; without it they go with the test."""
PATHS = {
    "board": "",
    "goals": "goals",
    "goal": "goals/iso-week-dates",
    "goal-live": "goals/csv-export",
    "goal-asks": "goals/refund-flow",
    "turn": "goals/iso-week-dates/turns/1",
    "turn-refused": "goals/iso-week-dates/turns/2",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the module, with a fresh profile."""
    with browsers.started() as started:
        yield started


@pytest.fixture
def server(world: World) -> Iterator[Server]:
    with served(world) as running:
        yield running


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    """A page that came in by the printed address. It may not fail, warn of a broken policy, or ask any other host."""
    context = browsers.look(browser, "light")
    context.set_default_timeout(30_000)
    made = context.new_page()
    troubles: list[str] = []
    made.on("pageerror", lambda error: troubles.append(f"error: {error}"))
    made.on("dialog", lambda dialog: troubles.append(f"dialog: {dialog.message}"))
    made.on("console", lambda said: troubles.append(said.text) if said.type == "error" else None)
    made.on("request", lambda asked: None if asked.url.startswith(server.address) else troubles.append(asked.url))
    made.goto(server.url)
    yield made
    context.close()
    assert troubles == []


def state(world: World, goal_id: str) -> str:
    with world.box.store.read() as tx:
        return str(goals.row_of(tx, goal_id)["state"])


def test_a_live_turn_is_followed_to_its_end(page: Page, server: Server, world: World) -> None:
    csv_export(world)
    page.reload()
    expect(page.get_by_text("csv-export").first).to_be_visible()
    run = world.run_aside("csv-export", max_turns=1)
    world.wait_until(lambda: world.waits("go"), "the agent waits")
    # The board learns by itself that something runs.
    running = page.locator("#moving")
    expect(running.get_by_role("link", name="turn 1")).to_be_visible()
    running.get_by_role("link", name="csv-export").click()
    stream = page.locator("#stream-lines")
    expect(stream).to_contain_text("I will write the exporter")
    expect(stream).to_contain_text("rg -n")
    expect(page.locator("#link")).to_have_text("live")
    assert "The header and the rows are there." not in stream.inner_text()
    world.cue("go")
    expect(stream).to_contain_text("The header and the rows are there.")
    expect(page.locator("#turns .tag").first).to_have_text("completion")
    expect(page.locator("#turns .bar").first).to_have_attribute("aria-label", "7 of 7 phases")
    expect(page.locator("#checks")).to_contain_text("grep -q rows export.py")
    run.join(timeout=60)
    assert stream.locator("li", has_text="rg -n").count() == 1
    page.locator("#turns").get_by_role("link", name="turn 1").click()
    expect(page.locator("#steps li.on")).to_have_count(7)
    expect(page.locator("#diff")).to_contain_text("export.py")
    expect(page.locator("#prompt")).to_contain_text("write the header")


def test_a_question_is_answered_on_the_board(page: Page, world: World) -> None:
    day(world)
    page.reload()
    asked = page.locator("#asked")
    expect(asked).to_contain_text("Drop support for v1 webhooks?")
    expect(page).to_have_title("(1) Board · LoopX")
    asked.get_by_role("button", name="yes").click()
    expect(page.locator(".notice")).to_contain_text("Answered: yes")
    expect(page.locator("#asked")).to_contain_text("Nothing needs you.")
    with world.box.store.read() as tx:
        answered = gates.from_row(tx.all("gates.page", goal_id="refund-flow", after="", limit=1)[0])
    assert (answered.answer, answered.answered_by) == ("yes", "ada")
    page.reload()
    assert page.get_by_text("Answered: yes").count() == 0


def test_a_second_answer_is_refused_and_says_so(page: Page, world: World, server: Server) -> None:
    day(world)
    page.reload()
    other = page.context.new_page()
    other.goto(f"{server.address}goals/refund-flow")
    page.locator("#asked").get_by_role("button", name="yes").click()
    expect(page.get_by_text("Answered: yes")).to_be_visible()
    other.evaluate("document.querySelector('#gates form')?.submit()")
    with world.box.store.read() as tx:
        assert gates.open_gates(tx, "refund-flow") == ()
    other.close()


def test_a_goal_is_paused_and_resumed(page: Page, server: Server, world: World) -> None:
    world.goal("calm", "do little", [use(1, 1)], checks=("test -f never",))
    page.goto(f"{server.address}goals/calm")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("A running turn goes on to its end.")).to_be_visible()
    assert state(world, "calm") == "paused"
    page.goto(server.address)
    page.locator("#paused").get_by_role("button", name="Resume").click()
    expect(page.locator("#paused")).to_have_count(0)
    assert state(world, "calm") == "active"


def test_a_running_goal_is_cancelled(page: Page, server: Server, world: World) -> None:
    csv_export(world)
    run = world.run_aside("csv-export")
    world.wait_until(lambda: world.waits("go"), "the agent waits")
    page.goto(f"{server.address}goals/csv-export")
    expect(page.get_by_role("button", name="Stop now")).to_be_hidden()
    page.get_by_text("Stop…").click()
    page.get_by_role("button", name="Stop now").click()
    expect(page.locator("#head .tag").first).to_have_text("stopped")
    run.join(timeout=60)
    assert not run.is_alive()
    expect(page.locator("#turns .tag").first).to_have_text("stopped")


@pytest.mark.parametrize("kind", list(browsers.SIZES))
def test_every_page_is_accessible_fits_and_is_pictured(
    browser: Browser, server: Server, world: World, tmp_path: Path, kind: str
) -> None:
    day(world)
    csv_export(world)
    run = world.run_aside("csv-export")
    world.wait_until(lambda: world.waits("go"), "the agent waits")
    folder = Path(IMAGES) if IMAGES else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    context = browsers.look(browser, kind)
    page = context.new_page()
    page.goto(server.url)
    found: dict[str, Any] = {}
    for name, path in PATHS.items():
        page.goto(server.address + path)
        expect(page.locator("main")).to_be_visible()
        if page.locator("#link").count():
            expect(page.locator("#link")).to_have_attribute("data-state", "live")
        for fold in page.locator("details:not(.confirm)").all():
            fold.evaluate("one => { one.dataset.was = one.open; one.open = true; }")
        found[name] = [
            (one["id"], [node["target"] for node in one["nodes"]][:3])
            for one in Axe().run(page).response["violations"]
            if one["impact"] in ("serious", "critical")
        ]
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{name} is {wide} pixels too wide"
        for fold in page.locator("details:not(.confirm)").all():
            fold.evaluate("one => { one.open = one.dataset.was === 'true'; }")
        browsers.shoot(page, str(folder / f"{name}-{kind}.png"))
        assert (folder / f"{name}-{kind}.png").stat().st_size > 10_000
    context.close()
    assert found == {name: [] for name in PATHS}
    world.stop.set()
    run.join(timeout=60)


HOSTILE = (
    "{{ 7*7 }} <script>window.owned=1</script><img src=x onerror='window.owned=1'><svg onload=window.owned=1>"
    "</p></li></ol><style>body{display:none}</style>"
    "\x1b[2J\x1b]0;owned\x07\x1b]8;;http://evil.example\x07link\x1b]8;;\x07 \u202ekcab\u202c \u2066x"
)


def test_hostile_words_do_nothing(page: Page, server: Server, world: World) -> None:
    world.goal(
        "hostile",
        HOSTILE,
        [
            {"say": HOSTILE},
            {"run": HOSTILE},
            {"raw": "</script><script>window.owned=1</script>"},
            {"raw": '{"type":"item.completed","item":' + "[" * 200_000},
            {"long": 5_000_000},
            {"edit": {"<b onmouseover=window.owned=1>.html": f"{HOSTILE}\n"}},
            {"say": "event: changed\ndata: {}\n\nafter all of it"},
            {
                "claim": {
                    "kind": "question",
                    "summary": HOSTILE,
                    "question": {"text": HOSTILE, "choices": [HOSTILE[:100], "no"]},
                }
            },
            use(1, 1),
        ],
        checks=("cat '<b onmouseover=window.owned=1>.html'; false",),
    )
    world.box.run("hostile", max_turns=1)
    for path in ("", "goals", "goals/hostile", "goals/hostile/turns/1"):
        page.goto(server.address + path)
        if page.locator("#link").count():
            expect(page.locator("#link")).to_have_attribute("data-state", "live")
        for fold in page.locator("details").all():
            fold.evaluate("one => { one.open = true; }")
        assert page.evaluate("window.owned") is None
        assert page.title().endswith("LoopX")
        assert page.locator("body").is_visible()
        assert page.evaluate("document.scripts.length") == 1
        assert page.evaluate("document.querySelectorAll('img, iframe, object, style, svg[onload]').length") == 0
        assert page.evaluate("[...document.querySelectorAll('a')].every(a => a.origin === location.origin)")
        text = page.evaluate("document.body.textContent")
        assert not {"\x1b", "\x07", "\u202e", "\u2066"} & set(text)
        assert "<script>window.owned=1</script>" in text
        assert "{{ 7*7 }}" in text
        assert len(page.content()) < 600_000
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0
    stream = page.locator("#stream-lines")
    expect(stream).to_contain_text("after all of it")
    expect(stream).to_contain_text("⟨U+202E⟩kcab")
    assert page.evaluate("getComputedStyle(document.querySelector('#stream-lines .say')).unicodeBidi") == "isolate"


def test_hostile_words_do_nothing_live_either(page: Page, server: Server, world: World) -> None:
    world.goal(
        "hostile",
        "calm",
        [{"wait": "now"}, {"say": HOSTILE}, {"long": 5_000_000}, {"say": "after it"}, {"wait": "end"}],
        checks=("false",),
    )
    run = world.run_aside("hostile", max_turns=1)
    world.wait_until(lambda: world.waits("now"), "the agent waits")
    page.goto(f"{server.address}goals/hostile")
    expect(page.locator("#link")).to_have_attribute("data-state", "live")
    world.cue("now")
    stream = page.locator("#stream-lines")
    expect(stream.locator("li")).to_have_count(2)
    assert page.evaluate("window.owned") is None
    assert page.evaluate("document.querySelectorAll('#stream-lines :not(li, span, p)').length") == 0
    text = stream.inner_text()
    assert "<script>window.owned=1</script>" in text
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert len(text) < 20_000
    world.cue("end")
    run.join(timeout=60)


def test_everything_works_without_a_script(browser: Browser, server: Server, world: World) -> None:
    day(world)
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(server.url)
    page.locator("#asked").get_by_role("button", name="no").click()
    expect(page.get_by_text("Answered: no")).to_be_visible()
    page.goto(f"{server.address}goals/flaky-ci")
    page.get_by_text("Stop…").click()
    page.get_by_role("button", name="Stop now").click()
    expect(page.locator("#head .tag").first).to_have_text("stopped")
    context.close()


def test_the_keyboard_is_enough(page: Page, world: World) -> None:
    day(world)
    page.reload()
    expect(page.locator("#link")).to_have_attribute("data-state", "live")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("j")
    expect(page.locator("#g-refund-flow")).to_be_focused()
    page.keyboard.press("j")
    expect(page.get_by_role("button", name="yes")).to_be_focused()
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page).to_have_title("refund-flow · LoopX")
    # A page hears keys once its script runs.
    expect(page.locator("#link")).to_have_attribute("data-state", "live")
    page.keyboard.press("b")
    expect(page.locator("#asked")).to_be_visible()
    expect(page.locator("#link")).to_have_attribute("data-state", "live")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.get_by_label("use these keys").uncheck()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("j")
    expect(page.locator("#g-refund-flow")).not_to_be_focused()


def test_the_report_needs_nothing_beside_it(browser: Browser, server: Server, world: World, tmp_path: Path) -> None:
    day(world)
    context = browsers.look(browser, "light")
    page = context.new_page()
    page.goto(server.url)
    page.goto(f"{server.address}goals/iso-week-dates")
    with page.expect_download() as waiting:
        page.get_by_role("link", name="Report").click()
    path = tmp_path / "report.html"
    waiting.value.save_as(path)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    expect(page.get_by_role("heading", name="iso-week-dates")).to_be_visible()
    expect(page.locator("svg.chart")).to_have_count(3)
    assert asked == [path.as_uri()]
    serious = [one["id"] for one in Axe().run(page).response["violations"] if one["impact"] in ("serious", "critical")]
    assert serious == []
    if IMAGES:
        browsers.shoot(page, str(Path(IMAGES) / "report-light.png"))
    context.close()
