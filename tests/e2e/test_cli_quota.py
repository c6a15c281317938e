"""`loopx quota`: the answer and its exit code, spends with a proof behind them, voids, raising."""

from __future__ import annotations

import json

import pytest

from loopx.control_plane.quota.policy import Budget, BudgetScope, BudgetUnit
from tests.e2e.desk import Desk


def test_should_run_says_yes_in_two_kilobytes_and_writes_nothing(desk: Desk) -> None:
    desk.goal()
    before = _head(desk)
    said = desk.loopx("quota", "should-run", "goal", "--json")
    assert said.code == 0
    assert len(said.out.encode()) <= 2048
    packet = said.json
    assert packet["ok"] and packet["should_run"] and packet["state"] == "eligible"
    assert packet["schema_version"] == "loopx_quota_should_run_v0"
    assert packet["next_command"] == ["loopx", "run", "goal"]
    assert _head(desk) == before


def _head(desk: Desk, goal: str = "goal") -> tuple[int, int]:
    with desk.session() as session, session.store.read() as tx:
        row = tx.one("goals.get", goal_id=goal)
        return row["event_seq"], row["updated_at_ms"]


def test_quiet_prints_nothing_at_all(desk: Desk) -> None:
    desk.goal()
    said = desk.loopx("quota", "should-run", "-q", "--goal-id", "goal")
    assert (said.code, said.out, said.err) == (0, "", "")


def test_an_unknown_goal_is_not_found_and_makes_nothing(desk: Desk) -> None:
    desk.goal()
    said = desk.loopx("quota", "should-run", "gaol", "--json")
    assert (said.code, said.error) == (3, "goal_unknown")
    with desk.session() as session, session.store.read() as tx:
        assert tx.one("goals.exists", goal_id="gaol") is None


def test_without_a_store_it_says_so(desk: Desk) -> None:
    said = desk.loopx("quota", "should-run", "goal", "--json")
    assert (said.code, said.error) == (4, "store_missing")
    assert not desk.state.exists()


def test_the_exit_codes_follow_the_state(desk: Desk) -> None:
    cap = Budget(unit=BudgetUnit.TURNS, scope=BudgetScope.GOAL, limit=1)
    desk.goal("ready")
    desk.goal("full", allowed=0)
    desk.goal("capped", budgets=(cap,))
    desk.goal("asked")
    with desk.session() as session, session.store.write() as tx:
        from loopx.control_plane.ids import GoalId
        from loopx.control_plane.turn_driver.journal import GateDraft
        from loopx.control_plane.work_items.gate import GateKind
        from loopx.store import gates, meters

        draft = GateDraft(kind=GateKind.QUESTION, question="Drop v1?", dedupe_key="k", options=("yes", "no"))
        gates.ask(tx, GoalId("asked"), "gate1", draft, session.store.now_ms())
        meters.record(tx, "capped", "e", {BudgetUnit.TURNS: 1}, session.store.now_ms())
    codes = {name: desk.loopx("quota", "should-run", name).code for name in ("ready", "full", "capped", "asked")}
    assert codes == {"ready": 0, "full": 10, "capped": 12, "asked": 11}
    assert desk.json("quota", "should-run", "asked")["next_command"] == ["loopx", "gate", "show", "gate1"]


def test_a_raised_quota_lets_the_goal_run_and_loses_nothing(desk: Desk) -> None:
    desk.goal(allowed=0)
    packet = desk.json("quota", "should-run", "goal")
    assert packet["state"] == "throttled"
    raised = desk.loopx(*packet["next_command"][1:], "--json")
    assert (raised.code, raised.json["quota"]["allowed_slots"]) == (0, 1)
    assert desk.loopx("quota", "should-run", "-q", "goal").code == 0


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("--slots", "-1"), "allowed_slots"),
        (("--compute", "nan"), "compute"),
        (("--window-hours", "0"), "window_hours"),
        (("--budget", "usd=0/goal"), "limit"),
        (("--budget", "usd=5/goal"), "unit"),
        (("--budget", "horses=5/goal"), "unit"),
        (("--budget", "turns=5/never"), "scope"),
    ],
)
def test_a_bad_limit_is_refused_naming_its_field(desk: Desk, words: tuple[str, ...], field: str) -> None:
    desk.goal(engine="codex")
    said = desk.loopx("quota", "raise", "goal", *words, "--json")
    assert said.code == 2
    assert said.json["error"]["data"]["field"] == field


def test_raising_nothing_is_refused(desk: Desk) -> None:
    desk.goal()
    assert desk.loopx("quota", "raise", "goal", "--json").error == "nothing_to_raise"


def test_an_agent_raises_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.goal()
    monkeypatch.setenv("LOOPX_TURN_TOKEN", "whatever")
    said = desk.loopx("quota", "raise", "goal", "--slots", "9", "--json")
    assert (said.code, said.error) == (11, "person_only")


