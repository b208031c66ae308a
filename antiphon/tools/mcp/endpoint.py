"""The address of an MCP server, and the trace of a request to an MCP server. The trace records what
the transport did, so that a failed request can be explained.

This module does not import the MCP SDK, because this import takes about a second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from antiphon.security.ssrf import Network


class OAuthClient(Struct, frozen=True, kw_only=True):
    """What a client needs to get access tokens at ``token_url``."""

    token_url: str
    client_id: str
    client_secret: str
    scope: str = ""


class McpEndpoint(Struct, frozen=True, kw_only=True):
    """The address of an MCP server: a URL, or a command that the operator has configured.

    - ``needs_public_address``: whether the server's IP address must be public or in one of
      ``networks``, the networks that the operator has allowed. This is so if the URL comes from a
      request.
    - ``oauth``: how to get access tokens; None if the headers are enough.
    - ``shares_sessions``: whether all conversations of a tenant use the same session.
    """

    url: str = ""
    transport: Literal["auto", "http", "sse"] = "auto"
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    oauth: OAuthClient | None = None
    needs_public_address: bool = False
    networks: tuple[Network, ...] = ()
    shares_sessions: bool = False

    @property
    def name(self) -> str:
        """The MCP server's name in logs. For a URL, it is only the host, because other parts of the
        URL may contain secrets."""
        return self.command or urlsplit(self.url).hostname or ""

    @property
    def key(self) -> str:
        """A hash of the MCP server's address and credentials, by which its open sessions are found.
        The hash does not reveal the credentials."""
        identity = msgspec.json.encode(
            [self.url, self.transport, self.command, self.args, self.needs_public_address]
            + [self.oauth]
            + [sorted(pairs.items()) for pairs in (self.env, self.headers)]
        )
        return hashlib.sha256(identity).hexdigest()


class RequestTrace(msgspec.Struct):
    """A record of one request to an MCP server. ``was_sent``: whether the transport has sent a
    message. ``was_accepted``: whether the server has accepted a message by HTTP. ``statuses``: the
    HTTP statuses of answers without success (300 or higher). ``transport_errors``: descriptions of
    the errors of the transport. ``challenge``: what the server wants to be authorized with, i.e.
    the header ``WWW-Authenticate`` of its last refusal."""

    was_sent: bool = False
    was_accepted: bool = False
    statuses: list[int] = []
    transport_errors: list[str] = []
    challenge: str = ""


#: The trace of the current request. The MCP SDK sends a message in the context (``contextvars``) of
#: the task that calls the SDK. So the transport can read the trace from this variable.
current_trace: ContextVar[RequestTrace | None] = ContextVar("current_trace", default=None)

#: The entries of ``RequestTrace.transport_errors`` for an address that is not allowed, and for a
#: connection that broke off, perhaps after a message.
ADDRESS_REFUSED = "its address is not a public one (see the setting mcp.allowed_networks)"
BROKEN_OFF = "the connection broke off"

#: HTTP statuses of servers that do not support the transport, or the version of the protocol, that
#: the client has tried. The client then tries another one.
UNSUPPORTED = frozenset({400, 404, 405})
