"""`loopx schedule`: apply, then ack; owners outside; timers that are written and read back."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from tests.e2e.desk import WHOLE, Desk

DAILY = ("--rrule", "FREQ=DAILY;BYHOUR=2;BYMINUTE=30", "--zone", "Europe/Berlin", "--dtstart", "2026-03-01T02:30")


def test_with_loopx_as_owner_it_is_in_force_at_once_and_costs_nothing(desk: Desk) -> None:
    desk.goal()
    view = desk.json("schedule", "set", "goal", *DAILY)
    assert (view["state"], view["revision"], view["applied_revision"], view["acked_revision"]) == ("in_force", 1, 1, 1)
    assert view["next_due_ms"] == view["upcoming_ms"][0] == view["wakes_at_ms"]
    assert desk.json("quota", "ledger", "goal")["entries"] == []
    (line,) = desk.json("status")["goals"]
    assert (line["wake_at_ms"], line["zone"]) == (view["next_due_ms"], "Europe/Berlin")
    assert "Europe/Berlin (in " in desk.loopx("status").out
    # A person's own run is asked for by name and does not wait for the cadence.
    assert desk.loopx("quota", "should-run", "-q", "goal").code == 0


def test_setting_the_same_again_changes_nothing(desk: Desk) -> None:
    desk.goal()
    first = desk.json("schedule", "set", "goal", *DAILY)
    again = desk.json("schedule", "set", "goal", "--rrule", "rrule:freq=daily;byminute=30;byhour=2", *DAILY[2:])
    assert again["revision"] == first["revision"] == 1
    cleared = desk.json("schedule", "set", "goal", "--none")
    assert (cleared["revision"], cleared["rrule"], cleared["next_due_ms"]) == (2, None, None)


def test_an_owner_outside_confirms_and_only_then_it_is_in_force(desk: Desk) -> None:
    desk.goal()
    view = desk.json("schedule", "set", "goal", *DAILY, "--owner", "systemd")
    assert view["state"] == "pending_apply"
    early = desk.loopx("schedule", "ack", "goal", "--revision", "1", "--rrule", DAILY[1], "--json")
    assert (early.code, early.error) == (15, "ack_before_apply")
    assert desk.json("schedule", "apply", "goal")["state"] == "pending_ack"
    assert (desk.json("status")["goals"][0])["schedule_pending"] == "pending_ack"
    other = desk.loopx("schedule", "ack", "goal", "--revision", "1", "--rrule", "FREQ=HOURLY", "--json")
    assert (other.code, other.error) == (15, "ack_rrule_differs")
    assert desk.json("schedule", "ack", "goal", "--revision", "1", "--rrule", DAILY[1])["state"] == "in_force"
    desk.json("schedule", "set", "goal", "--every", "6h", "--owner", "systemd")
    desk.json("schedule", "apply", "goal", "--revision", "2")
    late = desk.loopx("schedule", "ack", "goal", "--revision", "1", "--rrule", DAILY[1], "--json")
    assert (late.code, late.error) == (15, "ack_revision_stale")
    stale = desk.loopx("schedule", "apply", "goal", "--revision", "1", "--json")
    assert (stale.code, stale.error) == (15, "schedule_revision_stale")


def test_a_failure_is_kept_with_its_reason(desk: Desk) -> None:
    desk.goal()
    desk.json("schedule", "set", "goal", *DAILY, "--owner", "cron")
    desk.json("schedule", "apply", "goal")
    view = desk.json("schedule", "fail", "goal", "--revision", "1", "--reason", "no crontab here")
    assert (view["state"], view["failure"]) == ("failed", "no crontab here")
    assert desk.json("schedule", "apply", "goal")["state"] == "pending_ack"


def test_a_closed_turns_ack_comes_with_the_owners_word(desk: Desk) -> None:
    desk.goal()
    desk.json("schedule", "set", "goal", *DAILY, "--owner", "cron")
    done = desk.json("turn", "run-once", "goal")
    journal = desk.json("turn", "journal", "goal")
    assert (journal["state"], journal["completed"]) == ("closed", 6)
    # A pending ack blocks neither the spend nor the next decision.
    assert (done["spent_slots"], desk.loopx("quota", "should-run", "-q", "goal").code) == (1, 0)
    view = desk.json("schedule", "ack", "goal", "--revision", "1", "--rrule", DAILY[1])
    assert view["acked_turns"] == [done["turn_key"]]
    journal = desk.json("turn", "journal", "goal")
    assert (journal["completed"], journal["phases"][-1]["phase"]) == (7, "scheduler_ack")
    again = desk.json("schedule", "ack", "goal", "--revision", "1", "--rrule", DAILY[1])
    assert again["acked_turns"] == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--rrule", "FREQ=SECONDLY"), "rrule_invalid"),
        (("--rrule", "FREQ=DAILY", "--zone", "Mars/Olympus"), "zone_unknown"),
        (("--rrule", "FREQ=DAILY", "--dtstart", "soon"), "dtstart_invalid"),
        (("--rrule", "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"), None),
        (("--every", "90s"), "every_invalid"),
        (("--every", "0m"), "budget_amount_invalid"),
        (("--every", "1h", "--owner", "moon"), "owner_unknown"),
        (("--every", "1h", "--owner", "host"), "owner_not_legal"),
    ],
)
def test_a_bad_cadence_is_refused_and_nothing_moves(desk: Desk, words: tuple[str, ...], code: str | None) -> None:
    desk.goal()
    said = desk.loopx("schedule", "set", "goal", *words, "--json")
    assert said.code == 2
    assert code is None or said.error == code
    assert desk.json("schedule", "show", "goal")["revision"] == 0


def test_a_closed_goal_has_no_cadence_to_set(desk: Desk) -> None:
    desk.goal()
    desk.loopx("check", "run", "goal", "--baseline")
    (desk.root / "m.py").write_text(WHOLE)
    desk.loopx("turn", "settle", "goal", "--kind", "completion")
    said = desk.loopx("schedule", "set", "goal", *DAILY, "--json")
    assert said.error == "schedule_closed"
    assert desk.json("schedule", "show", "goal")["state"] == "closed"


def program(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport os, sys\n{body}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


CRONTAB = """
table = os.environ["TABLE"]
if sys.argv[1] == "-l":
    if not os.path.exists(table):
        sys.exit("no crontab for you")
    sys.stdout.write(open(table).read())
