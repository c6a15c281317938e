"""One goal in a storm: LoopX, its whole group, the keeper and the agent are killed with -9 at random instants.

After each kill somebody starts LoopX again, as cron or a worker would, until the goal is done. What is then counted:
nothing may be lost, and nothing may have been done twice.
"""

from __future__ import annotations

import collections
import os
import random
import signal
import sys
import time
from pathlib import Path

from loopx.hosts import identity, procs, runfiles
from loopx.hosts.protocol import ProcessIdentity
from loopx.testing import Sandbox, find_leaks
from tests.chaos import kit

STEPS = 4
MOST_STARTS = 60
VICTIMS = ("loopx", "loopx", "group", "keeper", "agent", "nobody")

AGENT = f"""
import os, random, sys, time
here, turn = {{here!r}}, os.environ["LOOPX_TURN_KEY"]
def log(name):
    with open(os.path.join(here, name), "a") as file:
        file.write(turn + "\\n")
log("started")
sys.stdin.read()
time.sleep(random.random() * 0.15)
n = min(int(open("n.txt").read()) + 1, {STEPS})
with open("n.partial", "w") as file:
    file.write(f"{{{{n}}}}\\n")
os.replace("n.partial", "n.txt")
print("step", n, flush=True)
time.sleep(random.random() * 0.15)
log("finished")
"""


class Tally(collections.Counter[str]):
    """What happened in a storm, and what must not have."""

    def tell(self) -> str:
        kills = " ".join(f"{who}={self[f'killed {who}']}" for who in ("loopx", "group", "keeper", "agent"))
        return (
            f"{self['goals']} goals, {self['starts']} starts, kills: {kills}; {self['turns']} turns, "
            f"{self['writebacks']} writebacks, {self['spends']} spends, {self['adopted']} adopted; "
            f"lost {self['lost']}, doubled {self['doubled']}"
        )


def weather(zygote: kit.Zygote, folder: Path, seed: int) -> Tally:
    """Run one goal through one storm. Raises AssertionError with the seed when something was lost or done twice."""
    rng = random.Random(seed)
    goal_id = stage(folder)
    tally: Tally = Tally(goals=1)
    with Sandbox(str(folder)) as sandbox:
        for start in range(MOST_STARTS):
            tally["starts"] += 1
            child = zygote.start(folder=str(folder), goal_id=goal_id, max_turns=20)
            # The calm comes after the storm: a storm that never ends proves nothing.
            victim = rng.choice(VICTIMS) if start < MOST_STARTS // 3 else "nobody"
            if strike(sandbox, child, victim, rng):
                tally[f"killed {victim}"] += 1
            zygote.wait(child)
            if is_done(sandbox):
                break
        audit(sandbox, folder, goal_id, tally, seed)
    return tally


def stage(folder: Path) -> str:
    checks = tuple(f'test "$(cat n.txt)" -ge {step}' for step in range(1, STEPS + 1))
    agent = folder / "agent.py"
    folder.mkdir(parents=True, exist_ok=True)
    agent.write_text(AGENT.format(here=str(folder)))
    with Sandbox(str(folder), files={"n.txt": "0\n"}) as sandbox:
        engine = f"command:{sys.executable} -I -S {agent}"
        return sandbox.goal(checks=checks, engines=(engine,)).goal_id


def strike(sandbox: Sandbox, child: int, victim: str, rng: random.Random) -> bool:
    """Wait for a random while, then kill; whether there was somebody to kill."""
    if victim == "nobody":
        return False
    of_host = victim in ("keeper", "agent")
    if of_host or rng.random() < 0.7:
        wait_for_a_host(sandbox, child)
    time.sleep(rng.random() * (0.1 if of_host else rng.choice((0.05, 0.3, 0.8))))
    if not runs(child):
        return False
    if victim == "loopx":
        kit.kill(child)
        return True
    if victim == "group":
        with_group(child)
        return True
    return strike_host(sandbox, victim)


def runs(child: int) -> bool:
    seen = procs.look(child)
    return seen is not None and not seen.ended


def wait_for_a_host(sandbox: Sandbox, child: int) -> None:
    """Most kills come while an agent works, or soon after: then there is something to lose."""
    while runs(child) and not kit.all_of(sandbox.store.path, "SELECT 1 FROM host_runs WHERE state = 'intended'"):
        time.sleep(0.01)


def with_group(child: int) -> None:
    """As the end of a container does: the gits and checks of the moment go with it."""
    try:
        os.killpg(child, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        kit.kill(child)


def strike_host(sandbox: Sandbox, victim: str) -> bool:
    """Kill the agent or the keeper of the run that is going on, if one is."""
    for run in kit.all_of(sandbox.store.path, "SELECT spool_dir FROM host_runs WHERE state = 'intended'"):
        found = runfiles.host(run["spool_dir"])
        who: ProcessIdentity | None = None if found is None else found.keeper if victim == "keeper" else found.host
        if who is not None and identity.send(who, signal.SIGKILL):
            return True
    return False


def is_done(sandbox: Sandbox) -> bool:
    return kit.one_of(sandbox.store.path, "SELECT state FROM goals")["state"] == "completed"


def audit(sandbox: Sandbox, folder: Path, goal_id: str, tally: Tally, seed: int) -> None:
    """Compare what the agents did with what the books say of it."""
    where = f"{kit.SEED_VARIABLE}={seed} in {folder}"
    database = sandbox.store.path
    assert is_done(sandbox), f"{where}: not done after {MOST_STARTS} starts"
    turns = kit.all_of(database, "SELECT * FROM turns ORDER BY number")
    ledger = kit.all_of(database, "SELECT * FROM ledger ORDER BY run_index")
    written = kit.all_of(database, "SELECT * FROM turn_phases WHERE phase = 'durable_writeback'")
    runs = kit.all_of(database, "SELECT * FROM host_runs")
    settled = [turn["turn_key"] for turn in turns if turn["completed"] >= 5]
    started = collections.Counter((folder / "started").read_text().split())
    finished = collections.Counter((folder / "finished").read_text().split())
    effects = sandbox.git("log", "--format=%(trailers:key=LoopX-Effect,valueonly)", f"loopx/{goal_id}", "--").split()

    tally["turns"] += len(turns)
    tally["spends"] += len(ledger)
    tally["writebacks"] += len(written)
    tally["adopted"] += sum('"adopted":true' in (run["summary"] or "") for run in runs)
    doubled = [
        *(turn for turn, times in started.items() if times > 1),
        *(turn for turn, times in finished.items() if times > 1),
        *(entry for entry, times in collections.Counter(entry["effect_ref"] for entry in ledger).items() if times > 1),
        *(effect for effect, times in collections.Counter(effects).items() if times > 1),
    ]
    spent = {entry["turn_key"] for entry in ledger}
    committed = {effect.split("/")[0] for effect in effects}
    advanced = {turn["turn_key"] for turn in turns if turn["tree_before"] != turn["tree_after"] and turn["completed"]}
    lost = [
        *(turn for turn in settled if turn not in spent),
        *(turn for turn in advanced & set(settled) if turn not in committed),
        *(turn for turn in finished if turn not in settled),
        *(entry["turn_key"] for entry in ledger if entry["turn_key"] not in settled),
    ]
    tally["doubled"] += len(doubled)
    tally["lost"] += len(lost)
    assert not doubled, f"{where}: done twice: {doubled}"
    assert not lost, f"{where}: lost: {lost}"
    assert sandbox.read("n.txt") == f"{STEPS}\n", where
    assert find_leaks(sandbox.store) == (), where
