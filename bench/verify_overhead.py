"""What verification costs on a large repository, as ratios to the checks' own time: `python -m bench.verify_overhead`.

The check parses every file of the tree once, the least that a linter or a test runner which collects all of it does;
real suites take longer, so that real ratios are smaller. A turn's overhead is all that LoopX does around the checks:
three captures of the tree (before, after, and after the checks), the protected paths, the comparison with the start,
the programs. What only a completion pays (the clean copy) is shown apart. All times are CPU seconds of LoopX and of
what it starts, because those are the same on a busy machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from bench import cases
from loopx.contracts.baseline import Baseline, take_baseline
from loopx.contracts.model import Contract, ContractEvaluation
from loopx.contracts.parse import parse_contract
from loopx.control_plane.ids import GoalId
from loopx.runtime import guarding
from loopx.runtime.confirming import environment_of
from loopx.runtime.evaluation import Evaluator
from loopx.runtime.progress import silent
from loopx.runtime.session import open_session
from loopx.runtime.tree_port import WorkTree
from loopx.workspace import snapshot

FILES = 50_000
FOLDERS = 500
CHECK_ITSELF = "the check itself"
TURN = "a turn's overhead"
FIRST_COPY = "the first clean copy (once for a goal)"
TURN_OF_COMPLETION = "the overhead of a turn that completes the goal"
COPY = "a clean copy (a completion only)"
CHECK = f"{sys.executable} parse_all.py"
PARSE_ALL = """
import ast, os
total = 0
for place, folders, names in os.walk("src"):
    for name in names:
        with open(os.path.join(place, name), "rb") as file:
            total += len(ast.parse(file.read()).body)
