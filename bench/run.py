"""`make bench`: measure every case here and now, and write docs/benchmarks.md with method, machine and date.

Ratios within one run on one machine are what counts; single times are shown for orientation.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sqlite3
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import arms, board, cases, turns, verify_overhead


def main() -> int:
    parser = argparse.ArgumentParser(description="measure, and write docs/benchmarks.md")
    parser.add_argument("--runs", type=int, default=9, help="counted runs of each command")
    parser.add_argument("--turns", type=int, default=300, help="turns of the store's part")
    parser.add_argument("--output", type=Path, default=arms.ROOT / "docs" / "benchmarks.md")
    args = parser.parse_args()
    ours, rival, dbos = arms.ours(), arms.rival(), arms.dbos()
    if ours.problem:
        print(f"LoopX itself can't be installed: {ours.problem}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="loopx-bench-") as name:
        folder = Path(name)
        sections = {
            "Commands": cases.commands(ours, rival, folder / "commands", args.runs),
            "A governed turn": turns.governed_turn(ours, rival, folder / "turns", args.runs),
            "A worker": turns.worker(ours, folder / "worker"),
            "Verification": verify_overhead.rows(folder / "verification", 3),
            "The store's part of a turn": cases.store_part(dbos, folder / "store", args.turns),
            "Growth": cases.growth(ours, folder / "growth", args.runs),
            "The board": board.rows(ours, folder / "board", 3 * args.runs),
            "Installation": cases.size(ours),
        }
    text = report(sections, (ours, rival, dbos), args.runs)
    args.output.write_text(text, encoding="utf-8")
    print(text)
    missed = [row.case for rows in sections.values() for row in rows if row.ok is False]
    print(f"bars missed: {len(missed)}", *missed, sep="\n  ")
    return 0


def report(sections: dict[str, list[cases.Row]], used: tuple[arms.Arm, ...], runs: int) -> str:
    """The page."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    versions = ", ".join(f"{arm.name} {arm.version or 'missing: ' + arm.problem}" for arm in used)
    lines = [
        "# Benchmarks",
        "",
        f"Measured on {today} by `make bench`: {os.cpu_count()} cores, Python {platform.python_version()},"
        f" SQLite {sqlite3.sqlite_version}, {platform.system()} {platform.machine()}.",
        "",
        f"Compared: {versions}. Each command is a whole process, {runs} counted runs after a warm-up: medians of what"
        " the kernel accounts to it. Ratios of one run on one machine are what counts; the machine may be busy.",
    ]
    for title, rows in sections.items():
        lines += ["", f"## {title}", "", "| case | value | bar | met |", "|---|---|---|---|"]
        lines += [
            f"| {row.case} | {row.value} | {row.bar} | {'' if row.ok is None else 'yes' if row.ok else '**no**'} |"
            for row in rows
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
