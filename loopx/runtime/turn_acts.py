"""What people do with turns: run one, resume one, put one's files back. The machinery is the runner's; nothing here
decides what a turn may do.
"""

from __future__ import annotations

import msgspec

from loopx.control_plane.errors import ConflictError, NotFoundError
from loopx.control_plane.ids import AgentId, TurnKey
from loopx.control_plane.quota.facts import ContractState
from loopx.control_plane.turn_driver.journal import TurnState
from loopx.control_plane.turn_driver.loop_controller import LoopDisposition, TurnBudget
from loopx.control_plane.turn_driver.transaction import MATERIAL_RESULT_KINDS, LoopXTurnResultKind
from loopx.runtime import summaries
from loopx.runtime.goal_runner import GoalRunner, RunOptions, StopSignal
from loopx.runtime.goal_work import open_goal
from loopx.runtime.progress import CheckSummary, Observer, ProgressEvent, RunEnded, TurnEnded, silent
from loopx.runtime.project import Project
from loopx.runtime.session import Session
from loopx.runtime.turn_runner import TurnRunner
from loopx.runtime.turn_service import RecoveryView, find, recovery_of, recovery_view
from loopx.store import events, goals, turns
from loopx.store.store import Store
from loopx.workspace import revert as reverting

TURN_LIMIT = "turn_limit"
EXIT_OF_KIND = {
    LoopXTurnResultKind.USER_ACTION_REQUIRED: 11,
    LoopXTurnResultKind.WAIT: 10,
    LoopXTurnResultKind.HOST_FAILURE: 13,
    LoopXTurnResultKind.VALIDATION_FAILED: 14,
    LoopXTurnResultKind.ITERATION_FAILED: 130,
    LoopXTurnResultKind.WRITEBACK_FAILED: 11,
    LoopXTurnResultKind.QUOTA_SPEND_FAILED: 11,
    LoopXTurnResultKind.TERMINAL_CLOSEOUT_FAILED: 11,
}
"""How a single turn ends the command that ran it (surface, "Exit codes"); a material result ends it with 0."""


def exit_of(kind: str | None) -> int:
    """The exit status of one turn's result."""
    if kind is None or kind in MATERIAL_RESULT_KINDS:
        return 0
    return EXIT_OF_KIND[LoopXTurnResultKind(kind)]


class Once(msgspec.Struct, frozen=True, kw_only=True):
    """One governed turn, and what would come next. `turn` is None when none was run or resumed."""

    goal_id: str
    turn_key: str | None
    disposition: str
    result_kind: str | None
    spent_slots: int
    checks: tuple[CheckSummary, ...]
    failure: str | None
    reason: str
    exit_code: int
    goal_state: str
    turn: TurnEnded | None
    next_command: tuple[str, ...]


class _Listener:
    """Hands events on and keeps the last turn's end."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.turn: TurnEnded | None = None

    def __call__(self, event: ProgressEvent, /) -> None:
        if isinstance(event, TurnEnded):
            self.turn = event
        self._observer(event)


def run_once(
    session: Session,
    goal_id: str,
    agent_id: AgentId,
    env: dict[str, str],
    observer: Observer,
    *,
    engine: str | None,
    stop: StopSignal,
) -> Once:
    """Take one turn from should-run to its disposition; an interrupted turn is resumed instead of a new one.

    The baseline comes first, a goal that is proved terminal is closed, and nothing waits: a goal that may not run now
    ends with its exit status. Raises as `GoalRunner.run`.
    """
    with session.store.read() as tx:
        interrupted = turns.open_turn(tx, goal_id, agent_id) is not None
    options = RunOptions(max_turns=0 if interrupted else 1, max_minutes=None, wait=False, engine=engine)
    listener = _Listener(observer)
    runner = GoalRunner(session.store, session.project, goal_id, agent_id, listener, env, options, stop, session.clock)
    ended = runner.run()
    turn = listener.turn
    return Once(
        goal_id=goal_id,
        turn_key=turn.turn_key if turn is not None else None,
        disposition=_next(session, goal_id, agent_id) if ended.reason == TURN_LIMIT else ended.disposition,
        result_kind=turn.result_kind if turn is not None else None,
        spent_slots=turn.slots if turn is not None else 0,
        checks=ended.checks,
        failure=ended.failure,
        reason=turn.reason if turn is not None and _only_bounded(ended, turn) else ended.reason,
        exit_code=_once_exit(ended, turn),
        goal_state=ended.goal_state,
        turn=turn,
        next_command=ended.next_command,
    )


def _next(session: Session, goal_id: str, agent_id: AgentId) -> str:
    """What whoever runs the next turn would do; the bound of this one command is no reason to replan."""
    runner = TurnRunner(session.store, session.project, goal_id, agent_id, silent, {})
    return str(runner.plan(TurnBudget(limit=1, used=0)).disposition or LoopDisposition.WAIT)


def _only_bounded(ended: RunEnded, turn: TurnEnded | None) -> bool:
    """Whether the run ended only because its one turn was taken; that the next may not start yet is no other end."""
    return ended.reason == TURN_LIMIT or (turn is not None and ended.exit_code == 10)


def _once_exit(ended: RunEnded, turn: TurnEnded | None) -> int:
    """A run that ended only because it was bounded to one turn is judged by that turn."""
    if not _only_bounded(ended, turn):
        return ended.exit_code
    return exit_of(turn.result_kind) if turn is not None else 0


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of an open turn, and how it stands now. Nothing open: `turn_key` is None."""

    goal_id: str
    turn_key: str | None
    found: RecoveryView | None
    completed_before: int
    turn: TurnEnded | None
    exit_code: int


