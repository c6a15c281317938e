"""Clean snapshots: exactly the tree, with independent dependency folders that speak about the snapshot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from loopx.control_plane.errors import NotFoundError, UsageError
from loopx.workspace import copytree, dependencies, editable, kept_copy, snapshot, tree
from loopx.workspace.repository import Repository
from tests.unit.workspace_helpers import git, new_repository, opened, write

IGNORES = "node_modules/\n.venv/\n__pycache__/\ntarget/\n*.log\nleft over\n*.egg-info/\nbuild/\n"


def project(tmp_path: Path, extra: dict[str, str | bytes] | None = None) -> Path:
    files: dict[str, str | bytes] = {".gitignore": IGNORES, "src/app.py": "VALUE = 'the tree'\n", "Cargo.toml": ""}
    return new_repository(tmp_path / "pro ject", {**files, **(extra or {})})


def capture(repo: Repository) -> str:
    return tree.capture_repository(repo).tree_hash


def site(environment: Path) -> Path:
    return environment / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def files_below(top: Path) -> set[str]:
    found = (path for path in top.rglob("*") if path.is_file() or path.is_symlink())
    return {name for name in (str(path.relative_to(top)) for path in found) if not name.startswith(".git/")}


def test_the_snapshot_is_exactly_the_tree_and_goes_away(tmp_path: Path) -> None:
    root = project(tmp_path)
    odd = os.fsdecode(b"\xff\nname")
    write(root, {"new.py": "x", odd: "o", "left over": "makes a check green", "run.sh": "#!/bin/sh\n"})
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("/nowhere/at/all")
    repo = opened(root, tmp_path)
    here = capture(repo)
    write(root, {"new.py": "changed after the capture"})
    with snapshot.materialize(repo, here) as made:
        assert made.path.is_relative_to(tmp_path / "state")
        assert files_below(made.path) == {".gitignore", "src/app.py", "Cargo.toml", "new.py", odd, "run.sh", "link"}
        assert (made.path / "new.py").read_text() == "x"
        assert os.access(made.path / "run.sh", os.X_OK) and (made.path / "link").is_symlink()
        place = made.path
    assert not place.exists() and list((tmp_path / "state/snapshots").iterdir()) == []
    with pytest.raises(ZeroDivisionError), snapshot.materialize(repo, here) as made:
        raise ZeroDivisionError
    assert list((tmp_path / "state/snapshots").iterdir()) == []
    with pytest.raises(NotFoundError), snapshot.materialize(repo, "1" * 40):
        pass


def test_dependency_folders_are_found_where_they_are_ignored(tmp_path: Path) -> None:
    root = project(tmp_path, {"vendor/tracked.go": "x", "packages/a/package.json": "{}"})
    write(
        root,
        {
            "node_modules/m/index.js": "1",
            "packages/a/node_modules/n/index.js": "1",
            "target/debug/x": "1",
            "build/out": "no build tool beside it",
            "src/app.egg-info/entry_points.txt": "",
            ".venv/pyvenv.cfg": "",
            "src/__pycache__/app.pyc": "stale",
        },
    )
    repo = opened(root, tmp_path)
    assert dependencies.detect(repo) == (
        *(".venv", "node_modules", "packages/a/node_modules", "src/app.egg-info", "target"),
    )
    with snapshot.materialize(repo, capture(repo)) as made:
        assert (made.path / "packages/a/node_modules/n/index.js").exists()
        assert not (made.path / "src/__pycache__").exists() and not (made.path / "build").exists()
    with snapshot.materialize(repo, capture(repo), dependency_dirs=["build", "absent"]) as made:
        assert made.dependency_dirs == ("build",) and not (made.path / "node_modules").exists()
    for outside in ("../x", "/etc", ".git"):
        with pytest.raises(UsageError), snapshot.materialize(repo, capture(repo), dependency_dirs=[outside]):
            pass


def test_writing_in_the_copy_never_reaches_the_original(tmp_path: Path) -> None:
    root = project(tmp_path)
    write(root, {"node_modules/m/index.js": "original", "store/m.js": "shared"})
    os.link(root / "store/m.js", root / "node_modules/m/linked.js")
    os.mkfifo(root / "node_modules/pipe")
    (root / "node_modules/closed").mkdir(mode=0o555)
    repo = opened(root, tmp_path)
    with snapshot.materialize(repo, capture(repo)) as made:
        for name in ("index.js", "linked.js"):
            (made.path / "node_modules/m" / name).write_text("changed in the snapshot")
        place = made.path
    assert (root / "node_modules/m/index.js").read_text() == "original"
    assert (root / "store/m.js").read_text() == "shared"
    assert not place.exists()


def test_without_cp_the_copy_is_made_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "node_modules"
    write(source, {"m/index.js": "1"})
    (source / "link").symlink_to("m")
    os.mkfifo(source / "pipe")
    monkeypatch.setenv("PATH", str(tmp_path))
    copytree.copy_tree(source, tmp_path / "copy")
    assert files_below(tmp_path / "copy") == {"m/index.js", "link"} and (tmp_path / "copy/link").is_symlink()


def test_an_editable_install_tests_the_snapshot_not_the_original(tmp_path: Path) -> None:
    root = project(tmp_path)
    environment = root / ".venv"
    venv.create(environment, with_pip=False, symlinks=True)
    packages = site(environment)
    write(
        packages,
        {
            "__editable__.app-1.pth": f"{root}/src\n",
            "other.pth": f"{root}2/src\n",
            "__editable___fin_1_finder.py": f"MAPPING = {{'fin': '{root}/fin'}}\n",
            "__pycache__/__editable___fin_1_finder.cpython-311.pyc": "stale",
        },
    )
    script = environment / "bin/app"
    script.write_text(f"#!{environment}/bin/python\nimport app\nprint(app.VALUE, app.__file__)\n")
    script.chmod(0o755)
    repo = opened(root, tmp_path)
    here = capture(repo)
    write(root, {"src/app.py": "VALUE = 'changed since'\n"})
    asks = "import app; print(app.VALUE)"
    with snapshot.materialize(repo, here) as made:
        copied = made.path / ".venv"
        said = subprocess.check_output([copied / "bin/python", "-c", asks], cwd=tmp_path, text=True)
        assert said == "the tree\n"
        said = subprocess.check_output([copied / "bin/app"], cwd=tmp_path, text=True)
        assert said == f"the tree {made.path}/src/app.py\n"
        assert (site(copied) / "other.pth").read_text() == f"{root}2/src\n", "another project with a longer name"
        assert str(made.path) in (site(copied) / "__editable___fin_1_finder.py").read_text()
        assert not list((site(copied) / "__pycache__").iterdir())
        assert ".venv/bin/app" in made.rewritten
        variables = {"PATH": f"{environment}/bin:/bin", "VIRTUAL_ENV": str(environment), "OTHER": "x"}
        assert made.environment(variables) == {
            "PATH": f"{copied}/bin:/bin",
            "VIRTUAL_ENV": str(copied),
            "OTHER": "x",
        }
    assert (packages / "__editable__.app-1.pth").read_text() == f"{root}/src\n"
    assert script.read_text().startswith(f"#!{environment}/bin/python\n")


def test_an_environment_outside_the_project_is_overridden_not_changed(tmp_path: Path) -> None:
    root = project(tmp_path)
    outside = tmp_path / "envs/app"
    venv.create(outside, with_pip=False, symlinks=True)
    (site(outside) / "app.pth").write_text(f"{root}/src\n")
    repo = opened(root, tmp_path)
    here = capture(repo)
    write(root, {"src/app.py": "VALUE = 'changed since'\n"})
    with snapshot.materialize(repo, here) as made:
        variables = made.environment({"VIRTUAL_ENV": str(outside), "PATH": os.environ["PATH"]})
        assert variables["PYTHONPATH"] == f"{made.path}/src"
        command = [outside / "bin/python", "-c", "import app; print(app.VALUE)"]
        assert subprocess.check_output(command, cwd=tmp_path, env=variables, text=True) == "the tree\n"
    assert (site(outside) / "app.pth").read_text() == f"{root}/src\n"


def test_a_project_reached_through_a_link_is_rewritten_in_both_spellings(tmp_path: Path) -> None:
    root = project(tmp_path)
    (tmp_path / "link").symlink_to(root)
    venv.create(root / ".venv", with_pip=False, symlinks=True)
    (site(root / ".venv") / "a.pth").write_text(f"{tmp_path}/link/src\n")
    (site(root / ".venv") / "b.pth").write_text(f"{root}/src\n")
    repo = opened(tmp_path / "link", tmp_path)
    with snapshot.materialize(repo, capture(repo)) as made:
        for name in ("a.pth", "b.pth"):
            assert (site(made.path / ".venv") / name).read_text() == f"{made.path}/src\n"


def test_a_long_interpreter_path_still_starts(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    environment = tmp_path / "p/.venv"
    venv.create(environment, with_pip=False, symlinks=True)
    script = environment / "bin/hello"
    script.write_text(f"#!{environment}/bin/python\nprint('hello')\n")
    script.chmod(0o755)
    copytree.copy_tree(environment, deep / ".venv")
    assert "bin/hello" in editable.rewrite(deep / ".venv", [tmp_path / "p"], deep)
    assert subprocess.check_output([deep / ".venv/bin/hello"], text=True) == "hello\n"


def test_absolute_workspace_links_lead_into_the_copy(tmp_path: Path) -> None:
    root = project(tmp_path, {"packages/a/index.js": "1"})
    (root / "node_modules/@me").mkdir(parents=True)
    (root / "node_modules/@me/a").symlink_to(root / "packages/a")
    repo = opened(root, tmp_path)
    with snapshot.materialize(repo, capture(repo)) as made:
        assert (made.path / "node_modules/@me/a").readlink() == made.path / "packages/a"


def test_the_manifest_sees_what_could_make_a_check_green_from_outside(tmp_path: Path) -> None:
    root = project(tmp_path)
    environment = root / ".venv"
    venv.create(environment, with_pip=False, symlinks=True)
    packages = site(environment)
    write(packages, {"_pytest/runner.py": "run()", "pytest/__init__.py": "", "requests/api.py": "1"})
    write(root, {"node_modules/jest/bin/jest.js": "run()", "node_modules/lodash/a.js": "1"})
    (root / "node_modules/.bin").mkdir()
    (root / "node_modules/.bin/jest").symlink_to("../jest/bin/jest.js")
    write(environment, {"bin/pytest": "#!python\nmain()"})
    names = (".venv", "node_modules")
    before = dependencies.manifest(root, names)
    assert dependencies.compare(before, dependencies.manifest(root, names)) == ()
    write(packages, {"requests/api.py": "2", "new_package/x.py": "honest"})
    write(root, {"node_modules/lodash/a.js": "2"})
    assert dependencies.compare(before, dependencies.manifest(root, names)) == (), "ordinary packages may change"
    write(
        packages,
        {"sitecustomize.py": "evil", "usercustomize.py": "evil", "x.pth": "import evil", "_pytest/runner.py": "pass"},
    )
    write(packages, {"plug-1.dist-info/entry_points.txt": "[pytest11]\nplug = plug"})
    write(environment, {"bin/pytest": "#!/bin/sh\nexit 0"})
    (environment / "bin/python").unlink()
    write(environment, {"bin/python": "#!/bin/sh\nexit 0"})
    write(root, {"node_modules/jest/bin/jest.js": "process.exit(0)"})
    changed = {one.path: one for one in dependencies.compare(before, dependencies.manifest(root, names))}
    inside = f".venv/{packages.relative_to(environment)}"
    assert set(changed) == {
        ".venv/bin/pytest",
        ".venv/bin/python",
        f"{inside}/_pytest/runner.py",
        f"{inside}/plug-1.dist-info/entry_points.txt",
        f"{inside}/sitecustomize.py",
        f"{inside}/usercustomize.py",
        f"{inside}/x.pth",
        "node_modules/.bin/jest",
        "node_modules/jest/bin/jest.js",
    }
    old_python = changed[".venv/bin/python"].before
    assert old_python is not None and old_python.startswith("link:")
    assert changed[f"{inside}/sitecustomize.py"].before is None


def test_git_answers_in_the_snapshot_as_in_the_project(tmp_path: Path) -> None:
    root = project(tmp_path)
    git(root, "tag", "-a", "v1.0", "-m", "one")
    write(root, {"src/app.py": "changed\n"})
    repo = opened(root, tmp_path)
    with snapshot.materialize(repo, capture(repo)) as made:
        assert git(made.path, "describe", "--dirty") == "v1.0-dirty"
        assert git(made.path, "diff", "--name-only") == "src/app.py"
        assert git(made.path, "rev-parse", "HEAD", "--abbrev-ref", "HEAD").split() == [
            git(root, "rev-parse", "HEAD"),
            "main",
        ]
        git(made.path, "commit", "-qam", "only in the snapshot")
    assert git(root, "log", "--format=%s", "--all") == "first"
    with snapshot.materialize(repo, capture(repo), with_git=False) as made:
        assert not (made.path / ".git").exists()


def test_submodules_are_filled_or_named(tmp_path: Path) -> None:
    inner = new_repository(tmp_path / "inner", {"deep": "1"})
    library = new_repository(tmp_path / "library", {"lib.py": "1"})
    git(library, "submodule", "add", "-q", str(inner), "inner")
    git(library, "commit", "-qm", "with inner")
    root = project(tmp_path)
    git(root, "submodule", "add", "-q", str(library), "lib")
    git(root, "submodule", "update", "-q", "--init", "--recursive")
    write(root / "lib", {"lib.py": "uncommitted"})
    repo = opened(root, tmp_path)
    here = capture(repo)
    with snapshot.materialize(repo, here) as made:
        assert (made.path / "lib/lib.py").read_text() == "1" and (made.path / "lib/inner/deep").read_text() == "1"
        assert made.missing_submodules == ()
    git(root, "submodule", "deinit", "-q", "-f", "lib")
    with snapshot.materialize(repo, here) as made:
        assert made.missing_submodules == ("lib",)


def test_outside_git_a_snapshot_is_made_too(tmp_path: Path) -> None:
    root = tmp_path / "plain"
    write(root, {"a": "1", "node_modules/m/x.js": "1", "__pycache__/a.pyc": "x"})
    repo = opened(root, tmp_path)
    with snapshot.materialize(repo, capture(repo)) as made:
        assert files_below(made.path) == {"a", "node_modules/m/x.js"}
    assert not (root / ".git").exists()


def test_what_a_killed_process_left_is_swept_and_a_living_one_is_not(tmp_path: Path) -> None:
    root = project(tmp_path)
    repo = opened(root, tmp_path)
    here = capture(repo)
    program = (
        "import os, pathlib, sys\nfrom loopx.workspace import snapshot\n"
        "from loopx.workspace.repository import open_repository\n"
        "repo = open_repository(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))\n"
        "with snapshot.materialize(repo, sys.argv[3]): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(root), str(tmp_path / "state"), here], check=False)
    (left,) = (path for path in (tmp_path / "state/snapshots").iterdir() if path.is_dir())
    with snapshot.materialize(repo, here) as living:
        assert not left.exists()
        assert snapshot.sweep(tmp_path / "state") == ()
        assert (living.path / "src/app.py").exists()
    assert snapshot.sweep(tmp_path / "state") == ()


def everything_below(top: Path) -> dict[str, tuple[int, bytes]]:
    """Each file, link and folder with its mode and content."""
    found = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if name.split("/")[0] != ".git":
            content = (
                os.fsencode(path.readlink()) if path.is_symlink() else b"/" if path.is_dir() else path.read_bytes()
            )
            found[name] = (path.lstat().st_mode, content)
    return found


def spoil_a_copy(place: Path) -> None:
    """What a check may do to the copy that it runs in: files, links, modes, folders, and time stamps that lie."""
    changed = place / "src/app.py"
    stamp = changed.stat()
    changed.write_bytes(b"X" * stamp.st_size)
    os.utime(changed, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    (place / "gone.py").unlink()
    (place / "kind").unlink()
    (place / "kind").mkdir()
    (place / "kind/inner").write_text("x")
    shutil.rmtree(place / "folder")
    (place / "folder").symlink_to("/usr")
    (place / "run.sh").chmod(0o644)
    (place / "empty/deeper").mkdir(parents=True)
    (place / "nested/.git").mkdir(parents=True)
    (place / "nested/.git/HEAD").write_text("ref: refs/heads/main")
    write(place, {"left over": "x", "__pycache__/app.pyc": "x", "src/new.py": "x", ".git/info/exclude": "left over"})


def test_a_large_copy_is_kept_and_is_exactly_the_tree_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_copy, "KEEP_FROM", 1)
    root = project(tmp_path)
    (root / "Cargo.toml").unlink()
    write(root, {"gone.py": "g", "kind": "file", "folder/a": "a", "folder/b": "b", "run.sh": "#!/bin/sh\n"})
    write(root, {"node_modules/m/x.js": "1"})
    (root / "run.sh").chmod(0o755)
    repo = opened(root, tmp_path)
    first = capture(repo)
    with snapshot.materialize(repo, first) as made:
        place = made.path
        inode = (place / "folder/a").stat().st_ino
        wanted = everything_below(place)
        with snapshot.materialize(repo, first) as beside:
            assert beside.path != place
            assert everything_below(beside.path) == wanted
        spoil_a_copy(place)
    with snapshot.materialize(repo, first) as made:
        assert made.path == place and everything_below(place) == wanted

    write(root, {"folder/b": "other", "more/c": "c", "kind": "longer than before"})
    (root / "gone.py").unlink()
    second = capture(repo)
    with snapshot.materialize(repo, second) as made:
        assert made.path == place
        assert files_below(place) == files_below(root) - {".git", "Cargo.toml"}
        assert (place / "folder/b").read_text() == "other" and not (place / "gone.py").exists()
        assert (place / "more/c").stat().st_ino != inode


@pytest.mark.parametrize("doubt", ["attributes", "settings", "blind", "folder mode", "index", "killed"])
def test_a_kept_copy_in_doubt_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doubt: str) -> None:
    monkeypatch.setattr(kept_copy, "KEEP_FROM", 1)
    root = project(tmp_path, {"folder/a.txt": "a\n"})
    (root / "Cargo.toml").unlink()
    repo = opened(root, tmp_path)
    here = capture(repo)
    state = tmp_path / "state/snapshots"
    with snapshot.materialize(repo, here) as made:
        place = made.path
    wanted = everything_below(place)
    (place / "folder/a.txt").write_text("b\n")
    match doubt:
        case "attributes":
            write(root, {".gitattributes": "*.txt eol=crlf\n"})
            here = capture(repo)
        case "settings":
            git(root, "config", "core.eol", "crlf")
            git(root, "config", "core.autocrlf", "true")
        case "blind":
            repo.git("update-index", "--assume-unchanged", "folder/a.txt", index=state / "kept.index", work_tree=place)
        case "folder mode":
            (place / "folder").chmod(0o700)
        case "index":
            (state / "kept.index").write_bytes(b"no index")
        case "killed":
            (state / "kept.facts").unlink()
    with snapshot.materialize(repo, here) as made:
        ends = "a\r\n" if doubt in {"attributes", "settings"} else "a\n"
        assert (made.path / "folder/a.txt").read_bytes() == ends.encode()
        if ends == "a\n":
            assert everything_below(made.path) == wanted


def test_build_caches_and_submodules_and_age_end_a_kept_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_copy, "KEEP_FROM", 1)
    root = project(tmp_path)
    write(root, {"target/debug/x": "1"})
    repo = opened(root, tmp_path)
    here = capture(repo)
    with snapshot.materialize(repo, here) as made:
        assert made.path.name != "kept"
    with snapshot.materialize(repo, here, dependency_dirs=()) as made:
        assert made.path.name == "kept"
    held = tmp_path / "state/snapshots/kept.held"
    assert snapshot.sweep(tmp_path / "state") == ()
    os.utime(held, (0, 0))
    assert snapshot.sweep(tmp_path / "state") == (str(made.path),)
    assert not made.path.exists()
