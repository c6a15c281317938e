"""The scripted agent of `loopx demo`: a program as any engine could be. It needs nothing but Python.

The prompt comes on standard input, the work tree is its folder, and what it claims goes to LOOPX_RESULT_FILE. It plays
one act each time it is started: an honest step, a false claim, a weakened test, a step during which LoopX is killed,
and the end. Nothing that it prints or claims is believed.
"""

import json
import os
import sys
import time
from pathlib import Path

CUES = Path(__file__).resolve().parent / "cues"
DATES = Path("dates.py")
TESTS = Path("tests", "test_dates.py")
PATIENCE_S = 60.0

HONEST = """    text = text.strip()
    if "-W" in text:
        year, week, day = text.split("-")
        return datetime.date.fromisocalendar(int(year), int(week[1:]), int(day))
"""
WIDER = """    text = text.strip().upper()
    if "-W" in text:
        year, week, *day = text.split("-")
        return datetime.date.fromisocalendar(int(year), int(week[1:]), int(day[0]) if day else 1)
"""
WHOLE = """    text = text.strip().upper()
    if "W" in text:
        year, _, rest = text.replace("-", "").partition("W")
        return datetime.date.fromisocalendar(int(year), int(rest[:2]), int(rest[2:] or 1))
"""


def replace(path: Path, old: str, new: str) -> None:
    """Edit a file as agents do: one exact passage for another."""
    text = path.read_text(encoding="utf-8")
    if old not in text:
        sys.exit(f"{path}: the passage is not there")
    path.write_text(text.replace(old, new), encoding="utf-8")


def say(text: str) -> None:
    print(text, flush=True)


def claim_done(words: str) -> None:
    """The typed result that a program may leave: here, that the work is complete."""
    say(words)
    claim = {"turn_key": os.environ["LOOPX_TURN_KEY"], "kind": "completion", "summary": words}
    Path(os.environ["LOOPX_RESULT_FILE"]).write_text(json.dumps(claim), encoding="utf-8")


def honest_step() -> None:
    replace(DATES, "    text = text.strip()\n", HONEST)
    say("dates.py reads 2026-W08-3 now.")


def false_claim() -> None:
    replace(DATES, "people write them.", "people write them, in every ISO form.")
    claim_done("All 8 tests pass. Done.")


def weakened_test() -> None:
    for name in ("test_lower_case", "test_without_a_day_it_is_monday", "test_compact"):
        replace(TESTS, f"    def {name}", f'    @unittest.skip("flaky")\n    def {name}')
    claim_done("Fixed the flaky tests: the suite is green.")


def step_during_which_loopx_is_killed() -> None:
    say("Working on lower case and on weeks without a day.")
    (CUES / "at-work").touch()
    deadline = time.monotonic() + PATIENCE_S
    while not (CUES / "go-on").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    replace(DATES, HONEST, WIDER)
    say("dates.py reads 2026-w08-3 and 2026-W08 now.")


def end() -> None:
    replace(DATES, WIDER, WHOLE)
    claim_done("dates.py reads 2026W083 too; that was the last one.")


ACTS = (honest_step, false_claim, weakened_test, step_during_which_loopx_is_killed, end)


def main() -> None:
    sys.stdin.read()
    with open(CUES / "launches", "a+", encoding="utf-8") as file:
        file.write("started\n")
        file.flush()
        file.seek(0)
        act = len(file.read().split())
    ACTS[min(act, len(ACTS)) - 1]()


if __name__ == "__main__":
    main()
