"""The machine-wide launch cap: one count over every project of this user, taken by what starts a turn."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path

import pytest

from loopx.control_plane.errors import NotNowError
from loopx.control_plane.quota.policy import Budget, BudgetScope, BudgetUnit
from loopx.runtime import machine
from tests.e2e.desk import Desk

HOUR = 3_600_000


def cap(limit: int, window_ms: int = HOUR) -> Budget:
    return Budget(unit=BudgetUnit.LAUNCHES, scope=BudgetScope.WINDOW, limit=limit, window_ms=window_ms)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOPX_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def test_goals_of_every_project_share_it_and_every_surface_says_so(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    other = Desk(tmp_path / "other", monkeypatch)
    monkeypatch.setenv("LOOPX_STATE_DIR", str(desk.state))
    other.state = desk.state
    desk.goal("here")
    other.goal("there")
    assert desk.json("quota", "cap")["machine"] is None
    assert desk.json("quota", "cap", "launches=1/1h")["machine"]["limit"] == 1
    assert desk.loopx("turn", "run-once", "here", "--json").code == 0
    for at, goal in ((desk, "here"), (other, "there")):
        packet = at.json("quota", "should-run", goal)
        assert (packet["should_run"], packet["state"], packet["rule"]) == (False, "throttled", "window_used_up")
        assert packet["reason"] == "launches per machine: 1 used of 1"
        assert packet["wake_after"] is not None
        assert at.loopx(*packet["next_command"][1:]).code == 0
        assert "1 of 1 launches of this machine are used" in at.loopx("status").out
    why = other.json("why", "there")
    assert ["loopx", "quota", "cap", "launches=2/1h"] in [one["command"] for one in why["explanation"]["changes"]]
    assert other.loopx("turn", "run-once", "there", "--json").code == 10
    assert other.loopx("run", "there", "--no-wait").code == 10
    assert "1 of 1 launches in 1h, over every project" in other.loopx("quota", "status", "there").out
    assert "launches=1/1h" in desk.loopx("doctor").out
    assert other.loopx("quota", "cap", "launches=2/1h").code == 0
    assert other.loopx("turn", "run-once", "there", "--json").code == 0
    assert other.json("quota", "cap", "unlimited")["machine"] is None
    assert desk.loopx("quota", "should-run", "-q", "here").code == 0


@pytest.mark.parametrize(
    "written", ["launches=0/1h", "launches=5", "launches=5/goal", "turns=5/1h", "5", "launches=9M/1h"]
)
def test_a_bad_cap_is_refused_naming_its_field(desk: Desk, written: str) -> None:
    said = desk.loopx("quota", "cap", written, "--json")
    assert (said.code, said.json["error"]["data"]["field"]) == (2, "machine_cap")
    assert machine.read() is None


def test_an_agent_sets_no_cap(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.goal()
    monkeypatch.setenv("LOOPX_TURN_TOKEN", "whatever")
    assert desk.loopx("quota", "cap", "unlimited", "--json").error == "person_only"


def test_it_frees_exactly_when_the_oldest_launch_leaves() -> None:
    machine.set_cap(cap(2), 0)
    machine.take("a", 1_000)
    machine.take("b", 5_000)
    full = machine.use(6_000)
    assert full is not None and full.frees_at_ms == 1_000 + HOUR
    with pytest.raises(NotNowError, match="2 of 2"):
        machine.take("c", HOUR + 999)
    machine.take("c", HOUR + 1_000)
    again = machine.use(HOUR + 1_000)
    assert again is not None and (again.used, again.frees_at_ms) == (2, 5_000 + HOUR)


def test_a_clock_set_back_frees_nothing() -> None:
    machine.set_cap(cap(1), 0)
    machine.take("a", 10 * HOUR)
    with pytest.raises(NotNowError):
        machine.take("b", 2 * HOUR)


def test_a_lowered_cap_keeps_what_was_counted() -> None:
    machine.set_cap(cap(3), 0)
    for key in "abc":
        machine.take(key, 1_000)
    machine.set_cap(cap(1), 2_000)
    use = machine.use(2_000)
    assert use is not None and (use.used, use.limit, use.frees_at_ms) == (3, 1, 1_000 + HOUR)


def _try(key: str) -> bool:
    try:
        machine.take(key, 1_000)
    except NotNowError:
        return False
    return True


def test_of_many_processes_only_as_many_as_allowed_start() -> None:
    machine.set_cap(cap(5), 0)
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        assert sum(pool.map(_try, [f"turn{number}" for number in range(24)])) == 5


def test_an_unreadable_cap_stops_launches_and_is_named(desk: Desk) -> None:
    desk.goal()
    desk.state.mkdir(exist_ok=True)
    (desk.state / machine.NAME).write_text("{")
    assert desk.loopx("quota", "should-run", "goal", "--json").error == "machine_cap_unreadable"
    assert desk.loopx("doctor", "--json").code in (4, 11)
    assert desk.loopx("quota", "cap", "launches=9/1h").code == 0
    assert desk.loopx("quota", "should-run", "-q", "goal").code == 0


def test_a_start_that_came_to_nothing_gives_its_place_back() -> None:
    machine.set_cap(cap(1), 1_000)
    machine.take("a", 1_000)
    machine.give_back("a")
    machine.take("b", 2_000)
    with pytest.raises(NotNowError):
        machine.take("a", 3_000)
