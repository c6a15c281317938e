"""A goal whose new plans a person confirms: the delta is shown, and carried out or dropped with the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cli_kit import Cli
from tests.e2e.goal_kit import FIX_F, FIX_G

DONE = '; result(kind="completion", summary="done")'


def _replan(**delta: object) -> str:
    return f'open(os.environ["LOOPX_REPLAN_FILE"], "w").write({json.dumps(json.dumps(delta))})'


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Three turns that do nothing, a new plan, and then honest work."""
    plan = _replan(add=[{"title": "mend f"}, {"title": "mend g", "priority": 5}], drop=["OLD"], order=[])
    cli = Cli(tmp_path, "pass", "pass", "pass", plan, FIX_G + DONE, FIX_F + DONE)
    cli.create()
    old = cli.ok("todo", "add", "fg", "do it all at once")["todo_id"]
    cli.agent.write_text(cli.agent.read_text().replace("OLD", old))
    cli.ok("goal", "edit", "fg", "--replan-preview", "yes")
    return cli


def _titles(cli: Cli) -> dict[str, str]:
    return {todo["title"]: todo["status"] for todo in cli.ok("todo", "list", "fg", "--all")["todos"]}


def _asked(cli: Cli) -> dict[str, Any]:
    """Run up to the new plan; the question about it."""
    ran = cli.loopx("run", "fg", "--json", "--no-wait")
    assert (ran.code, ran.json["disposition"]) == (11, "user_action_required"), ran.out
    assert [line["purpose"] for line in ran.lines if line["type"] == "turn_started"][-1] == "replan"
    [gate] = cli.ok("gate", "list", "fg")["gates"]
    assert (gate["kind"], gate["options"]) == ("replan_preview", ["yes", "no"])
    return dict(gate)


def test_a_new_plan_is_shown_and_waits_and_yes_carries_it_out_whole(cli: Cli) -> None:
    gate = _asked(cli)
    before = _titles(cli)
    assert {title: status for title, status in before.items() if title != "make f and g right"} == {
        "do it all at once": "open"
    }, "nothing is carried out before the answer"
    shown = [line.strip() for line in cli.loopx("gate", "show", gate["gate_id"]).out.splitlines()]
    assert {"+ mend f", "+ mend g"} <= set(shown)
    assert any(line.startswith("- td") and line.endswith("do it all at once") for line in shown)

    cli.ok("gate", "answer", gate["gate_id"], "yes")

    after = _titles(cli)
    assert (after["mend f"], after["mend g"], after["do it all at once"]) == ("open", "open", "superseded")
    assert cli.loopx("run", "fg", "--no-wait").code == 0
    kinds = [event["kind"] for event in cli.ok("log", "fg", "--limit", "500")["events"]]
    assert kinds.count("replan_applied") == 1
    told = cli.ok("log", "fg", "--replay")
    assert (told["differences"], told["broken_link"]) == ([], None)
    assert told["todos"] == {todo["todo_id"]: todo["status"] for todo in cli.ok("todo", "list", "fg", "--all")["todos"]}
    assert "the store says the same" in cli.loopx("log", "fg", "--replay").out
    assert cli.loopx("log", "--replay", "--json").error["code"] == "goal_missing"


def test_no_drops_it_whole_and_the_agent_hears_of_that(cli: Cli) -> None:
    gate = _asked(cli)
    before = _titles(cli)

    cli.ok("gate", "answer", gate["gate_id"], "no")

    assert _titles(cli) == before
    assert cli.loopx("gate", "answer", gate["gate_id"], "yes", "--json").error["code"] == "already_answered"
    assert _titles(cli) == before
    assert cli.loopx("run", "fg", "--max-turns", "1", "--no-wait").code == 12
    assert "change the plan?" in cli.prompt(5) and "-> no" in cli.prompt(5)


def test_an_agent_can_not_confirm_its_own_plan(cli: Cli) -> None:
    gate = _asked(cli)
    refused = cli.loopx("gate", "answer", gate["gate_id"], "yes", "--json", env={"LOOPX_TURN_TOKEN": "x"})
    assert refused.code == 11
    assert "mend f" not in _titles(cli)


def test_a_goal_that_ended_meanwhile_takes_no_new_plan(cli: Cli) -> None:
    gate = _asked(cli)
    cli.ok("goal", "close", "fg")
    answered = cli.loopx("gate", "answer", gate["gate_id"], "yes", "--json")
    assert (answered.code, answered.error["code"]) == (15, "goal_closed")
    assert "mend f" not in _titles(cli)
    cli.ok("gate", "answer", gate["gate_id"], "no")


def test_a_plan_is_carried_out_at_once_where_nobody_wants_to_see_it(cli: Cli) -> None:
    cli.ok("goal", "edit", "fg", "--replan-preview", "no")
    assert cli.loopx("run", "fg", "--no-wait").code == 0
    assert _titles(cli)["mend f"] == "done"
