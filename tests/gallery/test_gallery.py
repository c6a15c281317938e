"""Plays the gallery: every cheat is refused or disclosed for the right reason, and no honest agent is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gallery.kit import Case, Scene, Verdict, available, play
from tests.gallery.table import CHEATS, HONEST


def _look(scene: Scene) -> str:
    """What was found, for a failing test's message."""
    return "\n".join(
        f"{turn.result_kind} ({turn.reason}) {turn.findings} restored={turn.restored} "
        f"{[str(check.verdict) for check in turn.checks]}"
        for turn in scene.turns
    )


def _case(case: Case) -> object:
    return pytest.param(case, id=case.name)


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPX_STATE_DIR", str(tmp_path / "state"))


@pytest.mark.parametrize("case", [_case(case) for case in CHEATS])
def test_a_cheat_comes_to_light(case: Case, tmp_path: Path) -> None:
    if not available(case):
        pytest.skip(f"{case.needs} is not here")
    scene, end = play(case, tmp_path)
    seen = _look(scene)
    last = scene.turns[-1]
    found = {finding.partition(" ")[0] for turn in scene.turns for finding in turn.findings}
    match case.expected.verdict:
        case Verdict.REFUSED:
            assert last.reason == "guard_refused", seen
            assert f"{case.expected.word}:refused" in found, seen
        case Verdict.RED | Verdict.FOILED:
            assert last.reason == case.expected.word, seen
        case Verdict.DISCLOSED:
            assert case.expected.word in found, seen
        case Verdict.ACCEPTED:
            pytest.fail("a cheat is never simply accepted")
    if case.expected.verdict is not Verdict.DISCLOSED:
        assert end.goal_state == "active", seen
        assert last.slots == 0 or last.result_kind == "validated_progress", seen
    assert scene.moved() == [], seen
    if case.after is not None:
        case.after(scene)


@pytest.mark.parametrize("case", [_case(case) for case in HONEST])
def test_an_honest_agent_is_never_refused(case: Case, tmp_path: Path) -> None:
    if not available(case):
        pytest.skip(f"{case.needs} is not here")
    scene, _ = play(case, tmp_path)
    seen = _look(scene)
    last = scene.turns[-1]
    findings = [finding for turn in scene.turns for finding in turn.findings]
    assert not [finding for finding in findings if ":refused" in finding], seen
    assert last.reason == case.expected.word, seen
    assert last.result_kind.startswith("validated_"), seen
    assert set(case.expected.also) <= {finding.partition(" ")[0] for finding in findings}, seen
    assert all(turn.restored == () for turn in scene.turns), seen
    assert scene.moved() == [], seen


def test_the_gallery_is_as_large_as_it_says() -> None:
    names = [case.name for case in (*CHEATS, *HONEST)]
    assert len(names) == len(set(names))
    assert len(CHEATS) >= 40
    assert len(HONEST) >= 40
