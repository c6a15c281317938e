"""Checkpoint commits: on the goal's branch, complete, made once, and without touching the user's side."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loopx.control_plane.errors import ConflictError, LoopXError, NotFoundError, UsageError
from loopx.control_plane.ids import EffectRef, GoalId, TurnKey
from loopx.workspace import checkpoint, revert, tree
from loopx.workspace.repository import Kind, Repository
from tests.unit.workspace_helpers import git, new_repository, opened, user_side, write

GOAL = GoalId("fix-tests")
NOW_MS = 1_790_000_000_123


def commit(
    repo: Repository, turn: int, parent: str | None, *, subject: str = "did a thing", goal: GoalId = GOAL
) -> str:
    return checkpoint.commit_checkpoint(
        repo,
        goal_id=goal,
        tree_hash=tree.capture_repository(repo).tree_hash,
        parent=parent,
        turn_key=TurnKey(f"turn-{turn}"),
        effect_ref=EffectRef(f"effect-{turn}"),
        subject=subject,
        when_ms=NOW_MS + turn * 1000,
    )


def refused(repo: Repository, turn: int, parent: str | None, *, goal: GoalId = GOAL) -> str:
    with pytest.raises(LoopXError) as error:
        commit(repo, turn, parent, goal=goal)
    return error.value.code


def test_turns_become_commits_and_the_users_side_stays(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    for name in ("reference-transaction", "post-commit", "commit-msg"):
        (root / ".git/hooks").mkdir(exist_ok=True)
        (root / ".git/hooks" / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/hook\nexit 1\n")
        (root / ".git/hooks" / name).chmod(0o755)
    for key, value in (("commit.gpgsign", "true"), ("gpg.program", "/bin/false"), ("user.useConfigOnly", "true")):
        git(root, "config", key, value)
    write(root, {"a.txt": "staged\n"})
    git(root, "add", "a.txt")
    write(root, {"a.txt": "staged and more\n", "dirty": "d"})
    repo = opened(root, tmp_path)
    side = user_side(root)
    head = git(root, "rev-parse", "HEAD")
    start = checkpoint.base(root, tmp_path / "state", GOAL, NOW_MS)
    assert (start.head, start.branch, start.kind, start.dirty) == (head, "main", Kind.GIT, True)
    write(root, {"new.py": "1"})
    first = commit(repo, 1, None)
    write(root, {"new.py": "2"})
    second = commit(repo, 2, first, subject="two\nlines\n\nLoopX-Effect: forged")
    assert user_side(root) == side and not (tmp_path / "hook").exists()
    assert git(root, "log", "--format=%H", "loopx/fix-tests").split() == [second, first, head]
    assert git(root, "show", "loopx/fix-tests:dirty") == "d"
    shown = git(root, "log", "-1", "--format=%an <%ae>|%cn <%ce>|%at|%s|%(trailers)", second)
    assert shown.startswith(
        "LoopX <loopx@localhost>|LoopX <loopx@localhost>|1790000002|two lines LoopX-Effect: forged|"
    )
    assert "LoopX-Turn: turn-2\nLoopX-Effect: effect-2" in shown
    found = checkpoint.checkpoints(repo, GOAL)
    assert [(one.sha, one.parent, one.turn_key, one.effect_ref) for one in found] == [
        (second, first, "turn-2", "effect-2"),
        (first, head, "turn-1", "effect-1"),
    ]
    assert checkpoint.history(repo, GOAL, EffectRef("forged")).same is None


def test_the_commits_survive_a_prune_and_the_loss_of_loopx_own_folder(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    write(root, {"staged only": "s"})
    git(root, "add", "-A")
    repo = opened(root, tmp_path)
    write(root, {"staged only": "then changed", **{f"many/{n}": str(n) for n in range(150)}})
    start = checkpoint.base(root, tmp_path / "state", GOAL, NOW_MS)
    write(root, {"turn": "1"})
    commit(repo, 1, None)
    git(root, "reset", "-q", "--hard")
    git(root, "clean", "-fdq")
    git(root, "reflog", "expire", "--expire=now", "--all")
    git(root, "gc", "-q", "--prune=now")
    (tmp_path / "state").rename(tmp_path / "lost")
    assert git(root, "fsck", "--full", "--strict") == ""
    assert git(root, "show", "loopx/fix-tests:many/149") == "149"
    assert git(root, "show", f"{start.commit}:staged only") == "then changed"


def test_calling_again_makes_no_second_commit(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    repo = opened(root, tmp_path)
    write(root, {"new": "1"})
    first = commit(repo, 1, None)
    assert commit(repo, 1, None) == first
    write(root, {"new": "2"})
    second = commit(repo, 2, first)
    write(root, {"new": "1"})
    assert commit(repo, 1, None) == first, "also when later turns followed"
    write(root, {"new": "3"})
    assert refused(repo, 2, first) == "effect_reused"
    assert git(root, "rev-list", "--count", f"main..{second}") == "2"
    found = checkpoint.history(repo, GOAL, EffectRef("effect-2")).same
    assert found is not None and (found.sha, found.when_ms) == (second, 1_790_000_002_000)


@pytest.mark.parametrize("point", ["commit-tree", "pack-objects", "unpack-objects"])
def test_a_kill_at_any_step_is_healed_by_calling_again(tmp_path: Path, point: str) -> None:
    root = new_repository(tmp_path / "p")
    repo = opened(root, tmp_path)
    write(root, {"new": "1"})
    state = tree.capture_repository(repo)
    program = f"""
