"""Runs the host of a turn under its keeper, or adopts the one that already runs, and tells how it ended.

Intent first: the launch is on record before a process starts, and a launch that is on record is found again instead
of repeated. It decides nothing about the work; what the host says is passed on as claims.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import msgspec

from loopx.control_plane.effect_program import effect_ref
from loopx.control_plane.errors import ConflictError, EngineError, LoopXError, NeedsPersonError, NotNowError
from loopx.control_plane.goal import GoalDefinition
from loopx.control_plane.quota.policy import BudgetUnit
from loopx.control_plane.turn_driver.journal import HostReport, RunUsage, TurnJournal
from loopx.control_plane.turn_driver.transaction import TurnStep
from loopx.hosts import redact, registry, spool, supervise
from loopx.hosts import usage as usages
from loopx.hosts.protocol import (
    Deadlines,
    ExitRecord,
    HostAdapter,
    HostEnd,
    HostEndKind,
    HostEvent,
    HostEventKind,
    LaunchPlan,
    LaunchRequest,
    McpServer,
    PermissionMode,
    ProcessEnd,
    RetryPolicy,
    StopCause,
    StreamParser,
    Usage,
)
from loopx.runtime import agent_files, machine, sessions
from loopx.runtime import allowance as allowances
from loopx.runtime.agent_files import AgentFiles
from loopx.runtime.agent_stream import PROMPT_NAME
from loopx.runtime.claims import Claim, from_result
from loopx.runtime.progress import AgentDid, Observer
from loopx.runtime.prompt import Prompt
from loopx.runtime.staggering import Turnstile
from loopx.store import hosts as host_runs
from loopx.store import turns
from loopx.store.store import Store

MESSAGE_CHARS = 600
IDENTICAL_ACTIONS = "identical_actions"
STDERR_TAIL = 65_536
STDERR_KEPT = 2_000
"""Characters of it that are kept for people, where nothing else tells what went wrong."""


class HostWord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything typed that the judge hears of a host run."""

    end: HostEnd
    claims: tuple[Claim, ...] = ()
    tool_calls: int = 0
    denials: int = 0
    repeated_action: int = 0
    stderr: str = ""
    """The redacted end of its error output, of a run that did nothing."""


class HostSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What runtime hands in for one turn's host."""

    engine: str
    workdir: str
    spools: str
    files: AgentFiles
    definition: GoalDefinition
    prompt: Prompt
    env: tuple[tuple[str, str], ...]
    """The whole environment from which the host's is made."""
    added_env: tuple[tuple[str, str], ...] = ()
    allow_commands: tuple[str, ...] = ()
    mcp: McpServer | None = None
    program: str | None = None
    """The program that the probe found able to run; None leaves the choice to the adapter."""
    resume_session: str | None = None
    deadlines: Deadlines = Deadlines()
    allowance: Mapping[BudgetUnit, int] = {}
    """What the turn reserved of its goal's budgets."""


