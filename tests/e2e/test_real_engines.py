"""Whole goals with the real agent CLIs, whose every model answer is scripted. The matrix of ends is in `tests/hosts`;
here is what the goal runner makes of them. A few run by default, the rest with `make hosts`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopx.control_plane.goal import Permission
from loopx.control_plane.quota.policy import BudgetUnit
from loopx.store import goals
from loopx.testing import find_leaks
from tests.e2e.real_kit import real_goal
from tests.hosts.script import Cut, Fail, Hold, Say, Shell, Silence, Step, Tokens, Tool, Write

ONE = Shell(command="echo done > one.txt")
TWO = Shell(command="echo done > two.txt", tokens=Tokens(input=333, cached=11, output=44, reasoning=3))
BOTH = Shell(command="echo done > one.txt; echo done > two.txt")
ENGINES = ("codex", "claude", "opencode", "gemini")
real_cli = pytest.mark.real_cli


@pytest.fixture(autouse=True)
def state_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LOOPX_STATE_DIR", "/nonexistent")
    yield


def _allowed(engine: str) -> dict[str, Permission]:
    """OpenCode and Gemini run a compound shell line only when everything is allowed."""
    return {"permission": Permission.BYPASS} if engine in ("opencode", "gemini") else {}


def _limit(engine: str, seconds: int) -> Fail:
    """The provider's own way to say that the usage limit resets in so many seconds."""
    at = int(time.time()) + seconds
    if engine == "codex":
        extra = (("plan_type", "plus"), ("resets_at", at), ("resets_in_seconds", seconds))
        return Fail(status=429, kind="usage_limit_reached", message="limit", extra=extra)
    headers = (
        ("anthropic-ratelimit-unified-status", "rejected"),
        ("anthropic-ratelimit-unified-reset", str(at)),
        ("anthropic-ratelimit-unified-representative-claim", "five_hour"),
        ("retry-after", str(seconds)),
    )
    return Fail(status=429, kind="rate_limit_error", message="limit", headers=headers)


def _edits_and_finishes(engine: str) -> None:
    with real_goal(engine, ONE, Say(text="One."), TWO, Say(text="Two.")) as real:
        real.goal(**_allowed(engine))
        end = real.run()
        assert (end.exit_code, end.goal_state, end.turns) == (0, "completed", 2), real.turns
        real.assert_books_equal_the_server()
        first, second = real.host_runs()
        assert first.session_id and second.session_id and first.session_id != second.session_id
        assert (first.end_kind, second.end_kind, second.resumes) == ("success", "success", None)
        assert not find_leaks(real.session.store)
        dollars = real.metered(BudgetUnit.MICROUSD)
        assert (dollars or 0) > 0 if engine == "claude" else not dollars
        if engine in ("codex", "gemini"):
            assert dollars is None, "unknown is not zero"


def test_codex_edits_and_finishes_over_two_turns_and_the_books_are_right_to_the_token() -> None:
    _edits_and_finishes("codex")


@real_cli
@pytest.mark.parametrize("engine", ["claude", "opencode", "gemini"])
def test_the_others_edit_and_finish_over_two_turns(engine: str) -> None:
    _edits_and_finishes(engine)


def test_codex_at_its_limit_waits_for_the_reset_without_an_attempt() -> None:
    _waits_at_its_limit("codex")


@real_cli
def test_claude_at_its_limit_waits_for_the_reset_without_an_attempt() -> None:
    _waits_at_its_limit("claude")


def _waits_at_its_limit(engine: str) -> None:
    with real_goal(engine, _limit(engine, 7200)) as real:
        if engine == "claude":
            # Only a subscription's limit says when it resets.
            del real.env["ANTHROPIC_API_KEY"]
            real.env["CLAUDE_CODE_OAUTH_TOKEN"] = "sk-ant-oat01-scripted-0000000000000000"
        goal = real.goal()
        end = real.run()
        assert (end.exit_code, end.disposition, real.kinds, end.spent_slots) == (10, "wait", ["wait"], 0), real.turns
        with real.session.store.read() as tx:
            row = goals.row_of(tx, goal.goal_id)
        # Both CLIs round the reset to the minute.
        assert abs(row["wait_until_ms"] - real.session.store.now_ms() - 7_200_000) < 180_000
        assert (row["wait_kind"], row["failure_streak"], row["host_failure_streak"]) == ("limit", 0, 0)
        real.script(BOTH, Say(text="Done."))
        assert real.run().exit_code == 0, "the limit was over early, and the person's run found out"
        real.assert_books_equal_the_server()


@real_cli
def test_a_false_done_is_refused_and_honest_work_passes() -> None:
    with real_goal("claude", Say(text="All done, every check is green."), BOTH, Say(text="Done.")) as real:
        real.goal()
        assert real.run().exit_code == 0
        assert real.kinds == ["validation_failed", "validated_completion"]
        assert real.turns[0].slots == 0


@real_cli
@pytest.mark.parametrize("engine", ["codex", "claude"])
def test_work_that_is_cut_off_is_resumed_and_every_token_is_counted(engine: str) -> None:
    """The first run dies after a paid tool call; the second goes on in its session."""
    with real_goal(engine, ONE, Cut()) as real:
        real.goal()
        end = real.run()
        assert (end.exit_code, real.kinds) == (10, ["host_failure"]), real.turns
        real.script(TWO, Say(text="Two."))
        assert real.run().exit_code == 0
        first, second = real.host_runs()
        assert first.session_id is not None
        assert (second.resumes, second.session_id) == (first.session_id, first.session_id)
        real.assert_books_equal_the_server()


