"""The measured cases. Each returns rows for the report; what can't be measured says why."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench import measure
from bench.arms import ROOT, Arm


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report: what, the value, the bar that it must meet, and whether it does."""

    case: str
    value: str
    bar: str = ""
    ok: bool | None = None


def environment(arm: Arm, home: Path) -> dict[str, str]:
    """A bare environment with a home of its own; the rival's usage ping is off."""
    home.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(part for part in (arm.path, str(Path(arm.program).parent), os.environ["PATH"]) if part)
    return {
        "PATH": path,
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "LOOPX_STATE_DIR": str(home / "state"),
        "LOOPX_USAGE_PING": "0",
    }


def repository(folder: Path) -> Path:
    """A small git repository."""
    folder.mkdir(parents=True)
    git = ["git", "-c", "user.name=B", "-c", "user.email=b@localhost"]
    subprocess.run([*git, "init", "-q"], cwd=folder, check=True)
    (folder / "a.txt").write_text("a\n")
    subprocess.run([*git, "add", "-A"], cwd=folder, check=True)
    subprocess.run([*git, "commit", "-q", "-m", "start"], cwd=folder, check=True)
    return folder


def ratio_row(case: str, ours: float, other: float, bar: float | None) -> Row:
    """One ratio, with the bar that it must meet where there is one."""
    ratio = ours / other if other else float("inf")
    value = f"{ratio:.3f} ({ours:.1f} against {other:.1f} ms)"
    if bar is None:
        return Row(case=case, value=value)
    return Row(case=case, value=value, bar=f"at most {bar:.3g}", ok=ratio <= bar)


OUR_COMMANDS = {
    "--help": ["--help"],
    "should-run": ["quota", "should-run", "g1"],
    "status": ["status"],
    "todo claim": ["todo", "claim", "g1", "--next", "--agent-id", "bench"],
}
RIVAL_COMMANDS = {
    "--help": ["--help"],
    "should-run": ["quota", "should-run", "--goal-id", "g1", "--agent-id", "bench"],
    "status": ["status"],
}


def prepare_ours(arm: Arm, folder: Path) -> tuple[dict[str, str], Path]:
    """A project with one goal whose agent and check do nothing."""
    env, root = environment(arm, folder / "home"), repository(folder / "project")
    words = ["goal", "create", "do it", "--goal-id", "g1", "--check", "true", "--engine", "command:true"]
    words += ["--todo", "first"]
    subprocess.run([arm.program, *words], cwd=root, env=env, check=True, capture_output=True)
    return env, root


def prepare_rival(arm: Arm, folder: Path) -> tuple[dict[str, str], Path]:
    """The same with the rival's own commands."""
    env, root = environment(arm, folder / "home"), repository(folder / "project")
    words = ["bootstrap", "--project", ".", "--goal-id", "g1", "--objective", "do it"]
    subprocess.run([arm.program, *words], cwd=root, env=env, check=True, capture_output=True)
    words = ["todo", "add", "--goal-id", "g1", "--role", "agent", "--text", "do it", "--project", "."]
    subprocess.run([arm.program, *words], cwd=root, env=env, check=True, capture_output=True)
    words = ["register-agent", "--goal-id", "g1", "--agent-id", "bench", "--execute"]
    subprocess.run([arm.program, *words], cwd=root, env=env, check=True, capture_output=True)
    return env, root