class KeptHost:
    """Implements `HostPort` for one turn.

    `renew`, where it is given, makes the setup of a launch anew, with a credential that this process knows. While the
    host runs, `should_stop` is asked, which ends it, and `lost`, which only ends the following of it: the
    turn is another process's then, and so is the host.
    """

    def __init__(
        self,
        store: Store,
        setup: HostSetup,
        observer: Observer,
        should_stop: Callable[[], bool],
        tree_changed: Callable[[], bool],
        lost: Callable[[], bool] = lambda: False,
        renew: Callable[[], HostSetup] | None = None,
    ) -> None:
        self._store = store
        self._setup = setup
        self._observer = observer
        self._should_stop = should_stop
        self._tree_changed = tree_changed
        self._lost = lost
        self._renew = renew
        self._resumed: str | None = None
        """The session in which the run that was followed last was asked to go on."""

    def execute(self, journal: TurnJournal) -> HostReport:
        """Raises EngineError when no keeper can be started, NeedsPersonError (`foreign_run`) for another's records."""
        with self._store.read() as tx:
            run = host_runs.last_of_turn(tx, journal.turn.turn_key)
        if run is not None and run.report is not None:
            return run.report
        report = self._adopt(journal, run) if run is not None and not run.ended else None
        attempt = run.attempt if run is not None else 0
        fresh = run is not None and run.end_kind == HostEndKind.SESSION_MISSING
        while report is None or sessions.found_dead(report, self._resumed):
            if report is not None:
                self._set_aside(journal, report)
                fresh = True
            attempt += 1
            report = self._launch(journal, attempt, fresh=fresh)
        return report

    def _set_aside(self, journal: TurnJournal, report: HostReport) -> None:
        """Record the end of a resume that met no session; the turn goes on with a fresh one."""
        now = self._store.now_ms()
        with self._store.write() as tx:
            host_runs.set_aside(tx, report, journal.turn, turns.fence_of(journal.turn), now)

    def _request(self, journal: TurnJournal, run_id: str, spool_dir: str, resumes: str | None) -> LaunchRequest:
        setup = self._setup
        turn = journal.turn
        return LaunchRequest(
            run_id=run_id,
            turn_key=turn.turn_key,
            goal_id=turn.goal_id,
            workdir=setup.workdir,
            spool_dir=spool_dir,
            prompt=setup.prompt.text,
            model=setup.definition.model,
            permission=PermissionMode(setup.definition.permission),
            resume_session=resumes,
            env=setup.added_env,
            mcp=setup.mcp,
            deadlines=setup.deadlines,
            pinned_program=setup.program,
            allow_commands=setup.allow_commands,
        )

    def _launch(self, journal: TurnJournal, attempt: int, *, fresh: bool) -> HostReport:
        if self._renew is not None:
            # The first launcher took its credential with it.
            self._setup = self._renew()
        setup, turn = self._setup, journal.turn
        reference = effect_ref(turn.turn_key, TurnStep.HOST_EXECUTE, str(attempt))
        run_id = reference.replace("/", ".")
        spool_dir = os.path.join(setup.spools, run_id)
        adapter = registry.adapter_for(setup.engine)
        resumes = None if fresh else setup.resume_session
        request = self._request(journal, run_id, spool_dir, resumes)
        turnstile = Turnstile(self._store, setup.engine, setup.env, run_id)
        turnstile.enter(lambda: self._should_stop() or self._lost())
        try:
            return self._launched(journal, attempt, adapter, request, turnstile)
        finally:
            turnstile.leave()

    def _launched(
        self,
        journal: TurnJournal,
        attempt: int,
        adapter: HostAdapter,
        request: LaunchRequest,
        turnstile: Turnstile,
    ) -> HostReport:
        setup, turn, run_id, spool_dir = self._setup, journal.turn, request.run_id, request.spool_dir
        with self._store.write() as tx:
            host_runs.intend(
                tx,
                run_id=run_id,
                turn_key=turn.turn_key,
                goal_id=turn.goal_id,
                engine=setup.engine,
                attempt=attempt,
                spool_dir=spool_dir,
                resumes=request.resume_session,
                prompt_bytes=setup.prompt.total_bytes,
                overhead_bytes=setup.prompt.overhead_bytes,
                fence=turns.fence_of(turn),
                now_ms=self._store.now_ms(),
            )
        if attempt > 1:
            # The turn's start took the place of its first launch.
            machine.count(run_id, self._store.now_ms())
        self._resumed = request.resume_session
        try:
            setup.files.prepare()
            plan = _with_prompt(adapter.plan(request, setup.env), spool_dir, request.prompt)
            kept = supervise.start(plan, run_id, turn.turn_key, spool_dir)
        except LoopXError as error:
            if isinstance(error, EngineError) and error.code == "keeper_failed":
                raise
            return _not_started(run_id, setup.engine, error)
        except OSError as error:
            broken = EngineError("agent_folder_unwritable", f"{setup.files.folder}: {error.strerror or error}")
            return _not_started(run_id, setup.engine, broken)
        return self._follow(journal, adapter, request, kept, turnstile, adopted=False)

    def _adopt(self, journal: TurnJournal, run: host_runs.HostRun) -> HostReport | None:
        """Go on with a run that is on record. None when nothing was ever started for it."""
        found = supervise.adopt(run.spool_dir, run.run_id, journal.turn.turn_key)
        if found.state is supervise.RunState.FOREIGN:
            raise NeedsPersonError(
                "foreign_run",
                f"the records in {run.spool_dir} belong to another run",
                hint="loopx doctor",
                data={"run_id": run.run_id},
            )
        if found.state is supervise.RunState.NEVER_STARTED:
            with self._store.write() as tx:
                host_runs.abandon(tx, run.run_id, run.turn_key, turns.fence_of(journal.turn), self._store.now_ms())
            return None
        adapter = registry.adapter_for(run.engine)
        request = self._request(journal, run.run_id, run.spool_dir, run.resumes)
        self._resumed = run.resumes
        turnstile = Turnstile(self._store, run.engine, self._setup.env, run.run_id)
        turnstile.rejoin()
        if found.kept is not None:
            try:
                return self._follow(journal, adapter, request, found.kept, turnstile, adopted=True)
            finally:
                turnstile.leave()
        turnstile.leave()
        record = found.record
        if record is None:
            raise EngineError("run_lost", f"no record of run {run.run_id} can be read", hint="loopx doctor")
        parser = adapter.parser(request, self._store.now_ms())
        for line in spool.read_lines(run.spool_dir):
            self._hear(journal, parser, line.data)
        return self._report(journal, adapter, request, parser, record, adopted=True)

    def _follow(
        self,
        journal: TurnJournal,
        adapter: HostAdapter,
        request: LaunchRequest,
        kept: supervise.Kept,
        turnstile: Turnstile,
        *,
        adopted: bool,
    ) -> HostReport:
        parser = adapter.parser(request, self._store.now_ms())
        guard, allowance = ActionGuard(), self._allowance(request)

        def on_line(line: bytes) -> None:
            for event in self._hear(journal, parser, line):
                guard.see(event)
                allowance.see(event)
                turnstile.heard(event)

        def should_cancel() -> bool:
            if self._lost():
                raise ConflictError(
                    "lease_lost",
                    f"this process no longer holds turn {journal.turn.turn_key}; its host goes on",
                    hint=f"loopx run {journal.turn.goal_id} goes on from what is committed",
                )
            return self._should_stop() or guard.tripped or allowance.spent

        record = supervise.follow(kept, on_line, should_cancel)
        ended = None
        if record.stop is StopCause.CANCELLED and not self._should_stop():
            ended = _REPEATED if guard.tripped else _SPENT if allowance.spent else None
        return self._report(journal, adapter, request, parser, record, adopted=adopted, ended=ended)

    def _allowance(self, request: LaunchRequest) -> allowances.Allowance:
        session, limits = request.resume_session, self._setup.allowance
        before = self._last_total(session) if limits and session is not None else None
        return allowances.Allowance(limits, before, resumed=session is not None)

    def _hear(self, journal: TurnJournal, parser: StreamParser, line: bytes) -> tuple[HostEvent, ...]:
        events = tuple(parser.feed(line))
        for event in events:
            self._observer(
                AgentDid(
                    goal_id=journal.turn.goal_id,
                    turn_key=journal.turn.turn_key,
                    kind=event.kind,
                    text=event.text,
                    tool=event.tool,
                    paths=event.paths,
                )
            )
        return events

    def _report(
        self,
        journal: TurnJournal,
        adapter: HostAdapter,
        request: LaunchRequest,
        parser: StreamParser,
        record: ExitRecord,
        *,
        adopted: bool,
        ended: tuple[HostEndKind, ProcessEnd, str] | None = None,
    ) -> HostReport:
        stderr = spool.tail(request.spool_dir, "stderr", STDERR_TAIL)
        summary = parser.finish(stderr)
        read = agent_files.read_result(parser, self._setup.files.result, journal.turn.turn_key)
        summary = agent_files.with_result(parser, summary, read)
        end = adapter.classify(record, summary, self._tree_changed())
        if ended is not None:
            kind, process, code = ended
            end = msgspec.structs.replace(end, kind=kind, process=process, code=code)
        idle = end.kind is HostEndKind.NO_OP
        word = HostWord(
            end=end,
            claims=from_result(read.result),
            tool_calls=summary.tool_calls,
            denials=summary.denials,
            repeated_action=summary.repeated_action,
            stderr=redact.redact(stderr.decode("utf-8", "replace"))[-STDERR_KEPT:].strip() if idle else "",
        )
        return HostReport(
            run_id=record.run_id,
            engine=journal.turn.engine,
            end_kind=end.kind,
            handed_over=end.handed_over,
            exit_code=record.exit_code,
            session_id=summary.session_id,
            adopted=adopted,
            wall_ms=max(0, record.ended_at_ms - record.started_at_ms - record.slept_ms),
            tool_calls=summary.tool_calls,
            usage=self._usage(summary.session_id, summary.usage, summary.usage_is_running_total, request),
            message=redact.redact(summary.final_text)[:MESSAGE_CHARS],
            end=msgspec.Raw(msgspec.json.encode(word)),
        )

    def _last_total(self, session_id: str) -> Usage | None:
        with self._store.read() as tx:
            raw = host_runs.last_session_usage(tx, session_id)
            began_here = host_runs.began_here(tx, session_id)
        last = msgspec.json.decode(raw, type=Usage) if raw is not None else None
        # A session of ours whose every run was cut off before it counted: its total is what those used, and this.
        return last if last is not None or not began_here else usages.ZERO

    def _usage(self, session_id: str | None, total: Usage, running_total: bool, request: LaunchRequest) -> RunUsage:
        used = total
        if running_total and session_id is not None:
            used = usages.delta(total, self._last_total(session_id), resumed=request.resume_session == session_id)
        return RunUsage(
            input_tokens=used.input_tokens,
            cached_tokens=used.cached_input_tokens,
            output_tokens=used.output_tokens,
            reasoning_tokens=used.reasoning_tokens,
            cost_microusd=used.cost_microusd,
            raw=msgspec.Raw(msgspec.json.encode(total if usages.is_known(total) else None)),
        )


