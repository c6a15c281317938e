"""Engines in whole goals: who is asked, who runs, what is waited for, and what a person hears of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopx.control_plane.errors import UsageError
from loopx.control_plane.goal import Permission
from loopx.control_plane.scheduler.arbitration import jitter_for
from loopx.hosts.protocol import HostEvent, HostEventKind
from loopx.presentation.renderers.turn_text import show_text
from loopx.runtime import turn_service
from loopx.runtime.progress import GoalOpened, RunEnded, TurnOpened
from loopx.runtime.session import Session
from loopx.runtime.staggering import Turnstile
from loopx.store import evidence, gates, goals, hosts, turns
from tests.e2e.engine_kit import FIX_BOTH, Bench

LIMIT = 'started(); failed("You\'ve hit your usage limit. Try again in 2 hours.")'
LIMIT_AGAIN = 'started(); failed("You\'ve hit your usage limit. Try again in 3 hours.")'
LIMIT_NO_RESET = 'started(); failed("You\'ve hit your usage limit.")'
SIGNED_OUT = 'started(); failed("401 Unauthorized: invalid api key")'
BROKE_OFF = 'started(); used_tool(); failed("stream disconnected before completion: connection reset")'
NOTHING = 'started(); done("All done!")'
HOUR_MS = 3_600_000


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("LOOPX_STATE_DIR", str(tmp_path / "state"))
    return Bench(tmp_path)


@pytest.fixture
def session(bench: Bench) -> Iterator[Session]:
    opened = bench.session()
    yield opened
    opened.store.close()


def _wait_ms(session: Session, goal_id: str) -> int | None:
    with session.store.read() as tx:
        row = goals.row_of(tx, goal_id)
    return None if row["wait_until_ms"] is None else int(row["wait_until_ms"]) - session.store.now_ms()


def _gates(session: Session, goal_id: str) -> list[tuple[str, str, str]]:
    with session.store.read() as tx:
        return [(gate.kind, gate.question, gate.fix) for gate in gates.open_gates(tx, goal_id)]


def _runs(session: Session, goal_id: str) -> list[hosts.HostRun]:
    with session.store.read() as tx:
        found = turns.page(tx, goal_id)
        return [run for turn in reversed(found) for run in hosts.of_turn(tx, turn.turn_key)]


# -- the ladder ------------------------------------------------------------------------------------------------


def test_a_missing_engine_is_stepped_over_only_where_the_goal_allows_it(bench: Bench, session: Session) -> None:
    claude = bench.cli("claude", FIX_BOTH)
    strict = bench.goal(session, engines=("codex", "claude"))
    end = bench.run(session, strict)
    assert (end.exit_code, end.failure) == (13, "engine_unavailable")
    assert end.reason == "engine_missing:npm install -g @openai/codex"
    assert claude.launches == 0

    allowed = bench.goal(session, engines=("codex", "claude"), fallback=True)
    end = bench.run(session, allowed)
    assert end.exit_code == 0
    assert claude.launches == 1
    opened = [event for event in bench.events if isinstance(event, GoalOpened)][-1]
    assert (opened.asked, opened.engine) == ("codex", "claude")
    assert [event.asked for event in bench.events if isinstance(event, TurnOpened)] == ["codex"]
    view = turn_service.show(session.store, allowed.goal_id, None)
    assert (view.asked, view.turn.engine, view.ran, view.explicit) == ("codex", "claude", "claude", False)
    assert [(one.engine, one.code) for one in view.passed_over] == [("codex", "engine_missing")]
    shown = show_text(view, session.store.now_ms())
    assert "codex, which is not installed" in shown


def test_an_explicit_engine_is_honoured_or_refused(bench: Bench, session: Session) -> None:
    codex, claude = bench.cli("codex", FIX_BOTH), bench.cli("claude", FIX_BOTH)
    goal = bench.goal(session, engines=("codex", "claude"), fallback=True)
    assert bench.run(session, goal, engine="gemini").exit_code == 13
    assert (codex.launches, claude.launches) == (0, 0)
    with pytest.raises(UsageError):
        bench.run(session, goal, engine="codexx")
    assert bench.run(session, goal, engine="claude").exit_code == 0
    assert (codex.launches, claude.launches) == (0, 1)
    view = turn_service.show(session.store, goal.goal_id, None)
    assert (view.asked, view.explicit, view.passed_over) == ("claude", True, ())


def test_a_broken_program_before_a_good_one_on_path_is_not_launched(bench: Bench, session: Session) -> None:
    codex = bench.cli("codex", FIX_BOTH)
    shims = bench.folder / "shims"
    shims.mkdir()
    (shims / "codex").write_text("#!/bin/sh\nexit 127\n")
    (shims / "codex").chmod(0o755)
    bench.env["PATH"] = f"{shims}:{bench.env['PATH']}"
    goal = bench.goal(session, engines=("codex",))
    assert bench.run(session, goal).exit_code == 0
    assert codex.launches == 1


def test_a_relative_command_is_looked_for_in_the_work_tree(bench: Bench, session: Session) -> None:
    agent = bench.root / "agent.sh"
    agent.write_text("#!/bin/sh\nsed -i 's/return 1/return 2/' m.py\n")
    agent.chmod(0o755)
    goal = bench.goal(session, engines=("command:./agent.sh",))
    assert bench.run(session, goal).exit_code == 0


def test_the_model_and_the_permission_reach_the_engine(bench: Bench, session: Session) -> None:
    codex = bench.cli("codex", FIX_BOTH)
    goal = bench.goal(session, engines=("codex",), model="o9", permission=Permission.BYPASS)
    assert bench.run(session, goal).exit_code == 0
    argv = codex.launch(1)["argv"]
    assert argv[argv.index("-m") + 1] == "o9"
    assert "--dangerously-bypass-approvals-and-sandbox" in argv
    assert codex.launch(1)["env"]["LOOPX_MODEL"] == "o9"
    opened = next(event for event in bench.events if isinstance(event, GoalOpened))
    assert (opened.model, opened.permission) == ("o9", "bypass")


# -- signing in ------------------------------------------------------------------------------------------------


def test_a_signed_out_engine_asks_once_before_anything_is_launched(bench: Bench, session: Session) -> None:
    codex, claude = bench.cli("codex", FIX_BOTH), bench.cli("claude", FIX_BOTH)
    codex.sign_out()
    goal = bench.goal(session, engines=("codex", "claude"), fallback=True)
    for _ in range(2):
        end = bench.run(session, goal)
        assert (end.exit_code, end.question, end.fix) == (11, "codex is not signed in", "codex login")
        assert _gates(session, goal.goal_id) == [("sign_in", "codex is not signed in", "codex login")]
    assert (codex.launches, claude.launches, end.total_turns) == (0, 0, 0), "a sign-in is no reason to step down"

    other = bench.goal(session, engines=("claude",), objective="the other goal")
    assert bench.run(session, other).exit_code == 0, "other goals go on"
    bench.git("checkout", "-q", "--", "m.py")

    codex.sign_in()
    assert bench.run(session, goal).exit_code == 0
    assert _gates(session, goal.goal_id) == []
    assert "not signed in" not in codex.launch(1)["prompt"]


def test_a_sign_in_that_lapses_in_a_turn_asks_the_same_question(bench: Bench, session: Session) -> None:
    codex = bench.cli("codex", SIGNED_OUT, FIX_BOTH)
    goal = bench.goal(session, engines=("codex",))
    end = bench.run(session, goal)
    assert (end.exit_code, bench.kinds, bench.turns[-1].failure) == (11, ["user_action_required"], "auth_failed")
    assert _gates(session, goal.goal_id) == [("sign_in", "codex is not signed in", "codex login")]
    assert end.spent_slots == 0
    assert bench.run(session, goal).exit_code == 0, "the person is back, so it is tried again"
    assert codex.launches == 2


def test_another_engine_by_name_makes_a_sign_in_moot(bench: Bench, session: Session) -> None:
    codex, _ = bench.cli("codex", FIX_BOTH), bench.cli("claude", FIX_BOTH)
    codex.sign_out()
    goal = bench.goal(session, engines=("codex",))
    assert bench.run(session, goal).exit_code == 11
    assert bench.run(session, goal, engine="claude").exit_code == 0
    assert _gates(session, goal.goal_id) == []


def test_not_knowing_whether_it_is_signed_in_never_blocks(bench: Bench, session: Session) -> None:
    codex = bench.cli("codex", FIX_BOTH)
    text = (bench.bin / "codex").read_text()
    (bench.bin / "codex").write_text(text.replace("sys.exit(1 if SAID", "sys.exit(2); (1 if SAID"))
    goal = bench.goal(session, engines=("codex",))
    assert bench.run(session, goal).exit_code == 0
    assert codex.launches == 1


# -- limits ----------------------------------------------------------------------------------------------------


def test_a_limit_is_waited_for_and_is_no_failed_attempt(bench: Bench, session: Session) -> None:
    codex = bench.cli("codex", LIMIT, LIMIT_AGAIN, FIX_BOTH)
    goal = bench.goal(session, engines=("codex",))
    end = bench.run(session, goal)
    assert (end.exit_code, end.disposition, bench.kinds, end.spent_slots) == (10, "wait", ["wait"], 0)
    left = _wait_ms(session, goal.goal_id)
    assert left is not None and 0 < left - 2 * HOUR_MS < 60_000
    with session.store.read() as tx:
        row = goals.row_of(tx, goal.goal_id)
    assert (row["failure_streak"], row["host_failure_streak"], row["wait_kind"]) == (0, 0, "limit")

    assert bench.run(session, goal, explicit=False).exit_code == 10
    assert codex.launches == 1, "a worker's run waits for the reset"
    assert bench.run(session, goal).exit_code == 10
    assert codex.launches == 2, "a person's run tries early, once"
    left = _wait_ms(session, goal.goal_id)
    assert left is not None and left > 2.5 * HOUR_MS
    assert bench.run(session, goal).exit_code == 10
    assert codex.launches == 2, "and then waits too"


def test_a_limit_that_was_told_in_error_is_cleared_by_the_early_try(bench: Bench, session: Session) -> None:
    bench.cli("codex", LIMIT, FIX_BOTH)
    goal = bench.goal(session, engines=("codex",))
    assert bench.run(session, goal).exit_code == 10
    assert bench.run(session, goal).exit_code == 0
    assert _wait_ms(session, goal.goal_id) is None


def test_limits_without_a_reset_back_off_up_to_an_hour(bench: Bench, session: Session) -> None:
    bench.cli("codex", LIMIT_NO_RESET)
    goal = bench.goal(session, engines=("codex",))
    waits = []
    for _ in range(4):
        bench.run(session, goal)
        waits.append(_wait_ms(session, goal.goal_id) or 0)
        with session.store.write() as tx:
            tx.run(
                "goals.set_wait",
                goal_id=goal.goal_id,
                wait_kind="limit",
                wait_until_ms=session.store.now_ms() - 1,
                wait_detail="",
                due_at_ms=None,
                now_ms=session.store.now_ms(),
            )
    assert [round(wait / 60_000) for wait in waits] == [15, 30, 60, 60]


def test_a_run_sleeps_until_the_reset_and_goes_on_by_itself(bench: Bench, session: Session) -> None:
    codex = bench.cli("codex", 'started(); failed("usage limit reached; try again in 1 second")', FIX_BOTH)
    goal = bench.goal(session, engines=("codex",), objective="limit 862")
    assert jitter_for(goal.goal_id, most_ms=30_000) < 100, "a goal whose share of the spread is small"
    end = _run_waiting(bench, session, goal.goal_id)
    assert (end.exit_code, codex.launches, bench.kinds) == (0, 2, ["wait", "validated_completion"])


def _run_waiting(bench: Bench, session: Session, goal_id: str) -> RunEnded:
    from loopx.control_plane.ids import AgentId
    from loopx.runtime.goal_runner import GoalRunner, RunOptions, StopSignal

    return GoalRunner(
        session.store,
        session.project,
        goal_id,
        AgentId("loopx"),
        bench.events.append,
        bench.env,
        RunOptions(),
        StopSignal(),
        session.clock,
    ).run()


def test_another_engine_works_through_a_limit_where_the_goal_allows_it(bench: Bench, session: Session) -> None:
    codex, claude = bench.cli("codex", LIMIT), bench.cli("claude", FIX_BOTH)
    goal = bench.goal(session, engines=("codex", "claude"), fallback=True)
    assert bench.run(session, goal).exit_code == 0
    assert (codex.launches, claude.launches) == (1, 1)
    view = turn_service.show(session.store, goal.goal_id, None)
    assert [(one.engine, one.code) for one in view.passed_over] == [("codex", "limited")]


def test_when_every_engine_is_limited_the_first_reset_counts(bench: Bench, session: Session) -> None:
    bench.cli("codex", LIMIT), bench.cli("claude", LIMIT_AGAIN)
    goal = bench.goal(session, engines=("codex", "claude"), fallback=True)
    assert bench.run(session, goal).exit_code == 10
    left = _wait_ms(session, goal.goal_id)
    assert left is not None and 0 < left - 2 * HOUR_MS < 60_000


def test_an_account_without_credit_asks_a_person(bench: Bench, session: Session) -> None:
    codex = bench.cli("codex", 'started(); failed("Your credit balance is too low")', FIX_BOTH)
    goal = bench.goal(session, engines=("codex",))
    assert bench.run(session, goal).exit_code == 11
    [(kind, question, _)] = _gates(session, goal.goal_id)
    assert (kind, "credit balance" in question) == ("budget", True)
    assert bench.run(session, goal).exit_code == 0
    assert codex.launches == 2


# -- sessions --------------------------------------------------------------------------------------------------


def _keep_transcript(bench: Bench, session_id: str) -> Path:
    folder = bench.folder / "home" / ".codex" / "sessions" / "2026" / "01" / "01"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rollout-2026-{session_id}.jsonl"
    path.write_text("{}\n")
    return path


def test_work_that_broke_off_is_resumed_in_its_session(bench: Bench, session: Session) -> None:
    codex = bench.cli("codex", BROKE_OFF, FIX_BOTH)
    _keep_transcript(bench, "s-0")
    goal = bench.goal(session, engines=("codex",))
    assert bench.run(session, goal).exit_code == 10
    assert bench.run(session, goal).exit_code == 0
    argv = codex.launch(2)["argv"]
    assert argv[argv.index("resume") + 1] == "s-0"
    assert [run.resumes for run in _runs(session, goal.goal_id)] == [None, "s-0"]


def test_a_session_that_grew_too_big_is_not_resumed(bench: Bench, session: Session) -> None:
    codex = bench.cli("codex", BROKE_OFF, FIX_BOTH)
    with _keep_transcript(bench, "s-0").open("r+b") as file:
        file.truncate(64 << 20)
    goal = bench.goal(session, engines=("codex",))
    bench.run(session, goal)
    assert bench.run(session, goal).exit_code == 0
    assert "resume" not in codex.launch(2)["argv"]


def test_a_dead_resume_falls_back_to_a_fresh_session_in_the_same_turn(bench: Bench, session: Session) -> None:
    dead = 'sys.stderr.write("Error: no rollout found for thread id s-0\\n"); sys.exit(1)'
    codex = bench.cli("codex", BROKE_OFF, dead, FIX_BOTH)
    _keep_transcript(bench, "s-0")
    goal = bench.goal(session, engines=("codex",))
    bench.run(session, goal)
    end = bench.run(session, goal)
    assert (end.exit_code, codex.launches, end.total_turns) == (0, 3, 2)
    assert "resume" not in codex.launch(3)["argv"]
    assert [(run.attempt, run.end_kind) for run in _runs(session, goal.goal_id)] == [
        (1, "transport_lost"),
        (1, "session_missing"),
        (2, "success"),
    ]
    with session.store.read() as tx:
        assert goals.row_of(tx, goal.goal_id)["host_failure_streak"] == 0


def test_a_session_is_resumed_only_a_few_times(bench: Bench, session: Session) -> None:
    codex = bench.cli("codex", BROKE_OFF)
    _keep_transcript(bench, "s-0")
    goal = bench.goal(session, engines=("codex",))
    for _ in range(4):
        bench.run(session, goal)
    assert ["resume" in codex.launch(number)["argv"] for number in (1, 2, 3, 4)] == [False, True, True, False]


def test_a_turn_that_ended_by_itself_is_followed_by_a_fresh_session(bench: Bench, session: Session) -> None:
    half = 'started(); sub("m.py", "def f(): return 1", "def f(): return 2"); used_tool(); done()'
    codex = bench.cli("codex", half, FIX_BOTH)
    _keep_transcript(bench, "s-0")
    goal = bench.goal(session, engines=("codex",))
    assert bench.run(session, goal).exit_code == 0
    assert "resume" not in codex.launch(2)["argv"]


# -- what an engine leaves -------------------------------------------------------------------------------------


def test_any_engine_may_leave_a_typed_result(bench: Bench, session: Session) -> None:
    ask = (
        'started(); used_tool(); result(kind="question", question={"text": "Drop v1?", "choices": ["y", "n"]}); done()'
    )
    codex = bench.cli("codex", ask, FIX_BOTH)
    goal = bench.goal(session, engines=("codex",))
    end = bench.run(session, goal)
    assert (end.exit_code, end.question) == (11, "Drop v1?")
    launch = codex.launch(1)
    folder = Path(launch["env"]["LOOPX_RESULT_FILE"]).parent
    assert folder.parent == Path(session.project.state_dir) / "agent"
    argv = launch["argv"]
    assert argv[argv.index("--add-dir") + 1] == str(folder)
    assert not Path(session.project.spools).is_relative_to(folder)


@pytest.mark.parametrize("content", ['{"turn_key": "t-other", "kind": "completion"}', "garbage", '{"kind": 7}'])
def test_a_forged_or_broken_result_is_rejected_for_any_engine(bench: Bench, session: Session, content: str) -> None:
    forge = f"started(); used_tool(); open(os.environ['LOOPX_RESULT_FILE'], 'w').write({content!r}); done()"
    bench.cli("codex", forge, FIX_BOTH)
    goal = bench.goal(session, engines=("codex",))
    assert bench.run(session, goal).exit_code == 0
    assert [turn.failure for turn in bench.turns] == ["contract_rejected", None]


def test_a_result_that_an_earlier_attempt_left_is_forgotten(bench: Bench, session: Session) -> None:
    dead = (
        'result(kind="question", question={"text": "stale?"}); '
        'sys.stderr.write("Error: no rollout found for thread id s-0\\n"); sys.exit(1)'
    )
    bench.cli("codex", BROKE_OFF, dead, FIX_BOTH)
    _keep_transcript(bench, "s-0")
    goal = bench.goal(session, engines=("codex",))
    bench.run(session, goal)
    assert bench.run(session, goal).exit_code == 0
    assert _gates(session, goal.goal_id) == []


def test_an_engine_that_does_nothing_twice_is_shown_with_its_error_output(bench: Bench, session: Session) -> None:
    bench.cli("codex", 'sys.stderr.write("model nonsense-9 is odd\\n"); started(); done("Finished.")')
    goal = bench.goal(session, engines=("codex",))
    bench.run(session, goal, max_turns=2)
    assert [turn.findings for turn in bench.turns] == [(), ("host_degraded",)]
    with session.store.read() as tx:
        notes = [one for one in evidence.of_turn(tx, bench.turns[1].turn_key) if one.name == "host_degraded"]
    assert "nonsense-9" in json.loads(bytes(notes[0].body))["stderr"]
    assert notes[0].produced == "verified"


# -- accounts --------------------------------------------------------------------------------------------------


def test_launches_of_one_account_go_one_after_the_other(bench: Bench, session: Session) -> None:
    env = tuple(bench.env.items())
    first, second = (Turnstile(session.store, "codex", env, f"run-{number}") for number in (1, 2))
    first.enter(lambda: False)
    assert [holder for holder, _ in _accounts(session)] == ["run-1"]

    patience = iter((False, False, False, True))
    second.enter(lambda: next(patience))
    assert next(patience, None) is None, "it waits, and hears a stop while it does"
    assert [holder for holder, _ in _accounts(session)] == ["run-1"]
    second.leave()
    assert [holder for holder, _ in _accounts(session)] == ["run-1"], "who never got through holds nothing"

    first.heard(HostEvent(kind=HostEventKind.SESSION))
    assert len(_accounts(session)) == 1
    first.heard(HostEvent(kind=HostEventKind.MESSAGE))
    assert _accounts(session) == []
    second.enter(lambda: False)
    assert [holder for holder, _ in _accounts(session)] == ["run-2"]

    third = Turnstile(session.store, "claude", env, "run-3")
    third.enter(lambda: False)
    Turnstile(session.store, f"command:{bench.agent}", env, "run-4").enter(lambda: False)
    assert {holder for holder, _ in _accounts(session)} == {"run-2", "run-3"}
    second.leave()
    third.leave()


def test_whoever_adopts_a_launch_leaves_its_place_in_the_queue(bench: Bench, session: Session) -> None:
    env = tuple(bench.env.items())
    Turnstile(session.store, "codex", env, "run-1").enter(lambda: False)
    stranger = Turnstile(session.store, "codex", env, "run-2")
    stranger.rejoin()
    stranger.leave()
    assert len(_accounts(session)) == 1, "only the launch itself has that place"
    adopter = Turnstile(session.store, "codex", env, "run-1")
    adopter.rejoin()
    adopter.leave()
    assert _accounts(session) == []


def test_two_accounts_of_one_engine_do_not_wait_for_each_other(bench: Bench, session: Session) -> None:
    env = tuple(bench.env.items())
    mine = Turnstile(session.store, "codex", env, "run-1")
    yours = Turnstile(session.store, "codex", (*env, ("CODEX_HOME", "/elsewhere")), "run-2")
    mine.enter(lambda: False)
    yours.enter(lambda: False)
    assert len(_accounts(session)) == 2
    mine.leave()
    yours.leave()


def _accounts(session: Session) -> list[tuple[str, str]]:
    """Holder and account of every turnstile that is held."""
    with session.store.read() as tx:
        rows = tx.all("leases.live", now_ms=session.store.now_ms(), limit=50)
    return [(row["owner"], row["resource"]) for row in rows if row["resource"].startswith("account:")]
