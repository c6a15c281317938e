"""OpenTelemetry: a trace for each turn with a span for each phase, launch and check, and metrics. Off unless asked for.

An observer like any other: it hears what a run tells, reads usage from the store, and decides nothing. No prompt, no
message and no output is exported. Names follow the GenAI conventions where these have one. Whatever goes wrong in here
stays in here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, assert_never

from loopx.control_plane.errors import UsageError
from loopx.control_plane.turn_driver.transaction import PHASES, LoopXTurnPhase
from loopx.runtime.progress import (
    AgentDid,
    BaselineTaken,
    CheckDone,
    CheckRuns,
    Disposed,
    GoalOpened,
    Observer,
    PhaseDone,
    ProgressEvent,
    RunEnded,
    Slept,
    TurnEnded,
    TurnOpened,
    Waiting,
)
from loopx.store import hosts
from loopx.store.store import Store

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue

    from loopx.store.hosts import HostRun

SCOPE = "loopx"
SWITCH = "LOOPX_OTEL"
ENDPOINTS = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)
EXPORT_S = 3
"""How long one export may take: a collector that is away holds nobody up at the end of a run."""
_MATERIAL = frozenset({"validated_progress", "validated_completion", "repair_required", "replan_required"})
_PROVIDERS = {"codex": "openai", "claude": "anthropic", "gemini": "gcp.gemini"}
_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off"})


def wanted(env: Mapping[str, str]) -> bool:
    """Whether this environment asks for telemetry; `LOOPX_OTEL` has the last word."""
    switch = env.get(SWITCH, "").strip().lower()
    if switch in _NO or env.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    return switch in _YES or any(env.get(name) for name in ENDPOINTS)


@contextlib.contextmanager
def observing(observer: Observer, store: Store, env: Mapping[str, str]) -> Iterator[Observer]:
    """The observer, and beside it telemetry where this environment wants it; what is left is exported at the end.

    Raises UsageError (`extra_missing`) when `LOOPX_OTEL` asks for what is not installed.
    """
    if not wanted(env):
        yield observer
        return
    try:
        traces, metrics, close = _providers()
    except ImportError as error:
        if env.get(SWITCH, "").strip().lower() in _YES:
            raise UsageError(
                "extra_missing",
                f"telemetry needs the library {error.name!r}, which is not installed",
                hint="pip install 'loopx-control[otel]'",
            ) from error
        yield observer
        return
    telemetry = Telemetry(store, traces, metrics)

    def both(event: ProgressEvent, /) -> None:
        observer(event)
        telemetry(event)

    try:
        yield both
    finally:
        telemetry.close()
        with contextlib.suppress(Exception):
            close()


def _providers() -> tuple[TracerProvider, MeterProvider, Callable[[], None]]:
    """Providers that export over OTLP and HTTP; where to is in the usual variables."""
    from importlib.metadata import version

    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.name": "loopx", "service.version": version("loopx-control")})
    traces = SdkTracerProvider(resource=resource, shutdown_on_exit=False)
    traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=EXPORT_S)))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(timeout=EXPORT_S))
    metrics = SdkMeterProvider(resource=resource, metric_readers=[reader], shutdown_on_exit=False)

    def close() -> None:
        traces.shutdown()
        metrics.shutdown(timeout_millis=EXPORT_S * 1000)

    return traces, metrics, close


class Telemetry:
    """Implements `Observer`. Hears one run; `close` ends what is still open."""

    def __init__(self, store: Store, traces: TracerProvider, metrics: MeterProvider) -> None:
        self._store = store
        self._tracer: Tracer = traces.get_tracer(SCOPE)
        self._instruments = _Instruments(metrics.get_meter(SCOPE))
        self._turn: Span | None = None
        self._phase: Span | None = None
        self._host: Span | None = None
        self._checks: dict[str, Span] = {}
        self._engine = ""
        self._model: str | None = None

    def __call__(self, event: ProgressEvent, /) -> None:
        # A run never fails for want of its telemetry.
        with contextlib.suppress(Exception):
            self._hear(event)

    def close(self) -> None:
        """End the spans of a turn that the run left open."""
        with contextlib.suppress(Exception):
            self._end_all()

    def _hear(self, event: ProgressEvent) -> None:
        match event:
            case GoalOpened():
                self._engine, self._model = event.engine, event.model
            case TurnOpened():
                self._open(event)
            case AgentDid():
                if event.kind == "tool_call" and self._host is not None:
                    self._host.add_event("gen_ai.tool", {"gen_ai.tool.name": event.tool or ""})
            case CheckRuns():
                self._checks[event.name] = self._start(f"check {event.name}", self._phase, {"loopx.check": event.name})
            case CheckDone():
                self._check(event)
            case PhaseDone():
                self._commit(event)
            case TurnEnded():
                self._close_turn(event)
            case Waiting():
                self._instruments.waits.add(1, {"loopx.quota.state": event.state, "loopx.action": event.action})
            case RunEnded():
                self._run_ended(event)
            case BaselineTaken() | Disposed() | Slept():
                pass
            case _:
                assert_never(event)

    def _start(self, name: str, parent: Span | None, attributes: Mapping[str, AttributeValue]) -> Span:
        from opentelemetry import context, trace

        inside = trace.set_span_in_context(parent, context.Context()) if parent is not None else context.Context()
        return self._tracer.start_span(name, context=inside, attributes=dict(attributes))

    def _open(self, event: TurnOpened) -> None:
        self._end_all()
        self._engine = event.engine
        attributes: dict[str, AttributeValue] = {
            "loopx.goal.id": event.goal_id,
            "loopx.turn.key": event.turn_key,
            "loopx.turn.number": event.number,
            "loopx.turn.purpose": event.purpose,
            "loopx.turn.resumed": event.resumed_after is not None,
        }
        if event.todo_id is not None:
            attributes["loopx.todo.id"] = event.todo_id
        self._turn = self._start("turn", None, attributes)
        self._enter(event.completed)

    def _enter(self, completed: int) -> None:
        """Begin the span of the phase that is next; the first one holds the launch."""
        if completed >= len(PHASES):
            return
        phase = PHASES[completed]
        self._phase = self._start(f"phase {phase}", self._turn, {"loopx.phase": phase})
        if completed == 0:
            self._host = self._start(f"invoke_agent {_name(self._engine)}", self._phase, self._agent())

    def _agent(self) -> dict[str, AttributeValue]:
        found: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": _name(self._engine),
            "gen_ai.provider.name": _PROVIDERS.get(_name(self._engine), _name(self._engine)),
        }
        if self._model:
            found["gen_ai.request.model"] = self._model
        return found

    def _commit(self, event: PhaseDone) -> None:
        if self._host is not None:
            self._host.end()
            self._host = None
        if self._phase is not None:
            self._phase.set_attribute("loopx.phase.committed", True)
            self._phase.end()
            self._phase = None
        # Phases that share a commit are told one after the other, each with the whole prefix.
        self._enter(PHASES.index(_phase(event.phase)) + 1)

    def _check(self, event: CheckDone) -> None:
        check = event.check
        span = self._checks.pop(check.name, None) or self._start(f"check {check.name}", self._phase, {})
        span.set_attribute("loopx.check", check.name)
        span.set_attribute("loopx.check.verdict", check.verdict)
        span.set_attribute("loopx.check.snapshot", event.snapshot)
        for name, value in (("failed", check.failed), ("total", check.total)):
            if value is not None:
                span.set_attribute(f"loopx.check.{name}", value)
        span.end()
        self._instruments.check_time.record(check.duration_ms / 1000, {"loopx.check.verdict": check.verdict})

    def _close_turn(self, event: TurnEnded) -> None:
        turn = self._turn
        runs = self._runs(event.turn_key)
        if turn is not None:
            turn.set_attribute("loopx.turn.result", event.result_kind)
            turn.set_attribute("loopx.turn.reason", event.reason)
            turn.set_attribute("loopx.turn.slots", event.slots)
            for name, value in _usage(runs).items():
                turn.set_attribute(name, value)
            if event.result_kind not in _MATERIAL:
                _failed(self._phase, event.reason or event.result_kind)
            if event.failed_phase is not None or event.failure is not None:
                _failed(turn, event.failure or str(event.failed_phase))
        self._measure(event, runs)
        self._end_all()

    def _measure(self, event: TurnEnded, runs: tuple[HostRun, ...]) -> None:
        agent = {name: value for name, value in self._agent().items() if name != "gen_ai.operation.name"}
        kind = {"loopx.turn.result": event.result_kind, "gen_ai.agent.name": _name(self._engine)}
        self._instruments.turns.add(1, kind)
        self._instruments.turn_time.record(event.wall_ms / 1000, kind)
        if event.slots:
            self._instruments.slots.add(event.slots, {"loopx.goal.id": event.goal_id})
        for run in runs:
            usage = run.usage
            for what, amount in (("input", usage.input_tokens), ("output", usage.output_tokens)):
                if amount is not None:
                    self._instruments.tokens.record(amount, {**agent, "gen_ai.token.type": what})
            if usage.cost_microusd is not None:
                self._instruments.cost.add(usage.cost_microusd / 1_000_000, agent)
            if run.ended_at_ms is not None:
                seconds = (run.ended_at_ms - run.started_at_ms) / 1000
                attributes = {**self._agent(), "loopx.host.end": run.end_kind or "unknown"}
                self._instruments.agent_time.record(seconds, attributes)

    def _runs(self, turn_key: str) -> tuple[HostRun, ...]:
        with self._store.read() as tx:
            return hosts.of_turn(tx, turn_key)

    def _run_ended(self, event: RunEnded) -> None:
        self._instruments.runs.add(1, {"loopx.exit_code": event.exit_code, "loopx.disposition": event.disposition})
        with self._store.read() as tx:
            for row in tx.all("goals.count_by_state"):
                self._instruments.goals.set(row["n"], {"loopx.goal.state": row["state"]})

    def _end_all(self) -> None:
        for span in (*self._checks.values(), self._host, self._phase, self._turn):
            if span is not None:
                span.end()
        self._checks.clear()
        self._host = self._phase = self._turn = None


class _Instruments:
    """What is counted and measured."""

    def __init__(self, meter: Meter) -> None:
        self.turns = meter.create_counter("loopx.turns", "{turn}", "turns that ended, by result")
        self.slots = meter.create_counter("loopx.slots", "{slot}", "slots spent")
        self.cost = meter.create_counter("loopx.cost", "USD", "what engines said that they cost")
        self.runs = meter.create_counter("loopx.runs", "{run}", "runs that ended, by exit status")
        self.waits = meter.create_counter("loopx.waits", "{wait}", "times that a run had to wait, by quota state")
        self.goals = meter.create_gauge("loopx.goals", "{goal}", "goals by state, at the end of a run")
        self.turn_time = meter.create_histogram("loopx.turn.duration", "s", "a turn from start to end")
        self.check_time = meter.create_histogram("loopx.check.duration", "s", "one run of one check")
        self.tokens = meter.create_histogram("gen_ai.client.token.usage", "{token}", "tokens of one launch")
        self.agent_time = meter.create_histogram("gen_ai.client.operation.duration", "s", "one launch of an engine")


def _phase(name: str) -> LoopXTurnPhase:
    return LoopXTurnPhase(name)


def _name(engine: str) -> str:
    """An engine's word without what a person wrote behind it: commands may hold anything."""
    return engine.removeprefix("external:").partition(":")[0]


def _usage(runs: tuple[HostRun, ...]) -> dict[str, AttributeValue]:
    """The turn's usage; what no launch told is left out."""
    found: dict[str, AttributeValue] = {}
    inputs = [run.usage.input_tokens for run in runs if run.usage.input_tokens is not None]
    outputs = [run.usage.output_tokens for run in runs if run.usage.output_tokens is not None]
    costs = [run.usage.cost_microusd for run in runs if run.usage.cost_microusd is not None]
    if inputs:
        found["gen_ai.usage.input_tokens"] = sum(inputs)
    if outputs:
        found["gen_ai.usage.output_tokens"] = sum(outputs)
    if costs:
        found["loopx.usage.cost_usd"] = sum(costs) / 1_000_000
    sessions = [run.session_id for run in runs if run.session_id]
    if sessions:
        found["gen_ai.conversation.id"] = sessions[-1]
    return found


def _failed(span: Span | None, why: str) -> None:
    if span is None:
        return
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", why)
    span.set_status(Status(StatusCode.ERROR, why))
