"""Checks run as real processes: verdicts, time-outs, bounded output, clean environment, and nobody left behind."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from loopx.contracts.model import (
    Check,
    CheckKind,
    CheckResult,
    ChecksState,
    Contract,
    DifferentialRule,
    Machine,
    Reason,
    Verdict,
)
from loopx.contracts.parse import parse_checks, parse_contract
from loopx.workspace.check_output import HEAD_BYTES, TAIL_BYTES, BoundedText
from loopx.workspace.check_run import Session, evaluate, missing_programs, run_check, session


def _check(command: str | tuple[str, ...], **fields: object) -> Check:
    (check,) = parse_checks([{"name": "c", "command": command, **fields}])
    return check


def _run(root: Path, command: str | tuple[str, ...], **fields: object) -> CheckResult:
    return run_check(_check(command, **fields), session(root, tree_hash="t", grace_ms=200))


def _wait_for(path: Path) -> bytes:
    """Block until another process wrote to a fifo."""
    with path.open("rb") as fifo:
        return fifo.read()


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


@pytest.mark.parametrize(
    ("command", "expect", "verdict", "reason"),
    [
        ("exit 0", "exit_zero", Verdict.GREEN, None),
        ("exit 3", "exit_zero", Verdict.RED, Reason.EXIT_CODE),
        ("echo all good; exit 3", "contains all good", Verdict.GREEN, None),
        ("echo nope >&2", "contains all good", Verdict.RED, Reason.TEXT_ABSENT),
        ("echo all good >&2", "contains all good", Verdict.GREEN, None),
        ('echo noise >&2; echo "{\\"a\\": [1]}"', "$json:/a/0=1", Verdict.GREEN, None),
        ("kill -SEGV $$", "exit_zero", Verdict.RED, Reason.KILLED),
        ("no-such-program-here", "exit_zero", Verdict.RED, Reason.PROGRAM_MISSING),
        ("exec no-such-program-here", "exit_zero", Verdict.RED, Reason.PROGRAM_MISSING),
        ("./missing", "exit_zero", Verdict.RED, Reason.PROGRAM_MISSING),
        ("./data", "exit_zero", Verdict.RED, Reason.NOT_EXECUTABLE),
        ("./binary", "exit_zero", Verdict.RED, Reason.NOT_EXECUTABLE),
        ("cat", "exit_zero", Verdict.GREEN, None),
    ],
)
def test_verdicts(tmp_path: Path, command: str, expect: str, verdict: Verdict, reason: Reason | None) -> None:
    (tmp_path / "data").write_text("x")
    (tmp_path / "binary").write_bytes(b"\x7fELFnot")
    (tmp_path / "binary").chmod(0o755)
    result = _run(tmp_path, command, expect=expect)
    assert (result.verdict, result.reason) == (verdict, reason)
    assert result.tree_hash == "t"
    assert (result.signature is None) is (verdict is Verdict.GREEN)


def test_a_missing_folder_is_red_and_is_said(tmp_path: Path) -> None:
    result = _run(tmp_path, "true", cwd="gone")
    assert (result.verdict, result.reason) == (Verdict.RED, Reason.CANNOT_START)


def test_checks_run_where_they_are_told(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    assert _run(tmp_path, "pwd", cwd="sub", expect=f"contains {tmp_path}/sub").verdict is Verdict.GREEN


def test_a_signal_is_named(tmp_path: Path) -> None:
    result = _run(tmp_path, "kill -SEGV $$")
    assert (result.exit_code, result.signal, result.signature) == (None, signal.SIGSEGV, "c: SIGSEGV")


def test_a_timeout_ends_the_whole_group(tmp_path: Path) -> None:
    """A grandchild that ignores TERM, and its parent, are gone when the check has ended."""
    pids = tmp_path / "pids"
    script = (
        f"trap '' TERM; (trap '' TERM; echo $$ > {pids}; sh -c 'trap \"\" TERM; echo $$ >> {pids}; sleep 600') & wait"
    )
    result = _run(tmp_path, script, timeout=1)
    assert (result.verdict, result.reason, result.timed_out) == (Verdict.RED, Reason.TIMEOUT, True)
    assert result.signature == "c: timeout"
    assert result.survivors == 0
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) == 2
    assert not any(map(_is_running, started))


def test_what_a_finished_check_left_running_is_ended(tmp_path: Path) -> None:
    """A server that a check forgot holds its output open; it neither delays the verdict nor stays."""
    pid_file = tmp_path / "pid"
    result = _run(tmp_path, f"sleep 600 & echo $! > {pid_file}; echo done", expect="contains done")
    assert result.verdict is Verdict.GREEN
    assert not _is_running(int(pid_file.read_text()))


FORKS = """
import os, time
ready, tell = os.pipe()
if os.fork() == 0:
    {leave}
    with open({file!r}, "w") as file:
        file.write(str(os.getpid()))
    os.write(tell, b"x")
    time.sleep(600)
