"""Work trees of LoopX's own: isolated, holding the base, with usable dependencies, and removed only when kept."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from loopx.control_plane.errors import ConflictError, LoopXError, NotFoundError, UsageError
from loopx.workspace import dependencies, identity, snapshot, tree, worktree
from loopx.workspace.repository import Repository
from loopx.workspace.worktree import WorktreeState
from tests.unit.workspace_helpers import git, names, new_repository, opened, user_side, write

NOW_MS = 1_790_000_000_000


def made(repo: Repository, place: Path, source: str | None = None, **rest: Any) -> worktree.Worktree:
    source = source or tree.capture_repository(repo).tree_hash
    return worktree.add_worktree(repo, place, source, owner="goal-1", when_ms=NOW_MS, **rest)


def listed(root: Path) -> int:
    return git(root, "worktree", "list", "--porcelain").count("worktree ")


def test_it_starts_with_the_uncommitted_work_and_leaves_the_main_tree_alone(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    (root / ".git/hooks").mkdir(exist_ok=True)
    (root / ".git/hooks/post-checkout").write_text(f"#!/bin/sh\ntouch {tmp_path}/hook\n")
    (root / ".git/hooks/post-checkout").chmod(0o755)
    write(root, {"a.txt": "dirty\n", "untracked": "u"})
    git(root, "add", "a.txt")
    side = user_side(root)
    repo = opened(root, tmp_path)
    base = tree.capture_repository(repo)
    one = made(repo, tmp_path / "w t", base.tree_hash)
    place = Path(one.path)
    assert (one.owner, one.base_tree) == ("goal-1", base.tree_hash)
    assert (place / "a.txt").read_text() == "dirty\n" and (place / "untracked").read_text() == "u"
    assert git(place, "status", "--porcelain") == "" and git(place, "rev-parse", "HEAD") == one.commit
    assert git(place, "rev-parse", "HEAD~1") == base.head
    status = identity.inspect(place)
    assert (status.toplevel, status.branch) == (str(place), None)
    inside = opened(place, tmp_path)
    assert tree.capture_repository(inside).tree_hash == base.tree_hash
    assert user_side(root) == side and not (tmp_path / "hook").exists()
    write(place, {"a.txt": "agent"})
    assert tree.capture_repository(repo).tree_hash == base.tree_hash, "isolated"
    git(root, "gc", "-q", "--prune=now")
    assert git(root, "fsck", "--strict") == ""


def test_from_a_commit(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    write(root, {"a.txt": "dirty"})
    one = made(opened(root, tmp_path), tmp_path / "w", "HEAD")
    assert one.commit == git(root, "rev-parse", "HEAD")
    assert (Path(one.path) / "a.txt").read_text() == "one\n"


def test_dependency_folders_are_linked_and_never_captured(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p", {".gitignore": "node_modules/\n", "a": "1"})
    write(root, {"node_modules/m/index.js": "1"})
    repo = opened(root, tmp_path)
    base = tree.capture_repository(repo).tree_hash
    one = made(repo, tmp_path / "w", base)
    place = Path(one.path)
    assert one.linked == ("node_modules",) and (place / "node_modules").readlink() == root / "node_modules"
    inside = opened(place, tmp_path)
    assert tree.capture_repository(inside).tree_hash == base
    assert dependencies.detect(inside) == ("node_modules",)
    with snapshot.materialize(inside, base) as copy:
        assert not (copy.path / "node_modules").is_symlink() and (copy.path / "node_modules/m/index.js").exists()
    worktree.remove_worktree(repo, place)
    assert (root / "node_modules/m/index.js").exists(), "the link goes, not what it leads to"
    assert not place.exists()


def test_an_environment_with_an_editable_install_is_copied_not_linked(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p", {".gitignore": ".venv/\n", "src/app.py": "VALUE = 'main tree'\n"})
    venv.create(root / ".venv", with_pip=False, symlinks=True)
    packages = next((root / ".venv").glob("lib/python*/site-packages"))
    (packages / "app.pth").write_text(f"{root}/src\n")
    repo = opened(root, tmp_path)
    one = made(repo, tmp_path / "w")
    place = Path(one.path)
    assert (one.linked, one.copied) == ((), (".venv",))
    write(place, {"src/app.py": "VALUE = 'own tree'\n"})
    command = [place / ".venv/bin/python", "-c", "import app; print(app.VALUE)"]
    assert subprocess.check_output(command, cwd=tmp_path, text=True) == "own tree\n"


def test_a_setup_command_runs_there_instead(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p", {".gitignore": "node_modules/\n", "a": "1"})
    write(root, {"node_modules/m": "1"})
    repo = opened(root, tmp_path)
    write_here = "import os, pathlib; pathlib.Path('node_modules').mkdir(); print(os.getcwd())"
    one = made(repo, tmp_path / "w", setup=[sys.executable, "-c", write_here])
    assert (Path(one.path) / "node_modules").is_dir() and not (Path(one.path) / "node_modules").is_symlink()


@pytest.mark.parametrize(
    ("setup", "says"),
    [
        ((sys.executable, "-c", "print('needs network'); raise SystemExit(3)"), "needs network"),
        (("/no/such/program",), "No such file"),
        ((sys.executable, "-c", "import time; time.sleep(600)"), "not done"),
    ],
)
def test_a_failing_setup_leaves_nothing_behind(tmp_path: Path, setup: tuple[str, ...], says: str) -> None:
    root = new_repository(tmp_path / "p")
    repo = opened(root, tmp_path)
    with pytest.raises(UsageError) as failed:
        made(repo, tmp_path / "w", setup=setup, setup_timeout_s=3.0)
    assert failed.value.code == "worktree_setup_failed" and says in failed.value.message
    assert not (tmp_path / "w").exists() and worktree.list_worktrees(repo) == () and listed(root) == 1


def test_places_that_are_refused(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    repo = opened(root, tmp_path)
    (tmp_path / "taken").mkdir()
    codes = []
    for place, source in ((root / "inside", "HEAD"), (tmp_path / "taken", "HEAD"), (tmp_path / "w", "1" * 40)):
        with pytest.raises(LoopXError) as error:
            made(repo, place, source)
        codes.append(error.value.code)
    assert codes == ["worktree_inside_project", "worktree_exists", "tree_missing"]
    assert worktree.list_worktrees(repo) == () and listed(root) == 1


def test_only_our_own_are_listed_and_removed(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    git(root, "worktree", "add", "-q", str(tmp_path / "users"), "-b", "users")
    repo = opened(root, tmp_path)
    one = made(repo, tmp_path / "ours")
    assert [(each.path, each.owner) for each in worktree.list_worktrees(repo)] == [(one.path, "goal-1")]
    with pytest.raises(NotFoundError) as unknown:
        worktree.remove_worktree(repo, tmp_path / "users", force=True)
    assert unknown.value.code == "worktree_unknown" and (tmp_path / "users/a.txt").exists()


def test_work_that_is_kept_nowhere_is_not_removed_and_a_squash_merge_counts_as_kept(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    repo = opened(root, tmp_path)
    one = made(repo, tmp_path / "w")
    place = Path(one.path)
    write(place, {"new.py": "n", "a.txt": "better\n"})
    (place / "src/b.py").rename(place / "src/c.py")
    git(place, "add", "-A")
    git(place, "commit", "-qm", "agent")
    with pytest.raises(ConflictError) as refused:
        worktree.remove_worktree(repo, place)
    assert (refused.value.code, refused.value.data["files"]) == ("unmerged_work", 3)
    git(root, "merge", "-q", "--squash", git(place, "rev-parse", "HEAD"))
    git(root, "rm", "-q", "--cached", "new.py")
    git(root, "commit", "-qm", "squashed, without new.py")
    with pytest.raises(ConflictError) as still:
        worktree.remove_worktree(repo, place, kept_in=["HEAD"])
    assert still.value.data["first"] == "new.py"
    git(root, "add", "new.py")
    write(root, {"unrelated": "later work of others"})
    git(root, "add", "-A")
    git(root, "commit", "-qm", "rest")
    worktree.remove_worktree(repo, place, kept_in=["HEAD"])
    assert not place.exists() and listed(root) == 1


def test_a_crash_or_a_deletion_by_hand_is_cleaned_up(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    repo = opened(root, tmp_path)
    program = f"""
