"""The external loop inside a program of yours: a worker, a check, one clock, and a typed outcome.

Run it with `python examples/embed_external_loop.py`. The worker is a function that needs three attempts: it dies once,
then delivers something wrong, then something right. Dying and delivering wrongly are counted apart; the check decides.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from loopx.loops.deadline import Deadline
from loopx.loops.external_loop import Brief, Evaluated, LoopBudgets, WorkerReport, run_external_loop
from loopx.loops.failure import ChecksVerdict, WorkerEnd
from loopx.loops.recurrence import FailureSignature

ATTEMPTS = (None, "print(6 * 8)", "print(6 * 7)")


class ScriptedWorker:
    """Stands where an agent would."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def invoke(self, brief: Brief) -> WorkerReport:
        told = f"; red: {', '.join(one.check for one in brief.failures)}" if brief.failures else ""
        print(f"round {brief.round}: {'the same attempt again' if brief.retry else 'an attempt'}{told}")
        text = ATTEMPTS[brief.round - 1]
        if text is None:
            return WorkerReport(end=WorkerEnd.DIED, detail="the connection was lost")
        self._target.write_text(text)
        return WorkerReport()


def evaluate(target: Path) -> Evaluated:
    """The contract: the program prints 42."""
    done = subprocess.run([sys.executable, str(target)], capture_output=True, text=True, check=False)
    if done.stdout.strip() == "42":
        return Evaluated(verdict=ChecksVerdict.GREEN)
    failure = FailureSignature(check="answer", error_class="exit_code" if done.returncode else "value_differs")
    return Evaluated(verdict=ChecksVerdict.RED, failures=frozenset({failure}))


def main() -> int:
    """Ends with 0 when the outcome is what the script deserves."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "answer.py")
        outcome = run_external_loop(
            ScriptedWorker(target),
            lambda: evaluate(target),
            Deadline.after(lambda: time.monotonic_ns() // 1_000_000, 60_000),
            budgets=LoopBudgets(repair_invokes=1, transient_retries=1, round_timeout_ms=10_000),
            engine="scripted",
        )
    print(
        f"{'green' if outcome.ok else outcome.failure}: {outcome.rounds} rounds, {outcome.repairs} repairs, "
        f"{outcome.retries} retries"
    )
    return 0 if (outcome.ok, outcome.rounds, outcome.repairs, outcome.retries) == (True, 3, 1, 1) else 1


if __name__ == "__main__":
    sys.exit(main())