def commands(ours: Arm, rival: Arm, folder: Path, runs: int) -> list[Row]:
    """Whole commands, ours beside the rival's and beside an empty Python."""
    env, root = prepare_ours(ours, folder / "ours")
    empty = measure.process([ours.python, "-c", "pass"], env=env, cwd=root, runs=runs)
    costs = {
        name: measure.process([ours.program, *words], env=env, cwd=root, runs=runs)
        for name, words in OUR_COMMANDS.items()
    }
    rows = [Row(case=f"`{name}`, CPU", value=f"{cost.cpu_ms:.0f} ms") for name, cost in costs.items()]
    failed = [f"`{name}` ends with {cost.exit_code}" for name, cost in costs.items() if cost.exit_code]
    if failed:
        rows.append(Row(case="commands that failed", value=", ".join(failed), ok=False))
    rows.append(
        ratio_row("`quota should-run` against `python -c pass`, CPU", costs["should-run"].cpu_ms, empty.cpu_ms, 6)
    )
    peak = costs["should-run"].peak_mib
    rows.append(
        Row(case="`quota should-run`, peak memory", value=f"{peak:.0f} MiB", bar="at most 30 MiB", ok=peak <= 30)
    )
    if rival.problem:
        return [*rows, Row(case="the rival", value=f"missing: {rival.problem}")]
    env, root = prepare_rival(rival, folder / "rival")
    for name, words in RIVAL_COMMANDS.items():
        theirs = measure.process([rival.program, *words], env=env, cwd=root, runs=max(3, runs // 2))
        bar = 1 / 9 if name == "should-run" else None
        rows.append(ratio_row(f"`{name}` against the rival's, CPU", costs[name].cpu_ms, theirs.cpu_ms, bar))
        rows.append(ratio_row(f"`{name}` against the rival's, wall", costs[name].wall_ms, theirs.wall_ms, bar))
    return rows


def store_part(dbos: Arm, folder: Path, count: int) -> list[Row]:
    """The store's part of a turn, in alternation with the floor, and a seven-step workflow of DBOS."""
    from bench import store_turn

    pairs = [store_turn.measure(count, _fresh(folder / f"store-{number}")) for number in range(5)]
    cpu = statistics.median(ours.cpu_ms for ours, _ in pairs)
    ratio = statistics.median(ours.wall_ms / floor.wall_ms for ours, floor in pairs)
    commits = pairs[0][0].commits
    rows = [
        Row(case="commits of a turn (one fsync each)", value=str(commits), bar="at most 5", ok=commits <= 5),
        Row(case="the store's part of a turn, CPU", value=f"{cpu:.2f} ms", bar="at most 2 ms", ok=cpu <= 2),
        Row(
            case="the same statements on bare sqlite3, wall",
            value=f"{ratio:.2f} times",
            bar="at most 1.3",
            ok=ratio <= 1.3,
        ),
    ]
    if dbos.problem:
        return [*rows, Row(case="DBOS", value=f"missing: {dbos.problem}")]
    words = [dbos.python, str(ROOT / "bench" / "dbos_workflow.py"), str(_fresh(folder / "dbos") / "db"), str(count)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        return [*rows, Row(case="DBOS", value=f"missing: {done.stderr.strip().splitlines()[-1][:120]}")]
    theirs = json.loads(done.stdout.splitlines()[-1])
    wall = statistics.median(ours.wall_ms for ours, _ in pairs)
    rows.append(ratio_row("against a seven-step DBOS workflow on SQLite, wall", wall, theirs["wall_ms"], 1 / 8))
    return rows


def growth(ours: Arm, folder: Path, runs: int) -> list[Row]:
    """The same commands on a small store and on a large one."""
    large = (1_000_000, 100_000, 10_000, 10_000)
    small_env, small_root = filled(ours, folder / "small", (10, 10, 10, 10))
    large_env, large_root = filled(ours, folder / "large", large)
    rows = [Row(case="large store", value="{:,} ledger rows, {:,} turns, {:,} goals, {:,} todos".format(*large))]
    ratio = _turns_in(folder / "large") / _turns_in(folder / "small")
    rows.append(
        Row(
            case="the store's part of a turn (claim, spend), large against small, CPU",
            value=f"{ratio:.2f}",
            bar="at most 1.25",
            ok=ratio <= 1.25,
        )
    )
    claim = ["todo", "claim", "focus", "--next", "--agent-id", "bench"]
    for name, words in (
        ("should-run", ["quota", "should-run", "focus"]),
        ("status", ["status"]),
        ("status of one goal", ["status", "focus"]),
        ("todo claim", claim),
    ):
        ratios = []
        for _ in range(3):
            before = measure.process([ours.program, *words], env=small_env, cwd=small_root, runs=runs)
            after = measure.process([ours.program, *words], env=large_env, cwd=large_root, runs=runs)
            ratios.append(after.cpu_ms / before.cpu_ms)
        ratio = statistics.median(ratios)
        rows.append(
            Row(case=f"`{name}`, large against small, CPU", value=f"{ratio:.2f}", bar="at most 1.25", ok=ratio <= 1.25)
        )
    return rows


def _turns_in(store: Path) -> float:
    """CPU milliseconds of the store's part of a turn, claim and spend among it, in a store that is there."""
    from bench import store_turn
    from loopx.control_plane.ids import GoalId

    [path] = store.glob("home/state/projects/*/loopx.db")
    return store_turn.in_store(path, GoalId("focus"), 200).cpu_ms


def size(ours: Arm) -> list[Row]:
    """What a default installation weighs."""
    site = next(Path(ours.python).parent.parent.glob("lib/python*/site-packages"))
    code = (
        "from importlib.metadata import distributions as d; print(len({x.name for x in d()} - {'pip', 'setuptools'}))"
    )
    packages = int(subprocess.run([ours.python, "-c", code], capture_output=True, text=True).stdout)
    total = measure.folder_mib(site)
    for tool in site.glob("pip*"), site.glob("setuptools*"), site.glob("pkg_resources*"), site.glob("_distutils_hack*"):
        total -= sum(measure.folder_mib(path) for path in tool)
    return [
        Row(case="packages of a default installation", value=str(packages), bar="at most 12", ok=packages <= 12),
        Row(case="its size on disk", value=f"{total:.0f} MiB", bar="at most 30 MiB", ok=total <= 30),
    ]


def filled(ours: Arm, folder: Path, counts: Sequence[int]) -> tuple[dict[str, str], Path]:
    env, root = environment(ours, folder / "home"), repository(folder / "project")
    words = [ours.python, "-m", "bench.fill", str(root), *map(str, counts)]
    subprocess.run(words, env={**env, "PYTHONPATH": str(ROOT)}, cwd=folder, check=True)
    return env, root


def _fresh(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=folder))