def resume(store: Store, project: Project, goal_id: str, env: dict[str, str], observer: Observer) -> Resumed:
    """Take the goal's open turn to its end, whichever agent's it is.

    Raises ConflictError (`lease_held`) while a living process drives it, NeedsPersonError (`journal_blocked`).
    """
    with store.read() as tx:
        key = turns.open_turn(tx, goal_id)
        if key is None:
            goals.row_of(tx, goal_id)
            return Resumed(goal_id=goal_id, turn_key=None, found=None, completed_before=0, turn=None, exit_code=0)
        before = turns.load_journal(tx, key)
        found = recovery_view(recovery_of(tx, before))
    runner = TurnRunner(store, project, goal_id, AgentId(before.turn.agent_id), observer, env)
    after = summaries.turn_ended(store, runner.resume(key))
    return Resumed(
        goal_id=goal_id,
        turn_key=key,
        found=found,
        completed_before=before.turn.completed,
        turn=after,
        exit_code=11 if after.failed_phase is not None and _is_open(store, key) else exit_of(after.result_kind),
    )


def _is_open(store: Store, key: TurnKey) -> bool:
    return store.load(key).turn.state is TurnState.OPEN


class Reverted(msgspec.Struct, frozen=True, kw_only=True):
    """A turn's files put back. `replaced_tree` is the tree that was there, so that this can be undone."""

    goal_id: str
    turn_key: str
    restored_tree: str
    replaced_tree: str | None
    written: int
    deleted: int


def revert(
    store: Store, project: Project, goal_id: str | None, word: str | None, by: str, *, force: bool = False
) -> Reverted:
    """Put the work tree back to before a turn. The branch, HEAD and the user's index stay; the ledger too.

    Raises NotFoundError (`turn_unknown`, `checkpoint_missing`), ConflictError (`turn_open`, `tree_changed`).
    """
    with store.read() as tx:
        turn = turns.load_journal(tx, find(tx, goal_id, word)).turn
        running = turns.open_turn(tx, turn.goal_id)
    if running is not None:
        raise ConflictError(
            "turn_open",
            f"turn {running} of {turn.goal_id} is open",
            hint=f"loopx turn resume {turn.goal_id}, or stop it: loopx goal stop {turn.goal_id}",
            data={"turn_key": running},
        )
    if turn.checkpoint is None:
        raise NotFoundError(
            "checkpoint_missing",
            f"turn {turn.turn_key} left no checkpoint: it changed no file",
            hint=f"loopx turn list {turn.goal_id}",
        )
    work = open_goal(store, project, turn.goal_id)
    done = reverting.revert_turn(work.tree.repository, turn.goal_id, turn.turn_key, force=force)
    tree_now = work.tree.capture()
    now = store.now_ms()
    with store.write() as tx:
        tx.run(
            "goals.set_contract",
            goal_id=turn.goal_id,
            contract_state=ContractState.UNKNOWN,
            contract_tree=tree_now,
        )
        tx.run("goals.wake_active", goal_id=turn.goal_id, now_ms=now)
        body = {"by": by, "tree": tree_now, "replaced": done.previous_tree}
        events.append(tx, turn.goal_id, "turn_reverted", now, body, turn.turn_key)
    return Reverted(
        goal_id=turn.goal_id,
        turn_key=turn.turn_key,
        restored_tree=tree_now,
        replaced_tree=done.previous_tree,
        written=len(done.written),
        deleted=len(done.deleted),
    )
