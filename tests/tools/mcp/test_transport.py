"""Connections to MCP servers, without a server."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator

import httpcore2
import httpx2
import pytest

from antiphon.tools.mcp.endpoint import McpEndpoint
from antiphon.tools.mcp.transport import LimitedStream, McpConnector


async def test_certificates_are_read_once_for_all_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = []
    make = httpcore2.default_ssl_context

    def count(**options: bool) -> object:
        contexts.append(make(**options))
        return contexts[-1]

    monkeypatch.setattr(httpcore2, "default_ssl_context", count)
    connector = McpConnector()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"https://127.0.0.1:{closed.getsockname()[1]}/mcp"
        for needs_public_address in (True, False, True):
            endpoint = McpEndpoint(url=url, needs_public_address=needs_public_address)
            with pytest.raises(Exception, match=r"."):
                async with connector.connect(endpoint, 1):
                    pass
    assert len(contexts) == 1


class _Body(httpx2.AsyncByteStream):
    def __init__(self, content: bytes, size: int) -> None:
        self._pieces = [content[at : at + size] for at in range(0, len(content), size)]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


async def read(content: bytes, *, size: int = 4_096, is_events: bool = False) -> bytes:
    stream = LimitedStream(_Body(content, size), is_events=is_events)
    return b"".join([piece async for piece in stream])


def result(blocks: list[object]) -> bytes:
    return json.dumps({"result": {"content": blocks}}).encode()


@pytest.mark.parametrize("size", [1, 4_096, 1 << 24])
async def test_code_in_the_text_of_a_result_is_no_value(size: int) -> None:
    text = 'if (a) { b[0] = "\\"; } ' * (1_000 if size == 1 else 30_000)
    content = result([{"type": "text", "text": text}])
    assert await read(content, size=size) == content


@pytest.mark.parametrize(
    "content",
    [
        result([{"type": "text", "text": "x"}] * 20_000),
        result([[]] * 20_000),
        result(["x"] * 200_000),
        b'{"result": "' + b"x" * (16 << 20) + b'"}',
    ],
    ids=["objects", "arrays", "strings", "bytes"],
)
async def test_too_large_message_is_not_read(content: bytes) -> None:
    """The MCP SDK would parse it in one step, during which no client of the server is answered."""
    with pytest.raises(httpx2.ReadError, match="too large"):
        await read(content, size=1 << 16)
    with pytest.raises(httpx2.ReadError, match="too large"):
        await read(b"data: " + content + b"\n\n", size=1 << 16, is_events=True)


@pytest.mark.parametrize("line", [b': "', b'event: "', b"data: \\"])
async def test_quotes_outside_of_messages_hide_no_values(line: bytes) -> None:
    event = line + b"\ndata: " + result([[]] * 20_000) + b"\n\n"
    with pytest.raises(httpx2.ReadError, match="too large"):
        await read(event, size=50_000, is_events=True)


async def test_each_event_may_have_the_largest_size() -> None:
    event = b"data: " + result([{"type": "text", "text": "x"}] * 9_000) + b"\r\n\r\n"
    assert await read(event * 4, size=50_000, is_events=True) == event * 4


#: A server whose tool has an output schema with a pattern that takes exponential time.
HOSTILE = """
import json, sys
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
TOOL = {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": SCHEMA}
ANSWERS = {
    "initialize": lambda params: {
        "protocolVersion": params["protocolVersion"],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "hostile", "version": "1"},
    },
    "tools/list": lambda params: {"tools": [TOOL]},
    "tools/call": lambda params: {"content": [], "structuredContent": {"a": "aaaaaaaa!"}},
}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        answer = ANSWERS.get(message["method"])
        end = (
            {"result": answer(message.get("params"))}
            if answer
            else {"error": {"code": -32601, "message": "unknown"}}
        )
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **end}), flush=True)
"""


async def test_patterns_of_a_server_are_not_matched() -> None:
    """The MCP SDK would match them in the event loop."""
    endpoint = McpEndpoint(command=sys.executable, args=("-c", HOSTILE))
    async with asyncio.timeout(60), McpConnector().connect(endpoint, 5) as client:
        await client.list_tools()
        result = await client.call_tool("t", {})
    assert result.structured_content == {"a": "aaaaaaaa!"}
