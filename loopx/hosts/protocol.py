"""The one seam between LoopX and an agent CLI: how it is launched, what its stream says, and how it ended.

Values and Protocols only. An adapter (one file per CLI) turns a `LaunchRequest` into a `LaunchPlan`, its raw lines
into `HostEvent`s and its end into a `HostEnd`; the keeper (`supervise.py`) runs a `LaunchPlan` and writes an
`ExitRecord`. Nothing here starts a process, and nothing here branches on prose.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

import msgspec


class HostEventKind(enum.StrEnum):
    """The common vocabulary of every host's stream (unknown host events are ignored)."""

    SESSION = "session"
    MESSAGE = "message"
    TOOL_CALL = "tool_call"
    FILE_CHANGE = "file_change"
    USAGE = "usage"
    LIMIT = "limit"
    RESULT = "result"
    ERROR = "error"


class HostEndKind(enum.StrEnum):
    """Why one host run ended; decided from typed fields first, a phrase table for the final error line last."""

    SUCCESS = "success"
    NO_OP = "no_op"
    """It ended by itself without an error, but no tool was used and the tree did not change."""
    AUTH_FAILED = "auth_failed"
    RATE_LIMITED = "rate_limited"
    QUOTA_EXHAUSTED = "quota_exhausted"
    PROVIDER_OVERLOADED = "provider_overloaded"
    PROVIDER_CAPACITY = "provider_capacity"
    TRANSPORT_LOST = "transport_lost"
    EXECUTOR_TIMEOUT = "executor_timeout"
    OUTPUT_BUDGET_EXHAUSTED = "output_budget_exhausted"
    SESSION_MISSING = "session_missing"
    CONTRACT_REJECTED = "contract_rejected"
    PERMISSION_DENIED = "permission_denied"
    NOT_STARTED = "not_started"
    """No binary, not executable, or the whole prompt was never delivered."""
    CANCELLED = "cancelled"
    WORKER_ERROR = "worker_error"
    """The host ran and reported an error of its own that none of the kinds above names."""
    UNKNOWN = "unknown"


class ProcessEnd(enum.StrEnum):
    """How the worker ended, as the loop's classification reads it (contracts, section 8)."""

    CLEAN = "clean"
    DIED = "died"
    WORKER_ERROR = "worker_error"


class RetryPolicy(enum.StrEnum):
    """What a caller may do about an end: it is data about the end, not a decision."""

    NONE = "none"
    BACKOFF = "backoff"
    AT_RESET = "at_reset"
    FRESH_SESSION = "fresh_session"
    AFTER_PERSON = "after_person"


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one host run. None is unknown and never zero; `cost_microusd` is micro-dollars.

    `cached_input_tokens` is the part of `input_tokens` that was read from a cache; `reasoning_tokens` is the part of
    `output_tokens` that was thought and not said.
    """

    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_microusd: int | None = None


class HostEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a host's stream in the common vocabulary. `text` is untrusted and capped by the reader."""

    kind: HostEventKind
    text: str = ""
    session_id: str | None = None
    tool: str | None = None
    paths: tuple[str, ...] = ()
    usage: Usage | None = None
    running_total: bool = False
    """The counters are the session's, not the run's."""
    reset_at_ms: int | None = None
    error: HostEndKind | None = None
    fatal: bool = False
    denied: bool = False
    """A tool call that the host refused for want of permission."""


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, enforced by the keeper on the monotonic clock."""

    first_event_s: float = 180.0
    idle_s: float = 900.0
    after_result_s: float = 20.0
    hard_s: float = 3600.0
    grace_s: float = 5.0
    """Between TERM and KILL to the process group."""


class PermissionMode(enum.StrEnum):
    """What the host may do without asking; `bypass` only when the goal says so."""

    READ_ONLY = "read_only"
    WORKSPACE = "workspace"
    BYPASS = "bypass"


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """LoopX's own tool server, handed to hosts that speak MCP."""

    name: str
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()


class LaunchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One bounded attempt, before it is bound to a CLI."""

    run_id: str
    turn_key: str
    goal_id: str
    workdir: str
    spool_dir: str
    prompt: str
    model: str | None = None
    permission: PermissionMode = PermissionMode.WORKSPACE
    resume_session: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    """Variables added for this run: LOOPX_GOAL_ID, LOOPX_TURN_KEY, LOOPX_RESULT_FILE, LOOPX_TURN_TOKEN, ..."""
    mcp: McpServer | None = None
    deadlines: Deadlines = Deadlines()
    pinned_program: str | None = None
    extra_args: tuple[str, ...] = ()
    """Words for this engine that the goal adds, put behind LoopX's own options."""
    allow_commands: tuple[str, ...] = ()
    """Shell commands (the goal's checks) that a host with an allow list may run beside its usual ones."""


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the keeper runs. The prompt goes to standard input, which is then closed.

    `result_markers`: byte strings; the first raw line that contains one of them is the host's terminal event, and
    starts the after-result deadline.
    """

    argv: tuple[str, ...]
    cwd: str
    env: tuple[tuple[str, str], ...]
    """The whole environment, not an addition."""
    stdin: bytes
    deadlines: Deadlines
    result_markers: tuple[bytes, ...] = ()
    files: tuple[tuple[str, bytes], ...] = ()
    """Files that are written before the start (absolute paths inside the spool folder)."""


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which process this really is: a pid alone is recycled, so boot id and start time must match too."""

    boot_id: str
    pid: int
    start_ticks: int
    pgid: int


