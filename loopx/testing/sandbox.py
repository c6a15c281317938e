"""A project in a folder of its own: a git repository, its own state folder, a scripted agent, and the real goal runner.

Nothing is simulated but the agent: the store, the keeper, git and the checks are the real ones. The user's state folder
and git configuration are not touched.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from loopx.contracts.model import Contract
from loopx.contracts.parse import parse_command_line
from loopx.control_plane.goal import Goal, GoalDefinition
from loopx.control_plane.ids import AgentId
from loopx.control_plane.ports import Clock, Ids
from loopx.control_plane.turn_driver.settlement import DEFAULT_BOUNDARIES
from loopx.control_plane.turn_driver.transaction import LoopXTurnPhase
from loopx.runtime import goal_service
from loopx.runtime import project as projects
from loopx.runtime.clock import SystemClock, SystemIds
from loopx.runtime.goal_runner import GoalRunner, RunOptions, StopSignal
from loopx.runtime.progress import Observer, ProgressEvent, RunEnded, silent
from loopx.runtime.project import Project
from loopx.store.connection import Connection
from loopx.store.store import Store
from loopx.testing.agent import Act, ScriptedAgent
from loopx.workspace.identity import repository_key

_GIT = ("git", "-c", "user.name=Tester", "-c", "user.email=tester@localhost", "-c", "commit.gpgsign=false")
DEFAULT_FILES: Mapping[str, str] = {"README": "a project to try LoopX on\n"}


def temporary_store(folder: str, *, clock: Clock | None = None, ids: Ids | None = None) -> Store:
    """A new, empty store in `folder`, or the one that is there."""
    connection = Connection(os.path.join(folder, projects.STORE_NAME), create=True)
    return Store(connection, clock or SystemClock(), ids or SystemIds())


class Sandbox:
    """Use as a context manager, or close it. Opened again on the same folder it finds the same project and store."""

    def __init__(
        self,
        folder: str,
        *,
        files: Mapping[str, str] = DEFAULT_FILES,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self.folder = os.path.realpath(folder)
        self.root = os.path.join(self.folder, "project")
        self.clock = clock or SystemClock()
        if not os.path.isdir(self.root):
            self._make(files)
        self.project = self._project()
        self.store = temporary_store(self.project.state_dir, clock=self.clock, ids=ids)
        self.env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "LOOPX_STATE_DIR": self.state}
        self.events: list[ProgressEvent] = []

    @property
    def state(self) -> str:
        """The state folder that stands in for the user's."""
        return os.path.join(self.folder, "state")

    def _make(self, files: Mapping[str, str]) -> None:
        os.makedirs(self.root)
        for name, text in files.items():
            self.write(name, text)
        self.git("init", "-q", "-b", "main")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "start")

    def _project(self) -> Project:
        found = projects.locate(self.root)
        state_dir = os.path.join(self.state, "projects", found.project_id)
        database = os.path.join(state_dir, projects.STORE_NAME)
        return projects.initialise(msgspec.structs.replace(found, state_dir=state_dir, database=database))

    def write(self, name: str, text: str) -> None:
        """A file of the work tree, written as a person would."""
        path = Path(self.root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def read(self, name: str) -> str:
        return Path(self.root, name).read_text(encoding="utf-8")

    def git(self, *words: str) -> str:
        """Git in the work tree, as a person would; its output."""
        env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
        done = subprocess.run([*_GIT, *words], cwd=self.root, check=True, capture_output=True, text=True, env=env)
        return done.stdout.strip()

    def agent(self, *acts: Act) -> ScriptedAgent:
        """The sandbox's agent, with these acts from now on."""
        return ScriptedAgent(os.path.join(self.folder, "agent"), acts)

    def goal(
        self,
        *acts: Act,
        checks: Sequence[str],
        engines: Sequence[str] = (),
        objective: str = "make the checks green",
        contract: Contract | None = None,
        definition: GoalDefinition | None = None,
        goal_id: str | None = None,
    ) -> Goal:
        """A goal whose agent plays `acts`. Raises what `goal_service.create` raises."""
        judged = contract or Contract(checks=parse_command_line(tuple(checks)))
        wanted = definition or GoalDefinition(objective=objective, contract=goal_service.encode_contract(judged))
        wanted = msgspec.structs.replace(
            wanted,
            contract=goal_service.encode_contract(judged),
            engines=tuple(engines) or (self.agent(*acts).engine,),
        )
        key = repository_key(Path(self.root))
        return goal_service.create(self.store, self.project, wanted, key, goal_id=goal_id)

    def run(
        self,
        goal: Goal | str,
        *,
        max_turns: int | None = 8,
        observer: Observer = silent,
        stop: StopSignal | None = None,
        boundaries: frozenset[LoopXTurnPhase] = DEFAULT_BOUNDARIES,
        agent_id: str = "loopx",
        options: RunOptions | None = None,
    ) -> RunEnded:
        """One `loopx run` of the goal, to its typed end; the events are told to `observer` and kept in `events`."""

        def hear(event: ProgressEvent, /) -> None:
            self.events.append(event)
            observer(event)

        runner = GoalRunner(
            self.store,
            self.project,
            goal if isinstance(goal, str) else goal.goal_id,
            AgentId(agent_id),
            hear,
            self.env,
            options or RunOptions(max_turns=max_turns, wait=False),
            stop or StopSignal(),
            self.clock,
            boundaries=boundaries,
        )
        return runner.run()

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
