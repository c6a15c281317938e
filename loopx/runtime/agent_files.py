"""The folder through which a turn's agent hands its typed result over, and what was found in it.

One folder for each turn, `agent/<turn_key>/` in the state folder: it is the only one there that a sandboxed agent may
write, so it is never the spool, where the keeper's records are, nor above it. Nothing in it is trusted further than
its type.
"""

from __future__ import annotations

import contextlib
import os

import msgspec

from loopx.hosts import result_file
from loopx.hosts.command import CommandParser
from loopx.hosts.protocol import HostEndKind, StreamParser, StreamSummary
from loopx.hosts.result_file import ResultFileKind, ResultRead

RESULT_NAME = "result.json"
REPLAN_NAME = "replan.json"


class AgentFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Where one turn's agent leaves its files."""

    folder: str

    @property
    def result(self) -> str:
        """The typed result (LOOPX_RESULT_FILE)."""
        return os.path.join(self.folder, RESULT_NAME)

    @property
    def replan(self) -> str:
        """A replan's delta (LOOPX_REPLAN_FILE)."""
        return os.path.join(self.folder, REPLAN_NAME)

    def prepare(self) -> None:
        """Make the folder, and forget what an earlier attempt left: each launch speaks for itself. Raises OSError."""
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        for path in (self.result, self.replan):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def of_turn(state_dir: str, turn_key: str) -> AgentFiles:
    """The files of one turn."""
    return AgentFiles(folder=os.path.join(state_dir, "agent", turn_key))


def read_result(parser: StreamParser, path: str, turn_key: str) -> ResultRead:
    """The turn's typed result, read once: by the engine's own parser where it does, else here. Never raises."""
    if isinstance(parser, CommandParser):
        return parser.result or ResultRead()
    return result_file.read(path, turn_key)


def with_result(parser: StreamParser, summary: StreamSummary, read: ResultRead) -> StreamSummary:
    """The stream's summary, told what the file says. What the host said of its own end comes first."""
    if isinstance(parser, CommandParser) or summary.is_error or summary.error_kind is not None:
        return summary
    if read.reject is not None:
        return msgspec.structs.replace(
            summary,
            is_error=True,
            error_kind=HostEndKind.CONTRACT_REJECTED,
            error_code=read.reject.value,
            error_text=read.detail,
        )
    if read.result is not None and read.result.kind is ResultFileKind.ERROR:
        return msgspec.structs.replace(
            summary,
            is_error=True,
            error_kind=HostEndKind.WORKER_ERROR,
            error_code="result_error",
            error_text=read.result.summary,
        )
    return summary
