"""A small real project for tests of the background services: a git repository, a goal with a check, a scripted agent.

Everything is real: the store, the work tree, the processes. Only the clock may be another one.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from loopx.contracts.model import Contract
from loopx.contracts.parse import parse_command_line
from loopx.control_plane.effect_program import turn_key as make_turn_key
from loopx.control_plane.goal import Goal, GoalDefinition, TreeMode
from loopx.control_plane.ids import AgentId, TodoId
from loopx.control_plane.turn_driver.driver import LoopXTurnRoute
from loopx.control_plane.turn_driver.journal import TurnPurpose
from loopx.control_plane.work_items.todo import Todo
from loopx.runtime import goal_service, goal_work
from loopx.runtime.progress import silent
from loopx.runtime.session import DEFAULT_AGENT, Session, open_session
from loopx.store import events, goals, leases, todos, turns
from loopx.workspace.identity import repository_key

AGENT = AgentId(DEFAULT_AGENT)
WANTED = "done.txt"


class World:
    """One project with its state folder, and the environment in which programs of it run."""

    def __init__(self, folder: Path, monkeypatch_env: dict[str, str]) -> None:
        self.root = folder / "project"
        self.state = folder / "state"
        self.folder = folder
        self.root.mkdir()
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LOOPX_")},
            "LOOPX_STATE_DIR": str(self.state),
            "HOME": str(folder / "home"),
            **monkeypatch_env,
        }
        (folder / "home").mkdir()
        git(self.root, "init", "-q", "-b", "main")
        git(self.root, "config", "user.email", "a@example.org")
        git(self.root, "config", "user.name", "a")
        (self.root / "README").write_text("a project\n")
        self.commit("start")

    def commit(self, message: str) -> None:
        git(self.root, "add", "-A")
        git(self.root, "commit", "-q", "--allow-empty", "-m", message)

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    @contextmanager
    def session(self, **more: object) -> Iterator[Session]:
        """An open session of this process."""
        with environment(LOOPX_STATE_DIR=str(self.state)):
            opened = open_session(str(self.root), create=True, **more)  # type: ignore[arg-type]
            try:
                yield opened
            finally:
                opened.close()

    def loopx(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end."""
        return subprocess.run(
            [sys.executable, "-m", "loopx", *words],
            cwd=self.root,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        """Start the command line; the test ends it. Its errors go to a file, which no grandchild keeps open for us."""
        with (self.folder / "stderr").open("ab") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "loopx", *words],
                cwd=self.root,
                env={**self.env, **env},
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                text=True,
            )

    @property
    def errors(self) -> str:
        """What started commands wrote to standard error."""
        path = self.folder / "stderr"
        return path.read_text() if path.exists() else ""

    def agent(self, script: str, name: str = "agent.py") -> str:
        """An engine word for a Python program outside the work tree; the prompt is on its standard input."""
        path = self.folder / name
        path.write_text(script)
        return f"command:{sys.executable} {path}"


@contextmanager
def environment(**changes: str) -> Iterator[None]:
    """These variables, for the block only."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


def goal(
    session: Session,
    *,
    engine: str = "command:true",
    checks: Sequence[str] = (f"test -f {WANTED}",),
    name: str | None = None,
    objective: str = "make it so",
    worktree: bool = False,
    **more: object,
) -> Goal:
    """A goal that is done when its checks are green (by default: when `done.txt` is there)."""
    contract = Contract(checks=parse_command_line(list(checks)))
    definition = GoalDefinition(
        objective=objective,
        contract=goal_service.encode_contract(contract),
        engines=(engine,),
        tree_mode=TreeMode.WORKTREE if worktree else TreeMode.IN_PLACE,
        **more,  # type: ignore[arg-type]
    )
    key = repository_key(Path(session.project.root))
    if worktree:
        key = f"{key}:{name}"
    return goal_service.create(session.store, session.project, definition, key, goal_id=name)


def take_baseline(session: Session, goal_id: str) -> None:
    """The goal as it is when its first turn starts."""
    work = goal_work.open_goal(session.store, session.project, goal_id)
    goal_work.prepare_tree(session.store, session.project, work)
    goal_work.take_baseline(session.store, work, dict(os.environ), silent, lambda: False, lambda: None)


class OpenTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that is open, its token, and the fence under which it is written."""

    turn_key: str
    goal_id: str
    agent_id: str
    todo_id: str | None
    token: str
    epoch: int


