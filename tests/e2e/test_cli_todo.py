"""`loopx todo` as real processes: the graph, claims that never double, four eyes, waits, and the agent's own verbs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cli_kit import Cli
from tests.e2e.goal_kit import FIX_F, FIX_G

DONE = 'result(kind="completion", summary="done")'


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    found = Cli(tmp_path)
    found.create()
    return found


def _add(cli: Cli, title: str, *flags: str) -> str:
    found: str = cli.ok("todo", "add", "fg", title, *flags)["todo_id"]
    return found


def _titles(cli: Cli, *flags: str) -> list[str]:
    return [todo["title"] for todo in cli.ok("todo", "list", "fg", *flags)["todos"]]


def _todo(cli: Cli, todo_id: str) -> dict[str, Any]:
    return cli.ok("todo", "show", todo_id)


def test_a_named_slice_displaces_the_goal_itself(cli: Cli) -> None:
    assert _titles(cli) == ["make f and g right"]

    _add(cli, "mend f")

    assert _titles(cli) == ["mend f"]
    assert _titles(cli, "--all") == ["make f and g right", "mend f"]


def test_claims_follow_priority_and_dependencies(cli: Cli) -> None:
    low = _add(cli, "low")
    first = _add(cli, "first", "--priority", "5")
    after = _add(cli, "after", "--priority", "9", "--depends-on", first)

    assert cli.ok("todo", "claim", "fg", "--next", "--agent-id", "a1")["todo_id"] == first
    assert cli.ok("todo", "claim", "fg", "--next", "--agent-id", "a2")["todo_id"] == low
    nothing = cli.loopx("todo", "claim", "fg", "--next", "--agent-id", "a3", "--json")
    assert (nothing.code, nothing.error["code"]) == (10, "nothing_ready")
    cli.ok("todo", "complete", first)
    assert cli.ok("todo", "claim", "fg", "--next", "--agent-id", "a3")["todo_id"] == after


def test_a_claim_is_a_lease_that_only_its_agent_renews(cli: Cli) -> None:
    todo = _add(cli, "one")

    claimed = cli.ok("todo", "claim", "fg", todo, "--agent-id", "a1")
    assert 44 * 60_000 < claimed["expires_at_ms"] - _todo(cli, todo)["updated_at_ms"] <= 45 * 60_000
    taken = cli.loopx("todo", "claim", "fg", todo, "--agent-id", "a2", "--json")
    assert (taken.code, taken.error["code"]) == (15, "lease_held")
    again = cli.ok("todo", "claim", "fg", todo, "--agent-id", "a1")
    assert again["epoch"] == claimed["epoch"] + 1
    foreign = cli.loopx("todo", "release", todo, "--agent-id", "a2", "--json")
    assert (foreign.code, foreign.error["code"]) == (15, "not_yours")
    assert cli.ok("todo", "release", todo, "--agent-id", "a1")["status"] == "open"
    assert cli.ok("todo", "claim", "fg", todo, "--agent-id", "a2")["todo_id"] == todo


def test_of_many_claimants_at_once_each_todo_has_one(cli: Cli) -> None:
    todos = {_add(cli, f"todo {number}") for number in range(3)}
    started = [cli.start("todo", "claim", "fg", "--next", "--agent-id", f"a{number}", "--json") for number in range(6)]

    ended = [(process.communicate()[0], process.returncode) for process in started]

    won = [json.loads(out)["todo_id"] for out, code in ended if code == 0]
    assert sorted(won) == sorted(todos)
    assert [code for _, code in ended if code != 0] == [10, 10, 10]


def test_claims_whose_scopes_may_overlap_are_refused_and_the_next_other_is_taken(cli: Cli) -> None:
    _add(cli, "a", "--scope", "src/**", "--priority", "9")
    inside = _add(cli, "b", "--scope", "src/io/*.py", "--priority", "8")
    apart = _add(cli, "c", "--scope", "docs/**")

    cli.ok("todo", "claim", "fg", "--next", "--agent-id", "a1")
    refused = cli.loopx("todo", "claim", "fg", inside, "--agent-id", "a2", "--json")
    assert (refused.code, refused.error["code"]) == (15, "scope_overlap")
    assert cli.ok("todo", "claim", "fg", "--next", "--agent-id", "a2")["todo_id"] == apart


def test_whoever_did_the_work_can_not_review_it(cli: Cli) -> None:
    work = _add(cli, "work", "--check", "true")
    review = _add(cli, "review it", "--review-of", work)
    assert not _todo(cli, review)["ready"]
    cli.ok("todo", "claim", "fg", work, "--agent-id", "a1")
    cli.ok("todo", "complete", work, "--agent-id", "a1")

    refused = cli.loopx("todo", "claim", "fg", review, "--agent-id", "a1", "--json")
    assert (refused.code, refused.error["code"]) == (11, "four_eyes")
    assert cli.loopx("todo", "claim", "fg", "--next", "--agent-id", "a1").code == 10
    assert cli.ok("todo", "claim", "fg", "--next", "--agent-id", "a2")["todo_id"] == review


def test_an_agent_with_its_own_runner_completes_only_what_checks_prove(cli: Cli) -> None:
    plain = _add(cli, "without checks")
    proved = _add(cli, "with a check", "--check", "test -e made.txt")
    for todo in (plain, proved):
        cli.ok("todo", "claim", "fg", todo, "--agent-id", "a1")

    red = cli.loopx("todo", "complete", plain, "--agent-id", "a1", "--json")
    assert (red.code, red.error["code"]) == (14, "todo_unproved")
    assert cli.loopx("todo", "complete", proved, "--agent-id", "a1").code == 14
    (cli.root / "made.txt").write_text("")
    assert cli.ok("todo", "complete", proved, "--agent-id", "a1")["status"] == "done"
    assert _todo(cli, proved)["done_by"] == "a1"
    assert cli.ok("todo", "complete", plain)["status"] == "done"
    assert _todo(cli, plain)["done_by"] == "ada"
    twice = cli.loopx("todo", "complete", plain, "--json")
    assert (twice.code, twice.error["code"]) == (15, "todo_ended")


def test_deferrals_wake_by_a_todo_or_an_instant_and_never_in_a_circle(cli: Cli) -> None:
    first, second = _add(cli, "first"), _add(cli, "second")

    cli.ok("todo", "defer", second, "--wake-todo", first)
    circle = cli.loopx("todo", "defer", first, "--wake-todo", second, "--json")
    assert (circle.code, circle.error["code"]) == (2, "wake_circle")
    cli.ok("todo", "complete", first)
    assert _todo(cli, second)["status"] == "open"

    deferred = cli.ok("todo", "defer", second, "--wake-at", "2h", "--reason", "the registry is down")
    assert deferred["status"] == "deferred"
    assert "wakes" in cli.loopx("todo", "list", "fg").out
    decision = cli.loopx("quota", "should-run", "fg", "--json")
    assert decision.code in (0, 10)
    for flags, code in (
        ((), "wake_missing"),
        (("--wake-at", "soon"), "instant_invalid"),
        (("--wake-at", "2001-01-01"), "instant_past"),
        (("--wake-at", "2h", "--wake-todo", first), "wake_ambiguous"),
    ):
        ran = cli.loopx("todo", "defer", second, *flags, "--json")
        assert (ran.code, ran.error["code"]) == (2, code)


def test_todos_are_changed_dropped_and_opened_again(cli: Cli) -> None:
    todo, other = _add(cli, "old words"), _add(cli, "other", "--body", "more\nof it")

    cli.ok("todo", "update", todo, "--title", "new words", "--priority", "3", "--check", "true")
    shown = _todo(cli, todo)
    assert (shown["title"], shown["priority"], shown["checks"][0]["command"]) == ("new words", 3, ["true"])
    assert cli.ok("todo", "block", todo, "--reason", "no access")["status"] == "blocked"
    assert cli.ok("todo", "reopen", todo)["status"] == "open"
    assert cli.ok("todo", "supersede", "fg", todo)["status"] == "superseded"
    ended = cli.loopx("todo", "update", todo, "--title", "x", "--json")
    assert (ended.code, ended.error["code"]) == (15, "todo_ended")
    assert cli.ok("todo", "reopen", todo)["status"] == "open"
    assert "more" in cli.loopx("todo", "show", other).out


def test_a_persons_todo_asks_and_its_answer_ends_it(cli: Cli) -> None:
    todo = _add(cli, "rotate the key", "--person")
    gate = cli.ok("gate", "list", "fg")["gates"][0]
    assert (gate["question"], gate["options"], gate["todos"]) == ("rotate the key", ["done"], [todo])

    answered = cli.ok("gate", "answer", gate["gate_id"], "done")

    assert answered["ended_todo"] == todo
    assert _todo(cli, todo)["status"] == "done"
    other = _add(cli, "another", "--person")
    cli.ok("todo", "complete", other)
    assert cli.ok("gate", "list", "fg")["gates"] == []


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (("todo", "add", "fg", " "), 2, "title_empty"),
        (("todo", "add", "fg", "x" * 600), 2, "title_long"),
        (("todo", "add", "fg", "x", "--depends-on", "tdnone"), 3, "todo_unknown"),
        (("todo", "add", "fg", "x", "--review-of", "tdnone"), 3, "todo_unknown"),
        (("todo", "add", "fg", "x", "--person", "--monitor", "true"), 2, "todo_kinds"),
        (("todo", "add", "fg", "x", "--monitor", "true", "--every", "0s"), 2, "budget_amount_invalid"),
        (("todo", "add", "fg", "x", "--check", " "), 2, "check_empty"),
        (("todo", "add", "only one word"), 2, "title_unclear"),
        (("todo", "show", "tdnone"), 3, "todo_unknown"),
        (("todo", "complete", "tdnone"), 3, "todo_unknown"),
        (("todo", "claim", "fg"), 2, "todo_missing"),
        (("todo", "claim", "fg", "tdnone"), 3, "todo_unknown"),
        (("todo", "claim", "fg", "--next", "--agent-id", "a b"), 2, "bad_agent_id"),
        (("todo", "list", "fg", "--limit", "0"), 2, "limit_invalid"),
    ],
)
def test_bad_words_are_refused_and_make_nothing(cli: Cli, words: tuple[str, ...], status: int, code: str) -> None:
    ran = cli.loopx(*words, "--json")

    assert (ran.code, ran.error["code"]) == (status, code)
    assert ran.error["hint"]
    assert _titles(cli, "--all") == ["make f and g right"]


def test_lists_are_paged(cli: Cli) -> None:
    for number in range(5):
        _add(cli, f"todo {number}")

    seen: list[str] = []
    after = ""
    while True:
        page = cli.ok("todo", "list", "fg", "--limit", "2", *(("--after", after) if after else ()))
        seen += [todo["title"] for todo in page["todos"]]
        after = page["next_after"]
        if after is None:
            break
    assert sorted(seen) == [f"todo {number}" for number in range(5)]


def test_claim_is_quick_to_start(cli: Cli) -> None:
    """Started by other programs every tick: nothing heavy may be imported on its way."""
    _add(cli, "one")
    code = (
        "import sys; from loopx.cli import main; main(['todo', 'claim', 'fg', '--next', '--agent-id', 'a', '--json']);"
        "print([name for name in sys.modules if name.startswith(('loopx.contracts', 'loopx.workspace', 'rich',"
        " 'loopx.presentation', 'loopx.loops')) or name == 'platformdirs'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cli.root, env=cli.env, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


AGENT_VERBS = """
import subprocess, sys
def loopx(*words, **extra):
    env = {**os.environ, **extra}
    done = subprocess.run([sys.executable, "-m", "loopx", *words, "--json"], env=env, capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout.splitlines()[-1])
