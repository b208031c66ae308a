"""Classification of the exceptions that the MCP SDK raises."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import MCPError

from antiphon.tools.mcp.endpoint import ADDRESS_REFUSED, BROKEN_OFF, RequestTrace
from antiphon.tools.mcp.results import describe_failure

PROTOCOL = "mcp_protocol_error"


@pytest.mark.parametrize(
    ("error", "trace", "kind", "code", "session_ended", "can_retry"),
    [
        (MCPError(-32602, "Bad."), RequestTrace(was_sent=True), PROTOCOL, -32602, False, False),
        # the server's message takes precedence over the HTTP status
        (MCPError(-32601, "No."), RequestTrace(statuses=[404]), PROTOCOL, -32601, False, False),
        (
            MCPError(-32603, "Server returned an error response"),
            RequestTrace(statuses=[401]),
            "http_error",
            401,
            False,
            False,
        ),
        # a server that lost the session did not process the request
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
            RequestTrace(was_sent=True),
            PROTOCOL,
            -32000,
            True,
            False,
        ),
        (MCPError(-32000, "Connection closed"), RequestTrace(), PROTOCOL, -32000, True, True),
        (
            MCPError(-32000, "x"),
            RequestTrace(was_sent=True, transport_errors=["it could not be reached"]),
            PROTOCOL,
            -32000,
            True,
            True,
        ),
        (
            MCPError(-32000, "x"),
            RequestTrace(was_sent=True, transport_errors=["the connection broke off"]),
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
        (TimeoutError(), RequestTrace(was_sent=True), PROTOCOL, -32001, False, False),
        (ExceptionGroup("", [TimeoutError()]), RequestTrace(), PROTOCOL, -32001, False, False),
        (FileNotFoundError(), RequestTrace(), PROTOCOL, -32000, True, False),
        (KeyError(), RequestTrace(), PROTOCOL, -32000, True, False),
        (KeyError(), RequestTrace(statuses=[599]), "http_error", 599, False, False),
    ],
)
def test_failures_are_classified(
    error: BaseException,
    trace: RequestTrace,
    kind: str,
    code: int,
    session_ended: bool,
    can_retry: bool,
) -> None:
    details = describe_failure(error, trace)
    error_fields: dict[str, Any] = details.error
    assert (error_fields["type"], error_fields["code"]) == (kind, code) and error_fields["message"]
    assert (details.session_ended, details.can_retry) == (session_ended, can_retry)
    assert details.message


@pytest.mark.parametrize(
    ("error", "trace", "not_processed"),
    [
        (MCPError(-32603, "x"), RequestTrace(was_sent=True, statuses=[401]), True),
        (MCPError(-32000, "x"), RequestTrace(was_sent=True, statuses=[403]), False),
        (MCPError(-32000, "x"), RequestTrace(was_sent=True, statuses=[502]), False),
        (EOFError(), RequestTrace(transport_errors=["it could not be reached"]), True),
        (EOFError(), RequestTrace(transport_errors=[ADDRESS_REFUSED]), True),
        (EOFError(), RequestTrace(transport_errors=[BROKEN_OFF]), False),
        # the call was accepted, and only its answer was requested again
        (EOFError(), RequestTrace(was_accepted=True, statuses=[401]), False),
        (EOFError(), RequestTrace(was_accepted=True, statuses=[404]), False),
        (
            EOFError(),
            RequestTrace(was_accepted=True, transport_errors=["it could not be reached"]),
            False,
        ),
        (
            EOFError(),
            RequestTrace(transport_errors=[BROKEN_OFF, "it could not be reached"]),
            False,
        ),
        (TimeoutError(), RequestTrace(was_sent=True), False),
    ],
)
def test_only_what_the_server_certainly_did_not_process_may_be_sent_again(
    error: BaseException, trace: RequestTrace, not_processed: bool
) -> None:
    details = describe_failure(error, trace)
    assert details.not_processed is not_processed
    assert not details.can_retry or details.not_processed
