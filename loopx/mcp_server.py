"""The agent's tools over MCP, on standard input and output: the verbs of `agent_service`, and nothing more.

The server is bound by the turn's token to one goal, agent and turn. Every call proves the token again, so a tool dies
with its turn, and the server ends by itself soon after. Nothing but protocol messages is ever printed. There is no
tool to answer a gate, raise a budget or edit a check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from loopx.control_plane.errors import LoopXError, NotFoundError, UsageError
from loopx.runtime import agent_service, capabilities
from loopx.runtime.agent_service import TurnCaller
from loopx.runtime.project import Project
from loopx.store.store import Store

if TYPE_CHECKING:
    from mcp.server import Server

NAME = "loopx"
WATCH_S = 2.0
"""How often the server looks whether its turn is over."""

Short = Annotated[str, msgspec.Meta(max_length=200)]
Sentence = Annotated[str, msgspec.Meta(min_length=1, max_length=4000)]
Text = Annotated[str, msgspec.Meta(max_length=8000)]
Ids = Annotated[tuple[Short, ...], msgspec.Meta(max_length=100)]


class _Args(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of a tool; what is not in it is refused."""


class Nothing(_Args, frozen=True):
    pass


class ClaimTodo(_Args, frozen=True):
    todo_id: Short


class AddTodo(_Args, frozen=True):
    title: Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
    body: Text = ""
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] = 0
    depends_on: Ids = ()


class CompleteTodo(_Args, frozen=True):
    todo_id: Short | None = None
    summary: Text = ""
    successors: Ids = ()
    outcome: Short | None = None


