"""Looking at a work tree: what it is, what is going on in it, and whether the user's side moved."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopx.control_plane.errors import UsageError
from loopx.workspace import identity
from loopx.workspace.identity import InProgress, UserMove
from loopx.workspace.repository import Kind
from tests.unit.workspace_helpers import git, new_repository, write


def conflicted(place: Path) -> Path:
    root = new_repository(place)
    git(root, "switch", "-q", "-c", "side")
    write(root, {"a.txt": "side\n"})
    git(root, "commit", "-qam", "side")
    git(root, "switch", "-q", "main")
    write(root, {"a.txt": "main\n"})
    git(root, "commit", "-qam", "main")
    return root


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("merge", "side"), InProgress.MERGE),
        (("rebase", "side"), InProgress.REBASE),
        (("cherry-pick", "side"), InProgress.CHERRY_PICK),
        (("revert", "HEAD~1"), InProgress.REVERT),
        (("bisect", "start"), InProgress.BISECT),
        (("status",), None),
    ],
)
def test_operations_in_progress(tmp_path: Path, command: tuple[str, ...], expected: InProgress | None) -> None:
    root = conflicted(tmp_path / "p")
    git(root, *command, check=False)
    assert identity.inspect(root).in_progress is expected
    (root / "sub").mkdir()
    assert identity.inspect(root / "sub").in_progress is expected


def test_a_linked_work_tree_has_its_own_state_and_key(tmp_path: Path) -> None:
    root = conflicted(tmp_path / "p")
    git(root, "worktree", "add", "-q", "--detach", str(tmp_path / "w"))
    git(root, "merge", "side", check=False)
    here, there = identity.inspect(root), identity.inspect(tmp_path / "w")
    assert (here.in_progress, there.in_progress) == (InProgress.MERGE, None)
    assert (here.branch, there.branch) == ("main", None)
    assert here.key != there.key


def test_the_key_is_one_per_tree_however_it_is_reached(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    (tmp_path / "link").symlink_to(root)
    plain = tmp_path / "plain"
    plain.mkdir()
    keys = {identity.repository_key(path) for path in (root, root / "src", tmp_path / "link", tmp_path / "link/src")}
    assert keys == {identity.inspect(root).key}
    assert identity.repository_key(plain) not in keys


def test_kinds(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    plain = identity.inspect(tmp_path / "plain")
    assert (plain.kind, plain.head, plain.unborn, plain.bare, plain.index_digest) == (
        Kind.PLAIN,
        None,
        False,
        False,
        None,
    )
    unborn = identity.inspect(new_repository(tmp_path / "new", {}))
    assert (unborn.kind, unborn.head, unborn.branch, unborn.unborn) == (Kind.GIT, None, "main", True)
    git(tmp_path, "init", "-q", "--bare", "bare.git")
    assert identity.inspect(tmp_path / "bare.git").bare
    assert unborn.git_version.count(".") == 2
    with pytest.raises(UsageError):
        identity.inspect(tmp_path / "nowhere")


def test_moves_of_the_users_side_are_told_apart(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    start = identity.inspect(root)
    write(root, {"a.txt": "edited\n", "new": "x"})
    git(root, "status")
    assert identity.head_moved(start, identity.inspect(root)) == ()
    git(root, "add", "new")
    staged = identity.inspect(root)
    assert identity.head_moved(start, staged) == (UserMove.INDEX,)
    git(root, "commit", "-qm", "x")
    committed = identity.inspect(root)
    assert identity.head_moved(staged, committed) == (UserMove.HEAD,)
    git(root, "branch", "-m", "renamed")
    assert identity.head_moved(committed, identity.inspect(root)) == (UserMove.BRANCH,)
    (root / ".git").rename(tmp_path / "away")
    assert UserMove.REPOSITORY in identity.head_moved(start, identity.inspect(root))


@pytest.mark.parametrize(
    ("rule", "move"),
    [
        ("filter", UserMove.FILTERS),
        ("eol", UserMove.RULES),
        ("hooks", UserMove.RULES),
        ("exclude", UserMove.RULES),
        ("attributes", UserMove.FILTERS),
    ],
)
def test_settings_that_decide_what_a_tree_says_are_watched(tmp_path: Path, rule: str, move: UserMove) -> None:
    root = new_repository(tmp_path / "p")
    start = identity.inspect(root)
    git(root, "config", "user.email", "someone@example.org")
    assert identity.head_moved(start, identity.inspect(root)) == ()
    if rule in ("exclude", "attributes"):
        write(root / ".git/info", {rule: "*.py -text\n"})
    else:
        git(root, "config", {"filter": "filter.x.clean", "eol": "core.eol", "hooks": "core.hooksPath"}[rule], "crlf")
    assert identity.head_moved(start, identity.inspect(root)) == (move,)


def test_the_usual_filter_for_large_files_is_no_alarm(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    start = identity.inspect(root)
    for name, value in (("clean", "git-lfs clean -- %f"), ("smudge", "git-lfs smudge -- %f"), ("required", "true")):
        git(root, "config", f"filter.lfs.{name}", value)
    assert identity.head_moved(start, identity.inspect(root)) == ()
    git(root, "config", "filter.lfs.clean", "sed s/1/2/")
    assert identity.head_moved(start, identity.inspect(root)) == (UserMove.FILTERS,)


def test_file_systems_are_told_by_the_mount_table(tmp_path: Path) -> None:
    assert identity.is_local(tmp_path) in (True, None)
    table = (
        "20 1 0:1 / / rw - ext4 /dev/a rw\n"
        "21 20 0:2 / /home\\040dirs rw shared:1 - nfs4 server:/x rw\n"
        "22 21 0:3 / /home\\040dirs/me/local rw - xfs /dev/b rw\n"
    )
    told = [identity.local_by(table, Path(path)) for path in ("/srv", "/home dirs/me", "/home dirs/me/local/x")]
    assert told == [True, False, True]
