"""From what was seen of a turn to its stored result: evidence, gate, wait, retry, restoration. It decides nothing."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from loopx.contracts.model import CheckResult, ContractEvaluation
from loopx.control_plane.ids import TodoId
from loopx.control_plane.quota.facts import PendingWait, WaitKind
from loopx.control_plane.scheduler.arbitration import backoff_ms, jitter_for
from loopx.control_plane.turn_driver.journal import (
    EvidenceDraft,
    EvidenceKind,
    GateDraft,
    HostReport,
    Producer,
    RestoreOrder,
    TurnResult,
)
from loopx.control_plane.turn_driver.transaction import HostRetry
from loopx.control_plane.work_items.gate import GateKind
from loopx.hosts.protocol import HostEnd, HostEndKind, RetryPolicy
from loopx.loops.turn_result import ResultRule, TurnVerdict
from loopx.runtime import engine_gates
from loopx.runtime.claims import ClaimKind, last_of
from loopx.runtime.evaluation import without_output
from loopx.runtime.host_port import IDENTICAL_ACTIONS
from loopx.runtime.seen import Seen, contract_state

HOST_ATTEMPTS = 5
"""Retries of a failing engine before the run ends."""
UNKNOWN_RESET_MS = 15 * 60 * 1000
"""How long to wait at a limit whose end nobody told, or told as past; doubled each time in a row, up to an hour."""
BURST_MS = 60 * 1000
"""The same for a provider that only asks to go slower."""
JUST_OVER_MS = 5 * 60 * 1000
"""A reset that passed so short ago was true when it was told, and the checks took their time."""
LONGEST_GUESS_MS = 60 * 60 * 1000
_BURST_CODES = frozenset({"rate_limit"})
HOST_DEGRADED = "host_degraded"
_RETRYABLE = frozenset({RetryPolicy.BACKOFF, RetryPolicy.AT_RESET, RetryPolicy.FRESH_SESSION})


def host_retry(end: HostEnd, streak: int, now_ms: int) -> HostRetry | None:
    """What is known about trying again after this end."""
    left = max(0, HOST_ATTEMPTS - streak - 1)
    wait = backoff_ms(streak + 1) if end.retry is not RetryPolicy.FRESH_SESSION else 0
    not_before = end.reset_at_ms if end.reset_at_ms is not None else now_ms + wait
    return HostRetry(retryable=end.retry in _RETRYABLE, attempts_left=left, not_before_ms=not_before)


def judge_retry(streak: int, now_ms: int) -> HostRetry:
    """The same for trouble of the machine on which checks were to be run, when the host itself ended well."""
    left = max(0, HOST_ATTEMPTS - streak - 1)
    return HostRetry(retryable=True, attempts_left=left, not_before_ms=now_ms + backoff_ms(streak + 1))


def reopens_at(end: HostEnd, goal_id: str, streak: int, now_ms: int) -> int | None:
    """When an engine's limit is over: its own word plus a spread, else a guess that grows with the limits in a row.

    None for what no wait mends: an account without credit that names no reset waits for a person.
    """
    if end.kind not in (HostEndKind.RATE_LIMITED, HostEndKind.QUOTA_EXHAUSTED):
        return None
    reset = end.reset_at_ms
    just_over = reset is not None and now_ms - JUST_OVER_MS <= reset <= now_ms
    if reset is not None and (reset > now_ms or (just_over and not streak)):
        return max(reset, now_ms) + 1000 + jitter_for(goal_id, most_ms=30_000)
    if end.kind is HostEndKind.QUOTA_EXHAUSTED and end.reset_at_ms is None:
        return None
    first = BURST_MS if end.code in _BURST_CODES else UNKNOWN_RESET_MS
    return now_ms + min(LONGEST_GUESS_MS, first << min(streak, 10))


def todo_ids(ids: Iterable[str]) -> tuple[TodoId, ...]:
    return tuple(TodoId(one) for one in ids)


def build(seen: Seen, verdict: TurnVerdict, host: HostReport, now_ms: int) -> TurnResult:
    """The stored result of a judged turn."""
    evaluation, judged = seen.evaluation, seen.judged
    green = sum(1 for result in evaluation.results if result.verdict == "green") if evaluation else 0
    end = seen.word.end
    return TurnResult(
        kind=verdict.kind,
        continuation=verdict.continuation,
        recovery=verdict.recovery,
        failure=_failure_word(seen, verdict),
        reason=verdict.rule,
        outcome=verdict.outcome,
        turn_kind=verdict.turn_kind,
        tree_before=seen.tree_before,
        tree_after=seen.tree_after,
        tree_left=seen.tree_left,
        changed=seen.changed,
        contract=contract_state(seen),
        evaluation=msgspec.Raw(msgspec.json.encode(without_output(judged) if judged is not None else None)),
        checks_green=green,
        checks_total=len(evaluation.results) if evaluation is not None else 0,
        signatures=seen.signatures,
        recurring=seen.repeats,
        no_change=_nothing_new(seen),
        evidence=_evidence(seen, host),
        gate=_gate(seen, verdict, end, host.engine),
        wait=_wait(verdict, end),
        delta=seen.known.delta if verdict.rule is ResultRule.REPLAN_DELTA else None,
        restore=_restore(seen, verdict),
        findings=(*_guard_findings(seen), *_host_findings(seen)),
        retryable=verdict.retry.retryable if verdict.retry is not None else False,
        retry_not_before_ms=verdict.retry.not_before_ms if verdict.retry is not None else None,
        attempts_left=verdict.retry.attempts_left if verdict.retry is not None else 0,
        message=host.message,
        confirmed_in_snapshot=seen.in_snapshot is not None and seen.in_snapshot.all_green,
    )


def _nothing_new(seen: Seen) -> bool:
    """Neither the tree, nor the checks, nor todos and evidence changed; what was merely said never counts."""
    same = not seen.changed and seen.signatures == seen.known.last_signatures
    return same and not seen.claims and not seen.known.noted


def _guard_findings(seen: Seen) -> tuple[str, ...]:
    return tuple(
        f"{finding.code}{':refused' if finding.refused else ''}{f' {finding.path}' if finding.path else ''}"
        for finding in seen.guard.findings
    )


def _host_findings(seen: Seen) -> tuple[str, ...]:
    repeated = (IDENTICAL_ACTIONS,) if seen.word.end.code == IDENTICAL_ACTIONS else ()
    return (*repeated, *((HOST_DEGRADED,) if _degraded(seen) else ()))


def _degraded(seen: Seen) -> bool:
    """Twice in a row the engine ended by itself and did nothing: it may be ill rather than idle (field notes, B2)."""
    return seen.word.end.kind is HostEndKind.NO_OP and seen.known.last_end_kind == HostEndKind.NO_OP


def _failure_word(seen: Seen, verdict: TurnVerdict) -> str | None:
    if verdict.rule in (ResultRule.EXECUTION_FAILED, ResultRule.HOST_FAILED, ResultRule.NEEDS_PERSON):
        return str(seen.word.end.kind)
    return None


def _evidence(seen: Seen, host: HostReport) -> tuple[EvidenceDraft, ...]:
    drafts = [_check_evidence(result, "") for result in _results(seen.evaluation)]
    drafts += [_check_evidence(result, "todo: ") for result in _results(seen.todo_evaluation)]
    drafts += [_check_evidence(result, "snapshot: ") for result in _results(seen.in_snapshot)]
    if seen.changed:
        body = msgspec.json.encode({"before": seen.tree_before, "after": seen.tree_after})
        drafts.append(
            EvidenceDraft(
                kind=EvidenceKind.DIFF,
                produced=Producer.VERIFIED,
                name="diff",
                tree_hash=seen.tree_after,
                body=msgspec.Raw(body),
            )
        )
    drafts += [
        EvidenceDraft(
            kind=EvidenceKind.GUARD,
            produced=Producer.VERIFIED,
            name=str(finding.code),
            verdict="refused" if finding.refused else "disclosed",
            tree_hash=seen.tree_after,
            body=msgspec.Raw(msgspec.json.encode(finding)),
        )
        for finding in seen.guard.findings
    ]
    if seen.guard.restored is not None:
        lean = ContractEvaluation(results=tuple(_lean(result) for result in seen.guard.restored.results))
        drafts.append(
            EvidenceDraft(
                kind=EvidenceKind.GUARD,
                produced=Producer.VERIFIED,
                name="second run",
                verdict=lean.state,
                body=msgspec.Raw(msgspec.json.encode(lean)),
            )
        )
    drafts += [
        EvidenceDraft(
            kind=EvidenceKind.NOTE,
            produced=Producer.CLAIMED,
            name=f"claim: {claim.kind}",
            body=msgspec.Raw(msgspec.json.encode({"text": claim.text})),
        )
        for claim in seen.claims
    ]
    if _degraded(seen):
        body = msgspec.json.encode({"engine": host.engine, "stderr": seen.word.stderr})
        drafts.append(
            EvidenceDraft(
                kind=EvidenceKind.NOTE, produced=Producer.VERIFIED, name=HOST_DEGRADED, body=msgspec.Raw(body)
            )
        )
    if host.message:
        drafts.append(
            EvidenceDraft(
                kind=EvidenceKind.NOTE,
                produced=Producer.CLAIMED,
                name="last words",
                body=msgspec.Raw(msgspec.json.encode({"text": host.message})),
            )
        )
    return tuple(drafts)


def _results(evaluation: ContractEvaluation | None) -> tuple[CheckResult, ...]:
    return evaluation.results if evaluation is not None else ()


def _check_evidence(result: CheckResult, prefix: str) -> EvidenceDraft:
    return EvidenceDraft(
        kind=EvidenceKind.CHECK,
        produced=Producer.VERIFIED,
        name=f"{prefix}{result.name}",
        verdict=result.verdict,
        tree_hash=result.tree_hash,
        body=msgspec.Raw(msgspec.json.encode(_lean(result))),
    )


def _lean(result: CheckResult) -> CheckResult:
    """The result without the long lists that only comparisons need."""
    if result.parts is None:
        return result
    parts = msgspec.structs.replace(result.parts, collected_keys=None, skipped_keys=None, expected_keys=None)
    return msgspec.structs.replace(result, parts=parts)


def _gate(seen: Seen, verdict: TurnVerdict, end: HostEnd, engine: str) -> GateDraft | None:
    if verdict.rule is ResultRule.REPLAN_DELTA and seen.known.preview is not None:
        return seen.known.preview
    if verdict.gate is None:
        return None
    if verdict.gate is GateKind.SIGN_IN:
        return engine_gates.sign_in(engine, end.fix)
    todo = seen.known.todo
    scope = (todo.todo_id,) if todo is not None and verdict.gate in (GateKind.QUESTION, GateKind.BLOCKER) else ()
    claim = last_of(seen.claims, ClaimKind.QUESTION) or last_of(seen.claims, ClaimKind.BLOCKER)
    text = claim.text if claim is not None and verdict.gate in (GateKind.QUESTION, GateKind.BLOCKER) else end.detail
    question = text or f"{verdict.gate}: {end.code or end.kind}"
    return GateDraft(
        kind=verdict.gate,
        question=question[:2000],
        dedupe_key=engine_gates.key(verdict.gate, engine)
        if verdict.gate in engine_gates.ENGINE_KINDS
        else f"{verdict.gate}:{todo.todo_id if scope and todo else ''}:{question[:200]}",
        options=claim.choices if claim is not None else (),
        blocks_goal=not scope or not seen.known.others_open,
        todos=scope if seen.known.others_open else (),
        fix=end.fix,
    )


def _wait(verdict: TurnVerdict, end: HostEnd) -> PendingWait | None:
    if verdict.rule is ResultRule.BUDGET_WAIT:
        return PendingWait(kind=WaitKind.LIMIT, until_ms=verdict.wake_at_ms, detail=str(end.kind))
    retry = verdict.retry
    if retry is not None and retry.retryable and retry.attempts_left > 0:
        return PendingWait(kind=WaitKind.BACKOFF, until_ms=retry.not_before_ms, detail=str(end.kind))
    return None


def _restore(seen: Seen, verdict: TurnVerdict) -> RestoreOrder | None:
    if not verdict.restore_files or not seen.guard.restore_paths:
        return None
    return RestoreOrder(paths=seen.guard.restore_paths, base_tree=seen.known.base_tree, evidence_tree=seen.tree_after)
