"""After every end-to-end and chaos test its stores are looked through: nothing may be left behind, and books balance.

A test that leaves something behind on purpose says what and why with `@pytest.mark.leaves(LeakKind..., reason=...)`;
one whose store is damaged on purpose says `@pytest.mark.leaves(reason=...)` without a kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

_CHECKED = {"e2e", "chaos"}


def pytest_configure(config: pytest.Config) -> None:
    from tests.chaos import mutants

    mutants.apply_from_environment()
    config.addinivalue_line("markers", "leaves(*kinds, reason): leaks that a test leaves behind on purpose")


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """No open turn, lease, intent, reservation or process of nobody; chains whole and books balanced."""
    checked = bool(_CHECKED & set(request.path.parts))
    folder: Path | None = request.getfixturevalue("tmp_path") if checked else None
    yield
    mark = request.node.get_closest_marker("leaves")
    if folder is None or (mark is not None and not mark.args):
        return
    from loopx.testing import find_leaks

    for database in sorted(folder.rglob("loopx.db")):
        left = [leak for leak in find_leaks(str(database)) if mark is None or leak.kind not in mark.args]
        assert not left, f"{database}: {left}"
