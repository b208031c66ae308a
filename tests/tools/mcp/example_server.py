"""A test server with the official MCP SDK: ``example_server.py http|stdio|judge [PORT]``.

``judge`` has one tool, which moderates, and speaks over stdio.

Over HTTP it prints its port on the first line of stdout. ``/mcp`` has streamable HTTP, ``/sse``
SSE, ``/locked`` requires the key "secret", ``/broken`` answers 503 and ``/elsewhere`` redirects.
Calls are appended to the file ``TOYS_LOG``.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from pydantic import BaseModel

toys = MCPServer("toys", log_level="CRITICAL")
judge = MCPServer("judge", log_level="CRITICAL")
READ_ONLY = ToolAnnotations(read_only_hint=True)


def log_call(line: str) -> None:
    if "TOYS_LOG" in os.environ:
        with Path(os.environ["TOYS_LOG"]).open("a") as log:
            log.write(line + "\n")


@toys.tool(annotations=READ_ONLY)
def add(a: int, b: int) -> str:
    """Add two numbers."""
    log_call(f"add {a} {b}")
    return str(a + b)


@toys.tool()
def delete(name: str) -> str:
    """Delete something."""
    log_call(f"delete {name}")
    return f"{name} is gone"


@judge.tool()
def moderate(input: str | list[dict[str, Any]]) -> dict[str, Any]:
    """Judge texts and images."""
    has_image = "data:image/png;base64," in str(input)
    return {"categories": {"hate": "hate" in str(input), "sexual": has_image, "illicit": None}}


@toys.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("the toy is broken")


@toys.tool()
async def hang(name: str = "") -> str:
    """Never return."""
    log_call(f"hang {name}")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        log_call(f"cancelled {name}")
        raise
    return ""


@toys.tool()
def die() -> str:
    """End the server process without an answer."""
    log_call("die")
    os._exit(1)


@toys.tool()
async def process_id() -> int:
    """The id of the server process."""
    return os.getpid()


class Weather(BaseModel):
    city: str
    degrees: float


@toys.tool()
def weather(city: str) -> Weather:
    """The weather."""
    return Weather(city=city, degrees=21.5)


@toys.tool()
def picture() -> Image:
    """A picture."""
    return Image(data=b"\x89PNG....", format="png")


@toys.tool()
def resources() -> CallToolResult:
    """Resources of all kinds."""
    return CallToolResult(
        content=[
            TextContent(text="Here:"),
            EmbeddedResource(resource=TextResourceContents(uri="toy://a", text="inner text")),
            EmbeddedResource(
                resource=BlobResourceContents(uri="toy://b", blob="AAAA", mime_type="x/y")
            ),
            ResourceLink(name="more", uri="toy://c", description="There is more"),
        ]
    )


@toys.tool()
def long() -> str:
    """A long text."""
    return "x" * 200_000


@toys.tool()
def whoami(ctx: Context[Any]) -> str:
    """The credentials of the request."""
    log_call(f"key {(ctx.request_context.meta or {}).get('io.antiphon/idempotency-key')}")
    headers = ctx.headers or {}
    return f"{headers.get('authorization')} {headers.get('x-toy')}"


#: Id of an SSE session, or "" for a process → what it remembers.
remembered_words: dict[str, list[str]] = {}


@toys.tool()
def remember(word: str, ctx: Context[Any]) -> str:
    """Return all words of this session."""
    request = ctx.request_context.request
    session = "" if request is None else request.query_params.get("session_id", "")
    words = remembered_words.setdefault(session, [])
    words.append(word)
    return " ".join(words)


@toys.tool()
def search(query: str, topn: int = 10) -> str:
    """Search the web."""
    return f"results of {query}"


@toys.tool(name="open")
def open_page(id: str = "", cursor: int = -1) -> str:
    """Open a page."""
    return f"page {id}"


@toys.tool()
def find(pattern: str, cursor: int = -1) -> str:
    """Find text in a page."""
    raise ToolError(f"{pattern} is not there")


@toys.tool()
def python(code: str) -> str:
    """Run Python."""
    return f"ran {code}"


class Router:
    """The ASGI application that routes the paths."""

    def __init__(self) -> None:
        self.streaming = toys.streamable_http_app()
        self.events = toys.sse_app()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        authorization = dict(scope.get("headers", ())).get(b"authorization", b"")
        if path == "/sse":
            log_call("session begins")
            try:
                await self.events(scope, receive, send)
            finally:
                log_call("session ends")
        elif path == "/messages/":
            await self.events(scope, receive, send)
        elif path == "/broken":
            await answer(send, 503)
        elif path == "/elsewhere":
            await answer(send, 307, (b"location", b"http://localhost.localdomain/mcp"))
        elif path == "/locked" and authorization != b"Bearer secret":
            challenge = b'Bearer resource_metadata="https://toys.example/meta", scope="play"'
            await answer(send, 401, (b"www-authenticate", challenge))
        else:
            await self.streaming({**scope, "path": "/mcp"}, receive, send)


async def answer(send: Any, status: int, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def main(transport: str, port: str = "0") -> None:
    if transport == "judge":
        judge.run("stdio")
        return
    if transport == "stdio":
        toys.run("stdio")
        return
    listener = socket.create_server(("127.0.0.1", int(port)))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    server = uvicorn.Server(uvicorn.Config(Router(), log_level="error"))
    asyncio.run(server.serve(sockets=[listener]))


if __name__ == "__main__":
    main(*sys.argv[1:])
