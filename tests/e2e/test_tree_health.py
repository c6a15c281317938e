"""A work tree that can't be worked in: every surface says so before anything starts, and goes on when it is well."""

from __future__ import annotations

import shutil

import pytest

from loopx.runtime import tree_health
from loopx.workspace import identity
from tests.e2e.desk import Desk


def test_a_decision_and_the_turn_know_the_same_operations() -> None:
    assert tree_health.BEGUN == identity._IN_PROGRESS_FILES


@pytest.mark.parametrize(("name", "operation"), tree_health.BEGUN)
def test_an_operation_that_was_begun_needs_a_person(desk: Desk, name: str, operation: str) -> None:
    desk.goal()
    begun = desk.root / ".git" / name
    begun.write_text("x")
    packet = desk.json("quota", "should-run", "goal")
    assert (packet["rule"], packet["effective_action"]) == ("tree_unusable", "workspace_repair")
    assert packet["reason"].startswith(f"tree_unusable: {operation} in ")
    assert desk.loopx("quota", "should-run", "-q", "goal").code == 11
    assert "in the middle of a git operation" in desk.loopx("doctor").out
    begun.unlink()
    assert desk.loopx("quota", "should-run", "-q", "goal").code == 0


def test_a_linked_worktree_has_an_operation_of_its_own(desk: Desk) -> None:
    desk.git("worktree", "add", "-q", "../linked")
    linked = desk.root.parent / "linked"
    assert tree_health.trouble(str(linked)) is None
    (desk.root / ".git" / "worktrees" / "linked" / "MERGE_HEAD").write_text("x")
    assert tree_health.trouble(str(linked)) == "merge"
    assert tree_health.trouble(str(desk.root)) is None


def test_a_tree_that_is_gone_is_missing(desk: Desk) -> None:
    shutil.rmtree(desk.root)
    assert tree_health.trouble(str(desk.root)) == "missing"
