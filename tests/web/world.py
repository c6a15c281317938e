"""A project as a person would have it after a day: goals that run, ask, wait, are done; each made by the real runner.

The engine is a program called `codex` that speaks Codex's own stream, so that pages show what they show in real life.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from loopx.contracts.model import Contract
from loopx.contracts.parse import parse_command_line
from loopx.control_plane.goal import Goal, GoalDefinition, GoalState
from loopx.control_plane.ids import GoalId, TodoId
from loopx.control_plane.quota.policy import Budget, BudgetScope, BudgetUnit, QuotaPolicy
from loopx.control_plane.work_items.todo import Todo
from loopx.runtime import goal_service
from loopx.runtime.goal_runner import StopSignal
from loopx.runtime.progress import Observer, silent
from loopx.store import todos
from loopx.testing import Sandbox

_PROGRAM = """#!{python} -IS
import json, os, sys, time
HERE = {folder!r}
if sys.argv[1:2] in (["--version"], ["login"]):
    print("codex-cli 0.171.0")
    sys.exit(0)
turn = os.environ["LOOPX_TURN_KEY"]
goal = os.environ["LOOPX_GOAL_ID"]
sys.stdin.read()
log = os.path.join(HERE, "started." + goal)
with open(log, "a") as file:
    file.write(turn + "\\n")
turns = list(dict.fromkeys(open(log).read().split()))
acts = json.load(open(os.path.join(HERE, "acts." + goal)))
act = acts[min(turns.index(turn), len(acts) - 1)]
count = 0
def tell(**fields):
    print(json.dumps(fields, separators=(",", ":")), flush=True)
def item(kind, **fields):
    global count
    count += 1
    tell(type="item.completed", item=dict(id="item_%d" % count, type=kind, **fields))
tell(type="thread.started", thread_id="0199-" + turn[-8:])
for step in act:
    (verb, what), = step.items()
    if verb == "say":
        item("agent_message", text=what)
    elif verb == "run":
        item("command_execution", command=what, status="completed", exit_code=0, aggregated_output="")
    elif verb == "edit":
        for name, text in what.items():
            os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
            open(name, "w").write(text)
        item("file_change", status="completed", changes=[dict(path=name, kind="update") for name in what])
    elif verb == "wait":
        open(os.path.join(HERE, what + ".here"), "w").close()
        while not os.path.exists(os.path.join(HERE, what)):
            time.sleep(0.02)
    elif verb == "raw":
        sys.stdout.write(what + "\\n")
        sys.stdout.flush()
    elif verb == "long":
        item("agent_message", text="L" * what)
    elif verb == "claim":
        with open(os.environ["LOOPX_RESULT_FILE"], "w") as file:
            json.dump(dict(turn_key=turn, **what), file)
    elif verb == "use":
        tell(type="turn.completed", usage=what)
"""
Step = Mapping[str, Any]

DATES = '''"""Dates as people write them."""

import datetime


def parse(text):
    """The date of an ISO text."""
    return datetime.datetime.strptime(text.strip(), "%Y-%m-%d").date()
'''
HALF = DATES.replace(
    '    return datetime.datetime.strptime(text.strip(), "%Y-%m-%d").date()\n',
    "    text = text.strip()\n"
    '    if "-W" in text:\n'
    '        year, week, day = text.split("-")\n'
    "        return datetime.date.fromisocalendar(int(year), int(week[1:]), int(day))\n"
    '    return datetime.datetime.strptime(text, "%Y-%m-%d").date()\n',
)
WHOLE = DATES.replace(
    '    return datetime.datetime.strptime(text.strip(), "%Y-%m-%d").date()\n',
    "    text = text.strip().upper()\n"
    '    if "W" in text:\n'
    '        year, _, rest = text.replace("-", "").partition("W")\n'
    "        return datetime.date.fromisocalendar(int(year), int(rest[:2]), int(rest[2:] or 1))\n"
    '    return datetime.datetime.strptime(text, "%Y-%m-%d").date()\n',
)
TESTS = """import datetime
import unittest

import dates


