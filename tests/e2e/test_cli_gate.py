"""`loopx gate` and `loopx grant` as real processes: asked once, answered first by a person, never by an agent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.cli_kit import Cli
from tests.e2e.goal_kit import FIX_F, FIX_G

ASK = 'result(kind="question", question={"text": "Which week?", "choices": ["1", "53"]})'


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    found = Cli(tmp_path, FIX_F, FIX_G)
    found.create()
    return found


def _ask(cli: Cli, question: str = "Drop v1?", *flags: str) -> str:
    found: str = cli.ok("gate", "ask", "fg", question, *flags)["gate_id"]
    return found


def test_a_question_is_asked_once_and_holds_the_goal_until_its_first_answer(cli: Cli) -> None:
    gate = _ask(cli, "Drop v1?", "--option", "yes", "--option", "no")
    again = cli.ok("gate", "ask", "fg", "  drop V1? ", "--option", "yes", "--option", "no")
    assert (again["gate_id"], again["already"]) == (gate, True)
    assert cli.loopx("quota", "should-run", "fg").code == 11

    text = cli.loopx("gate", "list").out
    assert f'{gate}  fg  "Drop v1?"   blocks the goal' in text
    assert f"loopx gate answer {gate} yes|no" in text

    answered = cli.ok("gate", "answer", gate, "YES")
    assert (answered["answer"], answered["goal_id"]) == ("yes", "fg")
    late = cli.loopx("gate", "answer", gate, "no", "--json")
    assert (late.code, late.error["code"]) == (15, "already_answered")
    assert cli.ok("gate", "show", gate)["answered_by"] == "ada"
    assert cli.loopx("quota", "should-run", "fg").code == 0


def test_of_two_answers_at_once_one_counts(cli: Cli) -> None:
    gate = _ask(cli)
    started = [cli.start("gate", "answer", gate, word, "--json") for word in ("one", "two", "three")]

    ended = [(process.communicate()[0], process.returncode) for process in started]

    assert sorted(code for _, code in ended) == [0, 15, 15]
    won = next(json.loads(out)["answer"] for out, code in ended if code == 0)
    assert cli.ok("gate", "show", gate)["answer"] == won


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (("gate", "answer", "GATE", "perhaps"), 2, "not_an_option"),
        (("gate", "answer", "GATE", " "), 2, "answer_empty"),
        (("gate", "answer", "gnone", "yes"), 3, "gate_unknown"),
        (("gate", "show", "gnone"), 3, "gate_unknown"),
        (("gate", "ask", "fg", " "), 2, "question_empty"),
        (("gate", "ask", "fg", "x" * 3000), 2, "question_long"),
        (("gate", "ask", "fg", "a?", "--option", "yes", "--option", "Yes"), 2, "options_invalid"),
        (("gate", "ask", "fg", "a?", "--todo", "tdnone"), 3, "todo_unknown"),
        (("gate", "ask", "fg", "a?", "--expires", "yesterday"), 2, "instant_invalid"),
        (("gate", "ask", "no goal named"), 2, "question_unclear"),
        (("grant", "add", "fg", "--scope", "everything"), 2, "scope_invalid"),
        (("grant", "add", "fg", "--scope", "capability:push", "--answer", " "), 2, "answer_empty"),
        (("grant", "add", "fg", "--scope", "capability:push", "--expires", "2001-01-01"), 2, "instant_past"),
        (("grant", "revoke", "grnone"), 3, "grant_unknown"),
    ],
)
def test_bad_words_are_refused_and_answer_nothing(cli: Cli, words: tuple[str, ...], status: int, code: str) -> None:
    gate = _ask(cli, "Drop v1?", "--option", "yes", "--option", "no")

    ran = cli.loopx(*[gate if word == "GATE" else word for word in words], "--json")

    assert (ran.code, ran.error["code"]) == (status, code)
    assert ran.error["hint"]
    assert [one["gate_id"] for one in cli.ok("gate", "list")["gates"]] == [gate]


def test_a_question_about_one_todo_lets_the_others_go_on(cli: Cli) -> None:
    first = cli.ok("todo", "add", "fg", "first", "--priority", "9")["todo_id"]
    second = cli.ok("todo", "add", "fg", "second")["todo_id"]
    gate = _ask(cli, "Really?", "--todo", first)

    decision = cli.ok("quota", "should-run", "fg")
    assert (decision["effective_action"], decision["selected_todo"]["todo_id"]) == ("scoped_gate_fallback", second)
    assert cli.ok("todo", "claim", "fg", "--next", "--agent-id", "a")["todo_id"] == second
    cli.ok("gate", "answer", gate, "yes")
    assert cli.ok("todo", "claim", "fg", "--next", "--agent-id", "b")["todo_id"] == first


def test_an_agents_question_reaches_a_person_and_the_answer_reaches_the_agent(tmp_path: Path) -> None:
    cli = Cli(tmp_path, ASK, f"{FIX_F}; {FIX_G}")
    cli.create()
    assert cli.loopx("run", "fg", "--no-wait").code == 11
    gate = cli.ok("gate", "list", "fg")["gates"][0]
    assert (gate["question"], gate["options"]) == ("Which week?", ["1", "53"])

    cli.ok("gate", "answer", gate["gate_id"], "53")

    assert cli.loopx("run", "fg").code == 0
    assert "Which week? -> 53" in cli.prompt(2)


def test_a_question_beside_proved_progress_is_not_lost(tmp_path: Path) -> None:
    cli = Cli(tmp_path, f"{FIX_F}; {ASK}", FIX_G)
    cli.create()

    ran = cli.loopx("run", "fg", "--no-wait", "--json")

    assert [line["result_kind"] for line in ran.lines if line["type"] == "turn"] == ["validated_progress"]
    assert ran.code == 11
    gate = cli.ok("gate", "list", "fg")["gates"][0]
    assert gate["question"] == "Which week?"
    cli.ok("gate", "answer", gate["gate_id"], "1")
    assert cli.loopx("run", "fg").code == 0


def test_an_agent_asks_by_its_own_verb_and_can_not_answer(tmp_path: Path) -> None:
    script = """
