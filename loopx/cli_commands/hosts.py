"""`loopx hosts`: which engines are here, whether they run, and whether they are signed in. No model is called."""

from __future__ import annotations

import argparse
import os

import msgspec

from loopx.cli_commands.base import Command, Context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopx.hosts.protocol import ProbeResult


class _Hosts(msgspec.Struct, frozen=True, kw_only=True):
    """`loopx hosts --json`."""

    hosts: tuple[ProbeResult, ...]
    ready: tuple[str, ...]


def _setup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("engine", nargs="*", metavar="ENGINE", help="only these (default: every known one)")


def _run(context: Context, args: argparse.Namespace) -> int:
    from concurrent.futures import ThreadPoolExecutor

    from loopx.hosts import registry
    from loopx.presentation.renderers.care_text import hosts_text

    words = tuple(args.engine) or registry.CLIS
    adapters = [registry.adapter_for(registry.inner_word(word)) for word in words]
    env = tuple(os.environ.items())
    # Each asks its own programs for their version, which takes seconds: side by side, it takes as long as the slowest.
    with ThreadPoolExecutor(max_workers=len(adapters)) as pool:
        found = tuple(pool.map(lambda adapter: adapter.probe(env), adapters))
    ready = tuple(one.engine for one in found if one.executable == "ready" and one.signed_in != "no")
    context.emit(_Hosts(hosts=found, ready=ready), lambda: hosts_text(found))
    if args.engine:
        return 0 if len(ready) == len(found) else 13
    return 0


COMMANDS = (
    Command(
        help="which engines are here, runnable, signed in",
        setup=_setup,
        run=_run,
        epilog="with names, exits 13 unless all of them are ready",
    ),
)
