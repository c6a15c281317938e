"""What every adapter's `plan` does alike: find the program, keep the command line short enough, put long things into
files of the spool folder, and hand the prompt over on standard input. It starts nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from loopx.control_plane.errors import EngineError, UsageError
from loopx.hosts import env as envs
from loopx.hosts.protocol import LaunchPlan, LaunchRequest

PROMPT_LIMIT_BYTES = 8 * 1024 * 1024
"""The smallest of the CLIs' own limits on standard input."""
_ONE_ARGUMENT = 131_072 - 1
"""Linux refuses a single argument or variable above 128 KiB, whatever the total."""
_MARGIN = 4096
MCP_START_S = 60
"""How long a CLI waits for LoopX's tool server: a busy machine takes seconds to start a Python program."""


def programs_on_path(name: str, env: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Every executable file called `name` on the PATH of `env`, in order, each once."""
    found: list[str] = []
    for folder in (envs.lookup(env, "PATH") or os.defpath).split(os.pathsep):
        for ending in _endings(env):
            path = os.path.join(folder or os.curdir, name + ending)
            if path not in found and executable(path):
                found.append(path)
    return tuple(found)


def program(name: str, request: LaunchRequest, env: Sequence[tuple[str, str]]) -> str:
    """The program to start: the pinned one, or the first match on PATH. EngineError when there is none."""
    pinned = request.pinned_program
    if pinned is not None:
        if executable(pinned):
            return pinned
        raise EngineError(
            "pinned_program_missing",
            f"The pinned program is not an executable file: {pinned}",
            hint="Correct the pinned path, or remove it to use the one on PATH.",
            data={"program": pinned},
        )
    found = programs_on_path(name, env)
    if not found:
        raise EngineError(
            "engine_missing", f"No program named {name} on PATH.", hint=f"Install {name}, or add its folder to PATH."
        )
    return found[0]


def build(
    argv: Sequence[str],
    request: LaunchRequest,
    base_env: Sequence[tuple[str, str]],
    *,
    added_env: Sequence[tuple[str, str]] = (),
    files: Sequence[tuple[str, bytes]] = (),
    result_markers: Sequence[bytes] = (),
) -> LaunchPlan:
    """The finished plan. UsageError `prompt_too_long` or `arguments_too_long` before anything is started."""
    stdin = request.prompt.encode("utf-8", "replace")
    if len(stdin) > PROMPT_LIMIT_BYTES:
        raise UsageError(
            "prompt_too_long",
            f"The prompt is {len(stdin)} bytes; agent CLIs read at most {PROMPT_LIMIT_BYTES}.",
            hint="Put long material into a file of the project and name the file.",
            data={"bytes": len(stdin), "limit": PROMPT_LIMIT_BYTES},
        )
    mcp_env = request.mcp.env if request.mcp is not None else ()
    # Some CLIs believe PWD rather than the folder they are started in.
    identity = (("LOOPX_GOAL_ID", request.goal_id), ("LOOPX_TURN_KEY", request.turn_key), ("PWD", request.workdir))
    env = envs.host_env(base_env, mcp_env, request.env, added_env, identity)
    check_length(argv, env)
    return LaunchPlan(
        argv=tuple(argv),
        cwd=request.workdir,
        env=env,
        stdin=stdin,
        deadlines=request.deadlines,
        result_markers=tuple(result_markers),
        files=tuple(files),
    )


def check_length(argv: Sequence[str], env: Sequence[tuple[str, str]]) -> None:
    """Refuses a command line that the system would refuse (field notes, B14): UsageError `arguments_too_long`."""
    if any("\0" in word for word in argv):
        raise UsageError("argument_has_nul", "An argument for the engine contains a NUL byte.")
    total, longest, limit = _measure(argv, env)
    if total > limit or longest > _ONE_ARGUMENT:
        raise UsageError(
            "arguments_too_long",
            f"The engine's command line and environment take {total} bytes (longest item {longest}).",
            hint=f"Keep the whole below {limit} and each item below {_ONE_ARGUMENT}: fewer or shorter extra arguments.",
            data={"bytes": total, "longest": longest, "limit": limit},
        )


def spool_file(request: LaunchRequest, name: str) -> str:
    """The absolute path of a file in the run's spool folder."""
    return os.path.abspath(os.path.join(request.spool_dir, name))


def writable_folders(request: LaunchRequest) -> tuple[str, ...]:
    """Folders outside the work tree that the agent must be able to write: only that of its result file.

    Never the spool folder itself or one above it: the keeper's records there are not the agent's to write.
    """
    result = envs.lookup(request.env, "LOOPX_RESULT_FILE")
    if result is None:
        return ()
    folder = os.path.dirname(os.path.abspath(result))
    spool = os.path.abspath(request.spool_dir)
    if _inside(folder, request.workdir) or _inside(spool, folder):
        return ()
    return (folder,)


def _inside(path: str, folder: str) -> bool:
    real, base = os.path.realpath(path), os.path.realpath(folder)
    return real == base or real.startswith(base.rstrip(os.sep) + os.sep)


def exists(path: str) -> bool:
    """Whether there is any file at `path`."""
    return os.path.exists(path)


def executable(path: str) -> bool:
    """Whether `path` is a file that may be executed."""
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _endings(env: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    if os.name != "nt":
        return ("",)
    return ("", *(envs.lookup(env, "PATHEXT") or ".EXE;.CMD;.BAT").split(";"))


def _measure(argv: Sequence[str], env: Sequence[tuple[str, str]]) -> tuple[int, int, int]:
    if os.name == "nt":
        line = sum(len(word) + 3 for word in argv)
        return line, 0, 8191 if argv and argv[0].lower().endswith((".cmd", ".bat")) else 32_767
    words = [os.fsencode(word) for word in argv]
    words += [os.fsencode(f"{name}={value}") for name, value in env]
    longest = max((len(word) + 1 for word in words), default=0)
    return sum(len(word) + 1 + 8 for word in words), longest, os.sysconf("SC_ARG_MAX") - _MARGIN
