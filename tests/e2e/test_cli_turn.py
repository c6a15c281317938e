"""`loopx turn`: one governed turn, its record, its recovery, and settling work that was done outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loopx.control_plane.ids import AgentId
from loopx.control_plane.quota.turn_envelope import decode_envelope, signature_holds
from loopx.runtime.progress import silent
from loopx.runtime.turn_runner import TurnRunner
from loopx.testing import LeakKind
from tests.e2e.desk import CHECK, HALF, WHOLE, Desk


class Killed(BaseException):
    """The process ends here."""


def interrupt(desk: Desk, phase: str) -> str:
    """Run a turn and end it as a kill would, right after a commit that reaches the phase."""

    def tell(event: object, /) -> None:
        if getattr(event, "phase", None) == phase:
            raise Killed

    with desk.session() as session:
        from loopx.control_plane.turn_driver.loop_controller import TurnBudget
        from loopx.control_plane.turn_driver.transaction import LoopXTurnPhase
        from loopx.runtime import goal_work

        each = frozenset(LoopXTurnPhase)
        runner = TurnRunner(
            session.store,
            session.project,
            "goal",
            AgentId("loopx"),
            tell,
            dict(__import__("os").environ),
            boundaries=each,
        )
        work = runner.work()
        goal_work.take_baseline(
            session.store, work, dict(__import__("os").environ), silent, lambda: False, lambda: None
        )
        plan = runner.plan(TurnBudget(limit=9, used=0))
        assert plan.disposition is not None
        with pytest.raises(Killed):
            runner.start(plan, plan.disposition, desk.engine)
        key = runner.open_turn()
        assert key is not None
        # Its process is gone; here it is this very process, so that its lease is given up by hand.
        with session.store.write() as tx:
            lease = tx.one("leases.get", resource="turn:goal:loopx")
            tx.run("leases.release", resource="turn:goal:loopx", epoch=lease["epoch"])
    return key


def test_a_plan_is_a_read_with_a_signed_envelope_and_its_costs(desk: Desk) -> None:
    desk.goal()
    plan = desk.json("turn", "plan", "goal")
    assert (plan["disposition"], plan["route"], plan["refusal"]) == ("run_now", "ready_for_host", None)
    assert plan["costs"] == {"spends_quota": True, "launches_host": True, "writes_state": True}
    assert signature_holds(decode_envelope(json.dumps(plan["envelope"])))
    assert plan["decision"]["should_run"]
    assert desk.json("turn", "list", "goal")["turns"] == []


def test_run_once_runs_one_turn_and_then_closes_what_is_done(desk: Desk) -> None:
    desk.goal()
    first = desk.loopx("turn", "run-once", "goal", "--json")
    assert (first.code, first.json["result_kind"], first.json["disposition"]) == (0, "validated_progress", "run_now")
    second = desk.loopx("turn", "run-once", "goal", "--json")
    assert (second.code, second.json["result_kind"]) == (0, "validated_completion")
    assert (second.json["disposition"], second.json["goal_state"]) == ("terminal", "completed")
    third = desk.loopx("turn", "run-once", "goal", "--json")
    assert (third.code, third.error) == (10, "goal_closed")
    numbers = [(turn["number"], turn["slots"]) for turn in desk.json("turn", "list", "goal")["turns"]]
    assert numbers == [(2, 1), (1, 1)]


def test_run_once_ends_with_the_turns_own_status(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("import sys; sys.stdin.read(); print('All done.')")
    desk.goal()
    said = desk.loopx("turn", "run-once", "goal", "--json")
    assert (said.code, said.json["result_kind"], said.json["spent_slots"]) == (14, "validation_failed", 0)
    desk.goal("full", allowed=0)
    assert desk.loopx("turn", "run-once", "full").code == 10


def test_a_turn_shows_its_prompts_size_its_phases_and_its_evidence(desk: Desk) -> None:
    desk.goal()
    desk.loopx("turn", "run-once", "goal")
    view = desk.json("turn", "show", "goal")
    (host,) = view["hosts"]
    assert 0 < host["overhead_bytes"] <= 1500 < host["prompt_bytes"] + 1500
    assert [phase["phase"] for phase in view["phases"]][-1] == "scheduler_ack"
    assert view["rule"] == "ready"
    assert {"check", "diff"} <= {one["kind"] for one in view["evidence"]}
    by_number, by_key = desk.json("turn", "show", "goal", "1"), desk.json("turn", "show", view["turn"]["turn_key"])
    assert by_number == by_key == view
    text = desk.loopx("turn", "show", "goal").out
    assert "of them LoopX's" in text and "loopx/goal" in text


def test_the_journal_names_every_effect(desk: Desk) -> None:
    desk.goal()
    desk.loopx("turn", "run-once", "goal")
    journal = desk.json("turn", "journal", "goal")
    key = journal["turn_key"]
    assert [phase["effect_ref"] for phase in journal["phases"]] == [
        f"{key}/{phase['phase']}" for phase in journal["phases"]
    ]
    assert (journal["completed"], journal["recovery"]) == (7, None)
    assert "quota_spend" in desk.loopx("turn", "journal", "goal").out


@pytest.mark.parametrize(
    ("phase", "action", "hosts"),
    [
        ("host_execute", "evaluate", 1),
        ("validation", "retry_writeback", 1),
        ("durable_writeback", "spend_only", 1),
        ("quota_spend", "apply", 1),
    ],
)
def test_a_resume_says_what_it_found_and_repeats_nothing(desk: Desk, phase: str, action: str, hosts: int) -> None:
    desk.goal()
    key = interrupt(desk, phase)
    journal = desk.json("turn", "journal", "goal")
    done = desk.loopx("turn", "resume", "goal", "--json")
    assert (done.code, done.json["turn_key"]) == (0, key)
    assert done.json["found"]["action"] == action == journal["recovery"]["action"]
    assert done.json["turn"]["result_kind"] == "validated_progress"
    assert len(desk.json("quota", "ledger", "goal")["entries"]) == 1
    assert len(desk.json("turn", "show", "goal")["hosts"]) == hosts
    assert len(desk.git("log", "--oneline", "loopx/goal").splitlines()) == 2


def test_with_nothing_open_a_resume_says_so(desk: Desk) -> None:
    desk.goal()
    said = desk.loopx("turn", "resume", "goal", "--json")
    assert (said.code, said.json["turn_key"]) == (0, None)
    assert desk.loopx("turn", "resume", "gaol").code == 3


def test_run_once_resumes_before_anything_new(desk: Desk) -> None:
    desk.goal()
    key = interrupt(desk, "durable_writeback")
    done = desk.json("turn", "run-once", "goal")
    assert (done["turn_key"], done["result_kind"], done["disposition"]) == (key, "validated_progress", "run_now")
    assert len(desk.json("turn", "list", "goal")["turns"]) == 1


def test_a_spend_asked_for_from_outside_finishes_its_turn(desk: Desk) -> None:
    desk.goal()
    key = interrupt(desk, "durable_writeback")
    spent = desk.json("quota", "spend", "goal", "--turn", key, "--run-index", "0")
    assert (spent["effect_ref"], spent["run_index"]) == (f"{key}/quota_spend", 1)
    assert desk.json("turn", "journal", "goal")["completed"] == 7


@pytest.mark.leaves(LeakKind.OPEN_TURN, reason="the turn is killed before its writeback")
def test_a_spend_before_the_writeback_is_refused(desk: Desk) -> None:
    desk.goal()
    key = interrupt(desk, "validation")
    said = desk.loopx("quota", "spend", "goal", "--turn", key, "--json")
    assert (said.code, said.error) == (2, "spend_refused")
    assert desk.json("quota", "ledger", "goal")["entries"] == []


def test_a_reverted_turn_puts_its_files_back_and_keeps_its_spend(desk: Desk) -> None:
    desk.goal()
    desk.loopx("turn", "run-once", "goal")
    assert (desk.root / "m.py").read_text() == HALF
    done = desk.json("turn", "revert", "goal")
    assert (done["written"], (desk.root / "m.py").read_text()) == (1, "def f(): return 1\n")
    assert desk.json("quota", "ledger", "goal")["total_slots"] == 1
    assert desk.loopx("turn", "run-once", "goal").code == 0
    assert (desk.root / "m.py").read_text() == HALF


def test_a_revert_refuses_a_tree_that_others_changed(desk: Desk) -> None:
    desk.goal()
    desk.loopx("turn", "run-once", "goal")
    (desk.root / "mine.txt").write_text("precious")
    said = desk.loopx("turn", "revert", "goal", "--json")
    assert (said.code, said.error) == (15, "tree_changed")
    assert desk.loopx("turn", "revert", "goal", "--force").code == 0


def test_the_log_is_harmless_to_a_terminal(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "import sys; sys.stdin.read(); print('\\x1b[31mred\\x07 \\u202egnirts sk-abcdefghijk1234567')"
    )
    desk.goal()
    desk.loopx("turn", "run-once", "goal")
    said = desk.loopx("turn", "log", "goal")
    assert said.out == "\\x1b[31mred\\x07 \\u202egnirts [redacted]\n"
    assert desk.loopx("turn", "log", "goal", "--follow").out == said.out
    line, end = [json.loads(text) for text in desk.loopx("turn", "log", "goal", "--json").out.splitlines()]
    assert (line["type"], line["stream"]) == ("output", "stdout")
    assert (end["type"], end["ok"], end["lines"], end["lost"]) == ("result", True, 1, 0)
    assert end["schema_version"]


def settle(desk: Desk, *words: str) -> dict[str, object]:
    said = desk.loopx("turn", "settle", "goal", *words, "--json")
    return {"code": said.code, **said.json}


def test_work_of_an_outside_runner_is_judged_written_back_and_spent_once(desk: Desk) -> None:
    desk.goal()
    assert desk.loopx("check", "run", "goal", "--baseline").code == 0
    (desk.root / "m.py").write_text(HALF)
    first = settle(desk, "--effect-key", "job-1", "--kind", "progress")
    assert (first["result_kind"], first["spent_slots"]) == ("validated_progress", 1)
    (desk.root / "m.py").write_text(WHOLE)
    done = settle(desk, "--effect-key", "job-2", "--kind", "completion", "--summary", "added g")
    assert (done["code"], done["result_kind"], done["spent_slots"]) == (0, "validated_completion", 1)
    again = settle(desk, "--effect-key", "job-2", "--kind", "completion")
    assert (again["turn_key"], again["replayed"]) == (done["turn_key"], True)
    spent = [entry["turn_key"] for entry in desk.json("quota", "ledger", "goal")["entries"]]
    assert spent.count(done["turn_key"]) == 1
    with desk.session() as session, session.store.read() as tx:
        assert tx.one("goals.get", goal_id="goal")["state"] == "completed"
    assert "added g" in desk.git("log", "--format=%s", "loopx/goal")


def test_work_without_a_start_on_record_is_not_settled_and_not_taken_for_the_start(desk: Desk) -> None:
    desk.goal()
    (desk.root / "m.py").write_text(WHOLE)
    refused = desk.loopx("turn", "settle", "goal", "--kind", "completion", "--json")
    assert (refused.code, refused.error) == (2, "baseline_missing")
    assert "loopx check run goal --baseline" in refused.json["error"]["hint"]
    assert (desk.json("turn", "list", "goal")["turns"], (desk.root / "m.py").read_text()) == ([], WHOLE)
    # As the hint says.
    desk.git("stash")
    assert desk.loopx("check", "run", "goal", "--baseline").code == 0
    desk.git("stash", "pop")
    assert settle(desk, "--kind", "completion")["result_kind"] == "validated_completion"


def test_a_start_is_put_on_record_once_and_by_a_person(desk: Desk) -> None:
    made = desk.loopx("goal", "create", "x", "--check", CHECK, "--goal-id", "goal", "--baseline", "--json")
    assert made.code == 0, made.out
    again = desk.loopx("check", "run", "goal", "--baseline", "--json")
    assert (again.code, again.error) == (15, "baseline_known")
    part = desk.loopx("check", "run", "goal", "--baseline", "--name", "x", "--json")
    assert (part.code, part.error) == (2, "baseline_whole")
    agent = desk.process("check", "run", "goal", "--baseline", "--json", LOOPX_TURN_TOKEN="t")
    assert json.loads(agent.stdout)["ok"] is False and agent.returncode == 11
    (desk.root / "m.py").write_text(WHOLE)
    assert settle(desk, "--kind", "completion")["result_kind"] == "validated_completion"


def test_a_false_completion_from_outside_spends_nothing(desk: Desk) -> None:
    desk.goal()
    desk.loopx("turn", "run-once", "goal")
    said = settle(desk, "--kind", "completion", "--summary", "all tests pass")
    assert (said["code"], said["result_kind"], said["spent_slots"]) == (14, "validation_failed", 0)


def test_a_question_from_outside_opens_a_gate(desk: Desk) -> None:
    desk.goal()
    desk.loopx("check", "run", "goal", "--baseline")
    said = settle(desk, "--kind", "question", "--question", "Drop v1?")
    assert (said["code"], said["result_kind"]) == (11, "user_action_required")
    assert said["gate_id"]
    blocked = settle(desk, "--kind", "progress")
    assert blocked["code"] == 11


def test_a_result_file_is_read_strictly(desk: Desk, tmp_path: Path) -> None:
    desk.goal()
    desk.loopx("check", "run", "goal", "--baseline")
    result = tmp_path / "result.json"
    result.write_text(json.dumps({"kind": "completion", "usage": {"input_tokens": 70, "output_tokens": 5}}))
    (desk.root / "m.py").write_text(WHOLE)
    done = settle(desk, "--result", str(result))
    assert done["code"] == 0
    used = {one["unit"]: one["amount"] for one in desk.json("quota", "status", "goal")["used"]}
    assert used["tokens"] == 75 and "launches" not in used
    for text in ("{", "[]", '{"kind": "victory"}', '{"turn_key": "t-other", "kind": "progress"}'):
        result.write_text(text)
        refused = desk.loopx("turn", "settle", "goal", "--result", str(result), "--json")
        assert (refused.code, refused.error) == (2, "result_invalid")


def test_a_full_window_settles_nothing_and_loses_nothing(desk: Desk) -> None:
    desk.goal(allowed=1)
    desk.loopx("turn", "run-once", "goal")
    (desk.root / "m.py").write_text(WHOLE)
    refused = desk.loopx("turn", "settle", "goal", "--kind", "completion", "--effect-key", "k", "--json")
    assert (refused.code, refused.error) == (10, "throttled_skip")
    assert (desk.root / "m.py").read_text() == WHOLE
    desk.loopx("quota", "raise", "goal", "--slots", "2")
    assert settle(desk, "--kind", "completion", "--effect-key", "k")["code"] == 0


def test_a_turn_that_is_not_there_is_not_found(desk: Desk) -> None:
    desk.goal()
    for words in (("turn", "show", "goal"), ("turn", "journal", "goal", "7"), ("turn", "log", "t-nope")):
        assert desk.loopx(*words).code == 3
