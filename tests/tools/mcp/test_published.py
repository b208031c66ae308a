"""A published third-party server, started as its users start it."""

from __future__ import annotations

import sys

from antiphon.testing.tool_check import ToolCheckCase, check_tool
from antiphon.tools.mcp.endpoint import McpEndpoint
from antiphon.tools.mcp.provider import McpProvider
from antiphon.tools.mcp.sessions import SessionPool
from antiphon.wire.tools import Mcp


async def test_mcp_server_time() -> None:
    process = McpEndpoint(
        command=sys.executable, args=("-m", "mcp_server_time", "--local-timezone", "Etc/UTC")
    )
    servers = McpProvider({"time": process}, SessionPool())
    try:
        await check_tool(
            servers,
            ToolCheckCase(
                tool=Mcp(server_label="time", require_approval="never"),
                successful_call=(
                    "convert_time",
                    '{"source_timezone": "Etc/UTC", "time": "12:00", "target_timezone": "Etc/UTC"}',
                ),
                failing_call=("get_current_time", '{"timezone": "Nowhere"}'),
            ),
        )
    finally:
        await servers.close()
