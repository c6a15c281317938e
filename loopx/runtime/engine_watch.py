"""What a run does about its engines around its turns: whom it takes next, what it waits for, and what it asks a person.

An explicit run lets go of what an engine left behind: a back-off, and a question about an engine. A provider's limit it
tries early once: the first explicit run within a limit may launch before the reset, because such limits are
sometimes announced in error (field notes, B7); if that is refused too, the reset is waited for. It launches nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from loopx.control_plane.goal import GoalDefinition
from loopx.control_plane.ids import GoalId
from loopx.control_plane.quota.facts import WaitKind
from loopx.control_plane.turn_driver.journal import HostReport, Turn
from loopx.control_plane.turn_driver.transaction import LoopXTurnResultKind
from loopx.hosts.protocol import HostEndKind
from loopx.runtime import engine_gates
from loopx.runtime.engines import LIMITED, EngineDesk, Picked
from loopx.runtime.host_port import word_of
from loopx.store import goals, turns
from loopx.store.connection import Tx
from loopx.store.store import Store


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why no turn can start with the engines as they are; as a run's end says it."""

    exit_code: int
    reason: str
    failure: str


class EngineWatch:
    """The engines of one run of one goal."""

    def __init__(
        self, store: Store, goal_id: GoalId, desk: EngineDesk, definition: Callable[[], GoalDefinition]
    ) -> None:
        self._store = store
        self._goal_id = goal_id
        self._desk = desk
        self._definition = definition

    def pick(self) -> Picked:
        """The engine for the next turn. Raises as `EngineDesk.pick`."""
        return self._desk.pick(self._definition())

    def program(self, engine: str) -> str | None:
        """The program that was found able to run."""
        return self._desk.program(engine)

    def begin(self, *, explicit: bool) -> Picked:
        """Remember the limit that an earlier run met, or try it early; let go of what an explicit run lets go of."""
        self._face_limit(explicit=explicit)
        if explicit:
            self._forget_backoff()
        picked = self.pick()
        if explicit:
            engine_gates.let_go(self._store, self._goal_id, picked.engine, signed_out=picked.signed_out)
        return picked

    def refusal(self, picked: Picked) -> Refusal | None:
        """Why no turn can start, after asking a person where one is needed; None when a turn can start."""
        if picked.engine is None:
            return self._nobody(picked)
        if not picked.signed_out or picked.probe is None:
            return None
        engine_gates.ask(self._store, self._goal_id, engine_gates.sign_in(picked.engine, picked.probe.fix))
        return Refusal(exit_code=11, reason="sign_in", failure="needs_auth")

    def after(self, turn: Turn, report: HostReport | None) -> None:
        """Remember what a turn found out about its engine; go on with another one at once where that is allowed."""
        result = turn.result
        if result is None:
            return
        wait = result.wait
        if turn.result_kind is LoopXTurnResultKind.WAIT and wait is not None and wait.until_ms is not None:
            self._desk.mark_limited(turn.engine, wait.until_ms)
        elif self.never_started(turn):
            code = word_of(report).end.code if report is not None else ""
            self._desk.mark_unavailable(turn.engine, code or str(HostEndKind.NOT_STARTED))
        else:
            return
        self.wait_or_go_on()

    def never_started(self, turn: Turn) -> bool:
        """Whether the turn's engine can't be started here, however often it is tried."""
        result = turn.result
        failed = turn.result_kind is LoopXTurnResultKind.HOST_FAILURE and result is not None
        return failed and result is not None and result.failure == HostEndKind.NOT_STARTED and not result.retryable

    def goes_on(self) -> bool:
        """Whether an engine can be had now."""
        return self.pick().engine is not None

    def wait_or_go_on(self) -> None:
        """Leave no wait on the goal while an engine can be had; else wait for the first limit that ends."""
        until = None if self.goes_on() else self._desk.earliest_ms()
        if until is not None or self.goes_on():
            with self._store.write() as tx:
                self._set_wait(tx, until)

    def _nobody(self, picked: Picked) -> Refusal | None:
        if any(one.code == LIMITED for one in picked.choice.passed_over):
            return None
        fix = picked.probe.fix if picked.probe is not None else ""
        reason = picked.why_none if picked.why_none.startswith("engine_") else "engine_missing"
        return Refusal(exit_code=13, reason=f"{reason}:{fix or picked.choice.asked}", failure="engine_unavailable")

    def _face_limit(self, *, explicit: bool) -> None:
        with self._store.read() as tx:
            row = goals.row_of(tx, self._goal_id)
            last = turns.last_of_goal(tx, self._goal_id)
            untried = last is not None and turns.limits_in_a_row(tx, last) == 0
        until = row["wait_until_ms"]
        if row["wait_kind"] != WaitKind.LIMIT or last is None or until is None or until <= self._store.now_ms():
            return
        if not (explicit and untried):
            self._desk.mark_limited(last.engine, until)
        if self.goes_on():
            with self._store.write() as tx:
                self._set_wait(tx, None)

    def _forget_backoff(self) -> None:
        with self._store.write() as tx:
            row = goals.row_of(tx, self._goal_id)
            tx.run("turns.discharge_stops", goal_id=self._goal_id, **{"from": max(0, int(row["turn_count"]) - 50)})
            if row["wait_kind"] == WaitKind.BACKOFF:
                self._set_wait(tx, None)

    def _set_wait(self, tx: Tx, until_ms: int | None) -> None:
        now = self._store.now_ms()
        tx.run(
            "goals.set_wait",
            goal_id=self._goal_id,
            wait_kind=None if until_ms is None else WaitKind.LIMIT,
            wait_until_ms=until_ms,
            wait_detail=None if until_ms is None else str(HostEndKind.RATE_LIMITED),
            due_at_ms=now if until_ms is None else until_ms,
            now_ms=now,
        )