_REPEATED = (HostEndKind.WORKER_ERROR, ProcessEnd.WORKER_ERROR, IDENTICAL_ACTIONS)
_SPENT = (HostEndKind.EXECUTOR_TIMEOUT, ProcessEnd.DIED, allowances.TURN_BUDGET)
"""Ends that LoopX itself caused. A used-up allowance is like a used-up hour: what was done until then is judged."""


class ActionGuard:
    """Counts identical tool calls in a row; the breaker against an agent that repeats itself for ever.

    A short cycle of calls is a repetition too. A file that changed in between makes the same call a new one: who runs
    the same tests after each edit repeats nothing.
    """

    LIMIT = 40
    CYCLES = (1, 2, 3)

    def __init__(self) -> None:
        self._recent: list[tuple[str | None, str]] = []
        self._runs = dict.fromkeys(self.CYCLES, 0)
        self.tripped = False

    def see(self, event: HostEvent) -> None:
        """Count one event."""
        if event.kind is HostEventKind.FILE_CHANGE:
            self._recent.clear()
            self._runs = dict.fromkeys(self.CYCLES, 0)
        if event.kind is not HostEventKind.TOOL_CALL:
            return
        action = (event.tool, event.text)
        for cycle in self.CYCLES:
            known = len(self._recent) >= cycle and self._recent[-cycle] == action
            self._runs[cycle] = self._runs[cycle] + 1 if known else 0
            if self._runs[cycle] >= (self.LIMIT - 1) * cycle:
                self.tripped = True
        self._recent = [*self._recent, action][-max(self.CYCLES) :]


