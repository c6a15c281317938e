"""Running git as a subprocess, the same way every time: no hooks, no signing, no prompts, no inherited repository.

This module is for starting one git process and turning what went wrong into a typed error. It never decides what
git is asked to do, and it never reads git's messages to make a decision: it branches on exit codes only.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from loopx.control_plane.errors import LoopXError, StoreError, UsageError

MINIMUM_VERSION = (2, 30)
IDENTITY_NAME = "LoopX"
IDENTITY_EMAIL = "loopx@localhost"
DEFAULT_TIMEOUT_S = 900.0

# Where git finds its own programs and its configuration; every other inherited GIT_* variable names some other
# repository, index, date or trace, and would make us work on the wrong thing.
_KEPT_VARIABLES = re.compile(
    r"GIT_(CONFIG_GLOBAL|CONFIG_SYSTEM|CONFIG_NOSYSTEM|CONFIG_COUNT|CONFIG_KEY_\d+|CONFIG_VALUE_\d+|EXEC_PATH"
    r"|CEILING_DIRECTORIES|DISCOVERY_ACROSS_FILESYSTEM)"
)

_CONFIG = (
    "core.hooksPath=/dev/null",
    "commit.gpgsign=false",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.splitIndex=false",
    "index.sparse=false",
    # An index that trusts less than the whole stat record would let an edited file pass as unchanged.
    "core.ignoreStat=false",
    "core.trustctime=true",
    "core.checkStat=default",
    "core.safecrlf=false",
    "core.fsyncMethod=batch",
    # Larger files are streamed into a pack instead of being held in memory.
    "core.bigFileThreshold=32m",
    "gc.auto=0",
    "maintenance.auto=false",
    "log.showSignature=false",
    "i18n.commitEncoding=UTF-8",
    "i18n.logOutputEncoding=UTF-8",
    "submodule.recurse=false",
    "color.ui=false",
    "protocol.version=2",
)


class GitResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one git process left behind; `status` is one of the exit codes that the caller said it expects."""

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def line(self) -> str:
        """Standard output as one value: only the final newline is taken off, since a path may hold others."""
        return os.fsdecode(self.stdout.removesuffix(b"\n"))

    @property
    def items(self) -> list[bytes]:
        """Standard output split at NUL bytes, for commands run with `-z`."""
        return self.stdout.removesuffix(b"\0").split(b"\0") if self.stdout else []


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The process environment without other repositories' variables, in the C locale, with LoopX's identity."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or _KEPT_VARIABLES.fullmatch(k)}
    kept.pop("LANGUAGE", None)
    kept.update(
        LC_ALL="C",
        GIT_OPTIONAL_LOCKS="0",
        GIT_TERMINAL_PROMPT="0",
        GIT_LITERAL_PATHSPECS="1",
        GIT_NO_REPLACE_OBJECTS="1",
        GIT_AUTHOR_NAME=IDENTITY_NAME,
        GIT_AUTHOR_EMAIL=IDENTITY_EMAIL,
        GIT_COMMITTER_NAME=IDENTITY_NAME,
        GIT_COMMITTER_EMAIL=IDENTITY_EMAIL,
    )
    kept.update(extra or {})
    return kept


def command(args: Sequence[str]) -> list[str]:
    """The argument vector for git with LoopX's fixed configuration in front."""
    return ["git", *(part for setting in _CONFIG for part in ("-c", setting)), *args]


def run(
    args: Sequence[str],
    *,
    cwd: Path | str,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    expect: Sequence[int] = (0,),
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> GitResult:
    """Run git and return its output when the exit code is one of `expect`.

    Raises `UsageError` (`git_missing`, `project_missing`), `StoreError` (`git_timeout`) or `LoopXError`
    (`git_failed`, with the command, the exit code and the end of standard error as data).
    """
    with _start(args, cwd, env) as process:
        return _finish(process, args, cwd, stdin, expect, timeout_s)


def run_together(
    commands: Sequence[tuple[Sequence[str], Mapping[str, str]]],
    *,
    cwd: Path | str,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> list[GitResult]:
    """Run several git commands, each with its own variables, at the same time; for such as only read.

    The results are in the order of the commands. Raises as `run` does, for the first one that fails.
    """
    with contextlib.ExitStack() as running:
        processes = [running.enter_context(_start(args, cwd, env)) for args, env in commands]
        return [
            _finish(process, args, cwd, b"", (0,), timeout_s)
            for process, (args, _) in zip(processes, commands, strict=True)
        ]


@contextlib.contextmanager
def _start(args: Sequence[str], cwd: Path | str, env: Mapping[str, str] | None) -> Iterator[subprocess.Popen[bytes]]:
    """One running git, which is ended with the block if it has not ended by itself."""
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(command(args), cwd=cwd, env=environment(env), stdin=pipe, stdout=pipe, stderr=pipe)
    except OSError as failed:
        raise cannot_start(failed, cwd) from failed
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _finish(
    process: subprocess.Popen[bytes],
    args: Sequence[str],
    cwd: Path | str,
    stdin: bytes,
    expect: Sequence[int],
    timeout_s: float,
) -> GitResult:
    try:
        stdout, stderr = process.communicate(stdin, timeout=timeout_s)
    except subprocess.TimeoutExpired as late:
        raise StoreError(
            "git_timeout",
            f"git {args[0]} did not end within {timeout_s:g} s in {cwd}",
            hint="Look for a hanging file system or a content filter that waits for input.",
        ) from late
    if process.returncode not in expect:
        raise failure(args, process.returncode, stderr)
    return GitResult(status=process.returncode, stdout=stdout, stderr=stderr)


def cannot_start(failed: OSError, cwd: Path | str) -> LoopXError:
    """The typed error for a git process that could not be started at all."""
    if not Path(cwd).is_dir():
        return UsageError("project_missing", f"there is no folder {cwd}", hint="Name a folder that exists.")
    if isinstance(failed, FileNotFoundError):
        return UsageError("git_missing", "the program git was not found on PATH", hint="Install git 2.30 or newer.")
    return LoopXError("git_failed", f"git could not be started: {failed}")


def failure(args: Sequence[str], status: int, stderr: bytes) -> LoopXError:
    """The typed error for a git command that ended with an exit code nobody expected."""
    said = stderr.decode("utf-8", "replace").strip()[-2000:]
    return LoopXError(
        "git_failed",
        f"git {args[0]} ended with {status}: {said.splitlines()[-1] if said else 'it said nothing'}",
        hint="Run the same git command by hand to see what is wrong with the repository.",
        data={"command": " ".join(args[:6]), "status": status, "stderr": said},
    )


@functools.cache
def version() -> tuple[int, int, int]:
    """Git's version; raises `UsageError` (`git_missing`, `git_too_old`)."""
    said = run(["version"], cwd="/").line
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", said)
    numbers = (int(found[1]), int(found[2]), int(found[3] or 0)) if found else (0, 0, 0)
    if numbers[:2] < MINIMUM_VERSION:
        raise UsageError("git_too_old", f"{said!r} is too old", hint="Install git 2.30 or newer.")
    return numbers


def quoted_alternate(path: str) -> str:
    """One entry of GIT_ALTERNATE_OBJECT_DIRECTORIES, quoted so that a colon in the path does not split it."""
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
