"""Any program as an engine: `command:WORDS`. The prompt comes on standard input (and in a file), the work tree is its
folder, and it may leave a typed result. Success is exit 0; nothing is read out of what it prints, and its usage is
unknown unless its result file claims it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from loopx.control_plane.errors import UsageError
from loopx.hosts import ends, jsonline, launch, result_file
from loopx.hosts import env as envs
from loopx.hosts.protocol import (
    Executable,
    ExitRecord,
    HostEnd,
    HostEndKind,
    HostEvent,
    LaunchPlan,
    LaunchRequest,
    ProbeResult,
    SignedIn,
    StreamSummary,
)
from loopx.hosts.result_file import ResultFileKind, ResultRead
from loopx.hosts.stream import NOTHING, Fold

NAME = "command"
SUMMARY_CAP = 4096
_PROMPT_FILE = "prompt.txt"

FIXES = {
    "not_started": "check the words after `command:`",
    "contract_rejected": "write the result file as the reference says, with this turn's LOOPX_TURN_KEY",
}


class CommandAdapter:
    """The engine word `command:WORDS`; the words are split once, as a POSIX shell splits them, and never run by one."""

    def __init__(self, words: str) -> None:
        try:
            self._argv = tuple(shlex.split(words))
        except ValueError as problem:
            raise _bad_words(words, str(problem)) from None
        if not self._argv:
            raise _bad_words(words, "no program is named")

    @property
    def name(self) -> str:
        """The engine word's first part."""
        return NAME

    @property
    def argv(self) -> tuple[str, ...]:
        """The words."""
        return self._argv

    def probe(self, env: Sequence[tuple[str, str]], pinned: str | None = None) -> ProbeResult:
        """Whether the program exists. It is not run: nobody knows what it would do. A sign-in is not ours to know."""
        wanted = pinned or self._argv[0]
        found = _resolve(wanted, env)
        return ProbeResult(
            engine=NAME,
            executable=Executable.READY if found else Executable.MISSING,
            signed_in=SignedIn.UNKNOWN,
            program=found,
            tried=(wanted,),
            fix="" if found else FIXES["not_started"],
        )

    def plan(self, request: LaunchRequest, base_env: Sequence[tuple[str, str]]) -> LaunchPlan:
        """The words, with the turn's identity in the environment. A missing program shows as a failed start."""
        prompt_file = launch.spool_file(request, _PROMPT_FILE)
        first = request.pinned_program or self._argv[0]
        files = (("LOOPX_RESULT_FILE", result_path(request)), ("LOOPX_PROMPT_FILE", prompt_file))
        return launch.build(
            [first, *self._argv[1:], *request.extra_args],
            request,
            base_env,
            added_env=files,
            files=[(prompt_file, request.prompt.encode("utf-8", "replace"))],
        )

    def parser(self, request: LaunchRequest, now_ms: int) -> CommandParser:
        """A parser for one run; its `finish` reads the result file."""
        return CommandParser(request, now_ms)

    def classify(self, exit_record: ExitRecord, summary: StreamSummary, tree_changed: bool) -> HostEnd:
        """Exit 0 is success; a refused result file is `contract_rejected` with the reason as code."""
        summary = _with_exit(summary, exit_record)
        return ends.classify(exit_record, summary, tree_changed, fixes=FIXES)


def result_path(request: LaunchRequest) -> str:
    """Where this run's typed result is looked for: LOOPX_RESULT_FILE of the request, else the spool folder."""
    return envs.lookup(request.env, "LOOPX_RESULT_FILE") or launch.spool_file(request, "result.json")


class CommandParser:
    """Keeps the last line that says something; reads no meaning into any of it."""

    def __init__(self, request: LaunchRequest, now_ms: int) -> None:
        self._fold = Fold(request, now_ms)
        self._last_line = ""
        self._read: ResultRead | None = None

    @property
    def result(self) -> ResultRead | None:
        """What the result file held, after `finish`."""
        return self._read

    def feed(self, line: bytes) -> Sequence[HostEvent]:
        """A message for each line with text; never raises."""
        text = jsonline.clip(line[: 4 * SUMMARY_CAP].decode("utf-8", "replace").strip(), SUMMARY_CAP)
        if not text:
            return NOTHING
        self._last_line = text
        return self._fold.message(text)

    def finish(self, stderr_tail: bytes) -> StreamSummary:
        """The summary: the last line, or the result file's own words, which are also the run's only tool use."""
        fold = self._fold
        fold.final_text = self._last_line
        self._read = result_file.read(result_path(fold.request), fold.request.turn_key)
        if self._read.reject is not None:
            fold.failed(self._read.detail, kind=HostEndKind.CONTRACT_REJECTED, code=self._read.reject.value)
        elif self._read.result is not None:
            self._typed(self._read.result)
        if not fold.error_text:
            fold.error_text = ends.last_error_line(stderr_tail)
        return fold.summary()

    def _typed(self, result: result_file.TypedResult) -> None:
        fold = self._fold
        fold.used(result_file.usage_of(result))
        fold.final_text = result.summary or fold.final_text
        fold.tool_calls += 1
        if result.kind is ResultFileKind.ERROR:
            fold.failed(result.summary, kind=HostEndKind.WORKER_ERROR, code="result_error")


def _with_exit(summary: StreamSummary, record: ExitRecord) -> StreamSummary:
    """Its exit is a program's terminal event."""
    import msgspec

    return msgspec.structs.replace(summary, terminal_seen=record.exit_code is not None)


def _resolve(wanted: str, env: Sequence[tuple[str, str]]) -> str | None:
    if "/" in wanted:
        return wanted if launch.executable(wanted) else None
    found = launch.programs_on_path(wanted, env)
    return found[0] if found else None


def _bad_words(words: str, problem: str) -> UsageError:
    return UsageError(
        "bad_engine_command",
        f"The engine word command:{words} cannot be split into words: {problem}.",
        hint="Write it as a shell would read it, e.g. command:'python3 agent.py --fast'.",
    )
