"""Starts the host for the keeper: named pipes for its output, the prompt on its input, a gate before its program.

Runs inside the keeper process, so it imports light modules only. The child process exists, but waits at the gate, until
the keeper has recorded who it is; if the keeper dies before opening the gate, the child ends and has run nothing.

Standard output and error are named pipes that the host itself holds open at both ends. So a host whose keeper is killed
gets no broken pipe: it goes on, at worst waits when the pipe is full, and the next keeper reads on from there.
"""

from __future__ import annotations

import errno
import fcntl
import os

from loopx.hosts import keeper_records as records

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping, Sequence
    from typing import NoReturn
else:
    import _signal as signal

_PIPE_BYTES = 1 << 20
"""As much as an unprivileged process may ask for. A prompt that fits is delivered before the host starts; output that
fits outlives a host that exits without waiting for its reader, and a keeper that dies."""


class Order:
    """What the launcher asked for, as it came through the pipe."""

    __slots__ = (
        "argv", "boot_id", "cwd", "deadlines", "delivered", "env", "found", "grace_s", "launch_json", "limits",
        "markers", "run_id", "spool", "started_at_ms", "started_mono", "takeovers", "turn_key",
    )  # fmt: skip

    def __init__(
        self,
        *,
        spool: str,
        run_id: str,
        turn_key: str,
        boot_id: str,
        launch_json: bytes,
        deadlines: Mapping[str, float],
        grace_s: float,
        limits: Mapping[str, float],
        markers: Sequence[bytes],
        cwd: bytes,
        argv: Sequence[bytes] = (),
        env: Mapping[bytes, bytes] | None = None,
        found: tuple[int, int, int] | None = None,
        started_at_ms: int = 0,
        started_mono: float = 0.0,
        delivered: bool = False,
        takeovers: int = 0,
    ) -> None:
        self.spool = spool
        self.run_id = run_id
        self.turn_key = turn_key
        self.boot_id = boot_id
        self.launch_json = launch_json
        self.deadlines = deadlines
        self.grace_s = grace_s
        self.limits = limits
        self.markers = markers
        self.argv = argv
        self.cwd = cwd
        self.env = env or {}
        self.found = found
        """pid, start ticks and group of a host that an earlier keeper started; None to start one."""
        self.started_at_ms = started_at_ms
        self.started_mono = started_mono
        self.delivered = delivered
        self.takeovers = takeovers


class Prompt:
    """The prompt on its way into the host's standard input, which is closed behind it."""

    def __init__(self, text: bytearray) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.write_end, False)
        self._text = text
        self._rest = memoryview(text)
        if len(text) > 65536:
            _widen(self.write_end)
        self.push()

    @property
    def delivered(self) -> bool:
        """Everything was written and the pipe is closed."""
        return self.write_end < 0

    def push(self) -> None:
        """Writes as much as the pipe takes now."""
        try:
            while self._rest:
                self._rest = self._rest[os.write(self.write_end, self._rest[:65536]) :]
        except BlockingIOError:
            return
        os.close(self.write_end)
        self.write_end = -1
        self._rest.release()
        self._text.clear()

    def unread(self) -> int | None:
        """Bytes of the prompt that the host has not read, or None where the kernel does not tell."""
        import termios

        try:
            waiting = fcntl.ioctl(self.read_end, termios.FIONREAD, b"\0\0\0\0")
        except OSError:
            return None
        return int.from_bytes(waiting, "little") + (0 if self.delivered else len(self._rest))


def _widen(pipe: int) -> bool:
    """Asks for a bigger pipe; one that stays small is no fault."""
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except (AttributeError, OSError):
        return False
    return True


def open_output(folder: str, stream: str) -> tuple[int, int]:
    """Makes the named pipe of a stream: (the keeper's reading end, the host's end). Raises OSError.

    Where the file system has no named pipes, an ordinary pipe serves; then a host does not outlive its keeper's death.
    """
    path = os.path.join(folder, records.fifo_name(stream))
    try:
        os.mkfifo(path, 0o600)
    except FileExistsError:
        pass
    except OSError:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        _widen(reading)
        return reading, writing
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    _widen(reading)
    return reading, os.open(path, os.O_RDWR | os.O_CLOEXEC)


def reopen_output(folder: str, stream: str, pid: int | None) -> int | None:
    """The reading end of a host's pipe: by name, or by the host's own handle if the name was deleted.

    `pid` is None once the host is gone: the pid is somebody else's then, and so are its handles.
    """
    number = {"stdout": 1, "stderr": 2}[stream]
    paths = [os.path.join(folder, records.fifo_name(stream))]
    for path in paths if pid is None else [*paths, f"/proc/{pid}/fd/{number}"]:
        try:
            return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
    return None


class Gate:
    """A forked child that waits to become the host."""

    def __init__(self, order: Order, stdin: int, stdout: int, stderr: int) -> None:
        waiting, self._opener = os.pipe()
        self._report, failing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._opener)
            _become(order, waiting, failing, (stdin, stdout, stderr))
        for handle in (waiting, failing):
            os.close(handle)

    def open(self) -> str | None:
        """Lets the child enter the program; None when it is in, else `stage:ERRNO`, for instance `exec:ENOENT`."""
        os.write(self._opener, b"1")
        os.close(self._opener)
        error = os.read(self._report, 200).decode("ascii", "replace")
        os.close(self._report)
        return error or None


def _become(order: Order, waiting: int, failing: int, streams: tuple[int, int, int]) -> NoReturn:
    """In the child, between fork and exec. Leaves by exec or by `_exit`, never by returning."""
    stage = "session"
    try:
        os.setsid()
        if os.read(waiting, 1) != b"1":
            os._exit(127)
        stage = "chdir"
        os.chdir(order.cwd)
        stage = "stdio"
        for number, handle in enumerate(streams):
            os.dup2(handle, number)
        _reset_signals()
        stage = "exec"
        os.execvpe(order.argv[0], list(order.argv), dict(order.env))
    except OSError as error:
        os.write(failing, f"{stage}:{errno.errorcode.get(error.errno or 0, 'UNKNOWN')}".encode())
    except BaseException as error:  # noqa: BLE001  (the child of a fork must never run its parent's code)
        os.write(failing, f"{stage}:{type(error).__name__}".encode())
    os._exit(127)


def _reset_signals() -> None:
    """Handlers end with exec, but what is ignored (by Python, by us, by a `nohup` above us) would stay so."""
    for number in range(1, signal.NSIG):
        if signal.getsignal(number) != signal.SIG_DFL:
            try:
                signal.signal(number, signal.SIG_DFL)
            except OSError:
                continue  # The C library keeps a few for itself.
