"""Running a goal's checks, and the whole contract: what LoopX itself saw, never what an agent said.

Every check is run even after a red one. It changes nothing in the tree by itself and judges no diff; that is the
guard's work (loops, "The contract: the only judge").
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from loopx.contracts.expect import Finished, judge, number_of
from loopx.contracts.model import (
    Capture,
    Check,
    CheckKind,
    CheckResult,
    Contract,
    ContractEvaluation,
    ExpectKind,
    Machine,
    PartCounts,
    Reason,
    Verdict,
    definition_hash,
)
from loopx.contracts.parse import MissingProgram, ProgramState, missing_program
from loopx.contracts.ports import EvaluationCache
from loopx.contracts.signature import coarse_class, failure_signature
from loopx.control_plane.canonical import sha256_hex
from loopx.workspace.check_env import check_environment
from loopx.workspace.check_output import OutputSink
from loopx.workspace.check_process import GRACE_MS, Clock, Ended, EndedBy, run_command
from loopx.workspace.check_report import plan_report, read_report

SHELL = "/bin/sh"
_POLL_S = 0.05
_READ_S = 10
"""Seconds for a shell to read one line; who can't even start one is told of by the check itself."""
_REUSABLE = frozenset({Verdict.GREEN, Verdict.RED})
Observer = Callable[[str, CheckResult | None], None]


def _never() -> bool:
    return False


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """What all checks of one evaluation share.

    `deadline_s` is an instant of the monotonic clock, None without a limit. `environment` is a digest of what matters
    beside the tree (installed dependencies, programs); it is part of a cached result's inputs.
    """

    root: str
    env: dict[str, str]
    tree_hash: str | None = None
    deadline_s: float | None = None
    cancelled: Callable[[], bool] = _never
    grace_ms: int = GRACE_MS
    environment: str = ""

    def left_ms(self) -> int | None:
        """Milliseconds that the session's clock leaves; None without a limit, never below zero."""
        if self.deadline_s is None:
            return None
        return max(0, round((self.deadline_s - time.monotonic()) * 1000))


def session(
    root: str | Path,
    *,
    env: Mapping[str, str] | None = None,
    tree_hash: str | None = None,
    session_left_ms: int | None = None,
    cancelled: Callable[[], bool] = _never,
    grace_ms: int = GRACE_MS,
    environment: str = "",
) -> Session:
    """A session that begins now. `env` (default: this process's) loses its credentials here."""
    return Session(
        root=str(root),
        env=check_environment(os.environ if env is None else env),
        tree_hash=tree_hash,
        deadline_s=None if session_left_ms is None else time.monotonic() + session_left_ms / 1000,
        cancelled=cancelled,
        grace_ms=grace_ms,
        environment=environment,
    )


def run_check(check: Check, here: Session, capture: Capture | None = None) -> CheckResult:
    """Run one check once: to its end, its time-out, the session's end or a cancellation. A red check raises nothing."""
    if here.cancelled():
        return _unjudged(check, here, Verdict.NOT_EVALUABLE, Reason.CANCELLED)
    left = here.left_ms()
    if left == 0:
        return _unjudged(check, here, Verdict.STARVED, Reason.SESSION_CLOCK)
    folder = Path(tempfile.mkdtemp(prefix="check-"))
    try:
        return _run_in(check, here, capture, folder, left)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_in(check: Check, here: Session, capture: Capture | None, folder: Path, left_ms: int | None) -> CheckResult:
    cwd = str(Path(here.root, check.cwd))
    plan = plan_report(check, here.root, here.env, folder)
    wants_stdout = check.expect.kind is ExpectKind.JSON or check.kind is not CheckKind.CHECK
    sink = OutputSink(needle=check.expect.text, keep_stdout=wants_stdout, scanner=plan.scanner)
    argv = (SHELL, "-c", plan.command) if isinstance(plan.command, str) else plan.command
    clock = Clock(timeout_ms=check.timeout_s * 1000, session_left_ms=left_ms, grace_ms=here.grace_ms)
    try:
        ended = run_command(argv, cwd=cwd, env=plan.env, sink=sink, clock=clock, cancelled=here.cancelled)
    except (OSError, ValueError) as failed:
        return _not_started(check, here, failed, cwd)
    if ended.by is not EndedBy.ITSELF or ended.exit_code is None:
        return _cut_short(check, here, ended, sink)
    parts, machine = read_report(plan, ended.exit_code)
    finished = Finished(
        exit_code=ended.exit_code,
        contains_text=sink.contains,
        stdout=sink.stdout,
        output_hash=sink.stdout_hash if wants_stdout else "",
    )
    reason = judge(check, finished, capture)
    verdict = Verdict.GREEN if reason is None else Verdict.RED
    if reason is Reason.CAPTURE_MISSING:
        verdict = Verdict.NOT_EVALUABLE
    taken = _captured(check, here, finished) if check.kind is CheckKind.BASELINE and reason is None else None
    return _result(check, here, verdict, reason, ended, sink, parts=parts, machine=machine, capture=taken)


