"""Runs granted capabilities, each exactly once as far as anybody can know, and puts the receipt on record.

The intent is `running` in the store before the command starts. The command runs under a keeper of its own, so that a
LoopX that is killed meanwhile reads the outcome back instead of running it again; where nobody saw the outcome, only
an `idempotent` declaration or a readback lets it run again, else a person is asked. It decides no request.
"""

from __future__ import annotations

import contextlib
import enum
import os
import shlex
import shutil
from collections.abc import Callable

import msgspec

from loopx.control_plane.errors import ConflictError, LoopXError
from loopx.control_plane.turn_driver.journal import Fence, GateDraft
from loopx.control_plane.work_items.gate import GateKind, GateStatus
from loopx.control_plane.work_items.lease import TURN_LEASE_MS
from loopx.hosts import redact, spool, supervise
from loopx.hosts.protocol import Deadlines, ExitRecord, LaunchPlan, StopCause
from loopx.runtime import owner as owners
from loopx.runtime.capabilities import Capability, secret_names
from loopx.runtime.leasing import LeaseKeeper
from loopx.runtime.project import Project
from loopx.store import capabilities as intents
from loopx.store import gates, goals, leases, outbox
from loopx.store.capabilities import Intent
from loopx.store.store import Store
from loopx.workspace.check_env import check_environment

KEY_VARIABLE = "LOOPX_EFFECT_KEY"
OUTPUT_BYTES = 4096
_MOST_ATTEMPTS = 50
_SHORTEST_SECRET = 4


class RunState(enum.StrEnum):
    """What `run_granted` did."""

    NOTHING = "nothing"
    RAN = "ran"
    """An outcome is on record now."""
    BUSY = "busy"
    """Another process runs it."""
    ASKED = "asked"
    """A person has to say something first."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What a capability's run came to; the output's end, with every secret taken out."""

    exit_code: int | None
    signal: int | None
    stopped: str
    started_at_ms: int | None
    ended_at_ms: int
    attempt: int
    stdout_tail: str = ""
    stderr_tail: str = ""
    error: str = ""
    read_back: bool = False


def _never() -> bool:
    return False


def run_granted(
    store: Store, project: Project, goal_id: str, env: dict[str, str], stopping: Callable[[], bool] = _never
) -> RunState:
    """Run, or read back, one capability of this goal that is granted or was begun.

    `env` is LoopX's own environment, in which the declared secrets are. `stopping` ends the command.
    """
    with store.read() as tx:
        intent = intents.next_to_run(tx, goal_id)
    if intent is None:
        return RunState.NOTHING
    fence = _hold(store, intent)
    if fence is None:
        return RunState.BUSY
    try:
        with LeaseKeeper(store.path, store.clock, fence, None):
            return _Runner(store, project, intent, env, stopping).run()
    finally:
        with store.write() as tx:
            leases.release(tx, fence.resource, fence.epoch)


def _hold(store: Store, intent: Intent) -> Fence | None:
    """The right to run this intent; None while another living process has it."""
    resource = f"capability:{intent.intent_id}"
    with store.read() as tx:
        held = leases.get(tx, resource)
    dead = held.owner if held is not None and owners.is_dead(held.owner) else None
    try:
        with store.write() as tx:
            now = store.now_ms()
            epoch = leases.acquire(tx, resource, owners.current_owner(), TURN_LEASE_MS, now, dead_owner=dead)
    except ConflictError:
        return None
    return Fence(resource=resource, epoch=epoch)


