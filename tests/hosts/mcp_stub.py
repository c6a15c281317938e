"""A tool server on standard input and output with one tool, `get_turn`, that answers with the token of its
environment: enough to prove that a CLI really starts what it was given. Run as a program, it is the server; imported,
it helps the test.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def call(server: str, tool: str) -> Any:
    """The script's step for a call of this tool."""
    from tests.hosts.script import Tool

    return Tool(server=server, name=tool)


def _answer(message: dict[str, Any]) -> dict[str, Any] | None:
    method = message.get("method")
    if method == "initialize":
        version = message["params"]["protocolVersion"]
        info = {"name": "stub", "version": "1"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        schema = {"type": "object", "properties": {}}
        return {"tools": [{"name": "get_turn", "description": "The turn.", "inputSchema": schema}]}
    if method == "tools/call":
        text = f"token is {os.environ.get('LOOPX_TURN_TOKEN')}"
        return {"content": [{"type": "text", "text": text}], "isError": False}
    return {} if method == "ping" else None


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        result = _answer(message)
        if "id" in message:
            body = {"result": result} if result is not None else {"error": {"code": -32601, "message": "no"}}
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
