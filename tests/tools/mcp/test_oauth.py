"""Access tokens for MCP servers, from a token endpoint on loopback."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs

import pytest

from antiphon.errors import ToolError
from antiphon.tools.mcp.endpoint import McpEndpoint, OAuthClient
from antiphon.tools.mcp.provider import McpProvider
from antiphon.tools.mcp.sessions import SessionPool
from antiphon.wire.tools import Mcp

from .process import Toys
from .test_provider import call_tool, response_context

ASKED = {"grant_type": ["client_credentials"], "scope": ["play"]}
#: Answers without a token that can be sent to a server.
INVALID = [
    {"token": "x"},
    {"access_token": ""},
    {"access_token": "a\r\nb"},
    {"access_token": "é"},
    {"access_token": "x", "expires_in": "soon"},
    {"access_token": "x", "more": "x" * 2**16},
    b'{"access_token": "\xff"}',
    b'{"more": ' + b"[" * 20_000,
    b"<html>",
]
TOOL = Mcp(server_label="toys", require_approval="never")


class Issuer(ThreadingHTTPServer):
    """A token endpoint. ``answers``: what it answers, in order, and then again the last one."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[tuple[str, dict[str, list[str]]]] = []


class Answer(BaseHTTPRequestHandler):
    server: Issuer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["content-length"])).decode()
        issuer = self.server
        issuer.asked.append((self.headers["authorization"], parse_qs(form)))
        status, answer = issuer.answers[min(len(issuer.asked), len(issuer.answers)) - 1]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
async def provider(issuer: Issuer, toys: Toys) -> AsyncIterator[McpProvider]:
    client = OAuthClient(
        token_url=f"http://127.0.0.1:{issuer.server_port}/token",
        client_id="antiphon",
        client_secret="hidden+",
        scope="play",
    )
    endpoint = McpEndpoint(url=f"{toys.root}/locked", oauth=client)
    provider = McpProvider({"toys": endpoint}, SessionPool(connect_s=60, call_s=60))
    yield provider
    await provider.close()


async def whoami(provider: McpProvider, tenant: str = "t", tool: Mcp = TOOL) -> str:
    async with provider.open(tool, response_context(tenant=tenant)) as toolset:
        return (await call_tool(toolset, "whoami", tenant=tenant)).text


async def test_all_sessions_share_one_token(provider: McpProvider, issuer: Issuer) -> None:
    issuer.answers = [(200, {"access_token": "secret", "token_type": "Bearer", "expires_in": 600})]
    said = await asyncio.gather(*(whoami(provider, tenant) for tenant in "abc"))
    assert said == ["Bearer secret None"] * 3
    [(authorization, form)] = issuer.asked
    assert authorization == f"Basic {b64encode(b'antiphon:hidden%2B').decode()}" and form == ASKED


async def test_refused_token_is_replaced_once(provider: McpProvider, issuer: Issuer) -> None:
    issuer.answers = [(200, {"access_token": "revoked"}), (200, {"access_token": "secret"})]
    assert await whoami(provider) == "Bearer secret None"
    assert len(issuer.asked) == 2
    issuer.answers = [(200, {"access_token": "wrong"})]
    refused = Mcp(server_label="toys", require_approval="never", authorization="other")
    with pytest.raises(ToolError, match="401"):
        await whoami(provider, tool=refused)
    assert len(issuer.asked) == 2, "the token of a request is used as it is"


async def test_short_lived_token_is_fetched_again(provider: McpProvider, issuer: Issuer) -> None:
    issuer.answers = [(200, {"access_token": "secret", "expires_in": 1})]
    assert await whoami(provider) == "Bearer secret None"
    assert len(issuer.asked) > 1


@pytest.mark.parametrize("seconds", ["600", None])
async def test_life_of_a_token_may_be_a_string_or_unknown(
    provider: McpProvider, issuer: Issuer, seconds: str | None
) -> None:
    issuer.answers = [(200, {"access_token": "secret", "expires_in": seconds})]
    assert await whoami(provider) == "Bearer secret None"
    assert len(issuer.asked) == 1


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([(401, {"error": "invalid_client"})], "the token endpoint answered HTTP 401"),
        ([(307, {})], "the token endpoint answered HTTP 307"),
        ([(200, {"access_token": "revoked"}), (500, {})], "the token endpoint answered HTTP 500"),
        *(([(200, each)], "the token endpoint's answer is not valid") for each in INVALID),
    ],
)
async def test_failure_to_get_a_token_is_told(
    provider: McpProvider, issuer: Issuer, answers: list[tuple[int, Any]], reason: str
) -> None:
    issuer.answers = answers
    told = re.escape(f"no access token could be obtained ({reason})")
    with pytest.raises(ToolError, match=told) as refusal:
        await whoami(provider)
    assert "hidden" not in str(refusal.value)
