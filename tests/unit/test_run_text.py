"""What a person reads of a run: the sketches of the feel, printed from typed events by the real renderers."""

from __future__ import annotations

import io
import time

import msgspec
import pytest

from loopx.presentation.renderers import run_text, words
from loopx.presentation.renderers.live import LiveView
from loopx.presentation.renderers.paint import Paint
from loopx.runtime.progress import (
    AgentDid,
    BaselineTaken,
    CheckSummary,
    GoalOpened,
    PhaseDone,
    ProgressEvent,
    RunEnded,
    TurnEnded,
    TurnOpened,
    Waiting,
)

GOAL = "iso-week-dates"
NOW = 1_790_000_000_000
PLAIN = Paint(color=False)


def _check(verdict: str, failed: int, total: int = 41) -> CheckSummary:
    return CheckSummary(name="tests/test_dates.py", verdict=verdict, failed=failed, total=total)


def _turn(**fields: object) -> TurnEnded:
    base = TurnEnded(
        goal_id=GOAL,
        turn_key="t-1",
        number=1,
        result_kind="validated_progress",
        disposition=None,
        slots=1,
        checks=(_check("red", 1),),
        reason="measured_progress",
        failure=None,
        checkpoint="8f2c1e77aa",
        wall_ms=252_000,
        tokens=182_000,
        cost_microusd=None,
        edited=0,
        tool_calls=9,
        message="",
    )
    return msgspec.structs.replace(base, **fields)


def _story(*events: ProgressEvent, live: bool = False, **options: object) -> str:
    out = io.StringIO()
    with LiveView(out, live=live, color=False, defaults=True, now_ms=lambda: NOW, **options) as view:  # type: ignore[arg-type]  # few options
        for event in events:
            view(event)
    return out.getvalue()


OPENED = GoalOpened(
    goal_id=GOAL,
    objective="make the date parser accept ISO week dates",
    checks=1,
    engine="codex",
    engine_version="0.171",
    signed_in="yes",
    max_turns=24,
    max_minutes=120,
    created=True,
)
BASELINE = BaselineTaken(goal_id=GOAL, checks=(_check("red", 3),), gates_nothing=False)


def _started(number: int, **fields: object) -> TurnOpened:
    base = TurnOpened(goal_id=GOAL, turn_key=f"t-{number}", number=number, purpose="work", engine="codex", todo_id=None)
    return msgspec.structs.replace(base, **fields)


def _did(kind: str, text: str = "", paths: tuple[str, ...] = ()) -> AgentDid:
    return AgentDid(goal_id=GOAL, turn_key="t-1", kind=kind, text=text, paths=paths)


def test_the_first_minute_reads_as_sketched() -> None:
    text = _story(
        OPENED,
        BASELINE,
        _started(1),
        _did("file_change", paths=("dates/iso.py", "dates/__init__.py")),
        *[_did("tool_call", f"pytest {number}") for number in range(9)],
        PhaseDone(goal_id=GOAL, turn_key="t-1", phase="scheduler_ack", completed=7),
        _turn(),
    )

    assert text.splitlines() == [
        "  goal  iso-week-dates  ·  1 check  ·  codex 0.171 (signed in)  ·  this run: 24 turns, 2 h (defaults)",
        "  baseline  tests/test_dates.py  ✗ red  3 of 41 failing         the contract gates something",
        "",
        "  turn 1  codex starts",
        "  turn 1  ▰▰▰▰▰▰▰  4m12s  codex: edited 2 files, ran 9 commands",
        "          check ✗ red  1 of 41 failing (was 3)                  validated_progress · 1 slot · 182k tokens",
        "          checkpoint 8f2c1e on loopx/iso-week-dates",
    ]


def test_a_false_completion_is_quoted_and_costs_nothing() -> None:
    ended = _turn(
        number=2,
        result_kind="validation_failed",
        slots=0,
        reason="false_completion",
        checkpoint=None,
        tokens=None,
        recurring=True,
        message="All tests pass.",
    )

    lines = run_text.turn_lines(ended, "codex", run_text.Doing(commands=4), 3, {"tests/test_dates.py": 1}, PLAIN)

    assert lines[0] == '  turn 2  ▰▰▰▱▱▱▱  4m12s  codex said: "All tests pass."'
    assert lines[1].endswith("validation_failed · nothing spent")
    assert "(was" not in lines[1]
    assert lines[2:] == [
        "          it claimed to be done, and the checks are red",
        "          the same failure as before; codex is told",
    ]


@pytest.mark.parametrize(
    ("after", "line"),
    [
        ("quota_spend", "after quota_spend; scheduling it now (agent not run again, nothing spent again)"),
        ("durable_writeback", "after durable_writeback; spending now (agent not run again, nothing written again)"),
        ("start", "before its agent was done; finding its agent again"),
    ],
)
def test_an_interrupted_turn_says_what_was_found(after: str, line: str) -> None:
    assert _story(_started(2, resumed_after=after, completed=5)) == f"  turn 2 was interrupted {line}\n"


def test_a_limit_names_its_reset_and_the_other_engines() -> None:
    until = NOW + 72 * 60_000
    wait = Waiting(
        goal_id=GOAL,
        state="waiting",
        action="external_evidence_wait",
        reason="limit: rate_limited",
        until_ms=until,
    )
    others = run_text.other_engines(GOAL, ["claude"], [])
    ended = _turn(
        number=4, result_kind="wait", slots=0, failure="rate_limited", checks=(), checkpoint=None, tokens=None
    )

    text = _story(_started(4), ended, wait, wait, others=others)

    assert "codex: usage limit reached" in text
    assert text.count("waiting, not counted as an attempt · wakes ") == 1
    assert f"wakes {words.clock(until, NOW)} (in 1 h 12 m)" in text
    assert "other engines: claude (allowed: no; loopx goal edit iso-week-dates --fallback claude)" in text


