"""What a child process does: one `loopx run` of a sandbox's goal, which ends itself where its order says so."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from loopx.control_plane.errors import LoopXError
from loopx.control_plane.turn_driver.journal import TurnJournal
from loopx.control_plane.turn_driver.settlement import DEFAULT_BOUNDARIES
from loopx.control_plane.turn_driver.transaction import PHASES
from loopx.hosts import spool, supervise
from loopx.runtime import space, turn_ports
from loopx.runtime.goal_runner import GoalRunner, RunOptions, StopSignal
from loopx.runtime.progress import PhaseDone, ProgressEvent
from loopx.testing import Sandbox, faults
from tests.chaos import audit, mutants, racing

DIED = 77
"""The exit code of a child that ended itself as ordered."""
FAILED = 70


class FailingCloseout:
    """Implements `CloseoutPort`, and can't."""

    def close(self, journal: TurnJournal) -> None:
        raise LoopXError("no_closeout", "what the goal holds outside can't be released now")


def main(order: dict[str, Any]) -> int:
    """Runs the goal; the exit code of the run, or FAILED for a typed error, which goes to `error.txt`."""
    if order.get("die_at_start"):
        os.environ["LOOPX_TEST_DIES_AT_START"] = "1"
    mutants.apply_from_environment()
    for name, value in order.get("env", {}).items():
        os.environ[name] = value
    if "race" in order:
        return racing.main(order)
    if "lease_ms" in order:
        for name, module in list(sys.modules.items()):
            if name.startswith("loopx.") and hasattr(module, "TURN_LEASE_MS"):
                module.TURN_LEASE_MS = order["lease_ms"]
    _limit(order)
    if order.get("die_at_start"):
        start = supervise.start
        supervise.start = lambda *args, **keywords: (start(*args, **keywords), os._exit(DIED))
    counter = faults.install(order.get("point"), order.get("side", "before"), DIED) if "points" in order else None
    watch = audit.Audit() if "audit" in order else None
    sandbox = Sandbox(order["folder"])
    try:
        code = _run(sandbox, order)
    except LoopXError as error:
        with open(order.get("errors", os.path.join(order["folder"], "error.txt")), "a", encoding="utf-8") as file:
            file.write(f"{error.code}: {error.message}\n")
        code = FAILED
    sandbox.close()
    if watch is not None:
        watch.stop()
        with open(order["audit"], "w", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in (watch.transactions, *watch.found)))
    if counter is not None:
        counter.stop()
        with open(order["points"], "w", encoding="utf-8") as file:
            file.write("".join(f"{label}\n" for label in counter.labels))
    return code


def _limit(order: dict[str, Any]) -> None:
    """Smaller limits of the keeper's, so that a test need not fill a real disk or wait for a real grace."""
    named = {"floor_bytes": "disk_floor_bytes", "check_s": "check_s"}
    limits = {field: order[name] for name, field in named.items() if name in order}
    if "floor_bytes" in order:
        space.FLOOR_BYTES = order["floor_bytes"]
    if limits:
        supervise.start = functools.partial(supervise.start, limits=spool.Limits(**limits))
    if "grace_s" in order:
        turn_ports.Deadlines = functools.partial(turn_ports.Deadlines, grace_s=order["grace_s"])


def _run(sandbox: Sandbox, order: dict[str, Any]) -> int:
    def hear(event: ProgressEvent, /) -> None:
        if isinstance(event, PhaseDone) and event.phase == order.get("die_after"):
            os._exit(DIED)

    runner = GoalRunner(
        sandbox.store,
        sandbox.project,
        order["goal_id"],
        "loopx",
        hear,
        sandbox.env,
        RunOptions(max_turns=order.get("max_turns", 8), wait=order.get("wait", False)),
        StopSignal(),
        sandbox.clock,
        boundaries=frozenset(PHASES) if order.get("all_boundaries") else DEFAULT_BOUNDARIES,
        closeout=FailingCloseout() if order.get("fail_closeout") else None,
    )
    return runner.run().exit_code
