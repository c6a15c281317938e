"""Judges a turn: runs the contract on the tree as it is, asks the guard, compares, and types the result.

The host's word enters only as claims, and only where the table of results says so. Checks are evaluated before a
failure is classified, so that a worker which died after finishing still passes.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from loopx.contracts.baseline import judge_no_change
from loopx.contracts.compare import Comparison, compare
from loopx.contracts.findings import GuardVerdict
from loopx.contracts.model import Check, ChecksState, Contract, ContractEvaluation
from loopx.control_plane.errors import CancelledError, LoopXError
from loopx.control_plane.turn_driver.journal import HostReport, TurnJournal, TurnResult
from loopx.hosts.protocol import HostEnd, HostEndKind, ProcessEnd
from loopx.loops.failure import ChecksVerdict, LoopEndFacts, WorkerEnd, classify_loop_end
from loopx.loops.turn_result import OutcomeFacts, WorkerRole, turn_result
from loopx.runtime import results
from loopx.runtime.claims import ClaimKind, last_of
from loopx.runtime.evaluation import Evaluator
from loopx.runtime.guarding import Guard
from loopx.runtime.host_port import HostWord, word_of
from loopx.runtime.seen import JudgedGoal, Seen
from loopx.runtime.tree_port import WorkTree

_STATE_VERDICT = {
    ChecksState.GREEN: ChecksVerdict.GREEN,
    ChecksState.RED: ChecksVerdict.RED,
    ChecksState.RED_STARVED: ChecksVerdict.RED_STARVED,
    ChecksState.NOT_EVALUABLE: ChecksVerdict.NOT_EVALUABLE,
}
LIMIT_KINDS = frozenset({HostEndKind.RATE_LIMITED, HostEndKind.QUOTA_EXHAUSTED})


class ContractJudge:
    """Implements `JudgePort` for one turn."""

    def __init__(
        self,
        known: Callable[[TurnJournal], JudgedGoal],
        tree: WorkTree,
        evaluator: Callable[[JudgedGoal], Evaluator],
        env: dict[str, str],
        now_ms: Callable[[], int],
        cancelled: Callable[[], bool],
    ) -> None:
        self._known = known
        self._tree = tree
        self._evaluator = evaluator
        self._env = env
        self._now_ms = now_ms
        self._cancelled = cancelled

    def judge(self, journal: TurnJournal, host: HostReport) -> TurnResult:
        """Raises CancelledError, StoreError, and UsageError when the work tree can't be read."""
        known = self._known(journal)
        word = word_of(host)
        before = journal.turn.tree_before or known.base_tree
        after = self._tree.capture()
        seen = self._look(journal, known, word, before, after)
        verdict = turn_result(self._facts(journal, seen, host))
        return results.build(seen, verdict, host, self._now_ms())

    def _look(self, journal: TurnJournal, known: JudgedGoal, word: HostWord, before: str, after: str) -> Seen:
        claims = (*known.claims, *word.claims)
        nothing = Seen(
            known=known,
            word=word,
            claims=claims,
            tree_before=before,
            tree_after=after,
            evaluation=None,
            todo_evaluation=None,
            in_snapshot=None,
            confirmed=False,
            guard=GuardVerdict(),
            comparison=Comparison(),
        )
        # The task was never handed over, or a person stopped it: no check judges that.
        if not word.end.handed_over or word.end.kind is HostEndKind.CANCELLED or not known.contract.checks:
            return nothing
        evaluator = self._evaluator(known)
        evaluation = evaluator.in_place(after, f"{journal.turn.turn_key}", known.baseline)
        todo_evaluation = self._todo_checks(evaluator, known, after, journal)
        if self._cancelled():
            raise CancelledError(
                "cancelled", "the run was stopped while checks ran", hint="loopx run goes on from here"
            )
        guard = Guard(self._tree, known.contract, evaluator, self._env).judge(
            known.base_tree,
            after,
            known.baseline,
            evaluation,
            known.goal.definition.boundary.write_scope,
            known.accepted,
        )
        seen = msgspec.structs.replace(
            nothing,
            evaluation=evaluation,
            todo_evaluation=todo_evaluation,
            guard=guard,
            comparison=compare(known.reference, evaluation),
        )
        return self._confirm(seen, evaluator)

    def _todo_checks(
        self, evaluator: Evaluator, known: JudgedGoal, after: str, journal: TurnJournal
    ) -> ContractEvaluation | None:
        if known.todo is None:
            return None
        checks = msgspec.json.decode(known.todo.checks, type=tuple[Check, ...])
        if not checks:
            return None
        own = Contract(checks=checks, confirm_in_snapshot=False)
        return evaluator.in_place(after, journal.turn.turn_key, None, own)

    def _confirm(self, seen: Seen, evaluator: Evaluator) -> Seen:
        """Confirm a completion in a clean snapshot, where the baseline showed that a snapshot can tell."""
        known = seen.known
        if not seen.green or known.others_open or seen.guard.refused:
            return seen
        if not known.contract.confirm_in_snapshot or known.baseline.not_snapshotable:
            return msgspec.structs.replace(seen, confirmed=True)
        try:
            tried = evaluator.in_snapshot(seen.tree_after, known.baseline)
        except LoopXError:
            return seen
        return msgspec.structs.replace(seen, in_snapshot=tried, confirmed=tried.all_green)

    def _facts(self, journal: TurnJournal, seen: Seen, host: HostReport) -> OutcomeFacts:
        known, end = seen.known, seen.word.end
        checks = _STATE_VERDICT[seen.evaluation.state] if seen.evaluation is not None else ChecksVerdict.NOT_EVALUABLE
        failure = classify_loop_end(end_facts(end, checks))
        claimed = last_of(seen.claims, ClaimKind.COMPLETION) is not None
        no_change = last_of(seen.claims, ClaimKind.NO_CHANGE) is not None
        got_worse = seen.comparison.got_worse
        return OutcomeFacts(
            role=WorkerRole(journal.turn.purpose),
            failure=failure,
            checks=checks,
            snapshot_green=seen.confirmed,
            open_todos=known.others_open,
            todo_accepted=self._todo_accepted(seen, claimed=claimed, got_worse=got_worse),
            successors=tuple(results.todo_ids(known.existing_successors)),
            delta_accepted=known.delta is not None and not seen.changed,
            no_change_accepted=no_change and self._no_change(seen),
            guard_refused=seen.guard.refused,
            green_turned_red=bool(seen.comparison.newly_red),
            measured_progress=seen.comparison.measured_progress and not seen.guard.undecided,
            got_worse=got_worse,
            tree_changed=seen.changed,
            worker_active=host.tool_calls > 0 or journal.turn.engine.startswith("command:"),
            primary_green=seen.comparison.primary_turned_green,
            completion_claimed=claimed,
            blocker_verified=last_of(seen.claims, ClaimKind.BLOCKER) is not None,
            person_asked=last_of(seen.claims, ClaimKind.QUESTION) is not None,
            failed_in_a_row=known.failure_streak,
            replan_after=known.goal.definition.breaker_threshold,
            retry=results.host_retry(end, known.host_failure_streak, self._now_ms()),
            window_reopens_at_ms=results.reopens_at(end, known.goal.goal_id, known.limit_streak, self._now_ms()),
        )

    def _todo_accepted(self, seen: Seen, *, claimed: bool, got_worse: bool) -> bool:
        """The todo's own checks are green; or it has none, and what it claims is not contradicted by anything seen."""
        known = seen.known
        if known.todo is None or seen.guard.refused or seen.guard.undecided or seen.evaluation is None:
            return False
        if seen.todo_evaluation is not None:
            return seen.todo_evaluation.all_green and not got_worse
        if known.goal_itself or not claimed or got_worse:
            return False
        return seen.changed and (known.others_open or seen.green)

    def _no_change(self, seen: Seen) -> bool:
        accepted = judge_no_change(baseline=seen.known.baseline, tree_hash_now=seen.tree_after, current=seen.evaluation)
        return accepted.accepted


def end_facts(end: HostEnd, checks: ChecksVerdict) -> LoopEndFacts:
    """What the loop's classification reads of a host's end and the checks after it (contracts, section 8)."""
    return LoopEndFacts(
        cancelled=end.kind is HostEndKind.CANCELLED,
        # A host that says why it did not even read the prompt is there: a person or a wait mends that, no other engine.
        handed_over=end.handed_over or end.auth_lapsed or end.kind in LIMIT_KINDS,
        checks=checks,
        admitted=end.kind not in LIMIT_KINDS,
        auth_lapsed=end.auth_lapsed,
        setup_ok=not end.bad_setup,
        end=WorkerEnd(end.process) if end.process is not ProcessEnd.CLEAN else WorkerEnd.CLEAN,
    )
