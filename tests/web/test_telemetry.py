"""Telemetry: a turn is a trace of its phases, launch and checks, with the usage that the store has. Off by default."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed (the extra `otel`)")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from loopx.control_plane.turn_driver.transaction import PHASES
from loopx.runtime.progress import TurnOpened, silent
from loopx.runtime.telemetry import Telemetry, observing, wanted
from tests.web.world import World, day


class Kept:
    """Telemetry that stays in memory."""

    def __init__(self, world: World) -> None:
        self.spans = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        traces = TracerProvider(shutdown_on_exit=False)
        traces.add_span_processor(SimpleSpanProcessor(self.spans))
        metrics = MeterProvider(metric_readers=[self.reader], shutdown_on_exit=False)
        self.hear = Telemetry(world.box.store, traces, metrics)

    def traces(self) -> dict[int, list[ReadableSpan]]:
        """The spans of each trace, as they ended."""
        found: dict[int, list[ReadableSpan]] = {}
        for span in self.spans.get_finished_spans():
            found.setdefault(span.get_span_context().trace_id, []).append(span)
        return found

    def points(self) -> dict[str, list[Any]]:
        """The data points of each metric."""
        data = self.reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


def named(spans: list[ReadableSpan], name: str) -> ReadableSpan:
    """The one span of that name."""
    (found,) = [span for span in spans if span.name == name]
    return found


def test_each_turn_is_a_trace_of_its_phases_its_launch_and_its_checks(world: World) -> None:
    kept = Kept(world)
    day(world, kept.hear)
    kept.hear.close()
    turns = {
        (span.attributes or {})["loopx.turn.number"]: spans
        for spans in kept.traces().values()
        for span in spans
        if span.name == "turn" and (span.attributes or {})["loopx.goal.id"] == "iso-week-dates"
    }
    assert sorted(turns) == [1, 2, 3]

    done = turns[3]
    root = named(done, "turn")
    assert root.parent is None
    phases = [named(done, f"phase {phase}") for phase in PHASES]
    assert all(span.parent is not None and span.parent.span_id == root.get_span_context().span_id for span in phases)
    starts = [span.start_time or 0 for span in phases]
    assert starts == sorted(starts)
    assert all((span.attributes or {})["loopx.phase.committed"] for span in phases)
    agent = named(done, "invoke_agent codex")
    assert agent.parent is not None
    assert agent.parent.span_id == phases[0].get_span_context().span_id
    assert dict(agent.attributes or {}) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "codex",
        "gen_ai.provider.name": "openai",
    }
    attributes = root.attributes or {}
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (93_000, 3_900)
    assert attributes["loopx.turn.result"] == "validated_completion"
    checks = [span for span in done if span.name == "check tests.test_dates"]
    assert {(span.attributes or {})["loopx.check.verdict"] for span in checks} == {"green"}
    assert {(span.attributes or {})["loopx.check.snapshot"] for span in checks} == {False, True}

    refused = turns[2]
    assert not named(refused, "phase validation").status.is_ok
    assert not [span for span in refused if span.name == "phase quota_spend"]


def test_metrics_say_states_spend_and_how_long(world: World) -> None:
    kept = Kept(world)
    day(world, kept.hear)
    points = kept.points()
    ended = {point.attributes["loopx.turn.result"]: point.value for point in points["loopx.turns"]}
    assert ended["validated_completion"] == 1
    assert ended["validation_failed"] >= 1
    spent = {point.attributes["loopx.goal.id"]: point.value for point in points["loopx.slots"]}
    assert spent["iso-week-dates"] == 2
    tokens = {point.attributes["gen_ai.token.type"]: point.sum for point in points["gen_ai.client.token.usage"]}
    assert tokens["input"] == 151_000 + 61_000 + 93_000 + 48_000 + 32_000
    assert {point.attributes["loopx.goal.state"] for point in points["loopx.goals"]} >= {"completed", "active"}
    assert all(point.count for point in points["loopx.turn.duration"])


def test_nothing_of_what_people_or_agents_wrote_is_exported(world: World) -> None:
    kept = Kept(world)
    world.goal("quiet", "the-objective-of-it", [{"say": "the-words-of-it"}], checks=("test -f never",))
    world.box.run("quiet", max_turns=1, observer=kept.hear)
    text = "".join(span.to_json() for span in kept.spans.get_finished_spans())
    assert "turn" in text
    assert "the-objective-of-it" not in text
    assert "the-words-of-it" not in text


def test_telemetry_that_breaks_does_not_break_the_run(world: World) -> None:
    kept = Kept(world)
    world.box.store.close()
    kept.hear(
        TurnOpened(goal_id="g", turn_key="t", number=1, purpose="work", engine="codex", todo_id=None, completed=99)
    )
    kept.hear.close()


@pytest.mark.parametrize(
    ("env", "answer"),
    [
        ({}, False),
        ({"LOOPX_OTEL": "1"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "LOOPX_OTEL": "0"}, False),
        ({"LOOPX_OTEL": "1", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_it_is_off_unless_asked_for(env: dict[str, str], answer: bool) -> None:
    assert wanted(env) is answer


def test_off_is_the_observer_itself(world: World) -> None:
    with observing(silent, world.box.store, {}) as told:
        assert told is silent


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes what is exported, and counts it."""

    seen: list[str]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.seen.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return None


@pytest.fixture
def collector() -> Iterator[tuple[str, list[str]]]:
    """A real receiver on a free port, and the paths that were posted to."""
    seen: list[str] = []
    handler = type("Here", (Collector,), {"seen": seen})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", seen
    server.shutdown()
    server.server_close()


def test_a_run_is_exported_over_http(
    world: World, collector: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, seen = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    world.goal("sent", "do little", [{"say": "hello"}], checks=("test -f never",))
    with observing(silent, world.box.store, {"OTEL_EXPORTER_OTLP_ENDPOINT": address}) as told:
        world.box.run("sent", max_turns=1, observer=told)
    assert {"/v1/traces", "/v1/metrics"} <= set(seen)


def test_a_collector_that_is_away_does_not_change_the_end_of_a_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    world.goal("alone", "do little", [{"say": "hello"}], checks=("true",))
    with observing(silent, world.box.store, {"LOOPX_OTEL": "1"}) as told:
        ended = world.box.run("alone", max_turns=1, observer=told)
    assert ended.exit_code in (0, 12)