def _captured(check: Check, here: Session, finished: Finished) -> Capture:
    return Capture(
        name=check.name,
        output_hash=finished.output_hash,
        number=number_of(check, finished.stdout),
        definition_hash=definition_hash(check),
        tree_hash=here.tree_hash,
    )


def _not_started(check: Check, here: Session, failed: Exception, cwd: str) -> CheckResult:
    """A program that is not there is red as it is for a shell; a machine that can't start programs is no verdict."""
    if not Path(cwd).is_dir():
        return _unjudged(check, here, Verdict.RED, Reason.CANNOT_START)
    if isinstance(failed, FileNotFoundError | NotADirectoryError):
        return _unjudged(check, here, Verdict.RED, Reason.PROGRAM_MISSING, exit_code=127)
    if isinstance(failed, PermissionError) or (isinstance(failed, OSError) and failed.errno == 8):  # ENOEXEC
        return _unjudged(check, here, Verdict.RED, Reason.NOT_EXECUTABLE, exit_code=126)
    return _unjudged(check, here, Verdict.NOT_EVALUABLE, Reason.CANNOT_START)


def _unjudged(
    check: Check, here: Session, verdict: Verdict, reason: Reason, *, exit_code: int | None = None
) -> CheckResult:
    nothing = Ended(by=EndedBy.ITSELF, exit_code=exit_code, signal=None, duration_ms=0)
    return _result(check, here, verdict, reason, nothing, OutputSink())


def _cut_short(check: Check, here: Session, ended: Ended, sink: OutputSink) -> CheckResult:
    verdict, reason = {
        EndedBy.SESSION_CLOCK: (Verdict.STARVED, Reason.SESSION_CLOCK),
        EndedBy.CANCELLED: (Verdict.NOT_EVALUABLE, Reason.CANCELLED),
        EndedBy.TIMEOUT: (Verdict.RED, Reason.TIMEOUT),
        EndedBy.ITSELF: (Verdict.RED, Reason.KILLED),
    }[ended.by]
    return _result(check, here, verdict, reason, ended, sink)


def _result(
    check: Check,
    here: Session,
    verdict: Verdict,
    reason: Reason | None,
    ended: Ended,
    sink: OutputSink,
    *,
    parts: PartCounts | None = None,
    machine: Machine = Machine.NOT_ASKED,
    capture: Capture | None = None,
) -> CheckResult:
    output = sink.output()
    signature = None
    if reason is not None and verdict is Verdict.RED:
        error_class = coarse_class(
            reason,
            exit_code=ended.exit_code,
            signal=ended.signal,
            parts=parts,
            output_tail=output.tail or output.head,
        )
        signature = failure_signature(check.name, error_class)
    return CheckResult(
        name=check.name,
        verdict=verdict,
        definition_hash=definition_hash(check),
        tree_hash=here.tree_hash,
        reason=reason,
        exit_code=ended.exit_code,
        signal=ended.signal,
        timed_out=ended.by is EndedBy.TIMEOUT,
        duration_ms=ended.duration_ms,
        output=output,
        parts=parts,
        machine=machine,
        signature=signature,
        capture=capture,
        primary=check.primary,
        held_out=check.held_out,
        attempts=(verdict,),
        survivors=ended.survivors,
    )


def run_with_retries(check: Check, here: Session, capture: Capture | None = None) -> CheckResult:
    """Run a check; re-run a red one up to `flaky_retries` times. A flip is `flaky`, which is not green."""
    first = run_check(check, here, capture)
    attempts = [first.verdict]
    if first.verdict is not Verdict.RED:
        return first
    for _ in range(check.flaky_retries):
        again = run_check(check, here, capture)
        if again.verdict not in _REUSABLE:  # no verdict on the work: the first one stands
            break
        attempts.append(again.verdict)
        if again.verdict is Verdict.GREEN:
            return msgspec.structs.replace(
                first, verdict=Verdict.FLAKY, reason=Reason.FLIPPED, attempts=tuple(attempts), parts=again.parts
            )
    return msgspec.structs.replace(first, attempts=tuple(attempts))


def inputs_of(check: Check, here: Session, capture: Capture | None = None) -> str | None:
    """The digest of all that decides a check's result; None when the tree is not known."""
    if here.tree_hash is None:
        return None
    return sha256_hex([definition_hash(check), here.tree_hash, here.environment, capture])


def evaluate(
    contract: Contract,
    here: Session,
    *,
    captures: Mapping[str, Capture] | None = None,
    cache: EvaluationCache | None = None,
    held_out: bool = True,
    take_baseline: bool = False,
    observe: Observer | None = None,
) -> ContractEvaluation:
    """Evaluate every check of the contract, in its order or `workers` at a time.

    `captures` are the baseline's by name. Baseline checks run only when `take_baseline`, and then before differential
    ones, which are compared with them. `held_out=False` leaves held-out checks out. `observe(name, None)` is called
    when a check begins and `observe(name, result)` when it ended, always by the calling thread.
    """
    taken = dict(captures or {})
    results: dict[str, CheckResult] = {}
    chosen = [check for check in contract.checks if held_out or not check.held_out]
    first = [check for check in chosen if check.kind is CheckKind.BASELINE] if take_baseline else []
    for result in _evaluate_each(first, contract.workers, here, {}, cache, observe):
        results[result.name] = result
        if result.capture is not None:
            taken[result.name] = result.capture
    rest = [check for check in chosen if check.kind is not CheckKind.BASELINE]
    for result in _evaluate_each(rest, contract.workers, here, taken, cache, observe):
        results[result.name] = result
    ordered = tuple(results[check.name] for check in chosen if check.name in results)
    return ContractEvaluation(results=ordered, tree_hash=here.tree_hash)