def _ended(**fields: object) -> RunEnded:
    base = RunEnded(
        goal_id=GOAL,
        disposition="terminal",
        result_kind="validated_completion",
        turns=3,
        spent_slots=2,
        checks=(_check("green", 0),),
        failure=None,
        exit_code=0,
        total_turns=3,
        tokens=341_000,
        wall_ms=595_000,
        branch=f"loopx/{GOAL}",
    )
    return msgspec.structs.replace(base, **fields)


def test_the_end_says_the_price_the_place_and_the_next_step() -> None:
    line = run_text.end_lines(_ended(), PLAIN)[-1]

    assert line == (
        "  done    3 turns · 2 slots · 341k tokens · 9m55s   in your tree and on loopx/iso-week-dates"
        "     loopx report iso-week-dates"
    )


@pytest.mark.parametrize(
    ("fields", "head", "step"),
    [
        (
            {"exit_code": 11, "gate_id": "g7k2", "question": "Drop v1?", "goal_state": "active"},
            '  needs you  "Drop v1?"',
            f"loopx gate answer g7k2 ANSWER   then  loopx run {GOAL}",
        ),
        (
            {"exit_code": 12, "reason": "turn_limit"},
            "  limit   this run's turns are used up",
            f"goes on with  loopx run {GOAL}",
        ),
        (
            {"exit_code": 13, "reason": "engine_failed:transport_lost"},
            "  engine  the engine failed: the connection was lost",
            f"goes on with  loopx run {GOAL}",
        ),
        (
            {"exit_code": 130, "reason": "cancelled", "goal_state": "stopped"},
            "  stopped  stopped",
            f"loopx goal resume {GOAL}   then  loopx run {GOAL}",
        ),
        (
            {"exit_code": 10, "reason": "throttled_skip", "next_command": ("loopx", "quota", "raise", GOAL)},
            "  waiting  throttled",
            f"loopx quota raise {GOAL}",
        ),
    ],
)
def test_every_other_end_says_why_and_what_to_do(fields: dict[str, object], head: str, step: str) -> None:
    lines = run_text.end_lines(_ended(**fields), PLAIN)

    assert lines[1] == head
    assert lines[-1].strip() == step


def test_the_live_line_tells_the_phase_the_action_and_the_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    clock = [NOW]
    out = io.StringIO()
    view = LiveView(out, live=True, color=False, now_ms=lambda: clock[0])

    view(_started(2))
    view(_did("tool_call", "pytest -q tests/test_dates.py"))
    clock[0] += 6_000
    view(PhaseDone(goal_id=GOAL, turn_key="t-2", phase="typed_result", completed=2))
    clock[0] += 6_000
    view._draw()

    last = out.getvalue().split("\r\033[2K")[-1]
    assert last == "  turn 2  ▰▰▱▱▱▱▱  12s  codex: pytest -q tests/test_dates.py  ·  last event 6 s ago"


def test_a_terminal_without_these_letters_gets_plain_ones() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii", write_through=True)

    with LiveView(out, live=False, color=False) as view:
        view(_turn())

    assert b"check x red  1 of 41 failing" in raw.getvalue()


def test_an_agents_words_can_not_move_the_cursor() -> None:
    ended = _turn(result_kind="validation_failed", reason="no_op", message="\x1b[2Jgone\r\nand more" * 20)

    text = "\n".join(run_text.turn_lines(ended, "codex", run_text.Doing(), 2, {}, PLAIN))

    assert "\x1b" not in text
    assert "\r" not in text
    assert len(max(text.splitlines(), key=len)) < 140


@pytest.mark.parametrize(
    ("ms", "text"),
    [(400, "0.4s"), (12_000, "12s"), (252_000, "4m12s"), (7_500_000, "2h05m"), (280_000_000, "3d 5h")],
)
def test_durations_read_well(ms: int, text: str) -> None:
    assert words.duration(ms) == text


@pytest.mark.parametrize(
    ("number", "text"), [(950, "950"), (1_200, "1.2k"), (182_400, "182k"), (999_600, "1M"), (2_100_000, "2.1M")]
)
def test_numbers_read_well(number: int, text: str) -> None:
    assert words.short_number(number) == text


def test_money_is_never_rounded_to_nothing() -> None:
    assert (words.money(400_000), words.money(120), words.money(None)) == ("$0.40", "$0.0001", "")


def test_an_instant_is_told_on_this_machines_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    noon = 1_790_078_400_000
    assert words.clock(noon, noon + 60_000) == "12:00"
    assert words.clock(noon + 86_400_000, noon) == "Wed 12:00"
    assert words.clock(noon + 30 * 86_400_000, noon) == "2026-10-22 12:00"
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("word", "label"),
    [
        ("codex", "codex"),
        ("command:/usr/bin/python3 /home/me/agents/fix.py --fast", "fix.py"),
        ("command:aider", "aider"),
        ("foreman:codex", "foreman:codex"),
        ("external:claude", "claude"),
        ("command:'broken", "'broken"),
    ],
)
def test_engines_are_named_as_people_know_them(word: str, label: str) -> None:
    assert run_text.engine_label(word) == label