class Weeks(unittest.TestCase):
    def test_plain_dates(self):
        self.assertEqual(dates.parse("2026-02-18"), datetime.date(2026, 2, 18))

    def test_whole_week_dates(self):
        self.assertEqual(dates.parse("2026-W08-3"), datetime.date(2026, 2, 18))

    def test_basic_week_dates(self):
        self.assertEqual(dates.parse("2026W083"), datetime.date(2026, 2, 18))

    def test_lower_case(self):
        self.assertEqual(dates.parse("2026-w08-3"), datetime.date(2026, 2, 18))

    def test_a_week_is_its_monday(self):
        self.assertEqual(dates.parse("2026-W08"), datetime.date(2026, 2, 16))
"""
FILES = {"dates.py": DATES, "tests/__init__.py": "", "tests/test_dates.py": TESTS, "notes.md": "# Notes\n"}
CHECK = "python3 -m unittest tests.test_dates"


def use(tokens_in: int, tokens_out: int, cached: int = 0) -> Step:
    """The usage that ends a turn."""
    return {"use": {"input_tokens": tokens_in, "cached_input_tokens": cached, "output_tokens": tokens_out}}


class World:
    """A sandbox whose engine is the scripted `codex`."""

    def __init__(self, folder: str) -> None:
        self.box = Sandbox(folder, files=FILES)
        self.stop = StopSignal()
        self.home = Path(self.box.folder, "engine")
        programs = self.home / "bin"
        programs.mkdir(parents=True, exist_ok=True)
        program = programs / "codex"
        program.write_text(_PROGRAM.format(python=sys.executable, folder=str(self.home)))
        program.chmod(0o755)
        # A check that reads well in a picture, and runs everywhere.
        if not (programs / "python3").exists():
            (programs / "python3").symlink_to(sys.executable)
        self.box.env["PATH"] = f"{programs}{os.pathsep}{self.box.env['PATH']}"

    def goal(
        self, name: str, objective: str, *acts: Sequence[Step], checks: Sequence[str] = (CHECK,), **fields: Any
    ) -> Goal:
        """A goal whose agent plays these acts, one a turn."""
        (self.home / f"acts.{name}").write_text(json.dumps([list(act) for act in acts]))
        contract = Contract(checks=parse_command_line(tuple(checks)))
        wanted = GoalDefinition(
            objective=objective, contract=goal_service.encode_contract(contract), engines=("codex",)
        )
        return goal_service.create(
            self.box.store,
            self.box.project,
            msgspec.structs.replace(wanted, **fields),
            tree_key=f"{name}-tree",
            goal_id=name,
        )

    def cue(self, name: str) -> None:
        """Let an act that waits go on."""
        (self.home / name).touch()

    def waits(self, name: str) -> bool:
        """Whether an act has come to its wait."""
        return (self.home / f"{name}.here").exists()

    def run_aside(self, name: str, *, max_turns: int = 8) -> threading.Thread:
        """Run a goal in a thread with a store of its own, as another process would."""

        def work() -> None:
            with Sandbox(self.box.folder) as box:
                box.env = dict(self.box.env)
                box.run(name, max_turns=max_turns, stop=self.stop)

        thread = threading.Thread(target=work, name=f"run-{name}", daemon=True)
        thread.start()
        return thread

    def wait_until(self, true: Callable[[], bool], what: str) -> None:
        """Let something happen that another process does; fails after a long while."""
        for _ in range(3000):
            if true():
                return
            time.sleep(0.02)
        raise AssertionError(f"never: {what}")

    def close(self) -> None:
        self.stop.set()
        self.box.close()


def todo(world: World, goal_id: str, todo_id: str, title: str, *after: str, **fields: Any) -> None:
    """A todo of a goal, as a person would add it."""
    made = Todo(
        todo_id=TodoId(todo_id),
        goal_id=GoalId(goal_id),
        title=title,
        depends_on=tuple(TodoId(one) for one in after),
        created_at_ms=world.box.store.now_ms(),
        **fields,
    )
    with world.box.store.write() as tx:
        todos.insert(tx, made)


def day(world: World, observer: Observer = silent) -> None:
    """A day's work: one goal done, one that asks, one throttled, one paused."""
    world.goal(
        "iso-week-dates",
        "make the date parser accept ISO week dates",
        [
            {"say": "I will read the tests first, then the parser."},
            {"run": "sed -n 1,40p tests/test_dates.py"},
            {"edit": {"dates.py": HALF}},
            {"run": "python -m unittest -q"},
            {"say": "dates.py reads 2026-W08-3 now; the other forms are next."},
            use(151_000, 4_100, 90_000),
        ],
        [
            {"say": "All tests pass."},
            {"claim": {"kind": "completion", "summary": "All tests pass."}},
            use(61_000, 700, 50_000),
        ],
        [
            {"run": "python -m unittest -q"},
            {"edit": {"dates.py": WHOLE}},
            {"run": "python -m unittest -q"},
            {"say": "Both forms, either case, and a week alone."},
            {"claim": {"kind": "completion", "summary": "done"}},
            use(93_000, 3_900, 70_000),
        ],
        budgets=(Budget(unit=BudgetUnit.TOKENS, scope=BudgetScope.GOAL, limit=2_000_000),),
    )
    world.box.run("iso-week-dates", observer=observer)
    world.goal(
        "refund-flow",
        "refund a payment from the order page",
        [
            {"say": "The old webhooks share this code path."},
            {"edit": {"refund.py": "def refund():\n    return None\n"}},
            {
                "claim": {
                    "kind": "question",
                    "summary": "a decision is needed",
                    "question": {"text": "Drop support for v1 webhooks?", "choices": ["yes", "no"]},
                }
            },
            use(48_000, 1_200, 20_000),
        ],
        checks=("test -f refund-is-done",),
    )
    world.box.run("refund-flow", observer=observer)
    world.goal(
        "flaky-ci",
        "find out why test_upload fails one time in ten",
        [
            {"run": "for i in 1 2 3; do pytest -q tests/test_upload.py; done"},
            {"edit": {"notes.md": "# Notes\n\nThe upload test races with the temporary folder.\n"}},
            use(32_000, 800),
        ],
        checks=("grep -q quarantined notes.md",),
        quota=QuotaPolicy(allowed_slots=1, window_hours=5),
    )
    world.box.run("flaky-ci", max_turns=1, observer=observer)
    world.goal("nightly-deps", "keep the dependencies current", [use(1, 1)], checks=("test -f never",))
    goal_service.move(world.box.store, "nightly-deps", GoalState.PAUSED, "ada", "until the release is out")


