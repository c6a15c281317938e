"""The names and the writing of the small record files in a spool folder, for both LoopX and the keeper process.

Light standard modules only: the JSON writer here exists because the standard one costs the keeper half of its start-up.
It never reads a record; readers decode them with types.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Json = Mapping[str, "Json"] | Sequence["Json"] | str | int | float | bool | None

LAUNCH = "launch.json"
"""The intent: what will run, written and made durable before anything starts."""
HOST = "host.json"
"""Who runs: the identities of keeper and host, written before the host's program is entered."""
EXIT = "exit.json"
"""The last word, atomic and durable."""
RESERVE = "exit.json.new"
"""Space set aside at the start, so that the last word can be written on a full disk."""
LOCK = "keeper.lock"
"""Locked by the keeper (before it: by its launcher) for as long as it lives."""
CANCEL = "cancel"
"""Its existence is the request to end the host."""
DELIVERED = "delivered"
"""Its existence says that a prompt too big for one pipe was read to its end."""
LOG = "keeper.log"
"""Written only if the keeper itself fails."""

RESERVE_BYTES = 4096
_SUFFIX = {"stdout": ".jsonl", "stderr": ".log"}


def fifo_name(stream: str) -> str:
    """The named pipe that is the host's `stdout` or `stderr`."""
    return f"{stream}.fifo"


def segment_name(stream: str, start: int) -> str:
    """The file that holds a stream from byte `start` on: `stdout.jsonl`, then `stdout.000000008388608.jsonl`."""
    return f"{stream}{_SUFFIX[stream]}" if start == 0 else f"{stream}.{start:015d}{_SUFFIX[stream]}"


def segments(folder: str, stream: str) -> list[tuple[int, str]]:
    """(first byte, path) of each file that still exists of a stream, in order. A missing folder has none."""
    prefix, suffix = f"{stream}.", _SUFFIX[stream]
    found: list[tuple[int, str]] = []
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names:
        if name == stream + suffix:
            found.append((0, os.path.join(folder, name)))
        elif name.startswith(prefix) and name.endswith(suffix) and name[len(prefix) : -len(suffix)].isdigit():
            found.append((int(name[len(prefix) : -len(suffix)]), os.path.join(folder, name)))
    return sorted(found)


def encode(value: Json) -> bytes:
    """JSON, ASCII only."""
    return _text(value).encode("ascii")


def write_atomic(folder: str, name: str, data: bytes, *, durable: bool) -> None:
    """Replaces a record as a whole; `durable` makes it survive a power cut (two fsyncs). Raises OSError."""
    scratch = os.path.join(folder, f"{name}.{os.getpid()}.tmp")
    _fill(scratch, os.O_CREAT | os.O_TRUNC, data, durable=durable)
    os.replace(scratch, os.path.join(folder, name))
    if durable:
        fsync_dir(folder)


def reserve(folder: str) -> None:
    """Sets space aside for the exit record. Raises OSError."""
    _fill(os.path.join(folder, RESERVE), os.O_CREAT, b" " * RESERVE_BYTES, durable=False)


def write_exit(folder: str, data: bytes) -> None:
    """Writes the exit record into the space set aside and puts it in place, durably. Raises OSError."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    scratch = os.path.join(folder, RESERVE)
    _fill(scratch, os.O_CREAT, data, durable=True)
    os.replace(scratch, os.path.join(folder, EXIT))
    fsync_dir(folder)


def fsync_dir(folder: str) -> None:
    """Makes the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def touch(folder: str, name: str) -> None:
    """Creates an empty marker file. Raises OSError."""
    os.close(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def remove(folder: str, name: str) -> bool:
    """Removes a file; says whether it was there and went."""
    try:
        os.unlink(os.path.join(folder, name))
    except OSError:
        return False
    return True


def _fill(path: str, flags: int, data: bytes, *, durable: bool) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        os.ftruncate(handle, len(data))
        if durable:
            os.fsync(handle)
    finally:
        os.close(handle)


def _text(value: Json) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return _quoted(value)
    if hasattr(value, "items"):
        return "{" + ",".join(f"{_quoted(key)}:{_text(item)}" for key, item in value.items()) + "}"
    return "[" + ",".join(_text(item) for item in value) + "]"


def _quoted(text: str) -> str:
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(char: str) -> str:
    code = ord(char)
    if char in '"\\':
        return "\\" + char
    if 0x20 <= code < 0x7F:
        return char
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
    # A lone surrogate (an undecodable byte of a path) is not text that a reader would accept.
    return "\\ufffd" if 0xD800 <= code <= 0xDFFF else f"\\u{code:04x}"
