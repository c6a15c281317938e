"""What every real CLI goes through, written once: each function plays one case on one rig and checks what must hold for
all of them. What a CLI cannot do or show differs by engine and is passed in, with the reason where it is passed.
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

from loopx.hosts import result_file, supervise
from loopx.hosts.protocol import Deadlines, HostEndKind, ProcessEnd, RetryPolicy, StopCause, Usage
from loopx.hosts.result_file import ResultFileKind
from loopx.hosts.usage import delta
from tests.hosts.harness import Outcome, Rig
from tests.hosts.script import Cut, Fail, Hold, Say, Shell, Silence, Step, Tokens

RESET_S = 3600
EDIT = Shell(command="echo hello > made.txt")


def edit_and_finish(rig: Rig) -> Outcome:
    """One tool call that changes a file, then the end: success, and usage to the token."""
    rig.server.extend([EDIT, Say(text="I made the file.")])
    outcome = rig.run("Make made.txt.")
    assert (rig.work / "made.txt").read_text() == "hello\n"
    assert outcome.end.kind is HostEndKind.SUCCESS, explain(outcome)
    assert outcome.end.process is ProcessEnd.CLEAN
    assert outcome.summary.terminal_seen
    assert outcome.summary.tool_calls >= 1
    assert outcome.summary.final_text.strip() == "I made the file."
    assert outcome.summary.session_id
    assert_usage(rig, outcome.summary.usage)
    return outcome


def false_done(rig: Rig) -> Outcome:
    """The agent says that it is done and did nothing: never a success."""
    rig.server.extend([Say(text="Done! All the tests pass now.")])
    outcome = rig.run()
    assert outcome.end.kind is HostEndKind.NO_OP, explain(outcome)
    assert not outcome.tree_changed
    return outcome


def ask_a_person(rig: Rig, outbox: str, step: Step | None = None) -> Outcome:
    """The agent leaves a question in its typed result file: from inside the CLI's own shell, or by `step`."""
    result = json.dumps({"turn_key": "turn-ask", "kind": "question", "question": {"text": "Drop v1?"}})
    by_shell = Shell(command=f"printf %s '{result}' > \"$LOOPX_RESULT_FILE\"")
    rig.server.extend([step or by_shell, Say(text="I asked.")])
    outcome = rig.run(turn_key="turn-ask", env=(("LOOPX_RESULT_FILE", outbox),))
    read = result_file.read(outbox, "turn-ask")
    assert read.result is not None, (read, explain(outcome))
    assert read.result.kind is ResultFileKind.QUESTION
    assert read.result.question is not None
    assert read.result.question.text == "Drop v1?"
    assert outcome.end.process is ProcessEnd.CLEAN, explain(outcome)
    return outcome


def rate_limited(rig: Rig, refusal: Fail, *, reset_known: bool, **more: Any) -> Outcome:
    """HTTP 429: a wait, never a failed attempt; the reset instant where the CLI lets it through."""
    rig.server.extend([refusal])
    now_ms = time.time_ns() // 1_000_000
    outcome = rig.run(now_ms=now_ms, **more)
    assert outcome.end.kind is HostEndKind.RATE_LIMITED, explain(outcome)
    assert not outcome.end.bad_setup
    if reset_known:
        assert outcome.end.reset_at_ms is not None, explain(outcome)
        # A CLI may round to the minute, and rounds up or down.
        assert abs(outcome.end.reset_at_ms - (now_ms + RESET_S * 1000)) < 180_000, explain(outcome)
        assert outcome.end.retry is RetryPolicy.AT_RESET
    else:
        assert outcome.end.reset_at_ms is None
        assert outcome.end.retry is RetryPolicy.BACKOFF
    return outcome


def refused(rig: Rig, refusal: Fail, kind: HostEndKind, **more: Any) -> Outcome:
    """A provider's refusal that ends the run by itself."""
    rig.server.extend([refusal])
    outcome = rig.run(**more)
    assert outcome.end.kind is kind, explain(outcome)
    assert outcome.end.auth_lapsed is (kind is HostEndKind.AUTH_FAILED)
    assert outcome.end.handed_over
    return outcome


def cut_mid_stream(rig: Rig, **more: Any) -> Outcome:
    """The connection breaks in the middle of an answer, every time."""
    rig.server.extend([Cut()])
    outcome = rig.run(**more)
    assert outcome.end.kind is HostEndKind.TRANSPORT_LOST, explain(outcome)
    assert outcome.end.process is ProcessEnd.DIED
    return outcome