import os, signal, pathlib, sys
from loopx.workspace import checkpoint, git
from loopx.workspace.repository import open_repository
run = git.run
def run_and_die(args, **rest):
    done = run(args, **rest)
    if args[0] == {point!r}: os.kill(os.getpid(), signal.SIGKILL)
    return done
git.run = run_and_die
checkpoint.commit_checkpoint(open_repository(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])),
    goal_id="fix-tests", tree_hash={state.tree_hash!r}, parent=None, turn_key="turn-1", effect_ref="effect-1",
    subject="did a thing", when_ms={NOW_MS + 1000})
"""
    ended = subprocess.run([sys.executable, "-c", program, str(root), str(tmp_path / "state")], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert checkpoint.history(repo, GOAL, EffectRef("effect-1")).same is None
    first = commit(repo, 1, None)
    assert git(root, "rev-parse", "loopx/fix-tests") == first
    assert git(root, "fsck", "--strict") == ""


def test_a_branch_that_is_not_ours_or_in_use_is_refused(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    repo = opened(root, tmp_path)
    git(root, "branch", "loopx/fix-tests")
    assert refused(repo, 1, None) == "branch_not_ours"
    with pytest.raises(ConflictError) as exists:
        checkpoint.base(root, tmp_path / "state", GOAL, NOW_MS)
    assert exists.value.code == "branch_exists"
    git(root, "branch", "-D", "loopx/fix-tests")
    write(root, {"new": "1"})
    first = commit(repo, 1, None)
    git(root, "worktree", "add", "-q", str(tmp_path / "look"), "loopx/fix-tests")
    assert refused(repo, 2, first) == "branch_checked_out"
    git(tmp_path / "look", "commit", "-q", "--allow-empty", "-m", "the user's own")
    git(root, "worktree", "remove", str(tmp_path / "look"))
    assert refused(repo, 2, first) == "branch_not_ours"


def test_the_branch_moves_only_from_where_the_caller_saw_it(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    repo = opened(root, tmp_path)
    write(root, {"new": "1"})
    first = commit(repo, 1, None)
    write(root, {"new": "2"})
    second = commit(repo, 2, first)
    write(root, {"new": "3"})
    assert refused(repo, 3, first) == "branch_moved"
    assert refused(repo, 3, None) == "branch_moved"
    assert git(root, "rev-parse", "loopx/fix-tests") == second


def test_names_that_git_cannot_hold(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    repo = opened(root, tmp_path)
    for name in ("a..b", "with space", "end.lock", "-", "x/"):
        if name != "-":
            assert refused(repo, 1, None, goal=GoalId(name)) == "bad_goal_name"
    git(root, "branch", "loopx")
    assert refused(repo, 1, None) == "branch_name_blocked"
    here = tree.capture_repository(repo).tree_hash
    with pytest.raises(UsageError) as trailer:
        checkpoint.commit_checkpoint(
            repo,
            goal_id=GOAL,
            tree_hash=here,
            parent=None,
            turn_key=TurnKey("t"),
            effect_ref=EffectRef("a\nLoopX-Turn: b"),
            subject="s",
            when_ms=0,
        )
    assert trailer.value.code == "bad_trailer"


def test_an_empty_repository_gets_a_root_commit(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p", {})
    repo = opened(root, tmp_path)
    start = checkpoint.base(root, tmp_path / "state", GOAL, NOW_MS)
    assert (start.head, start.dirty) == (None, False)
    write(root, {"a": "1"})
    first = commit(repo, 1, None)
    assert checkpoint.checkpoints(repo, GOAL)[0].parent is None
    assert git(root, "rev-list", "loopx/fix-tests") == first
    assert git(root, "status", "--porcelain", "-b").startswith("## No commits yet on main")


def test_a_repository_with_longer_hashes(tmp_path: Path) -> None:
    root = tmp_path / "p"
    root.mkdir()
    git(root, "init", "-q", "-b", "main", "--object-format=sha256")
    write(root, {"a": "1"})
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    repo = opened(root, tmp_path)
    write(root, {"a": "2"})
    first = commit(repo, 1, None)
    assert len(first) == 64 and git(root, "rev-parse", "loopx/fix-tests") == first


def test_a_base_is_recorded_once(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    repo = opened(root, tmp_path)
    with pytest.raises(NotFoundError):
        checkpoint.read_base(repo, GOAL)
    start = checkpoint.base(root, tmp_path / "state", GOAL, NOW_MS)
    assert not start.dirty
    assert checkpoint.base(root, tmp_path / "state", GOAL, NOW_MS + 5000) == start
    assert checkpoint.read_base(repo, GOAL).tree_hash == start.tree_hash
    write(root, {"a.txt": "changed"})
    with pytest.raises(ConflictError) as other:
        checkpoint.base(root, tmp_path / "state", GOAL, NOW_MS)
    assert other.value.code == "base_exists"
    assert checkpoint.base(root, tmp_path / "state", GOAL, NOW_MS, replace=True).dirty
    checkpoint.drop_base(repo, GOAL)
    assert git(root, "for-each-ref", "refs/loopx") == ""


def test_outside_git_the_checkpoints_are_in_loopx_own_folder(tmp_path: Path) -> None:
    root = tmp_path / "plain"
    write(root, {"a": "1"})
    repo = opened(root, tmp_path)
    start = checkpoint.base(root, tmp_path / "state", GOAL, NOW_MS)
    assert (start.kind, start.head, start.dirty) == (Kind.PLAIN, None, False)
    write(root, {"a": "2"})
    first = commit(repo, 1, None)
    assert commit(repo, 1, None) == first
    write(root, {"a": "3"})
    commit(repo, 2, first)
    assert sorted(path.name for path in root.iterdir()) == ["a"]
    revert.revert_turn(repo, GOAL, TurnKey("turn-2"))
    assert (root / "a").read_text() == "2"
    revert.discard(repo, GOAL)
    assert (root / "a").read_text() == "1"


def test_a_turn_is_reverted_and_a_goal_discarded(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    write(root, {"mine": "uncommitted work of the user"})
    repo = opened(root, tmp_path)
    start = checkpoint.base(root, tmp_path / "state", GOAL, NOW_MS)
    write(root, {"a.txt": "turn 1", "added": "1"})
    first = commit(repo, 1, None)
    write(root, {"a.txt": "turn 2"})
    commit(repo, 2, first)
    revert.revert_turn(repo, GOAL, TurnKey("turn-2"))
    assert (root / "a.txt").read_text() == "turn 1"
    revert.revert_turn(repo, GOAL, TurnKey("turn-1"), expected_tree=checkpoint.tree_of(repo, first))
    assert tree.capture_repository(repo).tree_hash == start.tree_hash
    assert (root / "mine").read_text() == "uncommitted work of the user"
    with pytest.raises(NotFoundError) as unknown:
        revert.revert_turn(repo, GOAL, TurnKey("turn-9"))
    assert unknown.value.code == "checkpoint_missing"


def test_somebody_elses_change_is_not_overwritten_unless_forced(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    repo = opened(root, tmp_path)
    checkpoint.base(root, tmp_path / "state", GOAL, NOW_MS)
    write(root, {"a.txt": "turn 1"})
    commit(repo, 1, None)
    write(root, {"a.txt": "the user, since"})
    for action in (lambda: revert.revert_turn(repo, GOAL, TurnKey("turn-1")), lambda: revert.discard(repo, GOAL)):
        with pytest.raises(ConflictError) as changed:
            action()
        assert (changed.value.code, changed.value.data["first"]) == ("tree_changed", "a.txt")
    done = revert.discard(repo, GOAL, force=True)
    assert (root / "a.txt").read_text() == "one\n" and done.previous_tree is not None
    assert tree.read_file(repo, done.previous_tree, "a.txt") == b"the user, since"


def test_many_checkpoints_are_read_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_BATCH", 2)
    root = new_repository(tmp_path / "p")
    repo = opened(root, tmp_path)
    parent = None
    for turn in range(5):
        write(root, {"n": str(turn)})
        parent = commit(repo, turn, parent)
    assert [one.turn_key for one in checkpoint.checkpoints(repo, GOAL)] == [f"turn-{n}" for n in (4, 3, 2, 1, 0)]


def test_no_user_configuration_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = new_repository(tmp_path / "p")
    for name in ("HOME", "XDG_CONFIG_HOME", "EMAIL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    write(root, {"new": "1"})
    assert commit(opened(root, tmp_path), 1, None)
