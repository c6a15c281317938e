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
from loopx.contracts.model import Check, ChecksState, Contract, ContractEvaluation, merged
from loopx.contracts.programs import ProgramSnapshot
from loopx.control_plane.errors import CancelledError
from loopx.control_plane.turn_driver.journal import HostReport, TurnJournal, TurnResult
from loopx.control_plane.turn_driver.transaction import HostRetry
from loopx.hosts.protocol import HostEnd, HostEndKind, ProcessEnd
from loopx.loops.failure import ChecksVerdict, LoopEndFacts, WorkerEnd, classify_loop_end
from loopx.loops.turn_result import OutcomeFacts, WorkerRole, turn_result
from loopx.runtime import results
from loopx.runtime.claims import ClaimKind, last_of
from loopx.runtime.confirming import confirm, environment_of, held_out_red
from loopx.runtime.evaluation import Evaluator
from loopx.runtime.guarding import Guard, renamed_todo_checks, with_findings, with_todo_results
from loopx.runtime.host_port import HostWord, word_of
from loopx.runtime.seen import JudgedGoal, Seen
from loopx.runtime.tree_port import WorkTree

_STATE_VERDICT = {
    ChecksState.GREEN: ChecksVerdict.GREEN,
    ChecksState.RED: ChecksVerdict.RED,
    ChecksState.RED_STARVED: ChecksVerdict.RED_STARVED,
    ChecksState.NOT_EVALUABLE: ChecksVerdict.NOT_EVALUABLE,
}
QUESTION_CHARS = 2000
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
        left_ms: Callable[[], int | None] = lambda: None,
        after: Callable[[], str] | None = None,
    ) -> None:
        """`after` gives the tree as the host left it; without it the tree is captured as it is then."""
        self._known = known
        self._tree = tree
        self._evaluator = evaluator
        self._env = env
        self._now_ms = now_ms
        self._cancelled = cancelled
        self._left_ms = left_ms
        self._after = after or tree.capture

    def judge(self, journal: TurnJournal, host: HostReport) -> TurnResult:
        """Raises CancelledError, StoreError, and UsageError when the work tree can't be read."""
        known = self._known(journal)
        word = word_of(host)
        before = journal.turn.tree_before or known.base_tree
        after = self._after()
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
            tree_left=after,
            evaluation=None,
            todo_evaluation=None,
            in_snapshot=None,
            confirmed=False,
            state=ChecksState.NOT_EVALUABLE,
            guard=GuardVerdict(),
            comparison=Comparison(),
        )
        # The task was never handed over, or a person stopped it: no check judges that.
        if not word.end.handed_over or word.end.kind is HostEndKind.CANCELLED or not known.contract.checks:
            return nothing
        evaluator = self._evaluator(known)
        todo_checks = _todo_checks(known)
        guard = Guard(self._tree, known.contract, evaluator, self._env, renamed_todo_checks(todo_checks))
        programs = guard.programs()
        environment = environment_of(programs)
        evaluation = evaluator.in_place(after, environment, known.baseline, held_out=False)
        todo_evaluation = None
        if todo_checks:
            own = Contract(checks=todo_checks, confirm_in_snapshot=False)
            todo_evaluation = evaluator.in_place(after, environment, None, own)
        self._stop_if_cancelled()
        seen = msgspec.structs.replace(
            nothing,
            tree_left=self._tree.capture(),
            evaluation=evaluation,
            todo_evaluation=todo_evaluation,
            state=evaluation.state,
            comparison=compare(known.reference, evaluation),
        )
        seen, links = self._guarded(journal, seen, guard, programs)
        seen = self._confirm(seen, evaluator, environment, links)
        self._stop_if_cancelled()
        return seen

    def _stop_if_cancelled(self) -> None:
        if self._cancelled():
            raise CancelledError(
                "cancelled", "the run was stopped while checks ran", hint="loopx run goes on from here"
            )

    def _guarded(
        self, journal: TurnJournal, seen: Seen, guard: Guard, programs: ProgramSnapshot
    ) -> tuple[Seen, tuple[str, ...]]:
        """What the guard and the alarms say, and the links that lead out of the tree."""
        known, evaluation = seen.known, seen.evaluation
        if evaluation is None:
            return seen, ()
        judged = guard.judge(
            known.base_tree,
            seen.tree_after,
            seen.tree_left,
            known.baseline,
            with_todo_results(evaluation, seen.todo_evaluation),
            known.goal.definition.boundary.write_scope,
            frozenset(),
            programs_now=programs,
            completing=seen.green and not known.others_open,
            progressed=seen.comparison.measured_progress or seen.green,
        )
        judged = with_findings(judged, self._tree.alarms(journal.turn.turn_key, known.last_checkpoint))
        seen = msgspec.structs.replace(seen, guard=judged.verdict)
        if judged.verdict.undecided and not judged.verdict.refused:
            seen = msgspec.structs.replace(seen, state=self._unknown())
        return seen, judged.links_out

    def _out_of_time(self) -> bool:
        left = self._left_ms()
        return left is not None and left <= 0

    def _unknown(self) -> ChecksState:
        """Why a further run could not be brought to its end: the session's clock, or trouble of the machine."""
        return ChecksState.RED_STARVED if self._out_of_time() else ChecksState.NOT_EVALUABLE

    def _confirm(self, seen: Seen, evaluator: Evaluator, environment: str, links: tuple[str, ...]) -> Seen:
        """Confirm a completion in a clean snapshot, where the baseline showed that a snapshot can tell."""
        known, evaluation = seen.known, seen.evaluation
        if evaluation is None or not seen.green or known.others_open or seen.guard.refused or seen.guard.undecided:
            return seen
        found = confirm(known.contract, known.baseline, evaluator, seen.tree_after, environment, without=links)
        state = found.state
        if state is ChecksState.GREEN and held_out_red(seen.guard.restored):
            state = ChecksState.RED
        held = ContractEvaluation(results=found.held_out, tree_hash=evaluation.tree_hash)
        seen = msgspec.structs.replace(
            seen,
            evaluation=merged(known.contract, evaluation, held) if found.held_out else evaluation,
            in_snapshot=found.in_snapshot,
            confirmed=state is ChecksState.GREEN,
            state=state,
        )
        if found.in_snapshot is not None and found.in_snapshot.state is ChecksState.RED:
            shown = merged(known.contract, evaluation, found.in_snapshot)
            seen = msgspec.structs.replace(seen, comparison=compare(known.reference, shown))
        return seen

    def _facts(self, journal: TurnJournal, seen: Seen, host: HostReport) -> OutcomeFacts:
        known, end = seen.known, seen.word.end
        checks = _STATE_VERDICT[seen.state]
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
            person_asked=_asks_anew(seen),
            failed_in_a_row=known.failure_streak,
            replan_after=known.goal.definition.breaker_threshold,
            retry=self._retry(end, known, checks),
            window_reopens_at_ms=self._reopens(end, known, checks),
        )

    def _retry(self, end: HostEnd, known: JudgedGoal, checks: ChecksVerdict) -> HostRetry | None:
        now, streak = self._now_ms(), known.host_failure_streak
        if checks is ChecksVerdict.NOT_EVALUABLE and end.process is ProcessEnd.CLEAN and end.handed_over:
            return results.judge_retry(streak, now)
        return results.host_retry(end, streak, now)

    def _reopens(self, end: HostEnd, known: JudgedGoal, checks: ChecksVerdict) -> int | None:
        now = self._now_ms()
        told = results.reopens_at(end, known.goal.goal_id, known.limit_streak, now)
        # The run's own clock ended the checks: the next run has a new one.
        return now if told is None and checks is ChecksVerdict.RED_STARVED else told

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


def _asks_anew(seen: Seen) -> bool:
    """The agent asks something that nobody has answered yet; an answer that it overlooked is told again."""
    question = last_of(seen.claims, ClaimKind.QUESTION)
    return question is not None and question.text[:QUESTION_CHARS] not in seen.known.answered


def _todo_checks(known: JudgedGoal) -> tuple[Check, ...]:
    return msgspec.json.decode(known.todo.checks, type=tuple[Check, ...]) if known.todo is not None else ()


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
