"""Requests of the Messages API, translated without a server."""

from __future__ import annotations

import json
from typing import Any

from antiphon.compat.messages.request import parse_messages_request
from antiphon.wire.tools import Mcp


def test_older_form_of_mcp_servers_allows_the_tools_that_it_lists() -> None:
    def allowed(**configuration: Any) -> list[object]:
        body = {
            "model": "m",
            "max_tokens": 1,
            "messages": [{"role": "user", "content": "hi"}],
            "mcp_servers": [
                {
                    "type": "url",
                    "name": "desk",
                    "url": "https://desk.example/mcp",
                    "tool_configuration": configuration,
                }
            ],
        }
        request = parse_messages_request(json.dumps(body).encode()).request
        return [tool.allowed_tools for tool in request.tools or () if isinstance(tool, Mcp)]

    assert allowed(allowed_tools=["read"]) == [("read",)]
    assert allowed(allowed_tools=[]) == [()]
    assert allowed(enabled=False, allowed_tools=["read"]) == []