def _evaluate_each(
    checks: list[Check],
    workers: int,
    here: Session,
    captures: Mapping[str, Capture],
    cache: EvaluationCache | None,
    observe: Observer | None,
) -> list[CheckResult]:
    """Results in the checks' order. The cache is asked and filled by the calling thread only."""
    found: dict[str, CheckResult] = {}
    to_run: list[Check] = []
    for check in checks:
        inputs = inputs_of(check, here, captures.get(check.against or ""))
        known = cache.get(inputs) if cache is not None and inputs is not None else None
        if known is None:
            to_run.append(check)
            continue
        found[check.name] = msgspec.structs.replace(known, cached=True)
        if observe is not None:
            observe(check.name, found[check.name])

    for check, result in zip(to_run, _run_all(to_run, workers, here, captures, observe), strict=True):
        found[check.name] = result
        inputs = inputs_of(check, here, captures.get(check.against or ""))
        if cache is not None and inputs is not None and result.verdict in _REUSABLE:
            cache.put(inputs, result)
    return [found[check.name] for check in checks]


def _run_all(
    checks: list[Check],
    workers: int,
    here: Session,
    captures: Mapping[str, Capture],
    observe: Observer | None,
) -> Iterator[CheckResult]:
    if workers > 1 and len(checks) > 1:
        yield from _run_side_by_side(checks, workers, here, captures, observe)
        return
    for check in checks:
        if observe is not None:
            observe(check.name, None)
        result = run_with_retries(check, here, captures.get(check.against or ""))
        if observe is not None:
            observe(check.name, result)
        yield result


def _run_side_by_side(
    checks: list[Check],
    workers: int,
    here: Session,
    captures: Mapping[str, Capture],
    observe: Observer | None,
) -> list[CheckResult]:
    """Checks in threads of their own. Whoever watches and whoever cancels is asked by the calling thread only."""
    # Most goals have one check, and never come here.
    import concurrent.futures

    told: queue.SimpleQueue[tuple[str, CheckResult | None]] = queue.SimpleQueue()
    stop = threading.Event()
    inner = msgspec.structs.replace(here, cancelled=stop.is_set)

    def one(check: Check) -> CheckResult:
        told.put((check.name, None))
        result = run_with_retries(check, inner, captures.get(check.against or ""))
        told.put((check.name, result))
        return result

    with concurrent.futures.ThreadPoolExecutor(max_workers=min(workers, len(checks))) as pool:
        running = [pool.submit(one, check) for check in checks]
        left: set[concurrent.futures.Future[CheckResult]] = set(running)
        try:
            while left:
                left = concurrent.futures.wait(left, timeout=_POLL_S).not_done
                _tell(told, observe)
                if here.cancelled():
                    stop.set()
        except BaseException:
            stop.set()
            raise
        _tell(told, observe)
        return [future.result() for future in running]


def _tell(told: queue.SimpleQueue[tuple[str, CheckResult | None]], observe: Observer | None) -> None:
    while not told.empty():
        name, result = told.get()
        if observe is not None:
            observe(name, result)


def find_program(program: str, cwd: str | Path, env: Mapping[str, str]) -> ProgramState:
    """Look a program up as a shell standing in `cwd` would."""
    if "/" in program:
        path = Path(cwd, program)
        if not path.is_file():
            return ProgramState.MISSING
        return ProgramState.FOUND if os.access(path, os.X_OK) else ProgramState.NOT_EXECUTABLE
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    return ProgramState.MISSING if found is None else ProgramState.FOUND


def missing_programs(contract: Contract, here: Session) -> tuple[MissingProgram, ...]:
    """The checks whose program can't be run: a `configuration` fact before the first turn."""

    def find(program: str, directory: str) -> ProgramState:
        return find_program(program, Path(here.root, directory), here.env)

    found = (missing_program(check, find) for check in contract.checks)
    return tuple(fact for fact in found if fact is not None)


def unreadable_check(contract: Contract, here: Session) -> tuple[Check, str] | None:
    """The first check that no shell can read, with what the shell says; nothing of it is run."""
    for check in contract.checks:
        if not isinstance(check.command, str):
            continue
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            words = [SHELL, "-n", "-c", check.command]
            read = subprocess.run(words, env=dict(here.env), capture_output=True, timeout=_READ_S, check=False)
            if read.returncode:
                return check, read.stderr.decode("utf-8", "replace").strip()[:300]
    return None
