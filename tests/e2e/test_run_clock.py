"""A run's time limit ends hosts and starts no more turns; it never makes the verdict on what was done impossible."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopx.control_plane.ids import AgentId
from loopx.runtime.goal_runner import GoalRunner, RunOptions, StopSignal
from loopx.runtime.progress import ProgressEvent, RunEnded, TurnEnded, TurnOpened
from loopx.runtime.session import Session
from tests.e2e.goal_kit import FIX_F, FIX_G, Story

LIMIT_MINUTES = 120
HANGS = "\nimport time\nwhile True: time.sleep(0.1)"


class _Jumping:
    """A steady clock that jumps when the first turn opens."""

    def __init__(self, session: Session, jump_ms: int) -> None:
        self._clock = session.clock
        self._jump_ms = jump_ms
        self._offset = 0
        self.turns: list[TurnEnded] = []

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms() + self._offset

    def hear(self, event: ProgressEvent, /) -> None:
        if isinstance(event, TurnOpened):
            self._offset = self._jump_ms
        if isinstance(event, TurnEnded):
            self.turns.append(event)


def _run(story: Story, jump_ms: int) -> tuple[RunEnded, list[TurnEnded]]:
    session = story.session()
    goal = story.goal(session)
    clock = _Jumping(session, jump_ms)
    options = RunOptions(max_minutes=LIMIT_MINUTES, wait=False)
    runner = GoalRunner(
        session.store,
        session.project,
        goal.goal_id,
        AgentId("loopx"),
        clock.hear,
        story.env,
        options,
        StopSignal(),
        clock,
    )
    ended = runner.run()
    session.close()
    return ended, clock.turns


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOPX_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


def test_what_was_done_before_the_limit_is_judged_after_it(folder: Path) -> None:
    ended, turns = _run(Story(folder, FIX_F, FIX_G), LIMIT_MINUTES * 60_000 + 60_000)

    assert [turn.result_kind for turn in turns] == ["validated_progress"]
    assert (ended.exit_code, ended.reason, ended.gate_id) == (12, "time_limit", None)


def test_a_host_is_ended_at_the_limit_and_its_work_is_judged(folder: Path) -> None:
    ended, turns = _run(Story(folder, f"{FIX_F}{HANGS}"), LIMIT_MINUTES * 60_000 - 1_000)

    assert [(turn.result_kind, turn.slots) for turn in turns] == [("validated_progress", 1)]
    assert (ended.exit_code, ended.reason, ended.gate_id) == (12, "time_limit", None)
