"""`loopx worker`: one process that runs every due goal of its store, each turn in a child process of its own.

It looks at a goal when the instant that was computed for it has come, or when something of the goal changed; between
that it sleeps, and asks the store one cheap question a second: did anybody write? It decides no turn. Asked to end, it
lets its children let go: hosts go on under their keepers and are adopted by whoever comes next, so that stopping or
updating a worker costs no work. Any number of workers may share a store.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

import msgspec

from loopx.control_plane.errors import LoopXError
from loopx.control_plane.ids import AgentId
from loopx.control_plane.ports import Clock
from loopx.runtime import fleet, outbox_sender
from loopx.runtime.fleet import Candidate
from loopx.runtime.project import Project
from loopx.runtime.worker_books import Before, Books, Ended, Failed
from loopx.store.store import Store

POLL_S = 1.0
GRACE_S = 15.0
"""How long children may take to let go before they are killed; their hosts go on all the same."""
CLOCK_JUMP_MS = 30_000
FLUSH_MS = 5_000
"""A sender that was just started has that long before another one is."""
_CHUNK = 1 << 16
_LINE_BYTES = 1 << 20


class WorkerStarted(msgspec.Struct, frozen=True, kw_only=True, tag="worker"):
    """The worker is up."""

    pid: int
    project: str
    agent_id: str
    most: int


class WorkerIdle(msgspec.Struct, frozen=True, kw_only=True, tag="idle"):
    """Nothing is due; the worker sleeps until `until_ms` (None: until something changes)."""

    until_ms: int | None


class RunStarted(msgspec.Struct, frozen=True, kw_only=True, tag="run_started"):
    goal_id: str
    pid: int
    resume: bool


class RunFailed(msgspec.Struct, frozen=True, kw_only=True, tag="run_failed"):
    """A run that came to no result; the goal is tried again at `again_at_ms`."""

    goal_id: str
    code: str
    message: str
    again_at_ms: int


class WorkerSlept(msgspec.Struct, frozen=True, kw_only=True, tag="slept"):
    """The machine slept, or its clock jumped: everything is looked at again."""

    jump_ms: int


class WorkerEnded(msgspec.Struct, frozen=True, kw_only=True, tag="result"):
    """The last word; the goals' own results went before it."""

    goal_id: str | None = None
    disposition: str = "stop"
    result_kind: str | None = None
    turns: int
    spent_slots: int
    checks: tuple[str, ...] = ()
    failure: str | None = None
    exit_code: int = 0
    runs: int
    left_running: int
    """Goals whose turn stays open for the next worker."""


