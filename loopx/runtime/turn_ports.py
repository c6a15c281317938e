"""Wires one turn's ports: which host, with which prompt, judged by which contract, in which tree."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence

import msgspec

from loopx.contracts.model import visible_checks
from loopx.control_plane.errors import UsageError
from loopx.control_plane.ids import TodoId, TurnKey
from loopx.control_plane.ports import CloseoutPort, HostPort, JournalPort, JudgePort, SchedulePort, TreePort
from loopx.control_plane.quota.policy import BudgetUnit
from loopx.control_plane.turn_driver.journal import (
    Fence,
    JournalStep,
    Turn,
    TurnJournal,
    TurnPurpose,
    TurnState,
)
from loopx.control_plane.turn_driver.transaction import PHASES
from loopx.control_plane.work_items.gate import Gate, GateKind
from loopx.control_plane.work_items.todo import GOAL_ITSELF, Todo
from loopx.hosts.protocol import Deadlines, McpServer
from loopx.runtime import (
    agent_files,
    allowance,
    capabilities,
    goal_work,
    guarding,
    last_failure,
    prompt,
    replanning,
    sessions,
)
from loopx.runtime.claims import Claim, ClaimKind
from loopx.runtime.evaluation import Evaluator
from loopx.runtime.goal_work import GoalWork
from loopx.runtime.host_port import HostSetup, KeptHost
from loopx.runtime.judge_port import ContractJudge
from loopx.runtime.progress import Observer, PhaseDone
from loopx.runtime.project import Project
from loopx.runtime.schedule_port import GoalSchedule
from loopx.runtime.seen import JudgedGoal
from loopx.runtime.tree_port import WorkTree
from loopx.store import evidence, goals, hosts, todos, turns
from loopx.store import gates as gate_rows
from loopx.store.codec import load
from loopx.store.connection import Tx
from loopx.store.store import Store

MCP_ENGINES = frozenset({"codex", "claude"})
_NOT_FOR_AGENTS = frozenset({GateKind.SIGN_IN, GateKind.BUDGET})
"""Answers about the machinery, which say nothing about the work."""


class ObservedJournal:
    """The store as a `JournalPort` that tells an observer of each phase."""

    def __init__(self, store: Store, observer: Observer) -> None:
        self._store = store
        self._observer = observer

    def load(self, turn_key: TurnKey) -> TurnJournal:
        return self._store.load(turn_key)

    def commit(self, turn_key: TurnKey, fence: Fence, steps: Sequence[JournalStep]) -> TurnJournal:
        before = self.load(turn_key)
        after = self._store.commit(turn_key, fence, steps)
        for index in range(before.turn.completed, after.turn.completed):
            self._observer(
                PhaseDone(
                    goal_id=after.turn.goal_id, turn_key=turn_key, phase=PHASES[index], completed=after.turn.completed
                )
            )
        return after


class NothingOutside:
    """Implements `CloseoutPort`: a goal holds nothing outside but its work tree, which stays for the person."""

    def close(self, journal: TurnJournal) -> None:
        return None


class Ports(msgspec.Struct, frozen=True, kw_only=True):
    """Implements `TurnPorts`."""

    journal: JournalPort
    host: HostPort
    judge: JudgePort
    tree: TreePort
    schedule: SchedulePort
    closeout: CloseoutPort


class _LeftByHost:
    """The tree as the host left it: captured once to see whether anything changed, and judged as it was then."""

    def __init__(self, tree: WorkTree) -> None:
        self._tree = tree
        self._seen: str | None = None

    def look(self) -> str:
        self._seen = self._tree.capture()
        return self._seen

    def take(self) -> str:
        """What was seen, or the tree as it is now where this process saw no host end."""
        seen, self._seen = self._seen, None
        return seen or self._tree.capture()


class TurnWiring:
    """Builds the ports of turns of one goal for one agent."""

    def __init__(
        self,
        store: Store,
        project: Project,
        work: GoalWork,
        env: dict[str, str],
        observer: Observer,
        stopping: Callable[[], bool],
        left_ms: Callable[[], int | None],
        closeout: CloseoutPort | None = None,
        program_of: Callable[[str], str | None] = lambda engine: None,
    ) -> None:
        self._store = store
        self._project = project
        self._work = work
        self._env = env
        self._observer = observer
        self._stopping = stopping
        self._left_ms = left_ms
        self._closeout = closeout or NothingOutside()
        self._program_of = program_of

    def ports(self, journal: TurnJournal, token: str | None, lost: Callable[[], bool]) -> Ports:
        """The ports of one turn. `token`: the agent's credential, None when the turn is resumed."""
        turn = journal.turn
        setup = self._setup(turn, token)
        tree = self._work.tree
        left = _LeftByHost(tree)
        return Ports(
            journal=ObservedJournal(self._store, self._observer),
            host=KeptHost(
                self._store,
                setup,
                self._observer,
                self._stopping,
                lambda: turn.tree_before is None or left.look() != turn.tree_before,
                lost,
                None if token is not None else lambda: self._setup(turn, self._new_token(turn)),
            ),
            judge=ContractJudge(
                self.known,
                tree,
                self._evaluator(turn),
                self._env,
                self._store.now_ms,
                self._stopping,
                self._left_ms,
                left.take,
            ),
            tree=tree,
            schedule=GoalSchedule(self._store),
            closeout=self._closeout,
        )

    def _new_token(self, turn: Turn) -> str:
        """A credential for an agent whose first launch came to nothing; the old one is worth nothing any more."""
        token = self._store.ids.secret()
        with self._store.write() as tx:
            turns.set_token(tx, turn, token_hash(token), self._store.now_ms())
        return token

    def _evaluator(self, turn: Turn) -> Callable[[JudgedGoal], Evaluator]:
        return lambda known: Evaluator(
            self._store,
            self._work.tree,
            known.contract,
            self._env,
            self._observer,
            turn.goal_id,
            turn.turn_key,
            lambda: None,  # checks have time-outs of their own: a run's end makes no verdict impossible
            self._stopping,
        )

    def _host_seconds(self, turn_timeout_s: int, allowed: Mapping[BudgetUnit, int]) -> float:
        """The run's clock ends hosts, not checks: what an agent did until then is judged all the same."""
        limits = [self._left_ms(), allowed.get(BudgetUnit.WALL_MS)]
        return min([float(turn_timeout_s), *(max(1.0, limit / 1000) for limit in limits if limit is not None)])

    def _setup(self, turn: Turn, token: str | None) -> HostSetup:
        definition = self._work.goal.definition
        speaks_tools = turn.engine in MCP_ENGINES and _has_mcp()
        added = [("LOOPX_GOAL_ID", turn.goal_id), ("LOOPX_TURN_KEY", turn.turn_key), ("LOOPX_AGENT_ID", turn.agent_id)]
        if token is not None:
            added.append(("LOOPX_TURN_TOKEN", token))
        files = self._files(turn)
        added.append(("LOOPX_RESULT_FILE", files.result))
        if turn.purpose is TurnPurpose.REPLAN:
            added.append(("LOOPX_REPLAN_FILE", files.replan))
        if definition.model is not None:
            added.append(("LOOPX_MODEL", definition.model))
        env = tuple(_with_own_programs(self._env).items())
        allowed = allowance.of_turn(self._store, turn.turn_key) if definition.budgets else {}
        return HostSetup(
            engine=turn.engine,
            workdir=self._work.tree.root,
            spools=self._project.spools,
            files=files,
            definition=definition,
            prompt=prompt.build(self._context(turn, speaks_tools)),
            env=env,
            added_env=tuple(added),
            allow_commands=tuple(
                check.command if isinstance(check.command, str) else " ".join(check.command)
                for check in visible_checks(self._work.contract)
            ),
            mcp=_mcp_server(self._project, token) if speaks_tools and token else None,
            # What only a launch needs is not asked for by a turn that may have a host already.
            program=self._program_of(turn.engine) if token is not None else None,
            resume_session=self._session_to_resume(turn, env) if token is not None else None,
            deadlines=Deadlines(hard_s=self._host_seconds(definition.turn_timeout_s, allowed)),
            allowance=allowed,
        )

    def _files(self, turn: Turn) -> agent_files.AgentFiles:
        return agent_files.of_turn(self._project.state_dir, turn.turn_key)

    def _session_to_resume(self, turn: Turn, env: tuple[tuple[str, str], ...]) -> str | None:
        with self._store.read() as tx:
            return sessions.to_resume(tx, turn, env)

    def _context(self, turn: Turn, speaks_tools: bool) -> prompt.PromptContext:
        goal = self._work.goal
        with self._store.read() as tx:
            todo = todos.get(tx, turn.todo_id) if turn.todo_id is not None else None
            previous = turns.last_of_todo(tx, turn.todo_id) if turn.todo_id is not None else None
            previous = previous or turns.last_of_goal(tx, turn.goal_id)
            failure = last_failure.text(tx, previous)
            answers = (*_answers(tx, turn.goal_id), *capabilities.outcomes(tx, turn.goal_id))
            open_todos = todos.unended(tx, turn.goal_id, 20) if turn.purpose is TurnPurpose.REPLAN else ()
        result = previous.result if previous is not None else None
        return prompt.PromptContext(
            purpose=turn.purpose,
            objective=goal.definition.objective,
            todo_title=todo.title if todo is not None and todo.reason != GOAL_ITSELF else None,
            todo_body=todo.body if todo is not None else "",
            checks=tuple(
                (check.name, check.command if isinstance(check.command, str) else " ".join(check.command))
                for check in visible_checks(self._work.contract)
            ),
            failure=failure,
            recurring=result.recurring if result is not None else False,
            restored=result.restore.paths if result is not None and result.restore is not None else (),
            protected=self._protected_names(turn),
            write_scope=goal.definition.boundary.write_scope,
            answers=answers,
            open_todos=tuple((one.todo_id, one.title) for one in open_todos),
            speaks_tools=speaks_tools,
        )

    def _protected_names(self, turn: Turn) -> tuple[str, ...]:
        with self._store.read() as tx:
            base_tree = goals.row_of(tx, turn.goal_id)["base_tree"]
        if base_tree is None or turn.state is not TurnState.OPEN or turn.completed:
            return ()
        return guarding.protected_names(self._work.tree, self._work.contract, str(base_tree))

    def known(self, journal: TurnJournal) -> JudgedGoal:
        """What the judge of this turn knows before it looks. Raises UsageError (`baseline_missing`)."""
        turn, store = journal.turn, self._store
        baseline = goal_work.baseline_of(store, turn.goal_id)
        reference = goal_work.reference_of(store, turn.goal_id)
        if baseline is None or reference is None:
            raise UsageError(
                "baseline_missing", f"goal {turn.goal_id} has no baseline", hint=f"loopx run {turn.goal_id}"
            )
        with store.read() as tx:
            row = goals.row_of(tx, turn.goal_id)
            todo = todos.get(tx, turn.todo_id) if turn.todo_id is not None else None
            others = tx.number("todos.any_unended_but", goal_id=turn.goal_id, todo_id=turn.todo_id or "")
            claims = tuple(load(found["body"], Claim) for found in tx.all("turns.claims", turn_key=turn.turn_key))
            previous = turns.last_of_goal(tx, turn.goal_id)
            accepted = load(row["accepted"], dict[str, str | None]) if row["accepted"] else {}
            successors = _existing(tx, turn.goal_id, claims)
            noted = bool(evidence.of_turn(tx, turn.turn_key)) or _added_todos(tx, turn)
            answered = _overlooked(tx, turn.goal_id)
            replan = turn.purpose is TurnPurpose.REPLAN
            delta = replanning.read(tx, turn.goal_id, self._files(turn).replan) if replan else None
            asks = delta is not None and self._work.goal.definition.replan_preview
            preview = replanning.preview(tx, delta) if asks and delta is not None else None
            limit_streak = turns.limits_in_a_row(tx, turn)
            last_run = hosts.last_of_turn(tx, previous.turn_key) if previous is not None else None
        last = previous.result if previous is not None else None
        return JudgedGoal(
            goal=self._work.goal,
            contract=self._work.contract,
            todo=todo,
            goal_itself=todo is None or todo.reason == GOAL_ITSELF,
            others_open=bool(others),
            baseline=baseline,
            reference=reference,
            base_tree=self._work.tree.with_accepted(str(row["base_tree"]), accepted),
            last_checkpoint=row["last_checkpoint"],
            last_signatures=last.signatures if last is not None else (),
            failure_streak=row["failure_streak"],
            host_failure_streak=row["host_failure_streak"],
            limit_streak=limit_streak,
            last_end_kind=last_run.end_kind if last_run is not None and last_run.engine == turn.engine else None,
            claims=claims,
            noted=noted,
            answered=answered,
            delta=delta,
            preview=preview,
            existing_successors=successors,
        )


