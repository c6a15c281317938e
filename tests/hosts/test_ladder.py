"""Engine words and the ladder: when it steps down, when it must not, and what it records."""

from __future__ import annotations

import pytest

from loopx.control_plane.errors import UsageError
from loopx.hosts import ends, ladder, registry
from loopx.hosts.ladder import RungEnd
from loopx.hosts.protocol import HostEnd, HostEndKind, ProcessEnd, RetryPolicy
from loopx.hosts.registry import EngineKind


def end(kind: HostEndKind, *, handed_over: bool = True) -> HostEnd:
    rule = ends.END_RULES[kind]
    return HostEnd(
        kind=kind, process=rule.process, retry=rule.retry, handed_over=handed_over, auth_lapsed=rule.auth_lapsed
    )


@pytest.mark.parametrize("word", ["codex", "claude", "opencode", "gemini", "command:my agent", "external:codex"])
def test_external_words(word: str) -> None:
    assert registry.kind_of(word) is EngineKind.EXTERNAL
    assert registry.adapter_for(word).name in word


def test_other_words() -> None:
    assert registry.kind_of("native") is EngineKind.NATIVE
    assert registry.kind_of("foreman:codex") is EngineKind.FOREMAN
    assert registry.inner_word("foreman:codex") == "codex"
    for word in ("native", "foreman:codex"):
        with pytest.raises(UsageError) as refused:
            registry.adapter_for(word)
        assert refused.value.code == "engine_not_external"


@pytest.mark.parametrize("word", ["", "codexx", "command:", "command: ", "foreman:", "foreman:foreman:codex", "CODEX"])
def test_unknown_words(word: str) -> None:
    with pytest.raises(UsageError) as refused:
        registry.kind_of(word)
    assert refused.value.code == "unknown_engine"


def test_steps_down_when_unavailable_and_records_it() -> None:
    climb = ladder.start(("codex", "claude", "codex"))
    assert climb.rungs == ("codex", "claude")
    climb = ladder.after(climb, RungEnd.ENGINE_UNAVAILABLE, "engine_missing")
    assert climb.current == "claude"
    assert climb.stepped_down
    climb = ladder.after(climb, RungEnd.RAN)
    assert (climb.asked, climb.resolved, climb.ran) == ("codex", "claude", "claude")
    assert climb.current is None
    assert climb.tried[0].code == "engine_missing"


@pytest.mark.parametrize("stop", [RungEnd.CANCELLED, RungEnd.NEEDS_AUTH, RungEnd.BUDGET_EXHAUSTED, RungEnd.RAN])
def test_stops(stop: RungEnd) -> None:
    climb = ladder.after(ladder.start(("codex", "claude")), stop)
    assert climb.current is None
    assert climb.stopped is stop
    assert climb.resolved == "codex"
    with pytest.raises(UsageError):
        ladder.after(climb, RungEnd.RAN)


def test_explicit_choice_is_never_replaced() -> None:
    climb = ladder.start(("claude", "gemini"), explicit="codex")
    climb = ladder.after(climb, RungEnd.ENGINE_UNAVAILABLE)
    assert climb.current is None
    assert climb.ran is None
    assert climb.stopped is RungEnd.ENGINE_UNAVAILABLE


def test_only_a_foreman_declines() -> None:
    climb = ladder.after(ladder.start(("foreman:codex", "codex")), RungEnd.DECLINED)
    assert climb.current == "codex"
    climb = ladder.after(ladder.start(("codex", "claude")), RungEnd.DECLINED)
    assert climb.current is None


def test_the_last_rung_ends_it() -> None:
    climb = ladder.start(("codex", "claude"))
    for _ in range(2):
        climb = ladder.after(climb, RungEnd.ENGINE_UNAVAILABLE)
    assert climb.stopped is RungEnd.ENGINE_UNAVAILABLE
    assert climb.ran is None


def test_no_ladder_without_an_engine() -> None:
    with pytest.raises(UsageError) as refused:
        ladder.start(())
    assert refused.value.code == "no_engine"
    with pytest.raises(UsageError):
        ladder.start(("codex", "typo"))


@pytest.mark.parametrize("kind", list(HostEndKind))
def test_what_an_end_means_to_the_ladder(kind: HostEndKind) -> None:
    special = {
        HostEndKind.NOT_STARTED: RungEnd.ENGINE_UNAVAILABLE,
        HostEndKind.CANCELLED: RungEnd.CANCELLED,
        HostEndKind.AUTH_FAILED: RungEnd.NEEDS_AUTH,
    }
    assert ladder.rung_end(end(kind)) is special.get(kind, RungEnd.RAN)


def test_every_kind_has_a_rule() -> None:
    assert set(ends.END_RULES) == set(HostEndKind)
    assert ends.END_RULES[HostEndKind.SUCCESS].process is ProcessEnd.CLEAN
    waits = {kind for kind, rule in ends.END_RULES.items() if rule.retry is RetryPolicy.AT_RESET}
    assert waits == {HostEndKind.RATE_LIMITED}