def silence(rig: Rig, idle_s: float) -> Outcome:
    """The provider takes the request and never answers: the keeper's idle deadline ends the run."""
    rig.server.extend([Silence()])
    outcome = rig.run(deadlines=Deadlines(first_event_s=idle_s, idle_s=idle_s, hard_s=240, grace_s=2))
    assert outcome.record.stop in (StopCause.IDLE, StopCause.FIRST_EVENT), explain(outcome)
    assert outcome.end.kind is HostEndKind.EXECUTOR_TIMEOUT, explain(outcome)
    assert outcome.record.survivors == ()
    return outcome


def resumed(rig: Rig) -> tuple[Outcome, Outcome]:
    """A second run in the same session: same id, the conversation goes on, and usage is the second run's own."""
    rig.server.extend([EDIT, Say(text="First.")])
    first = rig.run()
    before = len(rig.server.answered)
    rig.server.extend([Shell(command="echo more >> made.txt"), Say(text="Second.")])
    second = rig.run("Go on.", resume_session=first.summary.session_id)
    assert second.end.kind is HostEndKind.SUCCESS, explain(second)
    assert second.summary.session_id == first.summary.session_id
    body = json.dumps(rig.server.requests[-1].body)
    assert "First." in body, "the resumed conversation holds what was said before"
    used = second.summary.usage
    if second.summary.usage_is_running_total:
        used = delta(second.summary.usage, first.summary.usage, resumed=True)
    assert_tokens(used, rig.server.answered[before:], rig)
    return first, second


def dead_resume(rig: Rig, session: str) -> Outcome:
    """A session that does not exist: typed, and no work is done in a conversation that nobody asked for."""
    rig.server.extend([EDIT, Say(text="Done in the wrong session.")])
    outcome = rig.run(resume_session=session)
    assert outcome.end.kind is HostEndKind.SESSION_MISSING, explain(outcome)
    assert outcome.end.retry is RetryPolicy.FRESH_SESSION
    return outcome


def cancelled(rig: Rig) -> Outcome:
    """A person stops the run while the model is thinking."""
    rig.server.extend([Silence()])
    outcome = rig.run(should_cancel=rig.server.silent.is_set)
    assert outcome.end.kind is HostEndKind.CANCELLED, explain(outcome)
    assert outcome.record.stop is StopCause.CANCELLED
    assert outcome.record.survivors == ()
    return outcome


def killed_and_adopted(rig: Rig) -> None:
    """LoopX is killed with -9 in the middle; the host goes on, and the next LoopX finds it and reads its end."""
    rig.server.extend([Hold(then=EDIT), Say(text="Finished without you.")])
    request = rig.request()
    plan = rig.adapter.plan(request, rig.env)
    pid = os.fork()
    if pid == 0:
        kept = supervise.start(plan, request.run_id, request.turn_key, request.spool_dir)
        supervise.follow(kept)
        os._exit(0)
    assert rig.server.silent.wait(120)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    adopted = supervise.adopt(request.spool_dir, request.run_id, request.turn_key)
    assert adopted.state is supervise.RunState.RUNNING
    assert adopted.kept is not None
    rig.server.release.set()
    parser = rig.adapter.parser(request, 0)
    record = supervise.follow(adopted.kept, lambda line: [parser.feed(line)].clear())
    summary = parser.finish(b"")
    end = rig.adapter.classify(record, summary, True)
    assert end.kind is HostEndKind.SUCCESS, (end, record, summary)
    assert (rig.work / "made.txt").exists()
    assert_usage(rig, summary.usage)


def assert_usage(rig: Rig, usage: Usage) -> None:
    """Every counter equals what the server handed out to the agent's own turns."""
    assert_tokens(usage, rig.server.answered, rig)


def assert_tokens(usage: Usage, answered: list[Tokens], rig: Rig) -> None:
    """The sum of `answered`, counter by counter; a provider that does not split reasoning off leaves it unknown."""
    assert usage.input_tokens == sum(one.input for one in answered)
    assert usage.cached_input_tokens == sum(one.cached for one in answered)
    assert usage.output_tokens == sum(one.output for one in answered)
    if rig.engine != "claude":
        assert usage.reasoning_tokens in (None, sum(one.reasoning for one in answered))


def explain(outcome: Outcome) -> str:
    """What happened, for a failed assertion."""
    head = f"{outcome.end}\n{outcome.record}\n{outcome.summary}\n"
    return head + b"\n".join(outcome.lines[-12:]).decode("utf-8", "replace")[-6000:] + outcome.stderr.decode()[-3000:]