def _has_mcp() -> bool:
    import importlib.util

    return importlib.util.find_spec("mcp") is not None and importlib.util.find_spec("loopx.mcp_server") is not None


def _mcp_server(project: Project, token: str) -> McpServer:
    return McpServer(
        name="loopx",
        argv=(sys.executable, "-P", "-m", "loopx", "mcp", "--project", project.root),
        env=(
            ("LOOPX_TURN_TOKEN", token),
            ("LOOPX_DATABASE_URL", project.database),
            ("LOOPX_STATE_DIR", os.path.dirname(os.path.dirname(project.state_dir))),
        ),
    )


def _with_own_programs(env: dict[str, str]) -> dict[str, str]:
    """The environment with `loopx` itself at the end of PATH, so that agents without tools can use its verbs."""
    own = os.path.dirname(sys.executable)
    path = env.get("PATH", os.defpath)
    return {**env, "PATH": path if own in path.split(os.pathsep) else f"{path}{os.pathsep}{own}"}


def token_hash(token: str) -> str:
    """What the store keeps of a turn's token."""
    return hashlib.sha256(token.encode()).hexdigest()


def _told(tx: Tx, goal_id: str) -> tuple[Gate, ...]:
    """The answers that a turn's prompt tells of."""
    gates = tuple(gate_rows.from_row(row) for row in tx.all("gates.last_answered", goal_id=goal_id, limit=3))
    return tuple(gate for gate in gates if gate.answer and gate.kind not in _NOT_FOR_AGENTS)


