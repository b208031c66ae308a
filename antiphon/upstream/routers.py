"""Routers in front of several engines.

A session is the requests of one conversation. A router keeps a session on one engine, because the
prefix cache of this engine contains the conversation. The table ``ROUTERS`` has one entry per kind
of router. The entry names the headers and fields by which the router recognizes a session.
Without a router, ``Upstream`` chooses among its addresses itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from secrets import token_hex
from typing import Any

from msgspec import Struct

from antiphon.errors import SetupError
from antiphon.inference.sampling import Session

__all__ = ["ROUTERS", "Router", "SessionTokens", "find_router"]

#: Maximum number of stored session tokens.
_MAX_TOKENS = 10_000


class Router(Struct, frozen=True, kw_only=True):
    """What one kind of router needs in requests, so that it recognizes their session.

    - ``session_headers``: names of request headers that contain the session's key.
    - ``tenant_headers``: names of request headers that contain the tenant's key, so that the router
      can be fair to tenants.
    - ``fields``: function that returns additional fields for the request body.
    - ``token_header``: name of a header in the router's responses. It identifies the engine of the
      session. The next request of the session must contain the same header.
    """

    session_headers: tuple[str, ...] = ()
    tenant_headers: tuple[str, ...] = ()
    fields: Callable[[Session], Mapping[str, Any]] = lambda session: {}
    token_header: str | None = None

    def headers(self, session: Session, *, is_retry: bool = False) -> dict[str, str]:
        """Return the headers for a request of this session.

        ``is_retry``: an earlier attempt has failed. The headers then contain a new session key.
        """
        key = f"{session.key}-{token_hex(8)}" if is_retry else session.key
        return {
            **dict.fromkeys(self.session_headers, key),
            **dict.fromkeys(self.tenant_headers, session.tenant_key),
        }


def _request_id(session: Session) -> Mapping[str, Any]:
    """Return the field ``rid`` (request id) for the body of a request. It consists of the session's
    key, an underscore and a random part.

    SMG recognizes a session by the text before the last underscore of ``rid``. The random part is
    needed because SGLang needs a different ``rid`` for each request.
    """
    return {"rid": f"{session.key}_{token_hex(8)}"}


#: Sources: vllm-router 0.1.17 and SMG 1.13.0, tested; the header reference of llm-d's endpoint
#: picker (two names, by its version) and its session affinity scorer; Dynamo's documentation.
ROUTERS: Mapping[str, Router] = {
    # with the policies consistent_hash and sticky_least_loaded
    "vllm-router": Router(session_headers=("x-session-id",)),
    # with the policies consistent_hashing, manual and prefix_hash
    "smg": Router(session_headers=("x-smg-routing-key",)),
    # SMG with --sticky-sessions
    "sglang": Router(fields=_request_id),
    "llm-d": Router(
        tenant_headers=("x-gateway-inference-fairness-id", "x-llm-d-inference-fairness-id"),
        token_header="x-session-token",
    ),
    # with --router-session-affinity-ttl-secs
    "dynamo": Router(session_headers=("x-dynamo-session-id",)),
}


def find_router(name: str | None) -> Router | None:
    """Return the entry of ``ROUTERS`` with this name. Returns None if ``name`` is None. Raises
    ``SetupError`` for an unknown name."""
    if name is None:
        return None
    if name not in ROUTERS:
        raise SetupError(f"there is no router {name!r} (there are: {', '.join(ROUTERS)})")
    return ROUTERS[name]


class SessionTokens:
    """Stores session tokens by session key. A session token is a value that an upstream's router
    has sent to identify the engine of a session. If there are more than ``_MAX_TOKENS``, the oldest
    tokens are deleted."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[str, str] = OrderedDict()

    def get(self, key: str) -> str | None:
        """Return the session token that the router has sent for a session. Returns None if none is
        stored."""
        return self._tokens.get(key)

    def put(self, key: str, token: str) -> None:
        """Store the session token that the router has sent for a session."""
        self._tokens[key] = token
        self._tokens.move_to_end(key)
        while len(self._tokens) > _MAX_TOKENS:
            self._tokens.popitem(last=False)
