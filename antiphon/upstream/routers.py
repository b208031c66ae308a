"""Routers in front of several engines: how each one learns which requests belong together.

One row per router. A router keeps the requests of a session on one engine, whose prefix cache holds
the conversation. Without a router, ``Upstream`` chooses among several addresses itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from secrets import token_hex
from typing import Any

from msgspec import Struct

from antiphon.errors import SetupError
from antiphon.sampling import Session

__all__ = ["ROUTERS", "Router", "SessionTokens", "find_router"]

#: The most session tokens that are remembered.
_MAX_TOKENS = 10_000


class Router(Struct, frozen=True, kw_only=True):
    """What one router reads.

    ``session_headers``: headers with the session's key. ``tenant_headers``: headers with the
    tenant's key, for fairness among tenants. ``fields``: returns fields of the request body.
    ``token_header``: a response header that names the engine and has to be sent with the next
    request of the session.
    """

    session_headers: tuple[str, ...] = ()
    tenant_headers: tuple[str, ...] = ()
    fields: Callable[[Session], Mapping[str, Any]] = lambda session: {}
    token_header: str | None = None

    def headers(self, session: Session, *, is_retry: bool = False) -> dict[str, str]:
        """The headers of a request of this session. ``is_retry``: it has failed on the session's
        engine."""
        key = f"{session.key}-{token_hex(8)}" if is_retry else session.key
        return {
            **dict.fromkeys(self.session_headers, key),
            **dict.fromkeys(self.tenant_headers, session.tenant_key),
        }


def _request_id(session: Session) -> Mapping[str, Any]:
    """SMG keeps together what precedes the last underscore; SGLang needs a different ``rid`` for
    each request."""
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
    """The row of a router. Raises ``SetupError`` for an unknown name."""
    if name is None:
        return None
    if name not in ROUTERS:
        raise SetupError(f"there is no router {name!r} (there are: {', '.join(ROUTERS)})")
    return ROUTERS[name]


class SessionTokens:
    """The session tokens that an upstream's router has sent, by session key. The oldest are
    forgotten."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[str, str] = OrderedDict()

    def get(self, key: str) -> str | None:
        """The token of a session; None if the router has sent none."""
        return self._tokens.get(key)

    def put(self, key: str, token: str) -> None:
        """Remember the token of a session."""
        self._tokens[key] = token
        self._tokens.move_to_end(key)
        while len(self._tokens) > _MAX_TOKENS:
            self._tokens.popitem(last=False)