def _answers(tx: Tx, goal_id: str) -> tuple[str, ...]:
    return tuple(f"{gate.question[:80]} -> {gate.answer}" for gate in _told(tx, goal_id))


def _overlooked(tx: Tx, goal_id: str) -> frozenset[str]:
    """Questions whose answers the prompt tells: to ask one again is no new question.

    Except under a standing answer, which goes on record each time that it answers, and may be revoked.
    """
    return frozenset(gate.question for gate in _told(tx, goal_id) if not gate_rows.ever_granted(tx, gate))


def _added_todos(tx: Tx, turn: Turn) -> bool:
    """Whether todos came up during the turn, besides the one that LoopX makes for the goal itself."""
    return any(
        todo.created_at_ms >= turn.started_at_ms and todo.reason != GOAL_ITSELF
        for todo in todos.unended(tx, turn.goal_id, 100)
    )


def _existing(tx: Tx, goal_id: str, claims: tuple[Claim, ...]) -> tuple[str, ...]:
    """The successors that the agent declares and that exist; a name that does not exist voids the declaration."""
    wanted = [one for claim in claims if claim.kind is ClaimKind.COMPLETION for one in claim.successors]
    found = [one for one in wanted if tx.one("todos.exists_in_goal", todo_id=one, goal_id=goal_id) is not None]
    return tuple(found) if len(found) == len(wanted) else ()


def goal_todo(store: Store, work: GoalWork, todo_id: TodoId | None = None) -> Todo:
    """The todo that stands for the goal itself."""
    return Todo(
        todo_id=todo_id or TodoId(store.ids.new("td")),
        goal_id=work.goal_id,
        title=work.goal.definition.objective,
        reason=GOAL_ITSELF,
        created_at_ms=store.now_ms(),
    )
