"""`loopx mcp`: the agent's tools over standard input and output, for the turn whose token is in the environment."""

from __future__ import annotations

import argparse
import os

from loopx.cli_commands.base import TOKEN_VARIABLE, Command, Context
from loopx.control_plane.errors import UsageError


def _setup(parser: argparse.ArgumentParser) -> None:
    """No flags of its own: what it may do is what its token may do."""


def _run(context: Context, args: argparse.Namespace) -> int:
    # A host reads standard output as the protocol, so that errors never go there, not even as JSON.
    context.as_json = False
    token = os.environ.get(TOKEN_VARIABLE)
    if not token:
        raise UsageError(
            "token_missing",
            f"loopx mcp serves the agent of a turn, and {TOKEN_VARIABLE} is not set",
            hint="loopx run starts it by itself; there is nothing to set up",
        )
    from loopx.mcp_server import Tools, serve

    session = context.session()
    # Whoever starts it inside a host serves that host's turn, and no other.
    context.caller()
    serve(Tools(session.store, session.project, token, os.environ.get("LOOPX_TURN_KEY")))
    return 0


COMMANDS = (Command(help="serve the agent's tools of one turn", setup=_setup, run=_run),)
