from __future__ import annotations

import copy
import subprocess
import sys

import pytest

from loopx.control_plane.errors import NotFoundError, UsageError
from loopx.quota import build_quota_plan, quota_status, quota_with_handoff_outcome_floor
from tests.unit.quota_samples import GOAL, facts


def example(**changed: object) -> dict[str, object]:
    quota = {"compute": 1.0, "allowed_slots": 5, "spent_slots": 3, **changed}
    return {"id": "example-goal", "quota": quota}


def test_the_documented_examples_hold_word_for_word() -> None:
    assert str(quota_status(example())) == (
        "{'compute': 1.0, 'window_hours': 24, 'slot_minutes': 1, 'allowed_slots': 5, 'spent_slots': 3, "
        "'state': 'eligible', 'reason': '1 compute quota; eligible for the next automatic agent turn'}"
    )
    throttled = quota_status(example(spent_slots=5))
    assert (throttled["state"], throttled["reason"]) == (
        "throttled",
        "1 compute quota spent 5/5 slots in this window",
    )
    gated = quota_status(example(spent_slots=5), waiting_on="controller")
    assert (gated["state"], gated["reason"]) == (
        "operator_gate",
        "operator gate blocks gated delivery; safe non-gated steering may continue",
    )


@pytest.mark.parametrize(("compute", "words"), [(1.0, "1 "), (1, "1 "), (0.25, "0.25 "), (1.50, "1.5 ")])
def test_numbers_are_printed_as_people_write_them(compute: float, words: str) -> None:
    assert str(quota_status(example(compute=compute))["reason"]).startswith(f"{words}compute quota")


def test_the_allocation_follows_from_window_and_compute() -> None:
    assert quota_status({"quota": {"compute": 0.25}})["allowed_slots"] == 360
    assert quota_status({})["allowed_slots"] == 1440
    assert quota_status({"quota": {"window_hours": 5, "slot_minutes": 30}})["allowed_slots"] == 10


@pytest.mark.parametrize(
    ("goal", "waiting_on", "state"),
    [
        ({**example(), "state": "stopped"}, "controller", "paused"),
        ({**example(), "status": "paused"}, "codex", "paused"),
        (example(compute=0), "codex", "paused"),
        (example(compute=-1), "codex", "paused"),
        (example(), "user_or_controller", "operator_gate"),
        (example(), "external_evidence", "waiting"),
        (example(), "monitor_signal", "waiting"),
        (example(), None, "waiting"),
        (example(), "agent", "eligible"),
        ({**example(spent_slots=5), "lifecycle": ["focus_wait"]}, "codex", "focus_wait"),
        ({**example(), "lifecycle_markers": {"focus_wait": True}}, "codex", "focus_wait"),
        ({**example(), "lifecycle": ["focus_wait"]}, "external_evidence", "waiting"),
        (example(allowed_slots=0, spent_slots=0), "codex", "throttled"),
    ],
)
def test_the_precedence_of_states(goal: dict[str, object], waiting_on: str | None, state: str) -> None:
    assert quota_status(goal, waiting_on=waiting_on)["state"] == state


def test_high_severity_blocks_before_a_gate_and_watch_does_not() -> None:
    assert quota_status(example(), "controller", severity="high")["state"] == "blocked_health"
    assert quota_status(example(), severity="watch")["state"] == "eligible"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("compute", float("nan")),
        ("compute", float("inf")),
        ("compute", "1"),
        ("compute", True),
        ("window_hours", 0),
        ("window_hours", -1),
        ("slot_minutes", 0),
        ("slot_minutes", float("nan")),
        ("allowed_slots", -1),
        ("allowed_slots", 2.5),
        ("spent_slots", -1),
        ("spent_slots", None),
        ("outcome_floor", 0),
        ("slots", 3),
    ],
)
def test_bad_numbers_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(UsageError) as refused:
        quota_status(example(**{field: value}))
    assert refused.value.message.startswith(f"{field}:")
    assert refused.value.data["field"] == field


@pytest.mark.parametrize(
    "call",
    [
        lambda: quota_status([]),  # type: ignore[arg-type]
        lambda: quota_status({"quota": 3}),
        lambda: quota_status(example(), 3),  # type: ignore[arg-type]
        lambda: quota_status(example(), severity=1),  # type: ignore[arg-type]
        lambda: quota_status(example(), focus_wait=1),  # type: ignore[arg-type]
        lambda: quota_status({**example(), "lifecycle": 7}),
        lambda: quota_with_handoff_outcome_floor({"state": "fine"}),
        lambda: quota_with_handoff_outcome_floor(quota_status(example()), ["great"]),
        lambda: quota_with_handoff_outcome_floor(quota_status(example()), threshold=0),
        lambda: build_quota_plan(7),  # type: ignore[arg-type]
        lambda: build_quota_plan([{}], mode="plan"),
        lambda: build_quota_plan([example()], mode="maybe"),
        lambda: build_quota_plan([example(), {"id": "b"}], mode="should-run"),
    ],
)
def test_bad_shapes_are_refused(call: object) -> None:
    assert callable(call)
    with pytest.raises(UsageError):
        call()