def csv_export(world: World) -> None:
    """A goal with a work graph, whose agent waits in the middle of its first turn until the cue `go`."""
    world.goal(
        "csv-export",
        "export the order list as CSV, with a header and ISO dates",
        [
            {"say": "I will write the exporter beside the list view, and reuse dates.py."},
            {"run": "rg -n 'def list_orders' ."},
            {"edit": {"export.py": "HEADER = 'id,date,total'\n"}},
            {"run": "python -c 'import export; print(export.HEADER)'"},
            {"wait": "go"},
            {"edit": {"export.py": "HEADER = 'id,date,total'\n\n\ndef rows(orders):\n    return [HEADER]\n"}},
            {"say": "The header and the rows are there."},
            {"claim": {"kind": "completion", "summary": "done"}},
            use(77_000, 2_600, 41_000),
        ],
        checks=("grep -q HEADER export.py", "grep -q rows export.py"),
        budgets=(Budget(unit=BudgetUnit.TOKENS, scope=BudgetScope.GOAL, limit=400_000),),
    )
    todo(world, "csv-export", "td-header", "write the header", priority=5)
    todo(world, "csv-export", "td-dates", "ISO dates in every row", "td-header")
    todo(world, "csv-export", "td-rows", "one row for each order", "td-header")
    todo(world, "csv-export", "td-big", "stream exports of 100,000 rows", "td-rows")
    todo(world, "csv-export", "td-docs", "describe the columns in the handbook", "td-dates", "td-rows")
