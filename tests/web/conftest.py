"""One world for a test: a project with goals, made by the real runner, in a state folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.web.world import World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """An empty world; this process's own state folder is the world's."""
    made = World(str(tmp_path))
    monkeypatch.setenv("LOOPX_STATE_DIR", made.box.state)
    # What a terminal's locale would change is not what these tests are about.
    monkeypatch.setenv("LOOPX_LANG", "en")
    yield made
    made.close()
