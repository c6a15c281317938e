"""Differences between trees, and putting files back exactly as they were."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loopx.control_plane.errors import ConflictError, NotFoundError, UsageError
from loopx.workspace import difference, restore, tree
from loopx.workspace.difference import ChangeKind
from loopx.workspace.repository import Repository
from tests.unit.workspace_helpers import git, new_repository, opened, user_side, write

ODD = os.fsdecode(b"odd \xff\nname")


def capture(repo: Repository) -> str:
    return tree.capture_repository(repo).tree_hash


def test_every_kind_of_change_is_told_apart(tmp_path: Path) -> None:
    lines = "".join(f"line {n}\n" for n in range(30))
    files: dict[str, str | bytes] = {
        "mod": "1\n2\n",
        "gone": "x\n",
        "old name": lines,
        "mode": "m",
        "bin": b"\0\1",
        "turn": "t",
    }
    root = new_repository(tmp_path / "p", files)
    repo = opened(root, tmp_path)
    before = capture(repo)
    write(root, {"mod": "1\n3\n4\n", "bin": b"\0\2", ODD: "new\n"})
    (root / "gone").unlink()
    (root / "old name").rename(root / "new\nname")
    (root / "mode").chmod(0o755)
    (root / "turn").unlink()
    (root / "turn").symlink_to("mod")
    after = capture(repo)
    found = {change.path: change for change in difference.diff(repo, before, after)}
    assert {path: change.kind for path, change in found.items()} == {
        "mod": ChangeKind.MODIFIED,
        "bin": ChangeKind.MODIFIED,
        "gone": ChangeKind.DELETED,
        "new\nname": ChangeKind.RENAMED,
        "mode": ChangeKind.MODE,
        "turn": ChangeKind.MODIFIED,
        ODD: ChangeKind.ADDED,
    }
    assert (found["mod"].additions, found["mod"].deletions) == (2, 1)
    assert (found["bin"].additions, found["bin"].deletions) == (None, None)
    assert found["new\nname"].old_path == "old name"
    assert (found["gone"].new_blob, found[ODD].old_blob) == (None, None)
    assert (found["turn"].old_mode, found["turn"].new_mode) == ("100644", "120000")
    assert found["mod"].new_blob == git(root, "hash-object", "mod")
    assert difference.diff(repo, after, after) == ()


def test_the_patch_is_bounded_and_runs_no_program_of_the_user(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p", {"a": "1\n", "b": "1\n", ".gitattributes": "* diff=evil\n"})
    for key in ("diff.external", "diff.evil.command", "diff.evil.textconv"):
        git(root, "config", key, f"touch {tmp_path / 'ran'}; true")
    repo = opened(root, tmp_path)
    before = capture(repo)
    write(root, {"a": "2\n" * 5000, "b": b"caf\xe9\n"})
    after = capture(repo)
    whole = difference.diff_text(repo, before, after, 1_000_000)
    assert not whole.truncated and whole.text.count("+2\n") == 5000 and "caf\ufffd" in whole.text
    cut = difference.diff_text(repo, before, after, 1000)
    assert cut.truncated and len(cut.text) <= 1000 and cut.text.endswith("\n") and whole.text.startswith(cut.text)
    one = difference.diff_text(repo, before, after, 1_000_000, paths=["b"])
    assert "a/b" in one.text and "a/a" not in one.text
    assert not (tmp_path / "ran").exists()


def test_exactly_the_named_paths_are_put_back(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p", {"keep": "1", "run.sh": "#!/bin/sh\n", "d/x": "x", "link": "file"})
    (root / "run.sh").chmod(0o755)
    (root / "link").unlink()
    (root / "link").symlink_to("keep")
    repo = opened(root, tmp_path)
    before = capture(repo)
    write(root, {"keep": "agent", "run.sh": "exit 0", "new/deep/file": "n", "new/other": "o", ODD: "x"})
    (root / "run.sh").chmod(0o644)
    (root / "link").unlink()
    write(root, {"link": "a file now"})
    (root / "d/x").unlink()
    (root / "d").rmdir()
    side = user_side(root)
    done = restore.restore_paths(repo, before, ["run.sh", "d/x", "link", "new/deep/file", ODD, "never was"])
    assert (done.written, set(done.deleted)) == (("d/x", "link", "run.sh"), {"new/deep/file", ODD})
    assert (root / "run.sh").read_text() == "#!/bin/sh\n" and os.access(root / "run.sh", os.X_OK)
    assert (root / "link").is_symlink() and (root / "d/x").read_text() == "x"
    assert (root / "keep").read_text() == "agent", "other paths stay as the agent left them"
    assert (root / "new/other").exists() and not (root / "new/deep").exists()
    assert user_side(root) == side


def test_the_whole_tree_comes_back_and_ignored_files_stay(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    write(root, {"a.txt": "dirty at the start", "untracked": "u"})
    repo = opened(root, tmp_path)
    start = capture(repo)
    write(root, {"a.txt": "agent", "junk/x": "1", "ignored/cache": "c", ".loopx/spool": "s", ".gitignore": "junk/\n"})
    (root / "untracked").unlink()
    (root / "src/b.py").unlink()
    (root / "src").rmdir()
    write(root, {"src": "a file in place of a folder"})
    worse = capture(repo)
    done = restore.restore_tree(repo, start)
    assert (done.exact, done.previous_tree) == (True, worse)
    assert not (root / "junk").exists(), "what an edited ignore rule had hidden goes too"
    assert done.uncovered_tree is not None and tree.read_file(repo, done.uncovered_tree, "junk/x") == b"1"
    assert (root / "ignored/cache").exists() and (root / ".loopx/spool").exists(), "not what it uncovered"
    assert restore.restore_tree(repo, worse).exact
    assert (root / "src").read_text() == "a file in place of a folder"


def test_links_are_never_followed_out_of_the_project(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    repo = opened(root, tmp_path)
    start = capture(repo)
    outside = tmp_path / "outside"
    write(outside, {"b.py": "not ours"})
    (root / "src/b.py").unlink()
    (root / "src").rmdir()
    (root / "src").symlink_to(outside)
    restore.restore_paths(repo, start, ["src/b.py", "src/other"])
    assert (outside / "b.py").read_text() == "not ours"
    assert not (root / "src").is_symlink() and (root / "src/b.py").read_text() == "print(1)\n"


def test_a_folder_in_the_way_is_refused_before_anything_changes(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    repo = opened(root, tmp_path)
    start = capture(repo)
    write(root, {"src/b.py": "agent"})
    (root / "a.txt").unlink()
    write(root, {"a.txt/secret.log": "ignored, so not in any tree", "a.txt/seen": "x"})
    with pytest.raises(ConflictError) as refused:
        restore.restore_tree(repo, start)
    assert (refused.value.code, refused.value.data["inside"]) == ("path_occupied", "a.txt/secret.log")
    assert (root / "src/b.py").read_text() == "agent"
    (root / "a.txt/secret.log").unlink()
    assert restore.restore_tree(repo, start).exact


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "a/../../x", ".git/config", "sub/.GIT/x", ".loopx/id", "", "a//b"]
)
def test_paths_that_are_no_files_of_the_project_are_refused(tmp_path: Path, path: str) -> None:
    repo = opened(new_repository(tmp_path / "p"), tmp_path)
    with pytest.raises(UsageError) as refused:
        restore.restore_paths(repo, capture(repo), [path])
    assert refused.value.code == "path_outside"


def test_an_unknown_tree_changes_nothing(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    with pytest.raises(NotFoundError):
        restore.restore_tree(opened(root, tmp_path), "1" * 40)
    assert git(root, "status", "--porcelain") == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_is_a_typed_error(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    repo = opened(root, tmp_path)
    start = capture(repo)
    write(root, {"src/b.py": "agent"})
    (root / "src").chmod(0o555)
    with pytest.raises(UsageError) as refused:
        restore.restore_tree(repo, start)
    (root / "src").chmod(0o755)
    assert refused.value.code == "project_not_writable"
    assert restore.restore_tree(repo, start).exact, "it can be repeated"


def test_submodules_are_left_alone_and_named(tmp_path: Path) -> None:
    library = new_repository(tmp_path / "library")
    root = new_repository(tmp_path / "p")
    git(root, "submodule", "add", "-q", str(library), "lib")
    repo = opened(root, tmp_path)
    start = capture(repo)
    write(root / "lib", {"a.txt": "two"})
    git(root / "lib", "commit", "-qam", "two")
    write(root, {"a.txt": "changed"})
    done = restore.restore_tree(repo, start)
    assert (done.left_alone, done.written, done.exact) == (("lib",), ("a.txt",), False)


def test_attributes_of_the_tree_decide_not_edited_ones(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p", {".gitattributes": "*.bat text eol=crlf\n", "x.bat": "one\r\ntwo\r\n"})
    repo = opened(root, tmp_path)
    start = capture(repo)
    write(root, {".gitattributes": "*.bat text eol=lf\n", "x.bat": "agent\n"})
    assert restore.restore_tree(repo, start).exact
    assert (root / "x.bat").read_bytes() == b"one\r\ntwo\r\n"


def test_outside_git_it_works_the_same(tmp_path: Path) -> None:
    root = tmp_path / "plain"
    write(root, {"a": "1", "b/c": "2"})
    repo = opened(root, tmp_path)
    start = capture(repo)
    write(root, {"a": "agent", "d": "new"})
    (root / "b/c").unlink()
    assert restore.restore_tree(repo, start).exact
    assert ((root / "a").read_text(), (root / "b/c").read_text(), (root / "d").exists()) == ("1", "2", False)
