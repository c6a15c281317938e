"""Which engine a run works with: asked for, resolved, and what is known of each on this machine.

The ladder is data (`hosts.ladder`); this room feeds it with what a probe says, what a launch found out, and which
limits are not over yet, and remembers all of it for one run. It launches nothing and asks nobody.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import msgspec

from loopx.control_plane.errors import EngineError, UsageError
from loopx.control_plane.goal import GoalDefinition
from loopx.control_plane.turn_driver.journal import EngineChoice, PassedOver
from loopx.hosts import ladder, registry
from loopx.hosts.command import CommandAdapter
from loopx.hosts.ladder import Climb, RungEnd
from loopx.hosts.protocol import Executable, ProbeResult, SignedIn

LIMITED = "limited"
_NOT_HERE = {Executable.MISSING: "engine_missing", Executable.BROKEN: "engine_broken"}


class Picked(msgspec.Struct, frozen=True, kw_only=True):
    """The engine for the next turn, or None when none can be had, and how that came about."""

    engine: str | None
    choice: EngineChoice
    probe: ProbeResult | None
    """Of the engine, or of the one that was asked for when there is none; None where nothing is probed."""

    @property
    def signed_out(self) -> bool:
        """Whether the engine says that it has no credential. Not knowing is no."""
        return self.engine is not None and self.probe is not None and self.probe.signed_in is SignedIn.NO

    @property
    def why_none(self) -> str:
        """The code for why the last engine of the ladder could not be had."""
        return self.choice.passed_over[-1].code if self.choice.passed_over else ""


class EngineDesk:
    """The engines of one run. `named`: the one that a person asked for now, which is honoured or refused."""

    def __init__(
        self,
        env: Mapping[str, str],
        workdir: Callable[[], str],
        named: str | None,
        now_ms: Callable[[], int],
        *,
        probing: bool = True,
    ) -> None:
        self._env = tuple(env.items())
        self._workdir = workdir
        self._named = named
        self._now_ms = now_ms
        self._probing = probing
        self._probes: dict[str, ProbeResult] = {}
        self._unavailable: dict[str, str] = {}
        self._limits: dict[str, int] = {}

    def pick(self, definition: GoalDefinition) -> Picked:
        """The engine for the next turn.

        Raises EngineError (`no_engine`), UsageError (`unknown_engine`, `engine_not_external`).
        """
        climb = self._climb(definition)
        while climb.current is not None:
            code = self._why_not(climb.current, alone=len(climb.rungs) == 1)
            if code is None:
                break
            climb = ladder.after(climb, RungEnd.ENGINE_UNAVAILABLE, code)
        passed = tuple(PassedOver(engine=rung.engine, code=rung.code) for rung in climb.tried)
        return Picked(
            engine=climb.current,
            choice=EngineChoice(asked=climb.asked, explicit=climb.explicit, passed_over=passed),
            probe=self._probe_of(climb.current or climb.asked),
        )

    def program(self, engine: str) -> str | None:
        """The program that the probe found able to run; None when nothing is probed."""
        probe = self._probe_of(engine)
        return probe.program if probe is not None else None

    def mark_unavailable(self, engine: str, code: str) -> None:
        """A launch found out that the engine can't be started here."""
        self._unavailable[engine] = code

    def mark_limited(self, engine: str, until_ms: int) -> None:
        """The engine's provider refuses until then."""
        self._limits[engine] = until_ms

    def goes_on(self, definition: GoalDefinition) -> bool:
        """Whether an engine can be had now, after one was marked."""
        return self.pick(definition).engine is not None

    def earliest_ms(self) -> int | None:
        """When the first of the known limits is over."""
        return min(self._limits.values(), default=None)

    def _climb(self, definition: GoalDefinition) -> Climb:
        preference = definition.engines if definition.fallback else definition.engines[:1]
        if self._named is None and not preference:
            raise EngineError("no_engine", "the goal names no engine", hint="name one: loopx run GOAL --engine ENGINE")
        return ladder.start(preference, self._named)

    def _why_not(self, engine: str, *, alone: bool) -> str | None:
        """Why an engine can't be had; None when it can, as far as is known."""
        if engine in self._unavailable:
            return self._unavailable[engine]
        if self._limits.get(engine, 0) > self._now_ms():
            return LIMITED
        try:
            probe = self._probe_of(engine)
        except UsageError as error:
            if alone or error.code != "engine_not_external":
                raise
            return error.code
        return _NOT_HERE.get(probe.executable) if probe is not None else None

    def _probe_of(self, engine: str) -> ProbeResult | None:
        """Probed once a run."""
        adapter = registry.adapter_for(engine)
        if not self._probing:
            return None
        if engine not in self._probes:
            pinned = None
            if isinstance(adapter, CommandAdapter) and os.sep in adapter.argv[0]:
                # The program starts in the work tree, wherever we stand.
                pinned = os.path.join(self._workdir(), adapter.argv[0])
            self._probes[engine] = adapter.probe(self._env, pinned)
        return self._probes[engine]