def tell(*answers): open(COUNT + ".told", "w").write(json.dumps(answers))
"""


def _told(cli: Cli) -> list[Any]:
    found: list[Any] = json.loads(Path(f"{cli.count}.told").read_text())
    return found


def test_the_agent_of_a_turn_adds_lists_and_completes_its_own_goals_todos(tmp_path: Path) -> None:
    first = f"""{AGENT_VERBS}
{FIX_F}
tell(
    loopx("todo", "list"),
    loopx("todo", "add", "mend g", "--body", "the other half"),
    loopx("todo", "complete", "--note", "f is right"),
    loopx("evidence", "add", "seen", "--text", "f returned 1"),
    loopx("todo", "list", "other"),
    loopx("todo", "add", "other", "sneak in"),
    loopx("todo", "complete", LOOPX_TURN_TOKEN="f" * 48),
)
"""
    cli = Cli(tmp_path, first, f"{AGENT_VERBS}\n{FIX_G}\ntell(loopx('todo', 'complete'))")
    cli.create("--todo", "mend f")
    cli.create(goal_id="other")

    ran = cli.loopx("run", "fg", "--max-turns", "1", "--json")

    listed, added, completed, noted, foreign, sneaked, forged = _told(cli)
    assert [todo["title"] for todo in listed[1]["todos"]] == ["mend f"]
    assert (added[0], completed[0], noted[0]) == (0, 0, 0)
    assert completed[1]["status"] == "candidate"
    assert (foreign[0], foreign[1]["error"]["code"]) == (3, "goal_unknown")
    assert (sneaked[0], sneaked[1]["error"]["code"]) == (3, "goal_unknown")
    assert (forged[0], forged[1]["error"]["code"]) == (2, "token_refused")
    assert [line["reason"] for line in ran.lines if line["type"] == "turn"] == ["todo_complete"]
    assert cli.loopx("run", "fg").code == 0
    assert "Todo: mend g" in cli.prompt(2)
    assert [one["produced"] for one in cli.ok("evidence", "list", "fg")["evidence"] if one["name"] == "seen"] == [
        "claimed"
    ]


def test_a_replan_is_worked_on_instead_of_the_goal_itself(tmp_path: Path) -> None:
    replan = (
        'open(os.environ["LOOPX_REPLAN_FILE"], "w").write('
        'json.dumps({"add": [{"title": "mend f"}, {"title": "mend g"}]}))'
    )
    cli = Cli(tmp_path, "pass", "pass", "pass", replan, f"{FIX_F}; {DONE}", f"{FIX_G}; {DONE}")
    cli.create()

    ran = cli.loopx("run", "fg", "--json")

    assert ran.code == 0
    assert "Todo: mend" in cli.prompt(5)
    assert "Todo: mend" in cli.prompt(6)
    assert ran.json["turns"] == 6


def test_a_todo_that_a_person_ends_under_a_turn_does_not_stick_the_turn(tmp_path: Path) -> None:
    hang = """
