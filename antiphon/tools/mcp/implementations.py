"""Built-in tools that an MCP server of the operator implements: ``web_search`` and
``code_interpreter``.

The model sees functions: the search tools under the names that the MCP server gives them, and the
code tool as ``python``. The client sees the items of the built-in tool. For example, the MCP
servers ``browser`` and ``python`` of gpt-oss can implement these tools. The gpt-oss models were
trained with the functions of these two servers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import ConnectorError, ToolError, unsupported_parameter, unsupported_value
from antiphon.support.text import truncate_middle
from antiphon.tools.arguments import parse_arguments
from antiphon.tools.base import (
    CallContext,
    ResponseContext,
    ToolFunction,
    ToolProgress,
    ToolProvider,
    ToolResult,
    Toolset,
)
from antiphon.wire import tools as tl
from antiphon.wire.items import CodeInterpreterCall, WebSearchCall
from antiphon.wire.parsing.fields import known_fields
from antiphon.wire.resources import containers as wc

from .calls import McpCaller
from .endpoint import McpEndpoint
from .request import ListedTool, to_function
from .results import McpFailure, result_text
from .sessions import SessionKey

_T = TypeVar("_T")
_PYTHON = "python"
_INCLUDE_OUTPUTS = "code_interpreter_call.outputs"
#: Name of a tool, or of one of its parameters → the action of the tool's calls.
_ACTIONS: Mapping[str, str] = {
    "search": "search",
    "open": "open_page",
    "find": "find_in_page",
    "query": "search",
    "pattern": "find_in_page",
    "url": "open_page",
    "id": "open_page",
}


class BuiltInTool(Struct, Generic[_T], frozen=True, kw_only=True):
    """Describes how the tools of an MCP server become one built-in tool.

    - ``check``: rejects fields of a request that the MCP server does not support.
    - ``function``: takes a tool of the MCP server, and returns a description of the function that
      the model sees instead of this tool. The caller adds the handler, which runs calls. Returns
      None if the model must not see the tool.
    - ``arguments``: translates the arguments that the model wrote into the arguments of the MCP
      server's tool.
    - ``result_fields``: returns the fields of the output item. Its arguments are the tool, the
      arguments that the model wrote, the text of the result, and a boolean. The boolean is true if
      the item must contain the outputs of the code, because the request asks for them with
      ``include``.
    - ``step``: name of the progress event of a running call, for example ``searching``.
    """

    check: Callable[[_T, str], None]
    function: Callable[[ListedTool], ToolFunction | None]
    arguments: Callable[[ListedTool, str], dict[str, Any]]
    result_fields: Callable[[ListedTool, str, str, bool], Mapping[str, Any]]
    step: str


class McpImplementation(ToolProvider[_T]):
    """The ``ToolProvider`` of a built-in tool that an MCP server implements. ``name``: the MCP
    server's name in error messages. ``caller``: as in ``McpProvider``, which closes it."""

    def __init__(
        self, kind: BuiltInTool[_T], name: str, server: McpEndpoint, caller: McpCaller
    ) -> None:
        self._kind = kind
        self._name = name
        self._server = server
        self._caller = caller

    def check(self, tool: _T, path: str) -> None:
        self._kind.check(tool, path)

    @asynccontextmanager
    async def open(self, tool: _T, response: ResponseContext) -> AsyncIterator[Toolset]:
        """Offer the MCP server's tools. Raises ``ConnectorError`` if the tools cannot be listed."""
        session = SessionKey.for_response(response, self._server)
        try:
            tools = await self._caller.lists.get(session, response.trace)
        except McpFailure as error:
            reason = error.details.message
            raise ConnectorError(
                f"Error retrieving tool list from MCP server: '{self._name}'. {reason}"
            ) from None
        with_outputs = _INCLUDE_OUTPUTS in response.include
        functions: dict[str, ToolFunction] = {}
        for each in tools:
            if (function := self._kind.function(each)) is not None:
                handler = self._handler(session, each, with_outputs)
                functions.setdefault(function.tool.name, replace(function, handler=handler))
        yield Toolset(functions=tuple(functions.values()))

    def _handler(self, session: SessionKey, tool: ListedTool, with_outputs: bool) -> Any:
        async def call(
            written: str, context: CallContext
        ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
            yield ToolProgress(self._kind.step)
            arguments = self._kind.arguments(tool, written)

            try:
                result = await self._caller.call(session, tool.name, arguments, context)
            except McpFailure as error:
                raise ToolError(error.details.message) from None
            text = truncate_middle(result_text(result), context.max_result_bytes)
            shows_outputs = with_outputs or context.caller is not None
            fields = self._kind.result_fields(tool, written, text, shows_outputs)
            yield ToolResult(text=text, fields=fields, failed=bool(result.is_error))

        return call


# --- web search ----------------------------------------------------------------------------------


def _check_search(tool: tl.AnyWebSearch, path: str) -> None:
    """Raise ``InvalidRequest`` for search filters and a user location, because the MCP server would
    ignore them."""
    for name in ("filters", "user_location"):
        if getattr(tool, name, None):
            raise unsupported_parameter(f"{path}.{name}", where="with the search of this server")


def _action_kind(tool: ListedTool) -> str | None:
    """Return what the calls of a tool do: ``search``, ``open_page`` or ``find_in_page``. The item
    of a call shows this value as its action.

    A known name (a key of ``_ACTIONS``) determines the action. The name of the tool is checked
    first, then the names of its parameters. Return None if none of them is known.
    """
    properties = tool.input_schema.get("properties") if tool.input_schema else None
    names = (tool.name.rpartition(".")[2], *(properties if isinstance(properties, dict) else ()))
    return next((_ACTIONS[name] for name in names if name in _ACTIONS), None)


def _search_function(tool: ListedTool) -> ToolFunction | None:
    if _action_kind(tool) is None:
        return None
    return ToolFunction(
        tool=to_function(tool),
        initial_item=WebSearchCall(action=_action(tool, {})),
        parse_fields=lambda written: {"action": _action(tool, _lenient(written))},
        effects="none",
        namespace="browser",
    )


def _action(tool: ListedTool, arguments: Mapping[str, object]) -> dict[str, Any]:
    texts = {name: value for name, value in arguments.items() if isinstance(value, str)}
    match _action_kind(tool):
        case "find_in_page":
            pattern = texts.get("pattern", "")
            return {"type": "find_in_page", "url": texts.get("url", ""), "pattern": pattern}
        case "open_page":
            return {"type": "open_page", "url": texts.get("url", texts.get("id"))}
    query = texts.get("query", next(iter(texts.values()), ""))
    return {"type": "search", "query": query, "queries": [query] if query else []}


def _lenient(written: str) -> Mapping[str, Any]:
    try:
        return parse_arguments(written)
    except ToolError:
        return {}


#: ``web_search``: the server can search, open pages, and find text in pages.
web_search = BuiltInTool(
    check=_check_search,
    function=_search_function,
    arguments=lambda tool, written: dict(parse_arguments(written)),
    result_fields=lambda tool, written, text, _: {"action": _action(tool, _lenient(written))},
    step="searching",
)

# --- code interpreter ----------------------------------------------------------------------------


def _check_code(tool: tl.CodeInterpreter, path: str) -> None:
    """Raise ``InvalidRequest`` if the request names a container or files for the tool's code. The
    code runs on the MCP server, not in a container."""
    where = f"{path}.container"
    if isinstance(tool.container, str):
        raise unsupported_value(
            where, f"'{where}': the code of this server runs on an MCP server, not in a container."
        )
    known_fields(tool.container, ("type",), where)
    wc.read_auto_container(tool.container, where)


def _code_field(tool: ListedTool) -> str | None:
    """Return the name of the tool's parameter that takes the code. If the tool has a parameter
    ``code``, this parameter takes the code. Otherwise, if the tool is named ``python`` and has only
    one parameter, its only parameter takes the code. Return None for all other tools."""
    properties = tool.input_schema.get("properties") if tool.input_schema else None
    if not isinstance(properties, dict):
        return None
    if "code" in properties:
        return "code"
    is_python = tool.name.rpartition(".")[2] == _PYTHON
    return next(iter(properties)) if is_python and len(properties) == 1 else None


def _code_function(tool: ListedTool) -> ToolFunction | None:
    if _code_field(tool) is None:
        return None
    return ToolFunction(
        tool=tl.Custom(name=_PYTHON, description=tool.description or "Runs Python code."),
        initial_item=CodeInterpreterCall(container_id=""),
        streams_text=True,
    )


def _outputs(tool: ListedTool, written: str, text: str, shows_outputs: bool) -> Mapping[str, Any]:
    return {"outputs": ({"type": "logs", "logs": text},) if shows_outputs else None}


#: ``code_interpreter``: the server has a tool that takes code.
code_interpreter = BuiltInTool(
    check=_check_code,
    function=_code_function,
    arguments=lambda tool, written: {_code_field(tool) or "code": written},
    result_fields=_outputs,
    step="interpreting",
)