@real_cli
@pytest.mark.parametrize("engine", ["codex", "claude"])
def test_a_dead_resume_is_no_attempt(engine: str) -> None:
    with real_goal(engine, Shell(command="ls"), Cut()) as real:
        real.goal()
        assert real.run().exit_code == 10
        [first] = real.host_runs()
        assert first.session_id
        for path in real.rig.home.rglob(f"*{first.session_id}*.jsonl"):
            path.write_text("{}\n")
        real.script(BOTH, Say(text="Done."))
        end = real.run()
        assert (end.exit_code, end.total_turns) == (0, 2)
        kinds = [run.end_kind for run in real.host_runs()]
        assert kinds[1:] in (["session_missing", "success"], ["success"]), kinds


@real_cli
@pytest.mark.parametrize("engine", ENGINES)
def test_a_refused_key_is_one_question_and_costs_nothing(engine: str) -> None:
    status = {
        "gemini": Fail(status=401, kind="UNAUTHENTICATED", message="Request had invalid authentication credentials.")
    }
    refusal = status.get(engine, Fail(status=401, kind="authentication_error", message="invalid api key"))
    with real_goal(engine, refusal) as real:
        real.goal(**_allowed(engine))
        end = real.run()
        assert (end.exit_code, real.gate_kinds(), end.spent_slots) == (11, ["sign_in"], 0), real.turns
        assert end.fix


@real_cli
@pytest.mark.parametrize("engine", ["codex", "claude"])
def test_an_overloaded_provider_is_tried_again_later(engine: str) -> None:
    with real_goal(engine, Fail(status=529, kind="overloaded_error", message="Overloaded")) as real:
        real.goal()
        end = real.run()
        assert (end.exit_code, real.kinds, real.turns[0].failure) == (10, ["host_failure"], "provider_overloaded")


@real_cli
@pytest.mark.parametrize("engine", ["codex", "claude"])
def test_the_agents_tools_are_there_and_know_the_turn(engine: str) -> None:
    steps: tuple[Step, ...] = (Tool(server="loopx", name="get_turn"), BOTH, Tool(server="loopx", name="complete_todo"))
    with real_goal(engine, *steps, Say(text="Done.")) as real:
        real.goal()
        assert real.run().exit_code == 0
        asked = str([request.body for request in real.server.requests])
        assert real.turns[0].turn_key in asked, "the model heard the turn's key from the tool"
        with real.session.store.read() as tx:
            kinds = [row["kind"] for row in tx.all("turns.claims", turn_key=real.turns[0].turn_key)]
        assert kinds == ["completion"]


@real_cli
@pytest.mark.parametrize("engine", ENGINES)
def test_a_question_in_the_typed_result_reaches_the_person(engine: str) -> None:
    body = '{"turn_key": "%s", "kind": "question", "question": {"text": "Drop v1?"}}'
    ask = Shell(command=f'printf \'{body}\' "$LOOPX_TURN_KEY" > "$LOOPX_RESULT_FILE"')
    with real_goal(engine, ask, Say(text="I asked.")) as real:
        real.goal(permission=Permission.BYPASS if engine != "codex" else Permission.WORKSPACE)
        end = real.run()
        assert (end.exit_code, end.question) == (11, "Drop v1?"), real.turns


@real_cli
def test_codex_whose_sandbox_refuses_is_a_matter_of_setup() -> None:
    with real_goal("codex", Shell(command="rm -rf /tmp/loopx-not-there"), Say(text="Removed.")) as real:
        real.goal()
        end = real.run()
        assert (end.exit_code, real.gate_kinds()) == (11, ["configuration"]), real.turns


@real_cli
def test_silence_ends_at_the_turns_own_clock_and_is_no_failed_work() -> None:
    with real_goal("claude", Silence()) as real:
        real.goal(turn_timeout_s=4)
        end = real.run(max_turns=1)
        assert (real.kinds, real.turns[0].failure, end.spent_slots) == (["host_failure"], "executor_timeout", 0)


@pytest.mark.parametrize("engine", ["codex", pytest.param("claude", marks=real_cli)])
def test_loopx_killed_while_the_engine_works_adopts_it_and_pays_once(engine: str) -> None:
    """kill -9 of `loopx run`; the engine goes on, and the next `loopx run` takes its work without a second launch."""
    with real_goal(engine, Hold(then=BOTH), Say(text="Finished without you.")) as real:
        real.goal()
        process = real.command("run", "real")
        assert real.server.silent.wait(120)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        real.server.release.set()
        code, lines = real.loopx("run", "real")
        assert code == 0, lines[-2:]
        started = [line for line in lines if line["type"] == "turn_started"]
        assert [line["resumed_after"] for line in started] == ["start"]
        [run] = real.host_runs()
        assert (run.attempt, run.end_kind, lines[-1]["spent_slots"]) == (1, "success", 1)
        real.assert_books_equal_the_server()
        assert not find_leaks(real.session.store)


@real_cli
@pytest.mark.parametrize("engine", ["claude"])
def test_files_written_by_the_hosts_own_tool_count(engine: str, tmp_path: Path) -> None:
    with real_goal(engine) as real:
        real.script(
            Shell(command="cat one.txt two.txt"),
            Write(path=str(real.root / "three.txt"), content="x\n"),
            BOTH,
            Say(text="Done."),
        )
        real.goal()
        assert real.run().exit_code == 0
