"""What the SDK raises, and what is made of it."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import MCPError

from antiphon.tools.mcp.results import describe_failure
from antiphon.tools.mcp.transport import ADDRESS_REFUSED, RequestTrace

PROTOCOL = "mcp_protocol_error"


@pytest.mark.parametrize(
    ("error", "noted", "kind", "code", "over", "unheard"),
    [
        (MCPError(-32602, "Bad."), RequestTrace(sent=True), PROTOCOL, -32602, False, False),
        # the server's own words stand over the status they came with
        (MCPError(-32601, "No."), RequestTrace(statuses=[404]), PROTOCOL, -32601, False, False),
        (
            MCPError(-32603, "Server returned an error response"),
            RequestTrace(statuses=[401]),
            "http_error",
            401,
            False,
            False,
        ),
        # a server that has forgotten the session did nothing
        (
            MCPError(-32600, "Session terminated"),
            RequestTrace(statuses=[404]),
            "http_error",
            404,
            True,
            True,
        ),
        (
            MCPError(-32000, "Connection closed"),
            RequestTrace(sent=True),
            PROTOCOL,
            -32000,
            True,
            False,
        ),
        (MCPError(-32000, "Connection closed"), RequestTrace(), PROTOCOL, -32000, True, True),
        (
            MCPError(-32000, "x"),
            RequestTrace(sent=True, transport_errors=["it could not be reached"]),
            PROTOCOL,
            -32000,
            True,
            True,
        ),
        (
            MCPError(-32000, "x"),
            RequestTrace(sent=True, transport_errors=["the connection broke off"]),
            PROTOCOL,
            -32000,
            True,
            False,
        ),
        (
            ValueError(),
            RequestTrace(transport_errors=[ADDRESS_REFUSED]),
            PROTOCOL,
            -32000,
            True,
            False,
        ),
        (TimeoutError(), RequestTrace(sent=True), PROTOCOL, -32001, False, False),
        (ExceptionGroup("", [TimeoutError()]), RequestTrace(), PROTOCOL, -32001, False, False),
        (FileNotFoundError(), RequestTrace(), PROTOCOL, -32000, True, False),
        (KeyError(), RequestTrace(), PROTOCOL, -32000, True, False),
        (KeyError(), RequestTrace(statuses=[599]), "http_error", 599, False, False),
    ],
)
def test_failures(
    error: BaseException, noted: RequestTrace, kind: str, code: int, over: bool, unheard: bool
) -> None:
    fault = describe_failure(error, noted)
    told: dict[str, Any] = fault.error
    assert (told["type"], told["code"]) == (kind, code) and told["message"]
    assert (fault.session_ended, fault.can_retry) == (over, unheard)
    assert fault.message