def open_turn(
    session: Session,
    goal_id: str,
    *,
    owner: str = "test/boot/0/0",
    agent: AgentId = AGENT,
    engine: str = "command:true",
) -> OpenTurn:
    """Start a turn and leave it open, as if its host was at work."""
    token = session.store.ids.secret()
    with session.store.write() as tx:
        ready = tx.one("todos.ready", goal_id=goal_id, agent_id=agent)
        row = goals.row_of(tx, goal_id)
        journal, fence = turns.start(
            tx,
            turns.StartTurn(
                turn_key=make_turn_key(row["goal_id"], agent, session.store.ids.secret()),
                goal_id=row["goal_id"],
                agent_id=agent,
                owner=owner,
                revision=row["revision"],
                purpose=TurnPurpose.WORK,
                route=LoopXTurnRoute.READY_FOR_HOST,
                engine=engine,
                todo_id=TodoId(ready["todo_id"]) if ready is not None else None,
                new_todo=None,
                predecessor=None,
                tree_before=None,
                envelope="{}",
                decision="{}",
                token_hash=hashlib.sha256(token.encode()).hexdigest(),
            ),
            session.store.now_ms(),
        )
    turn = journal.turn
    return OpenTurn(
        turn_key=turn.turn_key,
        goal_id=turn.goal_id,
        agent_id=turn.agent_id,
        todo_id=turn.todo_id,
        token=token,
        epoch=fence.epoch,
    )


def close_turn(session: Session, turn: OpenTurn) -> None:
    """End a turn that was opened by `open_turn`, as a stop does."""
    with session.store.write() as tx:
        tx.run(
            "turns.save",
            turn_key=turn.turn_key,
            state="closed",
            result_kind="iteration_failed",
            failed_phase=None,
            closeout="none",
            slots=0,
            checkpoint=None,
            ended_at_ms=session.store.now_ms(),
        )
        tx.run("meters.unreserve", turn_key=turn.turn_key)
        tx.run("leases.release", resource=f"turn:{turn.goal_id}:{turn.agent_id}", epoch=turn.epoch)
        if turn.todo_id is not None:
            todos.release(tx, turn.todo_id, session.store.now_ms())
            claim = leases.get(tx, f"todo:{turn.todo_id}")
            if claim is not None:
                leases.release(tx, claim.resource, claim.epoch)


def add_todo(session: Session, goal_id: str, title: str = "more work", **more: object) -> str:
    todo = Todo(
        todo_id=TodoId(session.store.ids.new("td")),
        goal_id=goal_id,  # type: ignore[arg-type]
        title=title,
        created_at_ms=session.store.now_ms(),
        **more,  # type: ignore[arg-type]
    )
    with session.store.write() as tx:
        todos.insert(tx, todo)
    return todo.todo_id


def event_kinds(session: Session, goal_id: str) -> list[str]:
    with session.store.read() as tx:
        return [row["kind"] for row in tx.all("events.page", goal_id=goal_id, after=0, limit=1000)]


def event_bodies(session: Session, goal_id: str, kind: str) -> list[dict[str, object]]:
    with session.store.read() as tx:
        rows = tx.all("events.page", goal_id=goal_id, after=0, limit=1000)
    return [json.loads(row["body"]) for row in rows if row["kind"] == kind]


def chain_holds(session: Session, goal_id: str) -> bool:
    with session.store.read() as tx:
        return events.broken_link(tx, goal_id) is None
