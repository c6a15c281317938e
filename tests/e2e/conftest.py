from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.desk import Desk


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)
