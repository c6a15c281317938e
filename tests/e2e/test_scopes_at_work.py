"""Several agents on one goal: what a run takes while others hold todos, and what `why` and `status` say of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loopx.control_plane.errors import ConflictError
from loopx.control_plane.ids import AgentId, TodoId
from loopx.control_plane.work_items.todo import Todo
from loopx.store import selection, todos
from tests.e2e.cli_kit import Cli
from tests.e2e.goal_kit import FIX_F, FIX_G
from tests.store import kit

DONE = '; result(kind="completion", summary="done")'


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    found = Cli(tmp_path, FIX_F + DONE, FIX_G + DONE)
    found.create()
    return found


def _add(cli: Cli, title: str, *flags: str) -> str:
    return str(cli.ok("todo", "add", "fg", title, *flags)["todo_id"])


def _facts(cli: Cli) -> dict[str, Any]:
    return {fact["name"]: fact["value"] for fact in cli.ok("why", "fg")["explanation"]["facts"]}


def test_a_run_leaves_alone_what_may_meet_another_agents_work_and_says_so(cli: Cli) -> None:
    theirs = _add(cli, "theirs", "--scope", "src/**")
    meets = _add(cli, "meets it", "--scope", "src/parser/**", "--priority", "9")
    free = _add(cli, "elsewhere", "--scope", "docs/**")
    cli.ok("todo", "claim", "fg", theirs, "--agent-id", "bob")
    assert f"{meets}: it may write what bob is writing for {theirs}" in cli.loopx("why", "fg").out

    first = cli.loopx("run", "fg", "--max-turns", "1", "--no-wait", "--json").lines
    assert [line["todo_id"] for line in first if line["type"] == "turn_started"] == [free]
    second = cli.loopx("run", "fg", "--no-wait", "--json")
    assert (second.code, second.json["turns"]) == (10, 0), second.out

    why = _facts(cli)
    assert (why["held_todo"], why["held_by_todo"], why["held_by_agent"]) == (meets, theirs, "bob")
    assert f"{meets} may write what bob is writing for {theirs}" in cli.loopx("why", "fg").out
    assert "may write what bob is writing" in cli.loopx("status", "fg").out
    changes = cli.ok("why", "fg")["explanation"]["changes"]
    assert ["loopx", "todo", "release", theirs] in [change.get("command") for change in changes]

    cli.ok("todo", "complete", theirs)
    third = cli.loopx("run", "fg", "--max-turns", "1", "--no-wait", "--json").lines
    assert [line["todo_id"] for line in third if line["type"] == "turn_started"] == [meets]


def test_a_review_is_asked_of_a_person_when_only_its_own_author_is_here(tmp_path: Path) -> None:
    """Also when other todos wait for that review: no new plan would help, and none is made."""
    cli = Cli(tmp_path, FIX_F + DONE)
    cli.create()
    made = _add(cli, "make it", "--check", "true")
    review = _add(cli, "review it", "--review-of", made)
    _add(cli, "ship it", "--depends-on", review)

    ended = cli.loopx("run", "fg", "--no-wait", "--json")

    turns = [line["purpose"] for line in ended.lines if line["type"] == "turn_started"]
    assert (turns, ended.code, ended.json["question"]) == (["work"], 11, "review it"), ended.out


@pytest.mark.leaves("open_turn", reason="a turn is started and not run")
def test_starting_a_turn_asks_again(tmp_path: Path) -> None:
    """Two agents that decided on the same snapshot: the second to start is refused in the transaction that claims."""
    store = kit.open_store(tmp_path)
    goal = kit.make_goal(store, todo=False)
    ids = []
    for scope in ("src/**", "src/a.py"):
        todo = Todo(todo_id=TodoId(store.ids.new("td")), goal_id=goal, title=scope, write_scope=(scope,))
        with store.write() as tx:
            todos.insert(tx, todo)
        ids.append(todo.todo_id)
    with store.read() as tx:
        seen = [selection.select(tx, goal, agent, store.now_ms()).ready for agent in ("a", "b")]
    assert [one.todo_id for one in seen if one] == [ids[0], ids[0]]
    kit.start_turn(store, goal, ids[0], agent=AgentId("a"))
    with pytest.raises(ConflictError) as refused:
        kit.start_turn(store, goal, ids[1], agent=AgentId("b"))
    assert refused.value.code == "scope_overlap"
    with store.read() as tx:
        selected = selection.select(tx, goal, "b", store.now_ms())
    assert selected.ready is None
    assert selected.held is not None and selected.held.by_agent == "a"