else:
    open(table, "w").write(sys.stdin.read())
"""
SYSTEMCTL = """
words = sys.argv[2:]
open(os.environ["TOLD"], "a").write(" ".join(words) + "\\n")
if words[0] == "cat":
    sys.stdout.write(open(os.path.join(os.environ["XDG_CONFIG_HOME"], "systemd", "user", words[1])).read())
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose crontab and service manager are small programs that keep what they are told."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TABLE", str(tmp_path / "crontab"))
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TZ", "Europe/Berlin")
    program(programs, "crontab", CRONTAB)
    program(programs, "systemctl", SYSTEMCTL)
    return tmp_path


def test_a_crontab_line_is_written_beside_the_users_own_and_read_back(desk: Desk, machine: Path) -> None:
    (machine / "crontab").write_text("0 5 * * * mine\n")
    desk.goal()
    desk.json("schedule", "set", "goal", *DAILY, "--owner", "cron")
    printed = desk.loopx("schedule", "install", "goal", "--print").out
    assert (machine / "crontab").read_text() == "0 5 * * * mine\n"
    done = desk.json("schedule", "install", "goal")
    assert (done["outcome"]["confirmed"], done["schedule"]["state"]) == (True, "in_force")
    desk.json("schedule", "install", "goal")
    mine, line = (machine / "crontab").read_text().splitlines()
    assert (mine, line) == ("0 5 * * * mine", printed.strip())
    assert line.startswith("30 2 * * * ") and "turn run-once goal" in line
    assert desk.json("schedule", "install", "goal", "--remove")["removed"]
    assert (machine / "crontab").read_text() == "0 5 * * * mine\n"


def test_a_timer_is_written_started_and_read_back(desk: Desk, machine: Path) -> None:
    desk.goal()
    desk.json("schedule", "set", "goal", *DAILY, "--owner", "systemd")
    done = desk.json("schedule", "install", "goal")
    assert (done["outcome"]["confirmed"], done["schedule"]["acked_revision"]) == (True, 1)
    service, timer = (Path(path).read_text() for path, _ in done["plan"]["files"])
    assert "OnCalendar=*-*-* 02:30:00 Europe/Berlin" in timer
    assert "KillMode=process" in service and '"run-once" "goal"' in service
    told = (machine / "told").read_text()
    assert "daemon-reload" in told and f"enable --now {done['plan']['name']}" in told
    desk.json("schedule", "install", "goal", "--remove")
    assert not any(os.path.exists(path) for path, _ in done["plan"]["files"])


def test_without_a_service_manager_nothing_is_confirmed(desk: Desk, machine: Path) -> None:
    program(machine / "bin", "systemctl", "sys.exit('Failed to connect to bus')")
    desk.goal()
    desk.json("schedule", "set", "goal", "--every", "30m", "--owner", "systemd")
    done = desk.json("schedule", "install", "goal")
    assert (done["outcome"]["confirmed"], done["schedule"]["state"]) == (False, "pending_ack")
    assert done["outcome"]["left"][0] == "systemctl --user daemon-reload"
    assert "OnUnitActiveSec=30min" in done["plan"]["files"][1][1]


@pytest.mark.parametrize(
    ("rule", "owner", "code"),
    [
        ("FREQ=DAILY;INTERVAL=2", "systemd", "rrule_not_expressible"),
        ("FREQ=MINUTELY;INTERVAL=7", "cron", "rrule_not_expressible"),
        ("FREQ=MONTHLY;BYDAY=2TU", "systemd", "rrule_not_expressible"),
        ("FREQ=DAILY;COUNT=3", "cron", "rrule_not_expressible"),
    ],
)
def test_a_rule_that_the_owner_can_not_say_is_refused_not_rounded(
    desk: Desk, machine: Path, rule: str, owner: str, code: str
) -> None:
    desk.goal()
    desk.json("schedule", "set", "goal", "--rrule", rule, "--owner", owner)
    assert desk.loopx("schedule", "install", "goal", "--json").error == code


def test_cron_keeps_only_this_machines_time(desk: Desk, machine: Path) -> None:
    desk.goal()
    desk.json("schedule", "set", "goal", "--rrule", "FREQ=DAILY", "--zone", "Asia/Kolkata", "--owner", "cron")
    assert desk.loopx("schedule", "install", "goal", "--json").error == "zone_differs"


def test_with_loopx_as_owner_there_is_nothing_to_install(desk: Desk) -> None:
    desk.goal()
    desk.json("schedule", "set", "goal", "--every", "1h")
    assert desk.loopx("schedule", "install", "goal", "--json").error == "owner_inside"