@pytest.mark.parametrize("threshold", [1, 2, 3, 7])
def test_the_floor_holds_at_any_threshold(threshold: int) -> None:
    quota = quota_status(example())
    one_less = ["surface_only"] * (threshold - 1)
    assert quota_with_handoff_outcome_floor(quota, one_less, threshold=threshold)["state"] == "eligible"
    held = quota_with_handoff_outcome_floor(quota, [*one_less, "outcome_gap"], threshold=threshold)
    assert held["state"] == "focus_wait"
    assert f"{threshold} turns in a row" in str(held["reason"])
    assert f"(floor {threshold})" in str(held["reason"])
    assert quota["state"] == "eligible"


@pytest.mark.parametrize(
    "reset",
    [
        "outcome_progress",
        "primary_goal_outcome",
        {"delivery_outcome": "surface_only", "verified_blocker": True},
        {"verified_blocker": True},
    ],
)
def test_an_accountable_outcome_or_a_verified_blocker_resets_the_streak(reset: object) -> None:
    quota = quota_status(example())
    turns = ["surface_only", "outcome_gap", reset, "surface_only", "surface_only"]
    assert quota_with_handoff_outcome_floor(quota, turns)["state"] == "eligible"  # type: ignore[arg-type]
    assert quota_with_handoff_outcome_floor(quota, [*turns, "surface_only"])["state"] == "focus_wait"  # type: ignore[list-item]


def test_a_turn_that_delivered_nothing_neither_adds_nor_resets() -> None:
    turns = ["surface_only", None, "surface_only", None]
    quota = quota_status(example())
    assert quota_with_handoff_outcome_floor(quota, turns)["state"] == "eligible"
    assert quota_with_handoff_outcome_floor(quota, [*turns, "surface_only"])["state"] == "focus_wait"


@pytest.mark.parametrize(
    ("goal", "waiting_on", "severity"),
    [
        (example(compute=0), "codex", None),
        (example(), "codex", "high"),
        (example(), "controller", None),
        (example(), "external_evidence", None),
        (example(spent_slots=5), "codex", None),
    ],
)
def test_the_floor_overrides_no_other_state(goal: dict[str, object], waiting_on: str, severity: str | None) -> None:
    quota = quota_status(goal, waiting_on, severity=severity)
    assert quota_with_handoff_outcome_floor(quota, ["outcome_gap"] * 9) == quota


def test_a_plan_over_plain_goals() -> None:
    goals = [
        {**example(), "turns": ["surface_only"] * 3},
        {"goal_id": "b", "quota": {"outcome_floor": 5}, "turns": ["surface_only"] * 3},
        {"goal_id": "c", "waiting_on": None},
    ]
    before = copy.deepcopy(goals)
    plan = build_quota_plan({"goals": goals})
    entries = plan["goals"]
    assert isinstance(entries, list)
    assert [(e["goal_id"], e["state"], e["should_run"]) for e in entries] == [
        ("example-goal", "focus_wait", False),
        ("b", "eligible", True),
        ("c", "waiting", False),
    ]
    assert goals == before


def test_should_run_is_about_one_goal() -> None:
    plan = build_quota_plan([example(), {"id": "b"}], goal_id="b", mode="should-run")
    assert (plan["goal_id"], plan["should_run"], plan["state"], plan["mode"]) == ("b", True, "eligible", "should-run")
    with pytest.raises(NotFoundError):
        build_quota_plan(example(), goal_id="nobody", mode="should-run")


def test_facts_of_a_snapshot_get_the_whole_decision() -> None:
    plan = build_quota_plan(facts(), mode="should-run")
    assert (plan["goal_id"], plan["should_run"], plan["effective_action"]) == (GOAL, True, "normal_run")
    assert plan["next_command"] == ["loopx", "run", GOAL]


def test_the_hot_path_imports_no_calendar() -> None:
    code = (
        "import sys; before = set(sys.modules); import loopx.control_plane.quota.decision, loopx.quota; "
        "new = set(sys.modules) - before; "
        "print(sorted(new & {'zoneinfo', 'dateutil', 'dataclasses', 'pydantic', 'asyncio', 'sqlite3', 'random'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
