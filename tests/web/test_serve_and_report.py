"""`loopx serve` and `loopx report` as programs: one line to come in by, and one file that keeps no secret."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="starlette is not installed (the extra `web`)")

from loopx.presentation.report.page import report_html
from loopx.runtime import agent_stream, views
from loopx.runtime.report_view import report_view
from tests.web.world import World, day, use

SECRET = "sk-abcdefghijklmnopqrstuv"


def loopx(world: World, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """One command in the world's project."""
    command = [sys.executable, "-m", "loopx", *words, "--project", world.box.root]
    return subprocess.run(
        command, env={**world.box.env, **env}, capture_output=True, text=True, check=False, timeout=120
    )


def test_serve_prints_one_line_and_answers_at_its_address(world: World) -> None:
    world.goal("calm", "do little", [use(1, 1)], checks=("test -f never",))
    command = [sys.executable, "-m", "loopx", "serve", "--json", "--port", "0", "--project", world.box.root]
    process = subprocess.Popen(command, env=world.box.env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        told = json.loads(process.stdout.readline())
        assert told["ok"] is True
        assert told["url"] == f"{told['address']}?token={told['token']}"
        asked = urllib.request.Request(told["address"], headers={"Authorization": f"Bearer {told['token']}"})
        with urllib.request.urlopen(asked, timeout=30) as answer:
            assert "calm" in answer.read().decode()
    finally:
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        process.stdout.close()
        assert process.wait(timeout=30) in (0, 130)
    assert rest == ""


def test_serve_refuses_other_machines_unless_asked(world: World) -> None:
    world.goal("calm", "do little", [use(1, 1)], checks=("test -f never",))
    done = loopx(world, "serve", "--json", "--host", "0.0.0.0")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "remote_not_allowed"


def test_an_agent_can_not_serve_the_page(world: World) -> None:
    world.goal("calm", "do little", [use(1, 1)], checks=("test -f never",))
    done = loopx(world, "serve", "--json", "--port", "0", LOOPX_TURN_TOKEN="anything")
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (11, "person_only")


def test_watch_needs_a_terminal(world: World) -> None:
    world.goal("calm", "do little", [use(1, 1)], checks=("test -f never",))
    done = loopx(world, "watch")
    assert (done.returncode, "needs a terminal" in done.stderr) == (2, True)


def test_a_report_is_one_file_without_scripts_or_addresses(world: World, tmp_path: Path) -> None:
    day(world)
    path = tmp_path / "report.html"
    done = loopx(world, "report", "iso-week-dates", "-o", str(path), "--json")
    told = json.loads(done.stdout)
    assert (told["path"], told["turns"], told["goal_id"]) == (str(path), 3, "iso-week-dates")
    text = path.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "href=" not in text
    assert "src=" not in text
    assert text.count('<svg class="chart"') == 3
    assert "all checks green" in text
    assert "fromisocalendar" in text


def test_a_report_keeps_no_secret(world: World) -> None:
    world.goal(
        "leaky",
        f"use {SECRET} well",
        [{"say": f"the key is {SECRET}"}, {"edit": {"notes.md": f"key {SECRET}\n"}}, use(1, 1)],
        checks=("cat notes.md; false",),
    )
    world.box.run("leaky", max_turns=1)
    text = report_html(report_view(world.box.store, world.box.project, "leaky"))
    assert "[redacted]" in text
    assert SECRET not in text
    run = views.live_run(world.box.store, "leaky")
    assert run is not None
    prompt = agent_stream.prompt_of(run.spool_dir)
    assert prompt is not None
    assert "[redacted]" in prompt
    assert SECRET not in Path(run.spool_dir, agent_stream.PROMPT_NAME).read_text(encoding="utf-8")


def test_a_report_since_an_instant_has_only_the_later_turns(world: World) -> None:
    day(world)
    whole = report_view(world.box.store, world.box.project, "iso-week-dates")
    last = whole.turns[-1].view.line
    late = report_view(world.box.store, world.box.project, "iso-week-dates", last.started_at_ms)
    assert [one.view.line.number for one in late.turns] == [3]
    assert late.left_out == 2


def test_a_report_that_can_not_be_written_is_said_so(world: World) -> None:
    day(world)
    done = loopx(world, "report", "iso-week-dates", "-o", os.path.join(world.box.root, "no", "folder"), "--json")
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (2, "report_unwritable")
