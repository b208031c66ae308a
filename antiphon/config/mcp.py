"""Settings of one MCP server."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from .options import declare

__all__ = ["McpServer"]


class McpServer(Struct, frozen=True, kw_only=True):
    """An MCP server: ``[mcp_servers.NAME]``.

    Requests can use the tools of the server without its address. They give its name as
    ``server_label`` or ``connector_id``.
    """

    url: Annotated[str, declare("URL of the server. Private addresses are allowed here.")] = ""
    transport: Annotated[
        Literal["auto", "http", "sse"],
        declare("Streamable HTTP or SSE. `auto` tries Streamable HTTP first, then SSE."),
    ] = "auto"
    headers: Annotated[
        dict[str, str],
        declare(
            (
                "HTTP headers sent with every request; a value `$NAME` reads an environment "
                "variable."
            ),
            kind="a table",
            secret=True,
        ),
    ] = {}
    command: Annotated[
        str, declare("Command that starts the server on this machine (instead of `url`).")
    ] = ""
    tool: Annotated[
        Literal["code_interpreter", "shell", "web_search"] | None,
        declare("Built-in tool that requests mean by this name (instead of `url` and `command`)."),
    ] = None
    implements: Annotated[
        Literal["code_interpreter", "web_search"] | None,
        declare("Built-in tool that this server implements, for all requests."),
    ] = None
    session: Annotated[
        Literal["conversation", "tenant"],
        declare(
            "Who shares a session with the server: the responses of one conversation, or, if the "
            "server keeps no state, all of a tenant."
        ),
    ] = "conversation"
    args: Annotated[tuple[str, ...], declare("Arguments of `command`.")] = ()
    env: Annotated[
        dict[str, str],
        declare(
            (
                "Environment variables of `command`, in addition to `PATH`, `HOME` and the "
                "like; a value `$NAME` reads a variable of the server's environment."
            ),
            kind="a table",
            secret=True,
        ),
    ] = {}
