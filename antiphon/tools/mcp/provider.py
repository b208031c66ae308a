"""The provider of tools of type ``mcp``.

There are two kinds of MCP servers:

- The operator has configured the server. A request names it by label or connector id.
- The request contains the URL of the server.

The model and the client see the error messages of the MCP server. Headers and authorizations are
sent only to the MCP server.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from msgspec import UNSET, to_builtins
from msgspec.structs import replace

from antiphon.errors import ConnectorError, InvalidRequest, ToolError
from antiphon.security.ssrf import Network
from antiphon.support.text import truncate_middle
from antiphon.tools.base import (
    CallContext,
    CallHandler,
    PendingCall,
    ResponseContext,
    ToolFunction,
    ToolProgress,
    ToolProvider,
    ToolResult,
    Toolset,
)
from antiphon.wire import items as it
from antiphon.wire.json_types import JsonObject
from antiphon.wire.moderation import Verdict, read_verdict
from antiphon.wire.parsing.errors import missing_parameter
from antiphon.wire.tools import Mcp

from .calls import McpCaller
from .endpoint import McpEndpoint
from .request import (
    ListedTool,
    ToolRules,
    approved_requests,
    check_label,
    listed_tools,
    parse_tool_rules,
    server_identity,
    to_function,
)
from .results import McpFailure, result_text, tool_error
from .sessions import SessionKey, SessionPool


class McpProvider(ToolProvider[Mcp]):
    """The ``ToolProvider`` of ``mcp``.

    - ``configured``: the MCP servers that the operator has configured, by name.
    - ``allow_urls``: whether requests may name MCP servers by URL. The addresses of these servers
      must be public or in one of ``networks``.
    - ``fails_response``: whether the response fails if the tools of an MCP server cannot be listed.
      If this is false, the response continues without these tools.

    ``caller``: calls the MCP servers. Providers of built-in tools that MCP servers implement share
    it.
    """

    def __init__(
        self,
        configured: Mapping[str, McpEndpoint],
        pool: SessionPool,
        *,
        allow_urls: bool = True,
        networks: Sequence[Network] = (),
        fails_response: bool = True,
    ) -> None:
        self._fails_response = fails_response
        self._configured = configured
        self.caller = McpCaller(pool)
        self._allow_urls = allow_urls
        self._networks = tuple(networks)

    @property
    def server_labels(self) -> tuple[str, ...]:
        return tuple(sorted(self._configured))

    async def close(self) -> None:
        """Close all MCP sessions."""
        await self.caller.close()

    def check(self, tool: Mcp, path: str) -> None:
        check_label(tool.server_label, f"{path}.server_label")
        parse_tool_rules(tool, path)
        self._server(tool, path)

    def leading_item(self, tool: Mcp, response: ResponseContext) -> it.Item | None:
        if listed_tools(tool.server_label, response.items) is not None:
            return None
        return it.McpListTools(server_label=tool.server_label, tools=())

    async def declared_functions(
        self, tool: Mcp, response: ResponseContext
    ) -> tuple[ToolFunction, ...] | None:
        """Return the functions for the MCP server's tools. Return None if neither the conversation
        nor the cache contains the server's list of tools."""
        session = SessionKey.for_response(response, self._server(tool, "tools"))
        tools = listed_tools(tool.server_label, response.items)
        if tools is None:
            tools = self.caller.lists.cached(session)
        return None if tools is None else self._tool_functions(tool, session, tools)

    @asynccontextmanager
    async def open(self, tool: Mcp, response: ResponseContext) -> AsyncIterator[Toolset]:
        """Offer the MCP server's tools to the model.

        If the conversation already contains the list of these tools, Antiphon does not ask the MCP
        server for the list. It then contacts the MCP server only when the model calls a tool.
        """
        label = tool.server_label
        session = SessionKey.for_response(response, self._server(tool, "tools"))
        tools = listed_tools(label, response.items)
        if tools is None:
            tools = await self._list_tools(label, session, response)
        rules = parse_tool_rules(tool)
        tools = tuple(each for each in tools if rules.allows(each))
        approved = approved_requests(label, response.items)
        yield Toolset(
            functions=self._tool_functions(tool, session, tools),
            pending_calls=tuple(
                self._approved_call(label, session, tools, request)
                for request in approved
                if request.id not in response.spent_approvals
            ),
            fields={"tools": tuple(to_builtins(each) for each in tools)},
        )

    # --- servers and functions -------------------------------------------------------------------

    def _server(self, tool: Mcp, path: str) -> McpEndpoint:
        """Return the endpoint of the MCP server that the request names. The endpoint includes the
        headers to send.

        Raises ``InvalidRequest`` if this MCP server is not available or if a header is invalid.
        """
        if tool.server_url is UNSET:
            server = self._configured_server(tool, path)
        elif not self._allow_urls:
            raise _invalid_value(
                f"{path}.server_url",
                "This server calls only the MCP servers it is configured with.",
            )
        else:
            server = McpEndpoint(
                url=tool.server_url, needs_public_address=True, networks=self._networks
            )
            _check_url(tool.server_url, f"{path}.server_url")
        headers, oauth = dict(server.headers), server.oauth
        if tool.headers is not UNSET:
            headers |= tool.headers
            if any(name.lower() == "authorization" for name in tool.headers):
                oauth = None  # the request's own token takes precedence
        if tool.authorization is not UNSET:
            headers = {k: v for k, v in headers.items() if k.lower() != "authorization"}
            token = {"Authorization": f"Bearer {tool.authorization}"}
            _check_headers(token, f"{path}.authorization")
            headers, oauth = headers | token, None
        if headers and server.command:
            raise _invalid_value(
                f"{path}.headers", f"'{tool.server_label}' does not use HTTP and takes no headers."
            )
        _check_headers(headers, f"{path}.headers")
        return replace(server, headers=headers, oauth=oauth)

    def _configured_server(self, tool: Mcp, path: str) -> McpEndpoint:
        if tool.tunnel_id is not UNSET:
            raise _invalid_value(f"{path}.tunnel_id", "This server does not support tunnels.")
        if tool.connector_id is not UNSET:
            name, field = tool.connector_id, "connector_id"
        else:
            name, field = tool.server_label, "server_url"
        if name not in self._configured:
            if field == "connector_id":
                raise _invalid_value(f"{path}.{field}", f"This server has no connector '{name}'.")
            raise missing_parameter(f"{path}.{field}")
        return self._configured[name]

    async def fetch_tools(self, tool: Mcp, tenant: str) -> tuple[ListedTool, ...]:
        """Ask an MCP server for its tools, even if they are cached. The time limits are those of
        the session pool. Raises ``InvalidRequest`` and ``ConnectorError``."""
        try:
            return await self.caller.lists.fetch(
                SessionKey(tenant, "", self._server(tool, "tools")), {}
            )
        except McpFailure as error:
            raise ConnectorError(_list_error(tool.server_label, error), param=None) from None

    async def moderate(
        self, label: str, tenant: str, content: str | Sequence[JsonObject]
    ) -> Verdict:
        """Let a configured MCP server judge a text, or parts in the form of ``POST /moderations``.
        Raises ``ToolError``."""
        session = SessionKey(tenant, "", self._configured[label])
        tool = await self._moderating_tool(label, session)
        call = CallContext(tenant=tenant, response_id="", call_id="", max_result_bytes=0)
        try:
            result = await self.caller.call(session, tool.name, {"input": content}, call)
            if result.is_error:
                raise ToolError(result_text(result)[:500])
            return read_verdict(result.structured_content or json.loads(result_text(result)))
        except McpFailure as error:
            raise ToolError(error.details.message) from None
        except ValueError:
            message = f"The answer of '{label}' is not a moderation."
            raise ToolError(message) from None

    async def moderates_images(self, label: str, tenant: str) -> bool:
        """Return whether the tool with which an MCP server judges texts also takes images. It does
        unless its input has to be a string. Raises ``ToolError``."""
        session = SessionKey(tenant, "", self._configured[label])
        schema = (await self._moderating_tool(label, session)).input_schema
        properties = schema.get("properties") if isinstance(schema, dict) else None
        field = properties.get("input") if isinstance(properties, dict) else None
        return not (isinstance(field, dict) and field.get("type") == "string")

    async def _moderating_tool(self, label: str, session: SessionKey) -> ListedTool:
        """Return the tool ``moderate`` of an MCP server, or its only tool."""
        try:
            tools = await self.caller.lists.get(session, {})
        except McpFailure as error:
            raise ToolError(error.details.message) from None
        named = [tool for tool in tools if tool.name == "moderate" or len(tools) == 1]
        if not named:
            raise ToolError(f"The MCP server '{label}' has no tool 'moderate'.")
        return named[0]

    async def _list_tools(
        self, label: str, session: SessionKey, response: ResponseContext
    ) -> tuple[ListedTool, ...]:
        try:
            return await self.caller.lists.get(session, response.trace)
        except McpFailure as error:
            failure = ConnectorError if self._fails_response else ToolError
            raise failure(_list_error(label, error)) from None

    def _tool_functions(
        self, tool: Mcp, session: SessionKey, tools: Sequence[ListedTool]
    ) -> tuple[ToolFunction, ...]:
        """Return the functions for ``tools``, the tools of an MCP server. Tools that the request
        does not allow are left out."""
        rules = parse_tool_rules(tool)
        return tuple(
            replace(self._tool_function(tool, session, each, rules), deferred=rules.defers(each))
            for each in tools
            if rules.allows(each)
        )

    def _tool_function(
        self, server: Mcp, session: SessionKey, tool: ListedTool, rules: ToolRules
    ) -> ToolFunction:
        label = server.server_label
        if rules.needs_approval(tool):
            return ToolFunction(
                tool=to_function(tool),
                initial_item=it.McpApprovalRequest(
                    server_label=label, name=tool.name, arguments=""
                ),
                parse_fields=lambda arguments: {"arguments": arguments},
                server=server_identity(server),
                namespace=label,
            )
        return self._calling_function(label, session, tool)

    def _calling_function(
        self, label: str, session: SessionKey, tool: ListedTool, **extra_fields: Any
    ) -> ToolFunction:
        return ToolFunction(
            tool=to_function(tool),
            initial_item=it.McpCall(
                server_label=label,
                name=tool.name,
                arguments="",
                status="in_progress",
                **extra_fields,
            ),
            handler=self._call_handler(session, tool.name),
            streams_text=True,
            effects=tool.effects,
            namespace=label,
        )

    def _approved_call(
        self,
        label: str,
        session: SessionKey,
        tools: Sequence[ListedTool],
        request: it.McpApprovalRequest,
    ) -> PendingCall:
        """Return the call that has to run because the user has approved it. ``request``: the
        approval request, which contains the tool's name and the arguments. ``tools``: the tools
        that the model may use now. If the tool of the call is not among them, the call fails when
        it runs."""
        tool = next((each for each in tools if each.name == request.name), None)
        function = self._calling_function(
            label, session, tool or ListedTool(name=request.name), approval_request_id=request.id
        )
        if tool is None:
            function = replace(function, handler=_call_disallowed_tool)
        return PendingCall(
            function=function, arguments=request.arguments, approval_request_id=request.id
        )

    def _call_handler(self, session: SessionKey, name: str) -> CallHandler:
        async def call(
            arguments: str, context: CallContext
        ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
            parsed_arguments = _parse_object(arguments)
            if parsed_arguments is None:
                yield _failed_result(_INVALID_ARGUMENTS, has_run=False)
                return

            try:
                result = await self.caller.call(session, name, parsed_arguments, context)
            except McpFailure as error:
                has_run = not error.details.not_processed
                yield _failed_result(error.details.error, has_run=has_run)
                return
            if result.is_error:
                yield _failed_result(tool_error(result, context.max_result_bytes))
                return
            # Later model calls see the text in the item. So the item gets the same text as the
            # result.
            text = truncate_middle(result_text(result), context.max_result_bytes)
            yield ToolResult(text=text, fields={"output": text})

        return call


_INVALID_ARGUMENTS = {
    "type": "mcp_protocol_error",
    "code": -32602,
    "message": "The arguments are not a JSON object.",
}
#: The longest reason in the error of a list. It is the MCP server's own text.
_MAX_REASON_BYTES = 2_000
_DISALLOWED_TOOL = {
    "type": "mcp_protocol_error",
    "code": -32601,
    "message": "The request does not allow this tool.",
}


async def _call_disallowed_tool(
    arguments: str, context: CallContext
) -> AsyncGenerator[ToolProgress | ToolResult, None]:
    yield _failed_result(_DISALLOWED_TOOL, has_run=False)


def _failed_result(error: dict[str, Any], *, has_run: bool = True) -> ToolResult:
    """Return the result of a failed call. In later turns, the dialects render the item of this call
    with the same text as this result, so the model sees the same text in all turns. ``has_run``:
    see ``ToolResult``."""
    text = f"Error: {json.dumps(error, ensure_ascii=False)}"
    return ToolResult(text=text, fields={"error": error}, failed=True, has_run=has_run)


def _parse_object(arguments: str) -> dict[str, Any] | None:
    if not arguments.strip():
        return {}
    try:
        value = json.loads(arguments)
        json.dumps(value, ensure_ascii=False).encode()  # fails for lone surrogates
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _list_error(label: str, error: McpFailure) -> str:
    reason = truncate_middle(error.details.message, _MAX_REASON_BYTES)
    return f"Error retrieving tool list from MCP server: '{label}'. {reason}"


def _invalid_value(path: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, param=path, code="invalid_value")


def _check_url(url: str, path: str) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _invalid_value(path, "It is not a valid URL.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise _invalid_value(path, "It is not an http or https URL.")
    if parts.username is not None or parts.password is not None:
        raise _invalid_value(path, "It must not contain a user or password.")


def _check_headers(headers: Mapping[str, str], path: str) -> None:
    """Raise ``InvalidRequest`` for headers that HTTP does not allow. The error message does not
    contain the headers, because they may contain secrets."""
    for name, value in headers.items():
        if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
            raise _invalid_value(path, "A header name contains characters that are not allowed.")
        if not value.isascii() or not value.isprintable():
            raise _invalid_value(path, "A header value contains characters that are not allowed.")
        if value != value.strip():  # also the token ""; the HTTP client would break off
            raise _invalid_value(path, "A header value begins or ends with white space.")
