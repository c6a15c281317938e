"""Is there a program that can run, and does it have a credential? Two verdicts, never mixed (field notes, B8).

Every match on PATH is tried in order, since the first one is often a broken shim; a pinned path is honoured or refused.
The programs are run with the environment that a launch would give them, for a bounded time. No model is called.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence

import msgspec

from loopx.hosts import env as envs
from loopx.hosts import launch
from loopx.hosts.protocol import Executable, ProbeResult, SignedIn

TIMEOUT_S = 30.0
_VERSION = re.compile(r"\d+(?:\.\d+)+(?:[-+.][0-9A-Za-z.\-]+)?")


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a short-lived program said. `exit_code` is None when it did not start or did not end in time."""

    exit_code: int | None
    output: str = ""
    error: str = ""


def ask(argv: Sequence[str], env: Sequence[tuple[str, str]], timeout_s: float = TIMEOUT_S) -> Answer:
    """Runs a program that ends by itself; standard input is empty. Never raises."""
    try:
        done = subprocess.run(
            list(argv), env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as broken:
        return Answer(exit_code=None, error=str(broken))
    output = done.stdout[-65_536:].decode("utf-8", "replace")
    return Answer(exit_code=done.returncode, output=output, error=done.stderr[-65_536:].decode("utf-8", "replace"))


def probe(
    engine: str,
    env: Sequence[tuple[str, str]],
    pinned: str | None,
    *,
    signed_in: Callable[[str, Sequence[tuple[str, str]]], SignedIn],
    install: str,
    sign_in: str,
) -> ProbeResult:
    """The shared probe. `install` and `sign_in` are the commands that mend a verdict."""
    clean = envs.host_env(env)
    candidates = (pinned,) if pinned is not None else launch.programs_on_path(engine, clean)
    for path in candidates:
        version = version_of(path, clean)
        if version is None:
            continue
        verdict = signed_in(path, clean)
        return ProbeResult(
            engine=engine,
            executable=Executable.READY,
            signed_in=verdict,
            program=path,
            version=version,
            tried=candidates[: candidates.index(path) + 1],
            fix=sign_in if verdict is SignedIn.NO else "",
        )
    broken = bool(candidates) and (pinned is None or launch.exists(pinned))
    return ProbeResult(
        engine=engine,
        executable=Executable.BROKEN if broken else Executable.MISSING,
        signed_in=SignedIn.UNKNOWN,
        tried=candidates,
        fix=install,
    )


def version_of(path: str, env: Sequence[tuple[str, str]]) -> str | None:
    """The version that a program prints, or None when it cannot run here."""
    answer = ask([path, "--version"], env)
    if answer.exit_code != 0:
        return None
    found = _VERSION.search(answer.output) or _VERSION.search(answer.error)
    return found[0] if found else "unknown"
