"""`loopx schedule beat`: an engine's own automation reports each beat once, and acts on the first answer."""

from __future__ import annotations

import pytest

from tests.e2e.desk import Desk


@pytest.fixture
def woken(desk: Desk) -> Desk:
    """A goal whose engine wakes itself every half hour."""
    desk.goal(engine="codex")
    view = desk.json("schedule", "set", "goal", "--every", "30m", "--owner", "host")
    desk.loopx("schedule", "apply", "goal")
    desk.loopx("schedule", "ack", "goal", "--revision", str(view["revision"]), "--rrule", view["rrule"])
    return desk


def test_a_beat_is_taken_once_and_a_repeat_gets_the_first_answer(woken: Desk) -> None:
    first = woken.loopx("schedule", "beat", "goal", "--key", "b1", "--json")
    assert (first.code, first.json["should_run"], first.json["replayed"]) == (0, True, False)
    assert woken.loopx("goal", "pause", "goal").code == 0
    again = woken.loopx("schedule", "beat", "goal", "--key", "b1", "--json")
    assert (again.code, again.json["should_run"], again.json["replayed"]) == (0, True, True)
    other = woken.loopx("schedule", "beat", "goal", "--key", "b2", "--json")
    assert (other.code, other.json["effective_action"]) == (10, "paused")
    assert woken.loopx("schedule", "beat", "-q", "goal", "--key", "b2").out == ""
    kinds = [event["kind"] for event in woken.json("log", "goal", "--since", "1h")["events"]]
    assert kinds.count("heartbeat") == 2
    assert woken.json("quota", "ledger", "goal")["entries"] == []


def test_the_answer_is_should_runs(woken: Desk) -> None:
    packet = woken.json("quota", "should-run", "goal")
    beat = woken.json("schedule", "beat", "goal", "--key", "b1")
    names = ("should_run", "effective_action", "next_command")
    assert [beat[name] for name in names] == [packet[name] for name in names]


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (("--key", " "), 2, "beat_key_invalid"),
        (("--key", "k" * 129), 2, "beat_key_invalid"),
        (("--key", "b1", "--revision", "9"), 15, "beat_revision_unknown"),
        (("--key", "b1", "--revision", "0"), 15, "beat_revision_stale"),
    ],
)
def test_what_is_refused(woken: Desk, words: tuple[str, ...], status: int, code: str) -> None:
    said = woken.loopx("schedule", "beat", "goal", *words, "--json")
    assert (said.code, said.error) == (status, code)


def test_a_key_of_another_agent_is_no_repeat(woken: Desk) -> None:
    woken.loopx("schedule", "beat", "goal", "--key", "b1")
    said = woken.loopx("schedule", "beat", "goal", "--key", "b1", "--agent-id", "other", "--json")
    assert (said.code, said.error) == (15, "beat_of_another")


def test_only_a_host_that_owns_the_cadence_beats(desk: Desk) -> None:
    desk.goal(engine="codex")
    said = desk.loopx("schedule", "beat", "goal", "--key", "b1", "--json")
    assert (said.code, said.error) == (2, "owner_not_host")
    assert desk.loopx("schedule", "beat", "nobody", "--key", "b1", "--json").code == 3


def test_an_ended_goal_has_no_beats(woken: Desk) -> None:
    assert woken.loopx("goal", "close", "goal").code == 0
    assert woken.loopx("schedule", "beat", "goal", "--key", "b1", "--json").error == "schedule_closed"
