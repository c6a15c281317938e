"""The `loopx` command: finds the one command that was named, imports only its module, and turns errors into exits.

It decides nothing. `--help` of the whole imports no command at all, because every command is started by other
programs every tick (architecture, "Choices made by measurement").
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopx.cli_commands.base import Context

GROUPS: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
    (
        "start",
        (
            ("run", "run", "work on an objective until it is done, or go on with a goal"),
            ("init", "init", "set up this project"),
            ("demo", "demo", "see the whole story in a minute, without a key"),
        ),
    ),
    (
        "look",
        (
            ("status", "status", "one screen: what needs you, runs, waits, is done"),
            ("why", "why", "the reason of a decision, and what would change it"),
            ("log", "log", "everything that changed"),
            ("watch", "watch", "live view in the terminal"),
            ("serve", "serve", "web page on this machine"),
            ("report", "report", "one HTML file about a goal"),
        ),
    ),
    (
        "work",
        (
            ("goal", "goal", "objectives and their contracts"),
            ("todo", "todo", "the work graph"),
            ("gate", "gate", "questions to people"),
            ("grant", "grant", "standing answers"),
            ("turn", "turn", "governed turns, their journals and output"),
            ("check", "check", "run the contract's checks"),
            ("evidence", "evidence", "what proved what"),
            ("handoff", "handoff", "16 lines for whoever takes over"),
        ),
    ),
    (
        "pace",
        (
            ("quota", "quota", "may it run, what was spent"),
            ("schedule", "schedule", "cadence, and who owns it"),
            ("worker", "worker", "run every due goal"),
            ("hosts", "hosts", "which engines are here, runnable, signed in"),
            ("mcp", "mcp", "the agent's tools, over stdio"),
            ("capability", "capability", "what only LoopX may do for an agent"),
            ("notify", "notify", "who is told, and what waits to be sent"),
        ),
    ),
    (
        "care",
        (
            ("doctor", "doctor", "find what is wrong, and what is safe to repair"),
            ("gc", "gc", "what retention would remove"),
            ("backup", "backup", "copy the store while it is used"),
            ("restore", "restore", "put a backup back"),
            ("export", "export", "write everything as JSON lines"),
            ("import", "import_", "read an export"),
            ("store", "store", "copy the store elsewhere"),
            ("uninstall", "uninstall", "remove what LoopX keeps on this machine"),
            ("compare", "compare", "paired runs of engines"),
        ),
    ),
)
"""Groups of (command, module, one line); a module that is not there makes its command unknown."""

_MODULES = {name: module for _, commands in GROUPS for name, module, _ in commands}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit status (surface, "Exit codes"). Ctrl-C is 130 even while modules are still loaded."""
    try:
        return _run(argv)
    except KeyboardInterrupt:
        return 130


def _run(argv: Sequence[str] | None) -> int:
    from loopx.cli_commands import base

    words = list(sys.argv[1:] if argv is None else argv)
    context, words = base.split_globals(words)
    try:
        return _dispatch(context, words)
    except base.LoopXError as error:
        context.refused(words, error)
        return context.fail(error)
    except BrokenPipeError:
        base.close_quietly()
        return 0


def _dispatch(context: Context, words: list[str]) -> int:
    from loopx.cli_commands import base

    if not words or words[0] in ("-h", "--help", "help"):
        return context.overview(GROUPS)
    if words[0] in ("-V", "--version"):
        return context.version()
    name = words[0]
    if name not in _MODULES:
        raise base.unknown_command(name, tuple(_MODULES))
    return base.run_module(context, name, _MODULES[name], words[1:])