print(total)
"""


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--files", type=int, default=FILES)
    arguments.add_argument("--runs", type=int, default=5)
    arguments.add_argument("--bar", type=float, default=1.0, help="the highest ratio of a turn's overhead; else exit 1")
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="loopx-verify-") as name:
        folder = Path(name)
        os.environ["LOOPX_STATE_DIR"] = str(folder / "state")
        times = measure(folder, chosen.files, chosen.runs)
    ratio = times[TURN] / times[CHECK_ITSELF]
    print(f"{chosen.files} files, median of {chosen.runs}\n")
    for label, seconds in times.items():
        print(f"{label:<44}{seconds * 1000:>9.0f} ms{seconds / times[CHECK_ITSELF]:>8.2f} x the check")
    print(f"\na turn's overhead is {ratio:.2f} of the check's own time (bar: {chosen.bar:.2f})")
    return 0 if ratio <= chosen.bar else 1


def rows(folder: Path, runs: int) -> list[cases.Row]:
    """The case of `make bench`: the ratios that have a bar, and what is paid once."""
    folder.mkdir(parents=True, exist_ok=True)
    before = os.environ.get("LOOPX_STATE_DIR")
    os.environ["LOOPX_STATE_DIR"] = str(folder / "state")
    try:
        times = measure(folder, FILES, runs)
    finally:
        os.environ.pop("LOOPX_STATE_DIR")
        if before is not None:
            os.environ["LOOPX_STATE_DIR"] = before
    check = times[CHECK_ITSELF]
    bars = {TURN: 1.0, TURN_OF_COMPLETION: 1.0, FIRST_COPY: None}
    times[TURN_OF_COMPLETION] = times[TURN] + times[COPY]
    return [
        cases.Row(
            case=f"{label}, {FILES:,} files, CPU",
            value=f"{times[label]:.2f} s to {check:.2f} s of the check: {times[label] / check:.2f}",
            bar="" if bar is None else f"< {bar:.2f} of the check",
            ok=None if bar is None else times[label] / check < bar,
        )
        for label, bar in bars.items()
    ]


def measure(folder: Path, files: int, runs: int) -> dict[str, float]:
    """Seconds by what they were spent on."""
    root = make_repository(folder / "project", files)
    session = open_session(str(root), create=True)
    work = WorkTree(session.store, GoalId("g"), str(root), session.project.trees)
    contract = parse_contract({"checks": [{"name": "all", "command": CHECK}]})
    env = dict(os.environ)
    evaluator = Evaluator(session.store, work, contract, env, silent, "g", "", lambda: None, lambda: False)

    first, start = _once(work.capture)
    programs = guarding.Guard(work, contract, evaluator, env).programs()
    baseline = take_baseline(contract, evaluator.in_place(start, "", take=True), programs)
    edits = iter(range(10**6))

    def edit(count: int = 1) -> None:
        for number in range(count):
            (root / f"src/{number % FOLDERS}/f{number // FOLDERS}.py").write_text(f"x = {next(edits)}\n")

    def with_edits(count: int) -> Callable[[], object]:
        def capture() -> object:
            return work.capture()

        edit(count)
        return capture

    def with_copy(count: int) -> Callable[[], object]:
        edit(count)
        tree_hash = work.capture()
        return lambda: _copy(work, tree_hash)

    found: dict[str, float] = {}
    found[CHECK_ITSELF] = _median(runs, lambda: evaluator.in_place(start, "", baseline))
    found["the first capture of a goal"] = first
    found["a capture with nothing changed"] = _median(runs, work.capture)
    found["a capture with one file changed"] = statistics.median(_once(with_edits(1))[0] for _ in range(runs))
    found["a capture with 500 files changed"] = statistics.median(_once(with_edits(500))[0] for _ in range(runs))
    found[TURN] = statistics.median(_turn(work, contract, evaluator, env, start, baseline, edit) for _ in range(runs))
    found[FIRST_COPY] = _once(lambda: _copy(work, work.capture()))[0]
    found[COPY] = statistics.median(_once(with_copy(1))[0] for _ in range(runs))
    return found


def _turn(
    work: WorkTree,
    contract: Contract,
    evaluator: Evaluator,
    env: Mapping[str, str],
    start: str,
    baseline: Baseline,
    edit: Callable[[], None],
) -> float:
    """One turn's judgement without the checks: seconds."""
    guard = guarding.Guard(work, contract, evaluator, dict(env))
    current: ContractEvaluation = baseline.evaluation
    began = _cpu()
    work.capture()
    paused = _cpu()
    edit()
    resumed = _cpu()
    after = work.capture()
    programs = guard.programs()
    environment_of(programs)
    left = work.capture()
    judged = guard.judge(
        start,
        after,
        left,
        baseline,
        current,
        (),
        frozenset(),
        programs_now=programs,
        completing=False,
        progressed=False,
    )
    assert not judged.verdict.refused
    return _cpu() - began - (resumed - paused)


def make_repository(root: Path, files: int) -> Path:
    """A git repository with so many small files, a tenth of them tests, packed as a clone is."""
    root.mkdir()
    for folder in range(FOLDERS):
        (root / f"src/{folder}").mkdir(parents=True)
    for number in range(files):
        name = f"test_{number // FOLDERS}.py" if number % 10 == 9 else f"f{number // FOLDERS}.py"
        (root / f"src/{number % FOLDERS}/{name}").write_text(f"x = {number}\n" * 40)
    (root / "parse_all.py").write_text(PARSE_ALL)
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "start"], ["repack", "-adq"]):
        who = ["-c", "user.name=B", "-c", "user.email=b@localhost"]
        subprocess.run(["git", *who, *words], cwd=root, check=True, env=environment)
    return root


def _copy(work: WorkTree, tree_hash: str) -> None:
    with snapshot.materialize(work.repository, tree_hash):
        pass


def _cpu() -> float:
    """CPU seconds so far, of this process and of those that it started and that have ended."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _once(act: Callable[[], str | object]) -> tuple[float, str]:
    began = _cpu()
    made = act()
    return _cpu() - began, made if isinstance(made, str) else ""


def _median(runs: int, act: Callable[[], object]) -> float:
    return statistics.median(_once(act)[0] for _ in range(runs))


if __name__ == "__main__":
    sys.exit(main())
