"""Every command in the docs is run, page by page, in a project as a reader would have it.

`sh` and `python` blocks of a page run in order in one shell, in a small git repository with a failing suite. An engine
CLI that needs an account is replaced by a scripted program, and `make` targets are only resolved. A comment
`# exits N` on a line is a promise about its status, which is kept here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from loopx.demo import scene
from loopx.hosts import registry
from loopx.runtime import config
from scripts import check_docs

ROOT = Path(__file__).resolve().parent.parent.parent
_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TOML = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ENGINE = re.compile(r"--engine (codex|claude|opencode|gemini)\b")
_EXITS = re.compile(r"^(.*?\S)\s+# exits (\d+)$", re.MULTILINE)
_MAKE = re.compile(r"^make ", re.MULTILINE)
LIMIT_S = 120

AGENT = """
import pathlib, sys
sys.path.insert(0, {scripted!r})
import agent
dates = pathlib.Path("dates.py")
text = dates.read_text()
dates.write_text(text.replace("    text = text.strip()\\n", agent.WHOLE))
print("dates.py reads week dates now")
"""


def _pages() -> list[Path]:
    return [page for page in check_docs.pages() if _BLOCK.search(page.read_text(encoding="utf-8"))]


def _script(page: Path, engine: str) -> str:
    """The page's blocks as one shell script."""
    parts = ["set -euo pipefail"]
    for kind, body in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "python":
            parts.append(f"python3 - <<'PAGE_PYTHON'\n{textwrap.dedent(body)}PAGE_PYTHON")
            continue
        body = body.replace("\\\n", " ")
        body = _ENGINE.sub(f"--engine '{engine}'", body)
        body = _MAKE.sub(f"make -n -C '{ROOT}' ", body)
        parts.append(_EXITS.sub(r"status=0; \1 || status=$?; echo " r'"status $status"; [ "$status" = \2 ]', body))
    return "\n".join(parts) + "\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a failing suite, in a home that holds nothing else."""
    stage = scene.build(str(tmp_path / "stage"))
    work = tmp_path / "my-project"
    shutil.move(stage.project, work)
    (tmp_path / "home").mkdir()
    (tmp_path / "fake-engine.py").write_text(AGENT.format(scripted=str(Path(scene.__file__).parent)))
    return work


@pytest.mark.parametrize("page", _pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_do_what_it_says(page: Path, project: Path) -> None:
    outside = project.parent
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LOOPX_", "XDG_", "GIT_"))}
    env |= {
        "HOME": str(outside / "home"),
        "LOOPX_STATE_DIR": str(outside / "state"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}",
        "MAKEFLAGS": "",
    }
    script = _script(page, f"command:python3 {outside / 'fake-engine.py'}")
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=project,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n--- stdout\n{done.stdout[-3000:]}\n--- stderr\n{done.stderr[-3000:]}"


def test_the_engine_words_of_the_docs_are_engine_words() -> None:
    """They are replaced above, so that this is what keeps them honest."""
    named = {word for page in _pages() for word in _ENGINE.findall(page.read_text(encoding="utf-8"))}
    assert named
    assert named <= set(registry.CLIS)


def test_the_settings_of_the_docs_are_accepted() -> None:
    blocks = [block for page in check_docs.pages() for block in _TOML.findall(page.read_text(encoding="utf-8"))]
    assert blocks
    for block in blocks:
        assert config.parse(block.encode()).present


def test_the_docs_are_sound() -> None:
    assert list(check_docs.problems()) == []


def test_the_readme_has_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
