"""The live terminal view, driven by its own pilot: what is shown is the store's, and keys act through the services."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

pytest.importorskip("textual", reason="textual is not installed (the extra `tui`)")

from textual.pilot import Pilot
from textual.widgets import OptionList, RichLog, Static

from loopx.presentation.tui.app import AnswerGate, Sure, WatchApp
from loopx.presentation.tui.source import Source
from loopx.runtime.session import open_session
from loopx.store import gates, goals
from tests.web.world import World, csv_export, day, use

Steps = Callable[[WatchApp, "Pilot[None]"], Awaitable[None]]


def watch(world: World, goal_id: str | None, steps: Steps) -> None:
    """Run the application without a terminal, and take the steps."""

    async def drive() -> None:
        app = WatchApp(Source(lambda: open_session(world.box.root), "ada"), goal_id)
        async with app.run_test(size=(130, 44)) as pilot:
            await steps(app, pilot)

    asyncio.run(drive())


async def until(pilot: Pilot[None], true: Callable[[], bool], what: str) -> None:
    """Let the application look until something is so."""
    for _ in range(600):
        if true():
            return
        await pilot.pause(0.05)
    raise AssertionError(f"never: {what}")


def shown(app: WatchApp, name: str) -> str:
    """The words of one panel."""
    return str(app.query_one(f"#{name}", Static).render())


def said(app: WatchApp) -> str:
    """The words of the agent's stream."""
    return "\n".join(strip.text for strip in app.query_one("#stream", RichLog).lines)


def state(world: World, goal_id: str) -> str:
    with world.box.store.read() as tx:
        return str(goals.row_of(tx, goal_id)["state"])


def test_a_turn_is_followed_to_its_end(world: World) -> None:
    csv_export(world)
    run = world.run_aside("csv-export", max_turns=1)
    world.wait_until(lambda: world.waits("go"), "the agent waits")

    async def steps(app: WatchApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "I will write the exporter" in said(app), "the agent's words")
        assert "csv-export" in shown(app, "head")
        assert "▱▱▱▱▱▱▱" in shown(app, "now")
        assert "codex" in shown(app, "now")
        assert "rg -n" in said(app)
        assert "apply_patch" not in said(app)
        world.cue("go")
        await until(pilot, lambda: "The header and the rows are there." in said(app), "its last words")
        await until(pilot, lambda: "▰▰▰▰▰▰▰" in shown(app, "turns"), "all seven phases")
        await until(pilot, lambda: "grep -q rows export.py" in shown(app, "checks"), "the checks")
        assert "80k" in shown(app, "spend")

    watch(world, "csv-export", steps)
    run.join(timeout=60)


def test_a_question_is_answered_by_keys(world: World) -> None:
    day(world)

    async def steps(app: WatchApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "Drop support for v1" in shown(app, "gate"), "the question")
        await pilot.press("a")
        await until(pilot, lambda: isinstance(app.screen, AnswerGate), "the options")
        app.screen.query_one(OptionList).focus()
        await pilot.press("down", "up", "enter")
        await until(pilot, lambda: not app.query_one("#gate", Static).display, "the answer")

    watch(world, "refund-flow", steps)
    with world.box.store.read() as tx:
        assert gates.open_gates(tx, "refund-flow") == ()
        answered = gates.from_row(tx.all("gates.page", goal_id="refund-flow", after="", limit=1)[0])
    assert (answered.answer, answered.answered_by) == ("yes", "ada")


def test_p_pauses_and_resumes(world: World) -> None:
    world.goal("calm", "do little", [use(1, 1)], checks=("test -f never",))

    async def steps(app: WatchApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "active" in shown(app, "head"), "the goal")
        await pilot.press("p")
        await until(pilot, lambda: "paused" in shown(app, "head"), "the pause")
        assert state(world, "calm") == "paused"
        await pilot.press("p")
        await until(pilot, lambda: "active" in shown(app, "head"), "the resumption")

    watch(world, "calm", steps)
    assert state(world, "calm") == "active"


def test_c_asks_and_then_ends_the_running_agent(world: World) -> None:
    csv_export(world)
    run = world.run_aside("csv-export")
    world.wait_until(lambda: world.waits("go"), "the agent waits")

    async def steps(app: WatchApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "csv-export" in shown(app, "head"), "the goal")
        await pilot.press("c")
        await until(pilot, lambda: isinstance(app.screen, Sure), "the question")
        await pilot.press("n")
        assert state(world, "csv-export") == "active"
        await pilot.press("c")
        await until(pilot, lambda: isinstance(app.screen, Sure), "the question again")
        await pilot.press("y")
        await until(pilot, lambda: state(world, "csv-export") == "stopped", "the stop")

    watch(world, "csv-export", steps)
    run.join(timeout=60)
    assert not run.is_alive()


def test_all_goals_are_listed_by_what_they_need(world: World) -> None:
    day(world)

    async def steps(app: WatchApp, pilot: Pilot[None]) -> None:
        options = app.query_one("#goals", OptionList)
        await until(pilot, lambda: options.option_count == 4, "the goals")
        order = [options.get_option_at_index(index).id for index in range(4)]
        assert order == ["refund-flow", "flaky-ci", "nightly-deps", "iso-week-dates"]
        await until(pilot, lambda: "refund-flow" in shown(app, "head"), "the first goal")
        options.focus()
        await pilot.press("down")
        await until(pilot, lambda: "flaky-ci" in shown(app, "head"), "the second goal")
        assert "throttled" in shown(app, "now")

    watch(world, None, steps)


def test_a_strangers_markup_and_escapes_are_plain_words(world: World) -> None:
    hostile = "[bold red]markup[/] \x1b[2J\x1b]0;title\x07 \u202eback [link=x]y"
    world.goal("hostile", hostile, [{"say": hostile}, {"long": 5_000_000}, use(1, 1)], checks=("test -f never",))
    world.box.run("hostile", max_turns=1)

    async def steps(app: WatchApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "markup" in said(app), "the agent's words")
        assert "[bold red]markup[/]" in said(app)
        for panel in (said(app), shown(app, "head")):
            assert not any(char in panel for char in "\x1b\x07\u202e")
        assert "⟨U+202E⟩back" in shown(app, "head")
        assert len(said(app)) < 20_000

    watch(world, "hostile", steps)