class _Runner:
    """One intent's way from granted, or from a crash in the middle, to a receipt."""

    def __init__(
        self, store: Store, project: Project, intent: Intent, env: dict[str, str], stopping: Callable[[], bool]
    ) -> None:
        self._store = store
        self._project = project
        self._intent = intent
        self._capability = msgspec.json.decode(intent.definition, type=Capability)
        self._env = env
        self._stopping = stopping

    def run(self) -> RunState:
        current = self._read_again()
        if current is None or current.status not in (intents.GRANTED, intents.RUNNING):
            return RunState.NOTHING
        if current.status == intents.RUNNING and self._is_asked(current):
            return RunState.ASKED
        self._intent = current
        missing = [name for name in self._capability.secrets if not self._env.get(name)]
        if current.status == intents.GRANTED:
            if missing:
                return self._ask_secret(missing[0])
            if not self._move(intents.RUNNING):
                return RunState.NOTHING
        return self._go_on(missing)

    def _read_again(self) -> Intent | None:
        with self._store.read() as tx:
            return intents.get(tx, self._intent.intent_id)

    def _is_asked(self, intent: Intent) -> bool:
        if intent.gate_id is None:
            return False
        with self._store.read() as tx:
            return gates.get(tx, intent.gate_id).status is GateStatus.OPEN

    def _go_on(self, missing: list[str]) -> RunState:
        """From the first attempt that is not proved to have come to nothing."""
        first = self._intent.attempt
        for attempt in range(first, first + _MOST_ATTEMPTS):
            run_id, folder = self._names(attempt)
            if not os.path.exists(folder):
                return self._ask_secret(missing[0]) if missing else self._launch(attempt)
            found = supervise.adopt(folder, run_id, self._intent.intent_id)
            if found.state is supervise.RunState.NEVER_STARTED:
                continue
            if found.state is supervise.RunState.RUNNING and found.kept is not None:
                return self._follow(found.kept, attempt)
            if found.state is supervise.RunState.ENDED and found.record is not None:
                return self._finish(found.record, attempt)
            ended = self._after_lost(attempt)
            if ended is not None:
                return ended
        return self._ask_lost(first + _MOST_ATTEMPTS)

    def _names(self, attempt: int) -> tuple[str, str]:
        run_id = f"capability.{self._intent.intent_id}.{attempt}"
        return run_id, os.path.join(self._project.spools, run_id)

    def _launch(self, attempt: int) -> RunState:
        run_id, folder = self._names(attempt)
        limit = float(self._capability.timeout_s)
        plan = LaunchPlan(
            argv=self._intent.command,
            cwd=self._root(),
            env=tuple(sorted(self._environment().items())),
            stdin=b"",
            deadlines=Deadlines(first_event_s=limit, idle_s=limit, after_result_s=limit, hard_s=limit),
        )
        kept = supervise.start(plan, run_id, self._intent.intent_id, folder)
        return self._follow(kept, attempt)

    def _root(self) -> str:
        with self._store.read() as tx:
            return str(goals.row_of(tx, self._intent.goal_id)["root"])

    def _environment(self) -> dict[str, str]:
        hidden = secret_names(self._project)
        env = {name: value for name, value in check_environment(self._env).items() if name not in hidden}
        env.update({name: self._env[name] for name in self._capability.secrets})
        env[KEY_VARIABLE] = self._intent.effect_ref
        env["LOOPX_GOAL_ID"] = self._intent.goal_id
        return env

    def _follow(self, kept: supervise.Kept, attempt: int) -> RunState:
        return self._finish(supervise.follow(kept, should_cancel=self._stopping), attempt)

    def _finish(self, record: ExitRecord, attempt: int) -> RunState:
        _, folder = self._names(attempt)
        receipt = Receipt(
            exit_code=record.exit_code,
            signal=record.signal,
            stopped=record.stop,
            started_at_ms=record.started_at_ms,
            ended_at_ms=record.ended_at_ms,
            attempt=attempt,
            stdout_tail=self._clean(spool.tail(folder, "stdout", OUTPUT_BYTES)),
            stderr_tail=self._clean(spool.tail(folder, "stderr", OUTPUT_BYTES)),
            error=record.start_error or "",
        )
        good = record.exit_code == 0 and record.stop is StopCause.NONE and not record.start_error
        return self._record(intents.DONE if good else intents.FAILED, receipt)

    def _clean(self, raw: bytes) -> str:
        """The output without the secrets' values, and without what looks like one."""
        text = raw.decode("utf-8", "replace").replace("\0", "\ufffd")
        for name in self._capability.secrets:
            value = self._env.get(name, "")
            if len(value) >= _SHORTEST_SECRET:
                text = text.replace(value, "[redacted]")
        return redact.redact(text)

    def _after_lost(self, attempt: int) -> RunState | None:
        """Nobody saw how this attempt ended. None: it may run again."""
        if self._capability.readback:
            if self._read_back():
                now = self._store.now_ms()
                receipt = Receipt(
                    exit_code=None,
                    signal=None,
                    stopped="none",
                    started_at_ms=None,
                    ended_at_ms=now,
                    attempt=attempt,
                    read_back=True,
                )
                return self._record(intents.DONE, receipt)
            return None
        return None if self._capability.idempotent else self._ask_lost(attempt)

    def _read_back(self) -> bool:
        """Whether the declared readback proves that it happened."""
        from loopx.workspace.check_output import OutputSink
        from loopx.workspace.check_process import Clock, EndedBy, run_command

        try:
            ended = run_command(
                self._capability.readback,
                cwd=self._root(),
                env=self._environment(),
                sink=OutputSink(),
                clock=Clock(timeout_ms=self._capability.timeout_s * 1000),
                cancelled=self._stopping,
            )
        except OSError as error:
            raise LoopXError(
                "readback_failed", f"the readback of {self._intent.capability} can't be started: {error}"
            ) from error
        return ended.by is EndedBy.ITSELF and ended.exit_code == 0

    def _move(self, status: str, receipt: Receipt | None = None) -> bool:
        with self._store.write() as tx:
            moved = intents.move(tx, self._intent, status, self._store.now_ms(), receipt=receipt)
        current = self._read_again()
        if current is not None:
            self._intent = current
        return moved

    def _record(self, status: str, receipt: Receipt) -> RunState:
        """Receipt, event and announcement in one transaction; then the raw output, which may hold secrets, goes."""
        now = self._store.now_ms()
        intent = self._intent
        with self._store.write() as tx:
            if intents.move(tx, intent, status, now, receipt=receipt):
                data = {"intent_id": intent.intent_id, "capability": intent.capability, "exit_code": receipt.exit_code}
                outbox.notify(tx, intent.goal_id, f"{intent.effect_ref}:{status}", f"capability_{status}", data, now)
        for attempt in range(1, receipt.attempt + 1):
            with contextlib.suppress(OSError):
                shutil.rmtree(self._names(attempt)[1])
        return RunState.RAN

    def _ask_secret(self, name: str) -> RunState:
        draft = GateDraft(
            kind=GateKind.CONFIGURATION,
            question=f"{self._intent.capability}: the variable {name} is not set where LoopX runs",
            dedupe_key=f"secret:{name}",
            options=("retry",),
            fix=f"export {name}=...",
        )
        with self._store.write() as tx:
            gates.ask(tx, self._intent.goal_id, self._store.ids.new("g"), draft, self._store.now_ms())
        return RunState.ASKED

    def _ask_lost(self, attempt: int) -> RunState:
        draft = GateDraft(
            kind=GateKind.CAPABILITY,
            question=f"{self._intent.capability}: nobody saw how it ended: {shlex.join(self._intent.command)}",
            dedupe_key=f"capability-lost:{self._intent.effect_ref}",
            options=("done", "again", "failed"),
        )
        with self._store.write() as tx:
            now = self._store.now_ms()
            gate_id = gates.ask(tx, self._intent.goal_id, self._store.ids.new("g"), draft, now)
            # If the answer is `again`, it goes on behind the attempt that was lost.
            intents.ask(tx, self._intent, gate_id, now, attempt=attempt + 1)
        return RunState.ASKED