def test_a_spend_without_a_proof_is_refused(desk: Desk) -> None:
    desk.goal()
    bare = desk.loopx("quota", "spend", "goal", "--effect-ref", "mine", "--json")
    assert (bare.code, bare.error) == (2, "evidence_missing")
    with desk.session() as session, session.store.read() as tx:
        todo = tx.one("todos.ready", goal_id="goal", agent_id="loopx")["todo_id"]
    unworked = desk.loopx("quota", "spend", "goal", "--todo", todo, "--json")
    assert (unworked.code, unworked.error) == (2, "spend_refused")
    assert desk.json("quota", "ledger", "goal")["entries"] == []


def test_a_turns_spend_is_charged_once_whoever_asks(desk: Desk) -> None:
    desk.goal()
    assert desk.loopx("turn", "run-once", "goal", "--json").code == 0
    page = desk.json("quota", "ledger", "goal")
    (entry,) = page["entries"]
    assert (page["run_index"], page["spent_in_window"], page["recounted"]) == (1, 1, 1)
    for words in (("--turn", entry["turn_key"]), ("--effect-ref", entry["effect_ref"])):
        again = desk.json("quota", "spend", "goal", *words)
        assert (again["committed"], again["replayed"], again["run_index"]) == (True, True, 1)
    other = desk.loopx("quota", "spend", "goal", "--turn", entry["turn_key"], "--effect-ref", "mine", "--json")
    assert (other.code, other.error) == (15, "turn_already_spent")
    assert len(desk.json("quota", "ledger", "goal")["entries"]) == 1


def test_a_void_is_taken_once_and_frees_the_slot(desk: Desk) -> None:
    desk.goal(allowed=1)
    desk.loopx("turn", "run-once", "goal")
    assert desk.loopx("quota", "should-run", "-q", "goal").code == 10
    assert desk.loopx("quota", "void", "goal", "1", "--reason", "wrong engine").code == 0
    assert desk.json("quota", "void", "goal", "1", "--reason", "wrong engine")["replayed"]
    assert desk.loopx("quota", "should-run", "-q", "goal").code == 0
    key = desk.json("quota", "ledger", "goal")["entries"][0]["turn_key"]
    # The turn's work still stands: after the void it may be charged again, once, by another effect.
    first = desk.json("quota", "spend", "goal", "--turn", key, "--effect-ref", "mine", "--run-index", "2")
    assert (first["replayed"], first["run_index"]) == (False, 3)
    stale = desk.loopx("quota", "spend", "goal", "--turn", key, "--effect-ref", "more", "--run-index", "2", "--json")
    assert stale.code == 15
    assert desk.json("quota", "ledger", "goal")["total_slots"] == 1


def test_the_plan_and_the_status_say_what_should_run_says(desk: Desk) -> None:
    for name, allowed in (("ready", None), ("full", 0)):
        desk.goal(name, allowed=allowed)
    packets = {name: desk.json("quota", "should-run", name) for name in ("ready", "full")}
    for listed in (desk.json("quota", "plan")["goals"], desk.json("quota", "status")["goals"]):
        assert {one["goal_id"]: (one["state"], one["reason"]) for one in listed} == {
            name: (packet["state"], packet["reason"]) for name, packet in packets.items()
        }


def test_budgets_show_their_use_and_their_pace(desk: Desk) -> None:
    desk.goal(budgets=(Budget(unit=BudgetUnit.TOKENS, scope=BudgetScope.GOAL, limit=1_000_000),))
    with desk.session() as session, session.store.write() as tx:
        from loopx.store import meters

        now = session.store.now_ms()
        for number in range(8):
            amount = 50_000 if number == 7 else 5_000
            meters.record(tx, "goal", f"run{number}", {BudgetUnit.TOKENS: amount}, now - 3_600_000 + number)
    report = desk.json("quota", "status", "goal")
    (budget,) = report["budgets"]
    assert (budget["budget"], budget["used"], budget["per_hour"]) == (
        "tokens=1000000/goal",
        85_000,
        pytest.approx(85_000, rel=0.01),
    )
    assert budget["exhausts_at_ms"] > 0
    assert report["spikes"] == [{"unit": "tokens", "run_id": "run7", "latest": 50_000, "median": 5_000, "factor": 4}]
    # The one screen says it too, of every goal and of the goal alone.
    (line,) = desk.json("status")["goals"]
    assert line["spike"]["latest"] == 50_000
    assert line["exhausts_at_ms"] == pytest.approx(budget["exhausts_at_ms"], abs=60_000)
    assert "its last run was unusual" in desk.loopx("status").out
    alone = desk.loopx("status", "goal").out
    assert "85k tokens of 1M tokens per goal, 85k tokens an hour, used up about" in alone
    assert "the last run used 50k tokens; 5k tokens is usual" in alone
    assert "85k tokens of 1M tokens per goal" in desk.loopx("quota", "status", "goal").out


def test_every_text_is_short_and_has_the_next_command(desk: Desk) -> None:
    desk.goal()
    out = desk.loopx("quota", "should-run", "goal").out
    assert "should run now" in out and "loopx run goal" in out
    assert json.loads(desk.loopx("quota", "should-run", "goal", "--json").out)["ok"]
