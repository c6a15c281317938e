"""Late writers: a process that was stopped while the world went on replaces no baseline and closes no goal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loopx.contracts.model import Contract
from loopx.contracts.parse import parse_command_line
from loopx.control_plane.errors import ConflictError
from loopx.control_plane.ids import TodoId
from loopx.control_plane.work_items.todo import Todo, TodoStatus
from loopx.runtime import goal_service, goal_work, tree_port
from loopx.runtime.evaluation import Evaluator
from loopx.runtime.progress import silent
from loopx.store import todos
from loopx.testing import Sandbox
from tests.chaos import kit
from tests.e2e.test_recovery import CHECKS, FILES, WHOLE


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(str(tmp_path), files=FILES) as sandbox:
        yield sandbox


def rows(box: Sandbox, question: str, *values: object) -> list[dict[str, Any]]:
    return kit.all_of(box.store.path, question, *values)


def test_a_baseline_that_comes_late_replaces_nothing(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped while it took the baseline wakes when the goal has long been completed."""
    goal = box.goal(WHOLE, checks=CHECKS)
    late = goal_work.open_goal(box.store, box.project, goal.goal_id)
    whole = Evaluator.baseline

    def slow(self: Evaluator, tree_hash: str) -> Any:
        taken = whole(self, tree_hash)
        monkeypatch.undo()
        assert box.run(goal).exit_code == 0
        return taken

    monkeypatch.setattr(Evaluator, "baseline", slow)
    taken = goal_work.take_baseline(box.store, late, box.env, silent, lambda: False, lambda: None)
    before = rows(box, "SELECT contract_state, baseline, evaluation FROM goals")
    assert before[0]["contract_state"] == "green"
    assert goal_work.baseline_of(box.store, goal.goal_id) == taken
    assert len(rows(box, "SELECT 1 FROM events WHERE kind = 'baseline_taken'")) == 1


def test_a_contract_that_is_edited_while_its_baseline_is_taken_gets_a_baseline_of_its_own(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    goal = box.goal(WHOLE, checks=CHECKS)
    whole = Evaluator.baseline
    other = Contract(checks=parse_command_line(("test -e n.txt", *CHECKS)))

    def edits(self: Evaluator, tree_hash: str) -> Any:
        taken = whole(self, tree_hash)
        monkeypatch.undo()
        changed = msgspec.structs.replace(goal.definition, contract=goal_service.encode_contract(other))
        goal_service.edit(box.store, goal.goal_id, changed, ("checks",))
        return taken

    monkeypatch.setattr(Evaluator, "baseline", edits)
    with pytest.raises(ConflictError) as caught:
        box.run(goal)
    assert caught.value.code == "stale_revision"
    assert goal_work.baseline_of(box.store, goal.goal_id) is None
    assert box.run(goal).exit_code == 0
    baseline = goal_work.baseline_of(box.store, goal.goal_id)
    assert baseline is not None
    assert len(baseline.evaluation.results) == 3


def test_a_goal_to_which_a_todo_was_added_meanwhile_is_not_closed(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frontier was terminal when it was looked at; the close must find nothing newer."""
    box.write("n.txt", "2\n")
    goal = box.goal(WHOLE, checks=CHECKS)
    with box.store.write() as tx:
        [own] = todos.unended(tx, goal.goal_id)
        todos.set_status(tx, own, TodoStatus.SUPERSEDED, box.store.now_ms())
    whole = tree_port.WorkTree.capture
    added: list[str] = []

    def adds(self: tree_port.WorkTree) -> str:
        found = whole(self)
        if not added and rows(box, "SELECT baseline FROM goals")[0]["baseline"] and closing_now():
            added.append("td-new")
            todo = Todo(todo_id=TodoId("td-new"), goal_id=goal.goal_id, title="one more thing")
            with box.store.write() as tx:
                todos.insert(tx, todo)
        return found

    monkeypatch.setattr(tree_port.WorkTree, "capture", adds)
    box.run(goal, max_turns=0)
    assert added
    [row] = rows(box, "SELECT state FROM goals")
    [todo] = rows(box, "SELECT status FROM todos WHERE todo_id = 'td-new'")
    assert (row["state"], todo["status"]) == ("active", "open")


def closing_now() -> bool:
    """Whether the goal is about to be closed."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "close_terminal_goal":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
