"""Settings of one MCP server."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from .options import declare


class McpServer(Struct, frozen=True, kw_only=True):
    """An MCP server: ``[mcp.servers.NAME]``.

    A request selects this server by ``NAME``, in ``server_label`` or ``connector_id``. So the
    request does not need to contain the address. Each table must have exactly one of ``url``,
    ``command`` and ``tool``.
    """

    url: Annotated[str, declare("URL of the MCP server. It may have a private address.")] = ""
    transport: Annotated[
        Literal["auto", "http", "sse"],
        declare(
            "Transport of `url`: Streamable HTTP (`http`) or SSE (`sse`). `auto` tries "
            "Streamable HTTP first, then SSE."
        ),
    ] = "auto"
    headers: Annotated[
        dict[str, str],
        declare(
            "HTTP headers that are sent with every request to `url`.",
            kind="a table",
            secret=True,
        ),
    ] = {}
    oauth_token_url: Annotated[
        str,
        declare(
            "URL of the authorization server's token endpoint. If it is set, Antiphon gets access "
            "tokens for `url` there, with the grant `client_credentials`, `oauth_client_id` and "
            "`oauth_client_secret`. A request with a token of its own (`authorization`) uses "
            "that one."
        ),
    ] = ""
    oauth_client_id: Annotated[str, declare("Antiphon's id at the authorization server.")] = ""
    oauth_client_secret: Annotated[
        str,
        declare(
            "Antiphon's secret at the authorization server.",
            secret=True,
        ),
    ] = ""
    oauth_scope: Annotated[
        str, declare("Scopes of the access tokens, separated by spaces. Empty: the default ones.")
    ] = ""
    command: Annotated[
        str,
        declare(
            "Program that Antiphon starts as the MCP server, on this machine. Set it instead "
            "of `url`. The arguments of the program are in `args`."
        ),
    ] = ""
    tool: Annotated[
        Literal["code_interpreter", "shell", "web_search"] | None,
        declare(
            "Built-in tool of Antiphon that requests can use under the name of this MCP "
            "server. Set it instead of `url` and `command`."
        ),
    ] = None
    implements: Annotated[
        Literal["code_interpreter", "moderation", "web_search"] | None,
        declare(
            "Built-in tool of Antiphon that this MCP server replaces. Every request with "
            "this tool then uses the MCP server. `moderation`: requests can name the MCP server "
            "in `moderation`, and at `/v1/moderations`."
        ),
    ] = None
    session: Annotated[
        Literal["conversation", "tenant"],
        declare(
            "Which responses share an MCP session: all responses of a conversation, or "
            "all responses of a tenant. Use `tenant` only if the MCP server keeps no state."
        ),
    ] = "conversation"
    args: Annotated[tuple[str, ...], declare("Arguments of the program in `command`.")] = ()
    env: Annotated[
        dict[str, str],
        declare(
            "Environment variables of the program in `command`, in addition to basic ones such as "
            "`PATH` and `HOME`.",
            kind="a table",
            secret=True,
        ),
    ] = {}
