"""Connections to MCP servers, without a server."""

from __future__ import annotations

import httpcore2
import pytest

from antiphon.tools.mcp.endpoint import McpEndpoint
from antiphon.tools.mcp.transport import McpConnector


async def test_certificates_are_read_once_for_all_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = []
    make = httpcore2.default_ssl_context

    def count(**options: bool) -> object:
        contexts.append(make(**options))
        return contexts[-1]

    monkeypatch.setattr(httpcore2, "default_ssl_context", count)
    connector = McpConnector()
    for needs_public_address in (True, False, True):
        endpoint = McpEndpoint(
            url="https://localhost/mcp", needs_public_address=needs_public_address
        )
        async with connector._http_client(endpoint, {}, 1):
            pass
    assert len(contexts) == 1
