"""What the SDK raises, and what is made of it."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import MCPError

from antiphon.tools.mcp.results import failure
from antiphon.tools.mcp.transport import REFUSED, Seen

PROTOCOL = "mcp_protocol_error"


@pytest.mark.parametrize(
    ("error", "noted", "kind", "code", "over", "unheard"),
    [
        (MCPError(-32602, "Bad."), Seen(sent=True), PROTOCOL, -32602, False, False),
        # the server's own words stand over the status they came with
        (MCPError(-32601, "No."), Seen(statuses=[404]), PROTOCOL, -32601, False, False),
        (MCPError(-32603, "Server returned an error response"), Seen(statuses=[401]),
         "http_error", 401, False, False),
        # a server that has forgotten the session did nothing
        (MCPError(-32600, "Session terminated"), Seen(statuses=[404]),
         "http_error", 404, True, True),
        (MCPError(-32000, "Connection closed"), Seen(sent=True), PROTOCOL, -32000, True, False),
        (MCPError(-32000, "Connection closed"), Seen(), PROTOCOL, -32000, True, True),
        (MCPError(-32000, "x"), Seen(sent=True, broken=["it could not be reached"]),
         PROTOCOL, -32000, True, True),
        (MCPError(-32000, "x"), Seen(sent=True, broken=["the connection broke off"]),
         PROTOCOL, -32000, True, False),
        (ValueError(), Seen(broken=[REFUSED]), PROTOCOL, -32000, True, False),
        (TimeoutError(), Seen(sent=True), PROTOCOL, -32001, False, False),
        (ExceptionGroup("", [TimeoutError()]), Seen(), PROTOCOL, -32001, False, False),
        (FileNotFoundError(), Seen(), PROTOCOL, -32000, True, False),
        (KeyError(), Seen(), PROTOCOL, -32000, True, False),
        (KeyError(), Seen(statuses=[599]), "http_error", 599, False, False),
    ],
)  # fmt: skip
def test_failures(
    error: BaseException, noted: Seen, kind: str, code: int, over: bool, unheard: bool
) -> None:
    fault = failure(error, noted)
    told: dict[str, Any] = fault.error
    assert (told["type"], told["code"]) == (kind, code) and told["message"]
    assert (fault.is_over, fault.is_unheard) == (over, unheard)
    assert fault.message