import os, pathlib, sys
from loopx.workspace import git, worktree
from loopx.workspace.repository import open_repository
run = git.run
def run_and_die(args, **rest):
    if args[:2] == ("worktree", "add") and sys.argv[3] == "before": os.kill(os.getpid(), 9)
    done = run(args, **rest)
    if args[:2] == ("worktree", "add"): os.kill(os.getpid(), 9)
    return done
git.run = run_and_die
repo = open_repository(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
worktree.add_worktree(repo, pathlib.Path(sys.argv[4]), "HEAD", owner="goal-1", when_ms={NOW_MS})
"""
    for point in ("before", "after"):
        args = [sys.executable, "-c", program, str(root), str(tmp_path / "state"), point, str(tmp_path / point)]
        subprocess.run(args, check=False)
    gone = made(repo, tmp_path / "gone")
    subprocess.run(["rm", "-rf", gone.path], check=True)
    states = {Path(one.path).name: one.state for one in worktree.list_worktrees(repo)}
    missing, present = WorktreeState.MISSING, WorktreeState.PRESENT
    assert states == {"before": missing, "after": present, "gone": missing}
    for name in states:
        worktree.remove_worktree(repo, tmp_path / name)
    assert worktree.list_worktrees(repo) == () and listed(root) == 1


def test_outside_git_a_goal_can_have_its_own_tree_too(tmp_path: Path) -> None:
    root = tmp_path / "plain"
    write(root, {"a": "1", "node_modules/m/x.js": "1"})
    repo = opened(root, tmp_path)
    one = made(repo, tmp_path / "w")
    place = Path(one.path)
    inside = opened(place, tmp_path)
    assert names(inside, tree.capture_repository(inside).tree_hash) == {"a"}
    assert one.linked == ("node_modules",) and not (root / ".git").exists()
    worktree.remove_worktree(repo, place)
    assert worktree.list_worktrees(repo) == () and not place.exists()
