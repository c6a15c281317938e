"""How a host run ended: one typed `HostEnd` from the keeper's record, the stream's summary and the tree.

Typed fields decide first (the keeper's stop, the CLI's own error fields, its exit codes); wording was consulted only
for the final error line, in `phrases`. The retry policy of each kind and its place in the loop's failures are data
here. Success is never read from exit 0 or from what the agent said (hosts, "success rule").
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from loopx.hosts import jsonline, phrases, redact
from loopx.hosts.protocol import ExitRecord, HostEnd, HostEndKind, ProcessEnd, RetryPolicy, StopCause, StreamSummary

DETAIL_CAP = 500


class EndRule(msgspec.Struct, frozen=True, kw_only=True):
    """What a kind of end means to a caller."""

    process: ProcessEnd
    retry: RetryPolicy
    auth_lapsed: bool = False
    bad_setup: bool = False


_CLEAN, _DIED, _WORKER = ProcessEnd.CLEAN, ProcessEnd.DIED, ProcessEnd.WORKER_ERROR
_R = RetryPolicy
END_RULES: Mapping[HostEndKind, EndRule] = {
    HostEndKind.SUCCESS: EndRule(process=_CLEAN, retry=_R.NONE),
    HostEndKind.NO_OP: EndRule(process=_CLEAN, retry=_R.NONE),
    HostEndKind.AUTH_FAILED: EndRule(process=_DIED, retry=_R.AFTER_PERSON, auth_lapsed=True),
    HostEndKind.RATE_LIMITED: EndRule(process=_DIED, retry=_R.AT_RESET),
    HostEndKind.QUOTA_EXHAUSTED: EndRule(process=_DIED, retry=_R.AFTER_PERSON),
    HostEndKind.PROVIDER_OVERLOADED: EndRule(process=_DIED, retry=_R.BACKOFF),
    HostEndKind.PROVIDER_CAPACITY: EndRule(process=_DIED, retry=_R.BACKOFF),
    HostEndKind.TRANSPORT_LOST: EndRule(process=_DIED, retry=_R.BACKOFF),
    HostEndKind.EXECUTOR_TIMEOUT: EndRule(process=_DIED, retry=_R.FRESH_SESSION),
    HostEndKind.OUTPUT_BUDGET_EXHAUSTED: EndRule(process=_WORKER, retry=_R.FRESH_SESSION),
    HostEndKind.SESSION_MISSING: EndRule(process=_DIED, retry=_R.FRESH_SESSION),
    HostEndKind.CONTRACT_REJECTED: EndRule(process=_WORKER, retry=_R.FRESH_SESSION),
    HostEndKind.PERMISSION_DENIED: EndRule(process=_WORKER, retry=_R.AFTER_PERSON, bad_setup=True),
    HostEndKind.NOT_STARTED: EndRule(process=_DIED, retry=_R.BACKOFF),
    HostEndKind.CANCELLED: EndRule(process=_DIED, retry=_R.NONE),
    HostEndKind.WORKER_ERROR: EndRule(process=_WORKER, retry=_R.FRESH_SESSION),
    HostEndKind.UNKNOWN: EndRule(process=_DIED, retry=_R.BACKOFF),
}
"""Every kind has a row. `WORKER_ERROR` that is `bad_setup` (a wrong model name) waits for a person instead."""

_BAD_SETUP_CODES = frozenset(
    {
        "bad_arguments",
        "bad_config",
        "bypass_refused_as_root",
        "model_unavailable",
        "sandbox_unavailable",
        "workspace_untrusted",
    }
)

_STOPPED: Mapping[StopCause, tuple[HostEndKind, str]] = {
    StopCause.FIRST_EVENT: (HostEndKind.EXECUTOR_TIMEOUT, "first_event_deadline"),
    StopCause.IDLE: (HostEndKind.EXECUTOR_TIMEOUT, "idle_deadline"),
    StopCause.HARD: (HostEndKind.EXECUTOR_TIMEOUT, "hard_deadline"),
    StopCause.OUTPUT_FLOOD: (HostEndKind.OUTPUT_BUDGET_EXHAUSTED, "output_flood"),
    StopCause.DISK_FLOOR: (HostEndKind.OUTPUT_BUDGET_EXHAUSTED, "disk_floor"),
}

_EXPLAINS_A_STOP = frozenset(
    {
        HostEndKind.AUTH_FAILED,
        HostEndKind.RATE_LIMITED,
        HostEndKind.QUOTA_EXHAUSTED,
        HostEndKind.PROVIDER_OVERLOADED,
        HostEndKind.PROVIDER_CAPACITY,
        HostEndKind.TRANSPORT_LOST,
    }
)
"""A host that was stopped while it was still retrying one of these ended because of it, not because it was slow."""

ExitKinds = Mapping[int, tuple[HostEndKind, str]]


class _Verdict(msgspec.Struct, frozen=True, kw_only=True):
    kind: HostEndKind
    code: str = ""


def classify(
    record: ExitRecord,
    summary: StreamSummary,
    tree_changed: bool,
    *,
    exit_kinds: ExitKinds | None = None,
    fixes: Mapping[str, str] | None = None,
) -> HostEnd:
    """The end of one run. `exit_kinds`: exit codes that this CLI documents; `fixes`: what mends a code or kind."""
    verdict = _verdict(record, summary, tree_changed, exit_kinds or {})
    return _end(verdict, record, summary, fixes or {})


def _verdict(record: ExitRecord, summary: StreamSummary, tree_changed: bool, exit_kinds: ExitKinds) -> _Verdict:
    if record.stop is StopCause.CANCELLED:
        return _Verdict(kind=HostEndKind.CANCELLED)
    if not record.handed_over:
        return _not_handed_over(record, summary, exit_kinds)
    if record.stop in _STOPPED:
        return _stopped(record.stop, summary)
    if summary.error_kind is not None and (summary.is_error or not summary.terminal_seen):
        return _Verdict(kind=summary.error_kind, code=summary.error_code)
    documented = exit_kinds.get(record.exit_code) if record.exit_code is not None else None
    if documented is not None:
        return _Verdict(kind=documented[0], code=documented[1])
    if summary.is_error:
        return _Verdict(kind=HostEndKind.WORKER_ERROR, code=summary.error_code)
    if not summary.terminal_seen:
        return _cut_short(record)
    if not _ended_by_itself(record):
        return _bad_exit(record)
    return _worked(summary, tree_changed)


def _not_handed_over(record: ExitRecord, summary: StreamSummary, exit_kinds: ExitKinds) -> _Verdict:
    """The host may have said why it would not even read the prompt: that is the better name, where it is known."""
    documented = exit_kinds.get(record.exit_code) if record.exit_code is not None else None
    if summary.error_kind is not None and summary.error_kind is not HostEndKind.WORKER_ERROR:
        return _Verdict(kind=summary.error_kind, code=summary.error_code)
    if documented is not None:
        return _Verdict(kind=documented[0], code=documented[1])
    return _Verdict(kind=HostEndKind.NOT_STARTED, code=record.start_error or summary.error_code)


def _stopped(stop: StopCause, summary: StreamSummary) -> _Verdict:
    kind, code = _STOPPED[stop]
    if kind is HostEndKind.EXECUTOR_TIMEOUT and summary.error_kind in _EXPLAINS_A_STOP:
        return _Verdict(kind=summary.error_kind, code=summary.error_code)
    return _Verdict(kind=kind, code=code)


def _ended_by_itself(record: ExitRecord) -> bool:
    """After its result a host may be helped out of the door; a second keeper cannot learn the exit code."""
    if record.stop is StopCause.AFTER_RESULT:
        return True
    return record.exit_code == 0 or (record.exit_code is None and record.signal is None)


def _cut_short(record: ExitRecord) -> _Verdict:
    """The stream stopped before its terminal event: exit 0 proves nothing then."""
    if record.signal is not None:
        return _bad_exit(record)
    return _Verdict(kind=HostEndKind.UNKNOWN, code="no_terminal_event")


def _bad_exit(record: ExitRecord) -> _Verdict:
    if record.signal is not None:
        return _Verdict(kind=HostEndKind.UNKNOWN, code=f"signal_{record.signal}")
    return _Verdict(kind=HostEndKind.WORKER_ERROR, code=f"exit_{record.exit_code}")


def _worked(summary: StreamSummary, tree_changed: bool) -> _Verdict:
    changed = tree_changed or summary.file_changes > 0
    if summary.error_code == "sandbox_unavailable" and not changed:
        return _Verdict(kind=HostEndKind.PERMISSION_DENIED, code=summary.error_code)
    if summary.denials and not changed:
        return _Verdict(kind=HostEndKind.PERMISSION_DENIED, code="tool_denied")
    if changed or summary.tool_calls:
        return _Verdict(kind=HostEndKind.SUCCESS)
    return _Verdict(kind=HostEndKind.NO_OP)


def _end(verdict: _Verdict, record: ExitRecord, summary: StreamSummary, fixes: Mapping[str, str]) -> HostEnd:
    rule = END_RULES[verdict.kind]
    reset = summary.reset_at_ms if verdict.kind in (HostEndKind.RATE_LIMITED, HostEndKind.QUOTA_EXHAUSTED) else None
    bad_setup = rule.bad_setup or verdict.code in _BAD_SETUP_CODES
    return HostEnd(
        kind=verdict.kind,
        process=rule.process,
        retry=_retry(verdict, rule, reset, bad_setup, record),
        handed_over=record.handed_over,
        auth_lapsed=rule.auth_lapsed,
        reset_at_ms=reset,
        exit_code=record.exit_code,
        bad_setup=bad_setup,
        code=verdict.code,
        fix=fixes.get(verdict.code) or fixes.get(verdict.kind.value) or "",
        detail=detail(summary.error_text),
    )


def _retry(verdict: _Verdict, rule: EndRule, reset: int | None, bad_setup: bool, record: ExitRecord) -> RetryPolicy:
    if verdict.kind is HostEndKind.RATE_LIMITED:
        return RetryPolicy.AT_RESET if reset is not None else RetryPolicy.BACKOFF
    if verdict.kind is HostEndKind.QUOTA_EXHAUSTED and reset is not None:
        return RetryPolicy.AT_RESET
    if bad_setup or (verdict.kind is HostEndKind.NOT_STARTED and (record.start_error or "").startswith("exec:")):
        return RetryPolicy.AFTER_PERSON
    return rule.retry


def detail(text: str) -> str:
    """The last lines of an error for people: one paragraph, redacted, at most 500 characters."""
    return jsonline.clip(redact.redact(" ".join(text.split())), DETAIL_CAP)


def last_error_line(stderr_tail: bytes) -> str:
    """The line of a host's stderr that reads most like its final error; an empty string when there is none.

    Backtraces, log lines and hints come after it, so the last line that the phrase table knows wins, then the first
    line that says it is an error.
    """
    lines = [one.strip() for one in stderr_tail.decode("utf-8", "replace").splitlines() if one.strip()]
    lines = [jsonline.clip(one) for one in lines[-200:]]
    known = [one for one in lines if phrases.of_error(one) is not None and _reads_as_error(one)]
    if known:
        return known[-1]
    errors = [one for one in lines if _reads_as_error(one)]
    return errors[0] if errors else (lines[-1] if lines else "")


def _reads_as_error(line: str) -> bool:
    lowered = line.lower()
    return any(
        word in lowered for word in ("error", "failed", "no conversation", "cannot", "not ", "invalid", "denied")
    )
