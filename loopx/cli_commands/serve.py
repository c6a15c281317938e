"""`loopx serve`: the page. It prints one line with the address and its token, and serves until it is stopped."""

from __future__ import annotations

import argparse
import sys

from loopx.cli_commands.base import SCHEMA_VERSION, Command, Context

DEFAULT_PORT = 8642


def _setup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="default 127.0.0.1: this machine only")
    parser.add_argument(
        "--port", type=int, metavar="N", help=f"default {DEFAULT_PORT}, or a free one when that is taken; 0: a free one"
    )
    parser.add_argument("--allow-remote", action="store_true", help="let other machines come in; needs TLS")
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate, PEM")
    parser.add_argument("--tls-key", metavar="FILE", help="its key, PEM")
    parser.add_argument("--name", action="append", default=[], metavar="HOST", help="another name that it answers to")
    parser.add_argument("--open", action="store_true", help="open a browser")


def _run(context: Context, args: argparse.Namespace) -> int:
    person = context.require_person("serving the page")
    from loopx.control_plane.errors import UsageError
    from loopx.presentation.web.server import Binding, Server
    from loopx.runtime.session import Session, open_session

    root = context.session().project.root

    def fresh() -> Session:
        return open_session(context.project_dir, context.database)

    def bound(port: int) -> Server:
        binding = Binding(
            host=args.host,
            port=port,
            allow_remote=args.allow_remote,
            tls_cert=args.tls_cert,
            tls_key=args.tls_key,
            names=tuple(args.name),
        )
        return Server(binding, fresh, root, person)

    try:
        server = bound(DEFAULT_PORT if args.port is None else args.port)
    except UsageError as error:
        if args.port is not None or error.code != "address_taken":
            raise
        server = bound(0)

    def ready() -> None:
        _tell(context, server.address, server.access.token, server.url)
        if args.open:
            import webbrowser

            webbrowser.open(server.url)

    try:
        server.run(ready)
    finally:
        server.close()
    return 0


def _tell(context: Context, address: str, token: str, url: str) -> None:
    if context.as_json:
        context.line({"schema_version": SCHEMA_VERSION, "ok": True, "address": address, "token": token, "url": url})
        return
    print(f"{url}   (token {token}; Ctrl-C ends it)")
    sys.stdout.flush()


COMMANDS = (
    Command(
        help="the page: what needs you, what runs, what it costs; on this machine only",
        setup=_setup,
        run=_run,
        epilog="The token is new at each start. Other machines: ssh -L 8642:127.0.0.1:8642 HOST, or --allow-remote.",
    ),
)
