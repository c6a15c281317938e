"""Whole turns: one through the command line beside the rival's, many through a worker, and a worker that only waits."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench import measure
from bench.arms import ROOT, Arm
from bench.cases import Row, environment, prepare_rival, ratio_row, repository

AGENT = "command:sh -c 'date +%s%N >> a.txt'"
"""As good as nothing; a turn that changes nothing at all would be no turn that counts."""
WORKER_S = 15.0
IDLE_S = 20.0
GOALS = 4


def _goal(arm: Arm, env: dict[str, str], root: Path, name: str, *more: str) -> None:
    words = ["goal", "create", "do it", "--goal-id", name, "--check", "true", "--engine", AGENT]
    words += ["--allowed-slots", "1000000", "--todo", "first", "--todo", "second", *more]
    subprocess.run([arm.program, *words], cwd=root, env=env, check=True, capture_output=True)
    edit = ["goal", "edit", name, "--outcome-floor", "1000000", "--breaker", "1000000"]
    subprocess.run([arm.program, *edit], cwd=root, env=env, check=True, capture_output=True)


def governed_turn(ours: Arm, rival: Arm, folder: Path, runs: int) -> list[Row]:
    """One governed turn with an agent and a check that do as good as nothing, in alternation with the rival's."""
    env, root = environment(ours, folder / "ours" / "home"), repository(folder / "ours" / "project")
    _goal(ours, env, root, "g1")
    words = [ours.program, "turn", "run-once", "g1"]
    if rival.problem:
        cost = measure.process(words, env=env, cwd=root, runs=runs)
        return [_own(cost), Row(case="the rival's `turn run-once`", value=f"missing: {rival.problem}")]
    their_env, their_root = prepare_rival(rival, folder / "rival")
    pairs = []
    for _ in range(runs):
        theirs = measure.process(_rival_words(rival), env=their_env, cwd=their_root, runs=1, warmup=0)
        pairs.append((measure.process(words, env=env, cwd=root, runs=1, warmup=0), theirs))
    rows = [_own(pairs[len(pairs) // 2][0])]
    failed = [cost.exit_code for pair in pairs for cost in pair if cost.exit_code != 0]
    if failed:
        rows.append(Row(case="turns that failed", value=f"{len(failed)} of {2 * len(pairs)}", ok=False))
    for unit, name in (("wall_ms", "wall"), ("cpu_ms", "CPU")):
        mine, other = (statistics.median(getattr(pair[side], unit) for pair in pairs) for side in (0, 1))
        rows.append(ratio_row(f"one governed turn against the rival's, {name}", mine, other, 1 / 8))
    return rows


def _own(cost: measure.Cost) -> Row:
    return Row(case="one governed turn", value=f"{cost.wall_ms:.0f} ms (CPU {cost.cpu_ms:.0f} ms)")


def _rival_words(rival: Arm) -> list[str]:
    """A turn of its own each time: the same identity again would be answered from its journal."""
    host = json.dumps([sys.executable, str(ROOT / "bench" / "rival_host.py")])
    return [
        *(rival.program, "turn", "run-once", "--goal-id", "g1", "--agent-id", "bench", "--project", "."),
        *("--host", "generic-cli", "--host-command-json", host, "--validation-command-json", '["true"]'),
        *("--turn-instance-id", f"bench-{time.time_ns()}", "--execute"),
    ]


def worker(ours: Arm, folder: Path) -> list[Row]:
    """Turns of one worker with several goals, and what a worker costs that has only sleeping goals."""
    env, root = environment(ours, folder / "busy" / "home"), repository(folder / "busy" / "project")
    for number in range(GOALS):
        _goal(ours, env, root, f"g{number}", "--worktree")
    elapsed, _, peak = _work(ours, env, root, WORKER_S)
    done = sum(_turns(ours, env, root, f"g{number}") for number in range(GOALS))
    rows = [
        Row(
            case=f"turns of one worker with {GOALS} goals",
            value=f"{done / elapsed:.1f} a second, agents, checks and checkpoints included (peak {peak:.0f} MiB)",
        )
    ]
    env, root = environment(ours, folder / "idle" / "home"), repository(folder / "idle" / "project")
    fill = [ours.python, "-m", "bench.fill", str(root), "10", "10", "1000", "10", "--asleep"]
    subprocess.run(fill, env={**env, "PYTHONPATH": str(ROOT)}, cwd=folder, check=True)
    elapsed, cpu, peak = _work(ours, env, root, IDLE_S)
    share = 100 * cpu / elapsed
    rows.append(
        Row(case="idle worker, 1,000 goals, share of a core", value=f"{share:.2f} %", bar="under 1 %", ok=share < 1)
    )
    rows.append(Row(case="idle worker, peak memory", value=f"{peak:.0f} MiB", bar="under 60 MiB", ok=peak < 60))
    return rows


def _work(ours: Arm, env: dict[str, str], root: Path, seconds: float) -> tuple[float, float, float]:
    """Let a worker run for so long. Its seconds, CPU seconds after the start's, and peak MiB."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [ours.program, "worker"], cwd=root, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(2)
    before = _cpu_of(process.pid)
    since = time.perf_counter()
    time.sleep(seconds)
    cpu, asleep = _cpu_of(process.pid) - before, time.perf_counter() - since
    process.send_signal(signal.SIGTERM)
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    total = time.perf_counter() - started
    return (total if cpu > 0.2 * asleep else asleep), cpu, usage.ru_maxrss / 1024


def _cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _turns(ours: Arm, env: dict[str, str], root: Path, goal: str) -> int:
    words = [ours.program, "goal", "show", goal, "--json"]
    shown = json.loads(subprocess.run(words, cwd=root, env=env, check=True, capture_output=True).stdout)
    return int(shown["turns"])