WorkerEvent = WorkerStarted | WorkerIdle | RunStarted | RunFailed | WorkerSlept | WorkerEnded
Tell = Callable[[WorkerEvent | msgspec.Raw], None]
"""Hears the worker's own events, and its children's lines as they are."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """`most` runs at once; with `once` the worker ends when nothing is due."""

    agent_id: AgentId
    most: int
    once: bool = False


class _Child:
    """One running turn."""

    def __init__(self, candidate: Candidate, process: subprocess.Popen[bytes], before: Before) -> None:
        self.candidate = candidate
        self.process = process
        self.before = before
        self.rest = b""
        self.last = b""


class Worker:
    """Runs due goals until it is asked to end."""

    def __init__(
        self,
        store: Store,
        project: Project,
        options: Options,
        tell: Tell,
        env: Mapping[str, str],
        clock: Clock,
    ) -> None:
        self._store = store
        self._project = project
        self._options = options
        self._tell = tell
        self._env = env
        self._clock = clock
        self._books = Books(store, options.agent_id)
        self._children: dict[str, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._stopping = False
        self._idle_told: int | None = -1
        self._mark: object = None
        self._look_at_ms: int | None = 0
        self._looked_ms = 0
        self._flushed_ms = -FLUSH_MS
        self._runs = 0
        self._turns = 0
        self._slots = 0

    def stop(self) -> None:
        """Ask it to end; may be called from a signal handler."""
        self._stopping = True

    def run(self) -> WorkerEnded:
        """Work until asked to end, or with `once` until nothing is due."""
        self._tell(
            WorkerStarted(
                pid=os.getpid(),
                project=self._project.root,
                agent_id=self._options.agent_id,
                most=self._options.most,
            )
        )
        with self._signals():
            wall, steady = self._store.now_ms(), self._clock.monotonic_ms()
            while not self._stopping:
                self.step()
                if self._options.once and not self._children and self._look_at_ms is None:
                    break
                self._wait()
                wall, steady = self._heed_jump(wall, steady)
            left = self._let_go()
        ended = WorkerEnded(turns=self._turns, spent_slots=self._slots, runs=self._runs, left_running=left)
        self._tell(ended)
        return ended

    # -- one step --------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Take in what ended, start what is due and has room, and have sent what is due."""
        self._reap()
        if not self._must_look():
            return
        # The mark is read before the look, so that what is written meanwhile is seen by the next one.
        self._mark, self._looked_ms = self._change_mark(), self._clock.monotonic_ms()
        if len(self._children) < self._options.most:
            self._start_due()
        else:
            # Without room nothing is looked at; a child's end is what comes next.
            self._look_at_ms = None
        self._flush()

    def _must_look(self) -> bool:
        """Something is due, or somebody wrote; however much is written, once a second is enough."""
        if self._look_at_ms is not None and self._store.now_ms() >= self._look_at_ms:
            return True
        rested = self._clock.monotonic_ms() - self._looked_ms >= POLL_S * 1000
        return rested and self._change_mark() != self._mark

    def _flush(self) -> None:
        now = self._clock.monotonic_ms()
        if now - self._flushed_ms >= FLUSH_MS and outbox_sender.flush(self._store, self._project, self._env):
            self._flushed_ms = now

    def _change_mark(self) -> object:
        """Something that differs once another process wrote; asking costs next to nothing."""
        return self._store.connection.pragma("data_version")

    def _start_due(self) -> None:
        running = {goal_id: child.candidate.tree_key for goal_id, child in self._children.items()}
        looked = self._books.look(running)
        chosen = fleet.choose(looked.candidates, running, looked.busy_trees, self._options.most)
        for candidate in chosen:
            self._start(candidate)
        # What waits only for room is looked at when a child ends; `once` is over when nothing but waiting is left.
        self._look_at_ms = None if self._options.once else looked.next_at_ms
        self._tell_idle()

    def _tell_idle(self) -> None:
        if self._children or self._idle_told == self._look_at_ms:
            return
        self._idle_told = self._look_at_ms
        self._tell(WorkerIdle(until_ms=self._look_at_ms))

    # -- children --------------------------------------------------------------------------------------------------

    def _start(self, candidate: Candidate) -> None:
        words = [sys.executable, "-m", "loopx.runtime.worker_run", "--project", self._project.root]
        words += ["--database", self._store.path, "--agent", self._options.agent_id, candidate.goal_id]
        before = self._books.before(candidate.goal_id)
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=dict(self._env),
            cwd=self._project.root,
            start_new_session=True,
        )
        child = _Child(candidate, process, before)
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, child)
        self._children[candidate.goal_id] = child
        self._runs += 1
        self._idle_told = -1
        self._tell(RunStarted(goal_id=candidate.goal_id, pid=process.pid, resume=candidate.resume))

    def _reap(self) -> None:
        for goal_id, child in list(self._children.items()):
            if child.process.poll() is not None:
                self._hear(child)
                self._close(child)
                del self._children[goal_id]
                self._settle(child)
                self._look_at_ms = 0

    def _hear(self, child: _Child) -> bool:
        """Pass on the child's whole lines, the last of which says how the run ended; False at the stream's end."""
        assert child.process.stdout is not None
        while True:
            try:
                data = os.read(child.process.stdout.fileno(), _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            *lines, child.rest = (child.rest + data).split(b"\n")
            child.rest = child.rest[:_LINE_BYTES]
            for line in lines:
                child.last = line
                self._tell(msgspec.Raw(line))

    def _close(self, child: _Child) -> None:
        if child.process.stdout is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(child.process.stdout)
            child.process.stdout.close()

    def _settle(self, child: _Child) -> None:
        """See to it that the goal has a wake, whatever its run came to."""
        ended = Ended.of(child.last)
        goal_id = child.candidate.goal_id
        self._turns += ended.turns
        try:
            failed = self._books.settle(goal_id, ended, child.process.returncode, child.before)
            self._slots += self._books.slots_since(goal_id, child.before)
        except LoopXError as error:
            # The store can't be written just now; the goal is still due, and is looked at again with the next change.
            failed = Failed(code=error.code, message=error.message, again_at_ms=self._store.now_ms())
        if failed is not None:
            again = failed.again_at_ms
            self._tell(RunFailed(goal_id=goal_id, code=failed.code, message=failed.message, again_at_ms=again))

    def _let_go(self) -> int:
        """End the children; their turns stay open, and their hosts go on."""
        for child in self._children.values():
            child.process.terminate()
        until = self._clock.monotonic_ms() + round(GRACE_S * 1000)
        for child in self._children.values():
            left = max(0.0, (until - self._clock.monotonic_ms()) / 1000)
            try:
                child.process.wait(left)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            self._hear(child)
            self._close(child)
        left_running = sum(1 for child in self._children.values() if self._books.has_open_turn(child.candidate.goal_id))
        self._children.clear()
        return left_running

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Sleep until a child speaks or ends, a signal comes, the next goal is due, or a second has passed."""
        timeout = POLL_S
        if self._look_at_ms is not None:
            timeout = min(timeout, max(0.0, (self._look_at_ms - self._store.now_ms()) / 1000))
        for key, _ in self._selector.select(timeout):
            if not isinstance(key.data, _Child):
                with contextlib.suppress(BlockingIOError):
                    os.read(key.fd, _CHUNK)
            elif not self._hear(key.data):
                self._selector.unregister(key.fileobj)

    def _heed_jump(self, wall: int, steady: int) -> tuple[int, int]:
        now, mono = self._store.now_ms(), self._clock.monotonic_ms()
        jump = (now - wall) - (mono - steady)
        if abs(jump) > CLOCK_JUMP_MS:
            self._tell(WorkerSlept(jump_ms=jump))
            self._books.record_sleep(tuple(self._children), jump)
            self._look_at_ms = 0
        return now, mono

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT ask to end; a child's end wakes the sleeper."""
        reading, writing = socket.socketpair()
        for end in (reading, writing):
            end.setblocking(False)
        self._selector.register(reading, selectors.EVENT_READ)
        before_fd = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        names = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
        before = {number: signal.getsignal(number) for number in names}
        for number in names:
            signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(before_fd)
            self._selector.close()
            reading.close()
            writing.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self.stop()


def default_most() -> int:
    """As many runs at once as there are cores."""
    return max(1, os.cpu_count() or 1)