os.read(ready, 1)
print("done")
"""


def test_a_job_in_a_group_of_its_own_is_ended_with_the_session(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = FORKS.format(leave="os.setpgid(0, 0); os.close(1); os.close(2)", file=str(pid_file))
    assert _run(tmp_path, (sys.executable, "-c", script)).verdict is Verdict.GREEN
    assert not _is_running(int(pid_file.read_text()))


def test_a_daemon_that_left_the_session_is_ended_with_the_check(tmp_path: Path) -> None:
    """It keeps the check's output open, has no variables, and its parents are gone."""
    pid_file = tmp_path / "pid"
    script = FORKS.format(leave="os.setsid()", file=str(pid_file))
    result = _run(tmp_path, ("env", "-i", sys.executable, "-c", script), expect="contains done")
    assert result.verdict is Verdict.GREEN
    assert result.survivors == 0
    assert not _is_running(int(pid_file.read_text()))


def test_a_daemon_of_a_check_that_ran_out_of_time_is_ended(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    daemon = f"setsid sh -c 'trap \"\" TERM HUP; echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; sleep 600' &"
    result = _run(tmp_path, f"({daemon}) ; while ! test -e {pid_file}; do sleep 0.02; done; sleep 600", timeout=2)
    assert (result.reason, result.survivors) == (Reason.TIMEOUT, 0)
    assert not _is_running(int(pid_file.read_text()))


def test_a_process_that_the_check_did_not_start_is_left_alone(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        assert _run(tmp_path, "sleep 600 & exit 0").verdict is Verdict.GREEN
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_the_check_sees_the_variables_it_was_given_and_no_more(tmp_path: Path) -> None:
    bare = {"PATH": os.environ["PATH"], "HOME": "/", "LANG": "C"}
    for env in (bare, {**bare, "LC_CTYPE": "C", "PYTHONPATH": "/nowhere"}):
        here = session(tmp_path, env=env, tree_hash="t")
        seen = run_check(_check("env; exit 1"), here).output
        names = {line.partition("=")[0] for line in (seen.head + seen.tail).splitlines()}
        assert names - {"PWD", "_", "SHLVL", "OLDPWD", "PYTHONDONTWRITEBYTECODE"} == env.keys() - {"_"}


def test_a_check_that_ends_what_watches_it_is_not_green(tmp_path: Path) -> None:
    result = _run(tmp_path, "kill -9 $PPID; exit 0")
    assert result.verdict is Verdict.RED


def test_the_session_clock_starves_a_check(tmp_path: Path) -> None:
    check = _check("sleep 600", timeout=500)
    result = run_check(check, session(tmp_path, session_left_ms=300, grace_ms=100))
    assert (result.verdict, result.reason, result.timed_out) == (Verdict.STARVED, Reason.SESSION_CLOCK, False)
    assert result.signature is None
    spent = run_check(check, session(tmp_path, session_left_ms=0))
    assert (spent.verdict, spent.duration_ms) == (Verdict.STARVED, 0)


def test_its_own_timeout_within_the_session_is_red(tmp_path: Path) -> None:
    result = run_check(_check("sleep 600", timeout=1), session(tmp_path, session_left_ms=600_000, grace_ms=100))
    assert result.verdict is Verdict.RED


def test_cancelling_ends_a_running_check(tmp_path: Path) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    stop = threading.Event()
    results: list[CheckResult] = []
    here = session(tmp_path, cancelled=stop.is_set, grace_ms=100)
    check = _check(f"echo $$ > {started}; sleep 600")
    worker = threading.Thread(target=lambda: results.append(run_check(check, here)))
    worker.start()
    pid = int(_wait_for(started))
    stop.set()
    worker.join()
    assert (results[0].verdict, results[0].reason) == (Verdict.NOT_EVALUABLE, Reason.CANCELLED)
    assert not _is_running(pid)
    assert run_check(check, here).reason is Reason.CANCELLED


def test_output_is_bounded_and_the_middle_counted(tmp_path: Path) -> None:
    script = (
        "import sys\nw = sys.stdout.write\nw('start\\n')\n"
        "for _ in range(40): w('x' * 5_000_000 + '\\n')\n"
        "w('needle ')\nw('end\\n')"
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = _run(tmp_path, (sys.executable, "-c", script), expect="contains needle end")
    assert result.verdict is Verdict.GREEN
    assert result.output.head.startswith("start\n")
    assert result.output.tail.endswith("needle end\n")
    assert result.output.total_bytes == 6 + 40 * 5_000_001 + 11
    assert result.output.omitted_bytes == result.output.total_bytes - HEAD_BYTES - TAIL_BYTES
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000  # KB, of 200 MB printed


def test_text_is_found_across_chunks() -> None:
    from loopx.workspace.check_output import OutputSink

    sink = OutputSink(needle="abcd")
    for piece in (b"xxab", b"c", b"dyy"):
        sink.feed(piece, is_stdout=True)
    assert sink.contains


@pytest.mark.parametrize("sizes", [[3], [5, 5, 5], [1] * 40, [100], [10, 90]])
def test_bounded_text_keeps_both_ends(sizes: list[int]) -> None:
    text = BoundedText(head=8, tail=8)
    whole = bytes(ord("a") + n % 26 for n in range(sum(sizes)))
    rest = whole
    for size in sizes:
        text.feed(rest[:size])
        rest = rest[size:]
    output = text.output()
    assert output.head.encode() == whole[:8]
    assert output.tail.encode() == whole[8:][-8:]
    assert len(output.head) + output.omitted_bytes + len(output.tail) == output.total_bytes == len(whole)


def test_output_that_is_no_text_is_shown_as_text(tmp_path: Path) -> None:
    result = _run(tmp_path, "printf 'a\\000b\\377c'")
    assert result.output.head == "a\ufffdb\ufffdc"


def test_json_that_is_too_large_is_red(tmp_path: Path) -> None:
    script = "import sys; sys.stdout.write('[' + '1,' * 5_000_000 + '1]')"
    result = _run(tmp_path, (sys.executable, "-c", script), expect="$json:/0=1")
    assert result.reason is Reason.OUTPUT_TOO_LARGE


def test_checks_see_no_credentials_of_agents(tmp_path: Path) -> None:
    env = {
        "PATH": os.environ["PATH"],
        "DATABASE_URL": "db",
        "OPENAI_API_KEY": "secret",
        "ANTHROPIC_API_KEY": "secret",
        "CLAUDE_CODE_OAUTH_TOKEN": "secret",
        "CLAUDECODE": "secret",
        "CODEX_HOME": "secret",
        "GEMINI_API_KEY": "secret",
        "GOOGLE_API_KEY": "secret",
        "LOOPX_TURN_TOKEN": "secret",
    }
    result = run_check(_check("env"), session(tmp_path, env=env))
    assert "DATABASE_URL=db" in result.output.head
    assert "secret" not in result.output.head


def test_standard_input_is_empty(tmp_path: Path) -> None:
    assert _run(tmp_path, "wc -c", expect="contains 0").verdict is Verdict.GREEN


# -- the whole contract


def _contract(*entries: object, **fields: object) -> Contract:
    return parse_contract({"checks": list(entries), **fields})


def _here(root: Path) -> Session:
    return session(root, tree_hash="t", grace_ms=200)


def test_all_checks_run_even_after_a_red_one(tmp_path: Path) -> None:
    evaluation = evaluate(_contract("a=exit 1", "b=exit 0", "c=exit 2"), _here(tmp_path))
    assert [result.verdict for result in evaluation.results] == [Verdict.RED, Verdict.GREEN, Verdict.RED]
    assert evaluation.state is ChecksState.RED
    assert evaluation.tree_hash == "t"


def test_independent_checks_run_at_the_same_time(tmp_path: Path) -> None:
    """Each waits for the other through a fifo, so one after the other they would never end."""
    os.mkfifo(tmp_path / "x")
    os.mkfifo(tmp_path / "y")
    contract = _contract(
        {"name": "one", "command": "echo a > x; cat y", "timeout": 60},
        {"name": "two", "command": "cat x; echo b > y", "timeout": 60},
        workers=2,
    )
    assert evaluate(contract, _here(tmp_path)).all_green


def test_starved_checks_keep_the_verdict_open(tmp_path: Path) -> None:
    contract = _contract("a=exit 0", "b=sleep 600", "c=exit 0")
    here = session(tmp_path, session_left_ms=1500, grace_ms=100)
    evaluation = evaluate(contract, here)
    assert evaluation.state is ChecksState.RED_STARVED
    assert [result.verdict for result in evaluation.results][1:] == [Verdict.STARVED, Verdict.STARVED]


FLIP = "test -e seen || { : > seen; exit 1; }"


def test_a_flip_is_recorded_and_is_not_green(tmp_path: Path) -> None:
    contract = _contract({"name": "f", "command": FLIP, "flaky_retries": 2})
    (result,) = evaluate(contract, _here(tmp_path)).results
    assert (result.verdict, result.reason) == (Verdict.FLAKY, Reason.FLIPPED)
    assert result.attempts == (Verdict.RED, Verdict.GREEN)
    assert result.signature is not None


def test_a_red_check_is_not_run_again_unless_asked(tmp_path: Path) -> None:
    (result,) = evaluate(_contract({"name": "f", "command": FLIP}), _here(tmp_path)).results
    assert result.attempts == (Verdict.RED,)
    (stays,) = evaluate(_contract({"name": "r", "command": "exit 1", "flaky_retries": 2}), _here(tmp_path)).results
    assert (stays.verdict, stays.attempts) == (Verdict.RED, (Verdict.RED,) * 3)


class _Cache:
    def __init__(self) -> None:
        self.known: dict[str, CheckResult] = {}

    def get(self, inputs: str, /) -> CheckResult | None:
        return self.known.get(inputs)

    def put(self, inputs: str, result: CheckResult, /) -> None:
        self.known[inputs] = result


def test_the_same_inputs_are_not_checked_twice(tmp_path: Path) -> None:
    cache = _Cache()
    contract = _contract("n=echo x >> runs", {"name": "f", "command": FLIP, "flaky_retries": 1})

    def runs(tree: str | None, environment: str = "") -> int:
        here = session(tmp_path, tree_hash=tree, environment=environment)
        evaluate(contract, here, cache=cache)
        return len((tmp_path / "runs").read_text().split())

    assert [runs("t1"), runs("t1"), runs("t2"), runs("t2", "other deps"), runs(None), runs(None)] == [1, 1, 2, 3, 4, 5]
    (tmp_path / "seen").unlink()
    assert evaluate(contract, session(tmp_path, tree_hash="t9"), cache=cache).results[1].verdict is Verdict.FLAKY
    again = evaluate(contract, session(tmp_path, tree_hash="t9"), cache=cache)
    assert [result.cached for result in again.results] == [True, False]


def test_held_out_checks_run_only_when_asked(tmp_path: Path) -> None:
    contract = _contract("a=exit 0", {"name": "secret", "command": "exit 1", "held_out": True})
    assert evaluate(contract, _here(tmp_path), held_out=False).all_green
    (_, secret) = evaluate(contract, _here(tmp_path)).results
    assert secret.held_out


def test_differential_checks_are_held_against_the_baseline(tmp_path: Path) -> None:
    (tmp_path / "ms").write_text("100")
    contract = _contract(
        {"name": "speed", "command": "cat ms", "kind": "baseline"},
        {
            "name": "no slower",
            "command": "cat ms",
            "kind": "differential",
            "against": "speed",
            "compare": DifferentialRule.NOT_HIGHER.value,
        },
    )
    alone = evaluate(contract, _here(tmp_path))
    assert [result.reason for result in alone.results] == [Reason.CAPTURE_MISSING]
    assert alone.state is ChecksState.NOT_EVALUABLE
    first = evaluate(contract, _here(tmp_path), take_baseline=True)
    assert first.all_green
    assert contract.checks[0].kind is CheckKind.BASELINE
    captures = {result.name: result.capture for result in first.results if result.capture is not None}
    (tmp_path / "ms").write_text("101")
    (slower,) = evaluate(contract, _here(tmp_path), captures=captures).results
    assert (slower.verdict, slower.reason) == (Verdict.RED, Reason.DIFFERS)


def test_checks_are_announced_as_they_begin_and_end(tmp_path: Path) -> None:
    seen: list[tuple[str, Verdict | None]] = []

    def observe(name: str, result: CheckResult | None) -> None:
        seen.append((name, None if result is None else result.verdict))

    evaluate(_contract("a=exit 0", "b=exit 1"), _here(tmp_path), observe=observe)
    assert seen == [("a", None), ("a", Verdict.GREEN), ("b", None), ("b", Verdict.RED)]


def test_missing_programs_are_found_before_the_first_turn(tmp_path: Path) -> None:
    tool = tmp_path / ".venv" / "bin" / "special-runner"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    (tmp_path / "notes").write_text("x")
    contract = _contract("a=special-runner -q", "b=./notes", "c=sh -c true", "d=./absent", "e=exit 0")
    facts = missing_programs(contract, _here(tmp_path))
    assert [(fact.check, fact.suggestion, fact.not_executable) for fact in facts] == [
        ("a", ".venv/bin/special-runner", False),
        ("b", None, True),
        ("d", None, False),
    ]


def test_a_bare_exit_code_has_no_parts(tmp_path: Path) -> None:
    result = _run(tmp_path, "exit 1")
    assert (result.parts, result.machine) == (None, Machine.NOT_ASKED)