import subprocess, sys
def loopx(*words, drop=False):
    env = dict(os.environ)
    if drop: env.pop("LOOPX_TURN_TOKEN")
    return subprocess.run([sys.executable, "-m", "loopx", *words], env=env, capture_output=True).returncode
gate = open(COUNT + ".gate").read()
codes = [loopx("gate", "answer", gate, "yes"), loopx("gate", "answer", gate, "yes", drop=True),
         loopx("quota", "raise", "fg", "--slots", "99"), loopx("gate", "ask", "Which week?", "--option", "1")]
open(COUNT + ".codes", "w").write(json.dumps(codes))
"""
    cli = Cli(tmp_path, script)
    cli.create("--todo", "first", "--todo", "second")
    second = cli.ok("todo", "list", "fg")["todos"][-1]["todo_id"]
    Path(f"{cli.count}.gate").write_text(_ask(cli, "Ship it?", "--option", "yes", "--todo", second))

    cli.loopx("run", "fg", "--no-wait", "--max-turns", "1")

    assert json.loads(Path(f"{cli.count}.codes").read_text()) == [11, 11, 11, 0]
    open_ones = {gate["question"]: gate for gate in cli.ok("gate", "list", "fg")["gates"]}
    assert set(open_ones) == {"Ship it?", "Which week?"}
    assert open_ones["Which week?"]["options"] == ["1"]


def test_a_standing_answer_answers_from_then_on_until_it_is_revoked(tmp_path: Path) -> None:
    cli = Cli(tmp_path, ASK, ASK, f"{FIX_F}; {FIX_G}")
    cli.create()
    assert cli.loopx("run", "fg", "--no-wait").code == 11
    gate = cli.ok("gate", "list", "fg")["gates"][0]["gate_id"]

    answered = cli.ok("gate", "answer", gate, "53", "--always", "--for", "7d")
    assert answered["grant_id"]
    ran = cli.loopx("run", "fg", "--json")

    assert (ran.code, cli.launches) == (0, 3)
    assert cli.ok("gate", "list", "fg")["gates"] == []
    everything = cli.ok("gate", "list", "fg", "--all")["gates"]
    assert sorted(one["answered_by"].split()[0] for one in everything) == ["ada", "grant"]
    grants = cli.ok("grant", "list", "fg")["grants"]
    assert [(one["grant_id"], one["answer"]) for one in grants] == [(answered["grant_id"], "53")]
    cli.ok("grant", "revoke", answered["grant_id"])
    twice = cli.loopx("grant", "revoke", answered["grant_id"], "--json")
    assert (twice.code, twice.error["code"]) == (15, "already_revoked")


def test_the_breakers_question_goes_on_or_stops_the_goal(tmp_path: Path) -> None:
    cli = Cli(tmp_path, "pass")
    cli.create()
    first = cli.loopx("run", "fg", "--no-wait")
    assert first.code == 11
    assert '"No progress, and a new plan did not help. Go on all the same?"' in first.out
    launches = cli.launches
    gate = cli.ok("gate", "list", "fg")["gates"][0]
    assert (gate["kind"], gate["options"]) == ("breaker", ["continue", "stop"])

    cli.ok("gate", "answer", gate["gate_id"], "continue")
    assert cli.loopx("run", "fg", "--no-wait").code == 11
    assert cli.launches > launches
    gate = cli.ok("gate", "list", "fg")["gates"][0]
    stopped = cli.ok("gate", "answer", gate["gate_id"], "stop")

    assert stopped["goal_state"] == "stopped"
    ran = cli.loopx("run", "fg", "--json")
    assert (ran.code, ran.error["hint"]) == (10, "loopx goal resume fg")


def test_lists_of_one_goal_are_paged(cli: Cli) -> None:
    asked = {_ask(cli, f"question {number}?") for number in range(5)}

    seen: list[str] = []
    after = ""
    while True:
        page = cli.ok("gate", "list", "fg", "--all", "--limit", "2", *(("--after", after) if after else ()))
        seen += [gate["gate_id"] for gate in page["gates"]]
        after = page["next_after"]
        if after is None:
            break
    assert len(seen) == 5
    assert set(seen) == asked


def test_standing_answers_are_paged(cli: Cli) -> None:
    made = [cli.ok("grant", "add", "fg", "--scope", f"capability:c{number}")["grant_id"] for number in range(3)]

    first = cli.ok("grant", "list", "fg", "--limit", "2")
    rest = cli.ok("grant", "list", "fg", "--limit", "2", "--after", first["next_after"])

    assert [one["grant_id"] for one in first["grants"] + rest["grants"]] == made
    assert rest["next_after"] is None