import time
open(COUNT + ".at-work", "w").close()
while not os.path.exists(COUNT + ".go-on"): time.sleep(0.05)
"""
    cli = Cli(tmp_path, f"{FIX_F}; {FIX_G}" + hang)
    cli.create("--todo", "mend both")
    run = cli.start("run", "fg", "--json")
    while not Path(f"{cli.count}.at-work").exists():
        pass
    todo = cli.ok("todo", "list", "fg")["todos"][0]
    assert todo["status"] == "claimed"

    cli.ok("todo", "complete", todo["todo_id"])
    Path(f"{cli.count}.go-on").touch()

    out, _ = run.communicate(timeout=60)
    assert run.returncode == 0
    assert json.loads(out.splitlines()[-1])["result_kind"] == "validated_completion"


def test_a_review_that_only_its_author_is_here_to_do_asks_a_person(tmp_path: Path) -> None:
    cli = Cli(tmp_path, f"{FIX_F}; {FIX_G}; {DONE}")
    cli.create("--todo", "mend both")
    work = cli.ok("todo", "list", "fg")["todos"][0]["todo_id"]
    review = cli.ok("todo", "add", "fg", "look at it", "--review-of", work)["todo_id"]

    ran = cli.loopx("run", "fg", "--no-wait", "--json")

    assert ran.code == 11
    assert cli.launches == 1
    gate = cli.ok("gate", "list", "fg")["gates"][0]
    assert (gate["question"], gate["todos"]) == ("look at it", [review])
    cli.ok("gate", "answer", gate["gate_id"], "done")
    assert cli.loopx("run", "fg", "--json").json["goal_state"] == "completed"
    assert cli.launches == 1


def test_a_blocked_todo_that_no_plan_frees_asks_a_person_once(tmp_path: Path) -> None:
    cli = Cli(tmp_path, "pass")
    cli.create("--todo", "impossible")
    todo = cli.ok("todo", "list", "fg")["todos"][0]["todo_id"]
    cli.ok("todo", "block", todo, "--reason", "no access")

    ran = cli.loopx("run", "fg", "--no-wait", "--json")

    assert (ran.code, cli.launches) == (11, 1)
    gate = cli.ok("gate", "list", "fg")["gates"][0]
    assert (gate["kind"], gate["options"]) == ("breaker", ["continue", "stop"])
    cli.ok("gate", "answer", gate["gate_id"], "continue")
    assert cli.ok("todo", "show", todo)["status"] == "open"


def test_through_its_tools_too_an_agent_reviews_nothing_of_its_own(tmp_path: Path) -> None:
    script = """
from loopx.control_plane.errors import LoopXError
from loopx.runtime import agent_service
from loopx.runtime.session import open_session
store = open_session(".").store
caller = agent_service.by_token(store, os.environ["LOOPX_TURN_TOKEN"])
try:
    agent_service.claim_todo(store, caller, open(COUNT + ".review").read())
    told = "claimed"
except LoopXError as error:
    told = error.code
open(COUNT + ".told", "w").write(told)
"""
    cli = Cli(tmp_path, f"{FIX_F}; {DONE}", script)
    cli.create("--todo", "mend f", "--todo", "mend g")
    work = next(todo for todo in cli.ok("todo", "list", "fg")["todos"] if todo["title"] == "mend f")
    review = cli.ok("todo", "add", "fg", "look at it", "--review-of", work["todo_id"])["todo_id"]
    Path(f"{cli.count}.review").write_text(review)

    cli.loopx("run", "fg", "--max-turns", "2", "--no-wait")

    assert cli.ok("todo", "show", work["todo_id"])["done_by"] == "loopx"
    assert Path(f"{cli.count}.told").read_text() == "four_eyes"