class AddEvidence(_Args, frozen=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    text: Text = ""
    link: Annotated[str, msgspec.Meta(max_length=2000)] = ""
    metric: float | None = None


class AskPerson(_Args, frozen=True):
    question: Sentence
    choices: Annotated[tuple[Short, ...], msgspec.Meta(max_length=20)] = ()


class ReportBlocker(_Args, frozen=True):
    blocker: Sentence


class NominateNoChange(_Args, frozen=True):
    reason: Sentence


class RequestCapability(_Args, frozen=True):
    name: Short
    parameters: dict[str, str] = {}
    reason: Text = ""


class TodoList(msgspec.Struct, frozen=True, kw_only=True):
    todos: tuple[agent_service.TodoView, ...]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """One tool: its words for the model, its arguments, and the verb behind it."""

    name: str
    description: str
    arguments: type[_Args]
    run: Callable[[Tools, TurnCaller, Any], msgspec.Struct]
    read_only: bool = False


class Tools:
    """The tools of one token. Every call is on its own: the token is proved again each time."""

    def __init__(self, store: Store, project: Project, token: str, turn_key: str | None = None) -> None:
        self.store = store
        self.project = project
        self._token = token
        self._turn_key = turn_key

    def caller(self) -> TurnCaller:
        """The agent behind the token.

        Raises UsageError (`token_refused`, or `token_foreign` for that of another turn than this program's own).
        """
        caller = agent_service.by_token(self.store, self._token)
        if self._turn_key and caller.turn_key != self._turn_key:
            raise UsageError(
                "token_foreign", "this token belongs to another turn", hint="use the token that the turn was given"
            )
        return caller

    def call(self, name: str, arguments: dict[str, Any] | None) -> msgspec.Struct:
        """Run one tool. Raises LoopXError for every refusal."""
        caller = self.caller()
        try:
            return self._run(caller, name, arguments)
        except LoopXError as error:
            agent_service.refuse(self.store, caller, name, error)
            raise

    def _run(self, caller: TurnCaller, name: str, arguments: dict[str, Any] | None) -> msgspec.Struct:
        tool = BY_NAME.get(name)
        if tool is None:
            raise NotFoundError("tool_unknown", f"no tool {name!r}", hint=f"tools: {', '.join(BY_NAME)}")
        try:
            given = msgspec.convert(arguments or {}, tool.arguments)
        except msgspec.ValidationError as error:
            raise UsageError("arguments_invalid", f"{name}: {error}", hint="see the tool's schema") from error
        return tool.run(self, caller, given)


def _get_turn(tools: Tools, caller: TurnCaller, given: Nothing) -> msgspec.Struct:
    return agent_service.get_turn(tools.store, caller, capabilities.names_for_agent(tools.project))


def _list_todos(tools: Tools, caller: TurnCaller, given: Nothing) -> msgspec.Struct:
    return TodoList(todos=agent_service.list_todos(tools.store, caller))


def _claim_todo(tools: Tools, caller: TurnCaller, given: ClaimTodo) -> msgspec.Struct:
    return agent_service.claim_todo(tools.store, caller, given.todo_id)


def _add_todo(tools: Tools, caller: TurnCaller, given: AddTodo) -> msgspec.Struct:
    return agent_service.add_todo(tools.store, caller, given.title, given.body, given.priority, given.depends_on)


def _complete_todo(tools: Tools, caller: TurnCaller, given: CompleteTodo) -> msgspec.Struct:
    return agent_service.complete_todo(
        tools.store, caller, given.todo_id, given.summary, given.successors, given.outcome
    )


def _add_evidence(tools: Tools, caller: TurnCaller, given: AddEvidence) -> msgspec.Struct:
    return agent_service.add_evidence(tools.store, caller, given.name, given.text, given.link, given.metric)


def _ask_person(tools: Tools, caller: TurnCaller, given: AskPerson) -> msgspec.Struct:
    return agent_service.ask_person(tools.store, caller, given.question, given.choices)


def _report_blocker(tools: Tools, caller: TurnCaller, given: ReportBlocker) -> msgspec.Struct:
    return agent_service.report_blocker(tools.store, caller, given.blocker)


def _nominate_no_change(tools: Tools, caller: TurnCaller, given: NominateNoChange) -> msgspec.Struct:
    return agent_service.nominate_no_change(tools.store, caller, given.reason)


def _request_capability(tools: Tools, caller: TurnCaller, given: RequestCapability) -> msgspec.Struct:
    return capabilities.request(tools.store, tools.project, caller, given.name, given.parameters, given.reason)


TOOLS: tuple[Tool, ...] = (
    Tool(
        name="get_turn",
        description="This turn: objective, todo, checks that decide, what may be written, last failure, budget left.",
        arguments=Nothing,
        run=_get_turn,
        read_only=True,
    ),
    Tool(
        name="list_todos",
        description="The goal's open todos, the most urgent first.",
        arguments=Nothing,
        run=_list_todos,
        read_only=True,
    ),
    Tool(name="claim_todo", description="Claim a todo for yourself.", arguments=ClaimTodo, run=_claim_todo),
    Tool(name="add_todo", description="Add a slice of work to this goal.", arguments=AddTodo, run=_add_todo),
    Tool(
        name="complete_todo",
        description="Say that this turn's todo is done. LoopX runs the checks and decides.",
        arguments=CompleteTodo,
        run=_complete_todo,
    ),
    Tool(
        name="add_evidence",
        description="Leave a note, link or number as evidence (stored as claimed).",
        arguments=AddEvidence,
        run=_add_evidence,
    ),
    Tool(
        name="ask_person",
        description="Ask a person something concrete; then stop. The answer comes with a later turn.",
        arguments=AskPerson,
        run=_ask_person,
    ),
    Tool(
        name="report_blocker",
        description="Say what makes the work impossible; then stop.",
        arguments=ReportBlocker,
        run=_report_blocker,
    ),
    Tool(
        name="nominate_no_change",
        description="Say that nothing needs to change. Accepted only if LoopX finds the same.",
        arguments=NominateNoChange,
        run=_nominate_no_change,
    ),
    Tool(
        name="request_capability",
        description="Ask LoopX to run a declared capability (get_turn lists them); then stop and wait for it.",
        arguments=RequestCapability,
        run=_request_capability,
    ),
)
BY_NAME = {tool.name: tool for tool in TOOLS}


def schema_of(arguments: type[_Args]) -> dict[str, Any]:
    """The arguments' JSON schema, in one piece: some hosts do not follow references."""
    whole = msgspec.json.schema(arguments)
    schema: dict[str, Any] = dict(whole["$defs"][arguments.__name__])
    schema.pop("description", None)
    schema.pop("title", None)
    return schema


def build(tools: Tools) -> Server[Any]:
    """The protocol's server around these tools."""
    import mcp_types as types
    from mcp.server import Server

    listed = [
        types.Tool(
            name=tool.name,
            description=tool.description,
            input_schema=schema_of(tool.arguments),
            annotations=types.ToolAnnotations(read_only_hint=tool.read_only, destructive_hint=False),
        )
        for tool in TOOLS
    ]

    async def list_tools(context: object, params: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed)

    async def call_tool(context: object, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            answer = tools.call(params.name, params.arguments)
        except LoopXError as error:
            hint = f" ({error.hint})" if error.hint else ""
            text = f"{error.code}: {error.message}{hint}"
            return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)
        body = msgspec.to_builtins(answer)
        text = msgspec.json.encode(answer).decode()
        return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=body)

    return Server(NAME, version="1", on_list_tools=list_tools, on_call_tool=call_tool)


def serve(tools: Tools) -> None:
    """Serve until the host closes standard input or the turn is over.

    Raises UsageError (`token_refused`, `token_foreign`) before anything is served.
    """
    import anyio

    tools.caller()
    anyio.run(_serve, tools)


async def _serve(tools: Tools) -> None:
    import anyio
    from mcp.server.stdio import stdio_server

    server = build(tools)
    async with anyio.create_task_group() as group:

        async def protocol() -> None:
            async with stdio_server() as (incoming, outgoing):
                await server.run(incoming, outgoing, server.create_initialization_options())
            group.cancel_scope.cancel()

        async def watch() -> None:
            while _alive(tools):
                await anyio.sleep(WATCH_S)
            # A read of standard input can't be interrupted, so the process leaves; there is nothing to tidy up.
            tools.store.close()
            _leave()

        group.start_soon(protocol)
        group.start_soon(watch)


def _alive(tools: Tools) -> bool:
    """Whether the turn is still open; a store that can't be read for a moment ends nothing."""
    try:
        tools.caller()
    except UsageError:
        return False
    except LoopXError:
        return True
    return True


def _leave() -> None:
    import os

    os._exit(0)