def _with_prompt(plan: LaunchPlan, spool_dir: str, text: str) -> LaunchPlan:
    """The plan that also leaves the prompt, redacted, beside the run's output: for people who look at the turn."""
    path = os.path.join(os.path.abspath(spool_dir), PROMPT_NAME)
    if any(name == path for name, _ in plan.files):
        return plan
    kept = redact.redact(text).encode("utf-8", "replace")
    return msgspec.structs.replace(plan, files=(*plan.files, (path, kept)))


def _not_started(run_id: str, engine: str, error: LoopXError) -> HostReport:
    end = HostEnd(
        kind=HostEndKind.NOT_STARTED,
        process=ProcessEnd.DIED,
        # A full disk is nobody's failure: the launch is tried again when there may be room.
        retry=RetryPolicy.BACKOFF if isinstance(error, NotNowError) else RetryPolicy.NONE,
        handed_over=False,
        detail=error.message[:500],
        bad_setup=error.exit_code == 2,
        code=error.code,
        fix=error.hint,
    )
    return HostReport(
        run_id=run_id,
        engine=engine,
        end_kind=end.kind,
        handed_over=False,
        message=error.message[:MESSAGE_CHARS],
        end=msgspec.Raw(msgspec.json.encode(HostWord(end=end))),
    )


def word_of(report: HostReport) -> HostWord:
    """The typed word inside a report."""
    return msgspec.json.decode(report.end, type=HostWord)
