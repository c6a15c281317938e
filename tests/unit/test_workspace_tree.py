"""The captured tree is the whole work tree, and capturing it leaves no trace in the project."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from loopx.control_plane.errors import LoopXError, NotFoundError, StoreError, UsageError
from loopx.workspace import tree
from loopx.workspace.repository import Kind, open_repository
from tests.unit.workspace_helpers import git, names, new_repository, opened, user_side, write


def test_a_clean_repository_gives_the_tree_of_its_head(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    state = tree.capture(root, tmp_path / "state")
    assert state.tree_hash == git(root, "rev-parse", "HEAD^{tree}")
    assert (state.head, state.branch, state.kind) == (git(root, "rev-parse", "HEAD"), "main", Kind.GIT)


def test_every_kind_of_change_is_seen_and_the_users_side_stays(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    write(root, {"a.txt": "staged\n"})
    git(root, "add", "a.txt")
    write(
        root, {"a.txt": "staged\nand edited since\n", "new dir/new\nfile.txt": "n", "debug.log": "x", "ignored/x": "x"}
    )
    (root / "src/b.py").chmod(0o755)
    (root / "out").symlink_to("/etc/passwd")
    before = user_side(root)
    repo = opened(root, tmp_path)
    state = tree.capture_repository(repo)
    entries = {entry.path: entry for entry in tree.list_paths(repo, state.tree_hash)}
    assert set(entries) == {".gitignore", "a.txt", "src/b.py", "new dir/new\nfile.txt", "out"}
    assert tree.read_file(repo, state.tree_hash, "a.txt") == b"staged\nand edited since\n"
    assert entries["src/b.py"].mode == "100755"
    assert entries["out"].mode == "120000" and tree.read_file(repo, state.tree_hash, "out") == b"/etc/passwd"
    assert user_side(root) == before
    assert git(root, "count-objects") == git(root, "count-objects")
    assert git(root, "cat-file", "-t", state.tree_hash, check=False) == "", "captures put nothing into the project"


def test_each_single_change_changes_the_hash_and_undoing_it_restores_the_hash(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    repo = opened(root, tmp_path)
    first = tree.capture_repository(repo).tree_hash
    seen = {first}
    write(root, {"a.txt": "two\n"})
    seen.add(tree.capture_repository(repo).tree_hash)
    write(root, {"a.txt": "one\n"})
    assert tree.capture_repository(repo).tree_hash == first
    (root / "a.txt").chmod(0o755)
    seen.add(tree.capture_repository(repo).tree_hash)
    (root / "a.txt").unlink()
    seen.add(tree.capture_repository(repo).tree_hash)
    (root / "a.txt").symlink_to("src")
    seen.add(tree.capture_repository(repo).tree_hash)
    (root / "a.txt").unlink()
    write(root, {"a.txt/inside": "now a folder"})
    seen.add(tree.capture_repository(repo).tree_hash)
    assert len(seen) == 6


def test_an_edit_of_the_same_size_within_the_same_instant_is_seen(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    repo = opened(root, tmp_path)
    hashes = set()
    for letter in "abcdefgh":
        write(root, {"a.txt": letter})
        hashes.add(tree.capture_repository(repo).tree_hash)
    assert len(hashes) == 8


def test_a_time_stamp_put_back_does_not_hide_an_edit(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    git(root, "config", "core.trustctime", "false")
    git(root, "config", "core.checkStat", "minimal")
    repo = opened(root, tmp_path)
    first = tree.capture_repository(repo).tree_hash
    old = (root / "a.txt").stat()
    write(root, {"a.txt": "two\n"})
    os.utime(root / "a.txt", ns=(old.st_atime_ns, old.st_mtime_ns))
    assert tree.capture_repository(repo).tree_hash != first


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_index_flags_that_hide_edits_hide_nothing_here(tmp_path: Path, flag: str) -> None:
    root = new_repository(tmp_path / "p")
    git(root, "update-index", flag, "a.txt")
    write(root, {"a.txt": "hidden edit\n"})
    repo = opened(root, tmp_path)
    assert tree.read_file(repo, tree.capture_repository(repo).tree_hash, "a.txt") == b"hidden edit\n"
    assert git(root, "status", "--porcelain") == "", "the user's flag itself is left alone"


def test_files_away_in_a_sparse_checkout_stay_in_the_tree(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p", {"here/a": "1", "away/b": "2"})
    git(root, "sparse-checkout", "set", "here")
    assert not (root / "away/b").exists()
    repo = opened(root, tmp_path)
    head_tree = git(root, "rev-parse", "HEAD^{tree}")
    assert tree.capture_repository(repo).tree_hash == head_tree
    write(root, {"here/new": "3"})
    assert names(repo, tree.capture_repository(repo).tree_hash) == {"here/a", "here/new", "away/b"}


def test_the_hash_does_not_depend_on_earlier_captures(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    write(root, {"fresh.py": "x", "kept.log": "tracked although ignored"})
    git(root, "add", "-f", "kept.log")
    with_history = opened(root, tmp_path)
    assert names(with_history, tree.capture_repository(with_history).tree_hash) >= {"fresh.py", "kept.log"}
    write(root, {".gitignore": "ignored/\n*.log\nfresh.py\n"})
    git(root, "rm", "-q", "--cached", "kept.log")
    write(root, {"late.log": "tracked later although ignored"})
    git(root, "add", "-f", "late.log")
    fresh = open_repository(root, tmp_path / "other state")
    one, two = tree.capture_repository(with_history), tree.capture_repository(fresh)
    assert one.tree_hash == two.tree_hash
    assert names(fresh, two.tree_hash) == {".gitignore", "a.txt", "src/b.py", "late.log"}


def test_loopx_and_its_state_are_never_in_the_tree(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    first = tree.capture(root, tmp_path / "state").tree_hash
    write(root, {".loopx/spool/x": "1", "sub/.loopx/y": "2", ".loopx-tmp-0123": "half a file"})
    assert tree.capture(root, tmp_path / "state").tree_hash == first
    assert tree.capture(root, root / "st [1]").tree_hash == first, "not even when the state lies in the project"


def test_a_tracked_foreign_loopx_folder_is_neither_followed_nor_deleted(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p", {".loopx/rival.json": "theirs", "a": "1"})
    repo = opened(root, tmp_path)
    first = tree.capture_repository(repo).tree_hash
    write(root, {".loopx/rival.json": "changed"})
    assert tree.capture_repository(repo).tree_hash == first == git(root, "rev-parse", "HEAD^{tree}")


def test_a_repository_without_commits(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p", {})
    repo = opened(root, tmp_path)
    empty = tree.capture_repository(repo)
    assert (empty.head, empty.branch, tree.list_paths(repo, empty.tree_hash)) == (None, "main", ())
    write(root, {"a": "1"})
    assert names(repo, tree.capture_repository(repo).tree_hash) == {"a"}


def test_outside_git_nothing_is_written_in_the_project(tmp_path: Path) -> None:
    root = tmp_path / "plain"
    write(root, {"a.py": "1", "node_modules/m/index.js": "x", ".venv/x": "x", "pkg/__pycache__/a.pyc": "x", "b/c": "2"})
    before = sorted(root.rglob("*"))
    repo = opened(root, tmp_path)
    state = tree.capture_repository(repo)
    assert (state.kind, state.head, state.branch) == (Kind.PLAIN, None, None)
    assert names(repo, state.tree_hash) == {"a.py", "b/c"}
    assert sorted(root.rglob("*")) == before
    write(root, {"a.py": "2", ".gitignore": "b/\n"})
    assert names(repo, tree.capture_repository(repo).tree_hash) == {"a.py", ".gitignore"}


def test_a_git_init_in_the_middle_changes_nothing_for_a_pinned_goal(tmp_path: Path) -> None:
    root = tmp_path / "plain"
    write(root, {"a.py": "1"})
    first = tree.capture(root, tmp_path / "state")
    git(root, "init", "-q")
    pinned = open_repository(root, tmp_path / "state", kind=Kind.PLAIN)
    assert tree.capture_repository(pinned) == first
    assert tree.read_file(open_repository(root, tmp_path / "state"), first.tree_hash, "a.py") == b"1"


def test_nested_repositories_are_left_out_and_named(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    new_repository(root / "with commit")
    new_repository(root / "deep/without", {})
    (root / "broken/.git").mkdir(parents=True)
    write(root, {"broken/file": "x"})
    repo = opened(root, tmp_path)
    state = tree.capture_repository(repo)
    assert state.left_out == ("deep/without", "with commit")
    assert names(repo, state.tree_hash) == {".gitignore", "a.txt", "src/b.py", "broken/file"}


def test_a_submodule_is_its_head(tmp_path: Path) -> None:
    library = new_repository(tmp_path / "library")
    root = new_repository(tmp_path / "p")
    git(root, "submodule", "add", "-q", str(library), "lib")
    repo = opened(root, tmp_path)
    first = tree.capture_repository(repo)
    entry = next(one for one in tree.list_paths(repo, first.tree_hash) if one.path == "lib")
    assert (entry.mode, entry.blob, first.left_out) == ("160000", git(library, "rev-parse", "HEAD"), ())
    write(root / "lib", {"a.txt": "dirty only"})
    assert tree.capture_repository(repo).tree_hash == first.tree_hash
    git(root / "lib", "commit", "-q", "-am", "moved")
    second = tree.capture_repository(repo)
    assert second.tree_hash != first.tree_hash
    git(root, "rm", "-q", "--cached", "-f", "lib")
    third = tree.capture_repository(repo)
    assert "lib" not in names(repo, third.tree_hash) and third.left_out == ("lib",)


def test_a_linked_work_tree_and_a_subfolder(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    git(root, "worktree", "add", "-q", "-b", "side", str(tmp_path / "w"))
    git(tmp_path / "w", "worktree", "add", "-q", "-b", "side2", str(tmp_path / "w2"))
    write(tmp_path / "w2", {"only here": "x"})
    first = tree.capture(tmp_path / "w2" / "src", tmp_path / "state")
    assert first.branch == "side2"
    assert "only here" in names(opened(tmp_path / "w2", tmp_path), first.tree_hash)
    assert tree.capture(root, tmp_path / "state").tree_hash == git(root, "rev-parse", "HEAD^{tree}")


def test_odd_names_and_special_files(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    odd = os.fsdecode(b"not utf-8 \xff\xfe")
    write(root, {odd: "1", "  spaces ": "2", "-dash": "3", 'quote"\t': "4", "*": "5", ":(top)x": "6"})
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(root)  # the path of a socket must be short
        server.bind("sock")
        repo = opened(root, tmp_path)
        found = names(repo, tree.capture_repository(repo).tree_hash)
    assert found == {".gitignore", "a.txt", "src/b.py", odd, "  spaces ", "-dash", 'quote"\t', "*", ":(top)x"}


def test_links_to_folders_are_not_followed_even_in_place_of_a_tracked_folder(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "elsewhere", {"b.py": "secret"})
    (root / "src/b.py").unlink()
    (root / "src").rmdir()
    (root / "src").symlink_to(tmp_path / "elsewhere")
    repo = opened(root, tmp_path)
    found = {entry.path: entry.mode for entry in tree.list_paths(repo, tree.capture_repository(repo).tree_hash)}
    assert found == {".gitignore": "100644", "a.txt": "100644", "src": "120000"}


def test_the_users_hooks_filters_of_the_index_and_variables_have_no_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = new_repository(tmp_path / "p")
    trace = tmp_path / "hook ran"
    for name in ("post-index-change", "reference-transaction", "pre-commit", "fsmonitor-watchman"):
        hook = root / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch '{trace}'\n")
        hook.chmod(0o755)
    git(root, "config", "core.fsmonitor", str(root / ".git/hooks/fsmonitor-watchman"))
    trace.unlink(missing_ok=True)
    other = new_repository(tmp_path / "other", {"z": "z"})
    for name, value in (
        ("GIT_DIR", other / ".git"),
        ("GIT_WORK_TREE", other),
        ("GIT_INDEX_FILE", other / ".git/index"),
    ):
        monkeypatch.setenv(name, str(value))
    state = tree.capture(root, tmp_path / "state")
    assert state.tree_hash == git(root, "rev-parse", "HEAD^{tree}")
    assert not trace.exists()


def test_an_unmerged_index_still_gives_the_work_tree(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    git(root, "switch", "-q", "-c", "side")
    write(root, {"a.txt": "side\n"})
    git(root, "commit", "-qam", "side")
    git(root, "switch", "-q", "main")
    write(root, {"a.txt": "main\n"})
    git(root, "commit", "-qam", "main")
    git(root, "merge", "side", check=False)
    before = user_side(root)
    repo = opened(root, tmp_path)
    assert b"<<<<<<<" in tree.read_file(repo, tree.capture_repository(repo).tree_hash, "a.txt")
    assert user_side(root) == before


@pytest.mark.parametrize("damage", ["truncated", "objects lost", "garbage"])
def test_a_broken_private_index_heals_itself(tmp_path: Path, damage: str) -> None:
    root = new_repository(tmp_path / "p")
    write(root, {"new": "x"})
    repo = opened(root, tmp_path)
    first = tree.capture_repository(repo).tree_hash
    if damage == "objects lost":
        for path in (repo.state_dir / "objects").rglob("*"):
            if path.is_file():
                path.unlink()
    elif damage == "garbage":
        repo.private_index.write_bytes(b"x" * 500)
    else:
        repo.private_index.write_bytes(repo.private_index.read_bytes()[:100])
    assert tree.capture_repository(repo).tree_hash == first
    assert tree.read_file(repo, first, "new") == b"x"


def test_processes_that_capture_at_once_agree(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p", {f"d{n % 7}/f{n}": str(n) for n in range(300)})
    write(root, {f"new/f{n}": str(n) for n in range(100)})
    program = (
        "import sys, pathlib\nfrom loopx.workspace import tree\n"
        "for _ in range(3): print(tree.capture(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])).tree_hash)"
    )
    args = [sys.executable, "-c", program, str(root), str(tmp_path / "state")]
    running = [subprocess.Popen(args, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate()[0].split() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len({name for lines in said for name in lines}) == 1
    assert list((tmp_path / "state/scratch").iterdir()) == []


def test_a_large_file_is_captured(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    with (root / "huge.bin").open("wb") as stream:
        stream.truncate(40 * 1024 * 1024)  # above the size from which git streams
    repo = opened(root, tmp_path)
    assert "huge.bin" in names(repo, tree.capture_repository(repo).tree_hash)


def test_line_ends_are_kept_as_git_keeps_them(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p", {".gitattributes": "*.txt text\n", "a.txt": "one\ntwo\n"})
    git(root, "config", "core.autocrlf", "true")
    git(root, "config", "core.safecrlf", "true")
    write(root, {"a.txt": "one\r\ntwo\n"})
    repo = opened(root, tmp_path)
    assert tree.capture_repository(repo).tree_hash == git(root, "rev-parse", "HEAD^{tree}")


def test_refusals_are_typed(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    with pytest.raises(UsageError) as missing:
        tree.capture(tmp_path / "nowhere", tmp_path / "state")
    bare = tmp_path / "bare.git"
    git(tmp_path, "init", "-q", "--bare", str(bare))
    with pytest.raises(UsageError) as is_bare:
        tree.capture(bare, tmp_path / "state")
    with pytest.raises(UsageError) as inside:
        tree.capture(root / ".git", tmp_path / "state")
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError) as unwritable:
        tree.capture(root, tmp_path / "file" / "state")
    with pytest.raises(UsageError) as broad:
        open_repository(Path("/"), tmp_path / "state")
    (tmp_path / "corrupt").mkdir()
    (tmp_path / "corrupt/.git").write_text("gitdir: /nowhere\n")
    with pytest.raises(UsageError) as corrupt:
        tree.capture(tmp_path / "corrupt", tmp_path / "state")
    codes = [one.value.code for one in (missing, is_bare, inside, unwritable, broad, corrupt)]
    assert codes == [
        *("project_missing", "bare_repository", "not_a_work_tree", "state_dir_unwritable", "project_too_broad"),
        "git_unreadable",
    ]


def test_reading_what_is_not_there(tmp_path: Path) -> None:
    repo = opened(new_repository(tmp_path / "p"), tmp_path)
    here = tree.capture_repository(repo).tree_hash
    for wrong in ("nothing.txt", "src"):
        with pytest.raises(NotFoundError) as absent:
            tree.read_file(repo, here, wrong)
        assert absent.value.code == "path_not_in_tree"
    for name in ("0" * 40, "--help", "not a name"):
        with pytest.raises(NotFoundError) as lost:
            tree.list_paths(repo, name)
        assert lost.value.code == "tree_missing"


def test_without_git_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from loopx.workspace import git as runner

    root = new_repository(tmp_path / "p")
    runner.version.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LoopXError) as missing:
        tree.capture(root, tmp_path / "state")
    runner.version.cache_clear()
    assert (missing.value.code, missing.value.exit_code) == ("git_missing", 2)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p")
    write(root, {"closed": "x"})
    (root / "closed").chmod(0)
    with pytest.raises(UsageError) as refused:
        tree.capture(root, tmp_path / "state")
    assert (refused.value.code, refused.value.data["path"]) == ("unreadable_file", "closed")


def test_a_project_ignored_by_the_repository_around_it_is_a_plain_folder(tmp_path: Path) -> None:
    home = new_repository(tmp_path / "home", {".gitignore": "work/\n"})
    write(home, {"work/app/a.py": "1"})
    repo = opened(home / "work/app", tmp_path)
    assert (repo.kind, names(repo, tree.capture_repository(repo).tree_hash)) == (Kind.PLAIN, {"a.py"})