class StopCause(enum.StrEnum):
    """Why the keeper ended the host itself, when it did."""

    NONE = "none"
    FIRST_EVENT = "first_event"
    IDLE = "idle"
    AFTER_RESULT = "after_result"
    HARD = "hard"
    CANCELLED = "cancelled"
    OUTPUT_FLOOD = "output_flood"
    DISK_FLOOR = "disk_floor"


class ExitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The keeper's atomic last word about one host run (`exit.json` in the spool folder)."""

    run_id: str
    turn_key: str
    started_at_ms: int
    ended_at_ms: int
    handed_over: bool
    """The process started and the whole prompt was delivered."""
    exit_code: int | None
    signal: int | None
    stop: StopCause
    result_seen: bool
    first_event_ms: int | None = None
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    truncated_lines: int = 0
    survivors: tuple[int, ...] = ()
    """Pids of this run that even a KILL did not end."""
    start_error: str | None = None
    """`stage:ERRNO` (`exec:ENOENT`, `chdir:ENOENT`), `cancelled`, `abandoned` or `prompt_interrupted`."""
    dropped_bytes: int = 0
    """Output that was not kept: the oldest middle above the spool's cap, or what a full disk refused."""
    leftovers: tuple[int, ...] = ()
    """Pids of processes that the host left behind and the keeper had to end."""
    slept_ms: int = 0
    """How long the machine was suspended during the run."""
    prompt_unread: int | None = None
    """Bytes of the prompt that the host never read, where the kernel tells."""
    taken_over: bool = False
    """The first keeper died; a second one went on, and exit code and signal could not be learned."""
    unobserved: bool = False
    """Nobody saw the end: the host was already gone when it was looked for. Output may be missing."""


class StreamSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What the whole stream said, folded by the adapter; input of `HostAdapter.classify`."""

    session_id: str | None = None
    final_text: str = ""
    terminal_seen: bool = False
    is_error: bool = False
    tool_calls: int = 0
    file_changes: int = 0
    denials: int = 0
    usage: Usage = Usage()
    usage_is_running_total: bool = False
    """The counters are the session's running total, so the caller stores the delta to the session's last total."""
    reset_at_ms: int | None = None
    error_kind: HostEndKind | None = None
    error_text: str = ""
    error_code: str = ""
    """A stable word for the error where one is known, e.g. `sandbox_unavailable`."""
    http_status: int | None = None
    model: str | None = None
    """The model that the host says it really ran."""
    repeated_action: int = 0
    """The longest run of identical tool calls, for the identical-action breaker."""


class HostEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The typed end of one host run."""

    kind: HostEndKind
    process: ProcessEnd
    retry: RetryPolicy
    handed_over: bool
    auth_lapsed: bool = False
    reset_at_ms: int | None = None
    exit_code: int | None = None
    bad_setup: bool = False
    """Only a change of settings mends it (sandbox, permissions, model name): the loop's `configuration`."""
    code: str = ""
    """A stable word that narrows the kind down, e.g. `sandbox_unavailable`, `http_529`."""
    fix: str = ""
    """The command or setting that mends it, where one is known."""
    detail: str = ""
    """At most 500 characters of the host's final error, redacted; for people only."""


class Executable(enum.StrEnum):
    """Is there a program that can run here?"""

    READY = "ready"
    MISSING = "missing"
    BROKEN = "broken"


class SignedIn(enum.StrEnum):
    """Does it have a credential? `unknown` when the CLI has no cheap way to say."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Two separate verdicts about one engine, and every match on PATH that was tried."""

    engine: str
    executable: Executable
    signed_in: SignedIn
    program: str | None = None
    version: str | None = None
    tried: tuple[str, ...] = ()
    fix: str = ""
    """The command that a person runs to mend it (a code for the renderer: the program's own words)."""


class StreamParser(Protocol):
    """Folds a host's raw stdout lines (without line ends) and stderr tail into events and a summary."""

    def feed(self, line: bytes) -> Sequence[HostEvent]: ...
    def finish(self, stderr_tail: bytes) -> StreamSummary: ...


class HostAdapter(Protocol):
    """One agent CLI."""

    @property
    def name(self) -> str: ...
    def probe(self, env: Sequence[tuple[str, str]], pinned: str | None = None) -> ProbeResult: ...
    def plan(self, request: LaunchRequest, base_env: Sequence[tuple[str, str]]) -> LaunchPlan: ...
    def parser(self, request: LaunchRequest, now_ms: int) -> StreamParser: ...
    def classify(self, exit_record: ExitRecord, summary: StreamSummary, tree_changed: bool) -> HostEnd: ...
