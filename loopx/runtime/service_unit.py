"""The systemd user unit of a worker: what `loopx worker --install` writes, so that it runs from login on.

`KillMode=process`: stopping or updating the service ends the worker alone. Its children let go by themselves, and the
hosts go on under their keepers until the next worker adopts them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

import msgspec

from loopx.control_plane.errors import UsageError
from loopx.runtime.project import Project

PASSED_ON = ("LOOPX_STATE_DIR", "LOOPX_DATABASE_URL", "LOOPX_CONFIG_DIR")
_ANSWER_S = 20


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """A unit file: its name, where it belongs, and its text."""

    name: str
    path: str
    text: str


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """What was written, and whether the service manager took it. `todo`: the commands that are left to a person."""

    name: str
    path: str
    running: bool
    todo: tuple[str, ...]


def unit(project: Project, agent_id: str, most: int, env: Mapping[str, str]) -> Unit:
    """The worker's unit for this project."""
    name = f"loopx-worker-{project.project_id}.service"
    folder = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".config")
    words = [sys.executable, "-m", "loopx", "--project", project.root, "worker", "--max", str(most)]
    words += ["--agent-id", agent_id]
    variables = {"PATH": env.get("PATH", os.defpath)}
    variables |= {key: env[key] for key in PASSED_ON if env.get(key)}
    lines = [
        "[Unit]",
        f"Description=LoopX worker of {_plain(project.root)}",
        "After=default.target",
        "",
        "[Service]",
        "Type=exec",
        f"WorkingDirectory={_escaped(project.root)}",
        *(f"Environment={_quoted(f'{key}={value}')}" for key, value in sorted(variables.items())),
        "EnvironmentFile=-%h/.config/loopx/worker.env",
        f"ExecStart={' '.join(_quoted(word) for word in words)}",
        "KillMode=process",
        "KillSignal=SIGTERM",
        "TimeoutStopSec=30",
        "Restart=on-failure",
        "RestartSec=10",
        "",
        "[Install]",
        "WantedBy=default.target",
        "",
    ]
    return Unit(name=name, path=os.path.join(folder, "systemd", "user", name), text="\n".join(lines))


def install(made: Unit) -> Installed:
    """Write the unit and have the service manager take it, where there is one.

    Raises UsageError (`unit_unwritable`).
    """
    try:
        os.makedirs(os.path.dirname(made.path), exist_ok=True)
        partial = f"{made.path}.{os.getpid()}"
        with open(partial, "w", encoding="utf-8") as file:
            file.write(made.text)
        os.replace(partial, made.path)
    except OSError as error:
        raise UsageError(
            "unit_unwritable", f"{made.path} can't be written: {error.strerror}", hint="loopx worker --print"
        ) from error
    steps = (("daemon-reload",), ("enable", "--now", made.name))
    for index, step in enumerate(steps):
        if not _systemctl(*step):
            left = tuple(" ".join(("systemctl", "--user", *one)) for one in steps[index:])
            return Installed(name=made.name, path=made.path, running=False, todo=left)
    return Installed(name=made.name, path=made.path, running=True, todo=("loginctl enable-linger",))


def _systemctl(*words: str) -> bool:
    program = shutil.which("systemctl")
    if program is None:
        return False
    try:
        done = subprocess.run(
            [program, "--user", *words], capture_output=True, timeout=_ANSWER_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text).replace("%", "%%")


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(word: str) -> str:
    """One word as a unit file takes it: in double quotes, with its specifiers and variables spelled out."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$") + '"'
