"""Routers in front of several engines.

A session is the requests of one conversation. A router keeps a session on one engine, because the
prefix cache of this engine contains the conversation. The table ``ROUTERS`` has one entry per kind
of router. The entry names the headers and fields by which the router recognizes a session.
Without a router, ``Upstream`` chooses among its addresses itself.

Some routers and engines are also told that a session has ended. Then they free what they store for
it. A server gets only what its entry contains.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from secrets import token_hex
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.errors import SetupError
from antiphon.inference.sampling import Session

#: Maximum number of stored session tokens.
_MAX_TOKENS = 10_000


class EndRequest(Struct, frozen=True):
    """A POST request that ends a session. ``path``: below the root of the server, with the query.
    ``body``: JSON; empty for none."""

    path: str
    body: bytes = b""


class Router(Struct, frozen=True, kw_only=True):
    """What one kind of router, or of engine, needs in requests, so that it recognizes their
    session.

    - ``session_headers``: names of request headers that contain the session's key.
    - ``tenant_headers``: names of request headers that contain the tenant's key, so that the router
      can be fair to tenants.
    - ``fields``: function that returns additional fields for the request body.
    - ``token_header``: name of a header in the router's responses. It identifies the engine of the
      session. The next request of the session must contain the same header.
    - ``end``: function that returns the request that ends the session with a key; None if the
      server has no such request.
    """

    session_headers: tuple[str, ...] = ()
    tenant_headers: tuple[str, ...] = ()
    fields: Callable[[Session], Mapping[str, Any]] = lambda session: {}
    token_header: str | None = None
    end: Callable[[str], EndRequest] | None = None

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


def _session_id(session: Session) -> Mapping[str, Any]:
    return {"session_id": session.key}


def _close_session(key: str) -> EndRequest:
    return EndRequest("/close_session", msgspec.json.encode({"session_id": key}))


def _finish_session(key: str) -> EndRequest:
    """Return vllm-router's request. It takes the id in the query, and refuses a body."""
    return EndRequest(f"/finish_session?session_id={key}")


#: Sources: vllm-router 0.1.17 and SMG 1.13.0, tested; the header reference of llm-d's endpoint
#: picker (two names, by its version) and its session affinity scorer; Dynamo's documentation;
#: SGLang's pull requests 27058 and 29436 and vLLM's 48048, for the engines themselves.
ROUTERS: Mapping[str, Router] = {
    # with the policies consistent_hash and sticky_least_loaded
    "vllm-router": Router(session_headers=("x-session-id",), end=_finish_session),
    # vLLM without a router. The header only identifies the session, and older versions ignore it.
    "vllm": Router(session_headers=("x-session-id",)),
    # SGLang without a router, with --enable-session-radix-cache
    "sglang-sessions": Router(fields=_session_id, end=_close_session),
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


class OpenSessions:
    """The keys of the sessions of which an upstream has got requests. If there are more than
    ``_MAX_TOKENS``, the oldest are forgotten."""

    def __init__(self) -> None:
        self._keys: OrderedDict[str, None] = OrderedDict()

    def add(self, key: str) -> None:
        """Record that the upstream has got a request of a session."""
        self._keys[key] = None
        self._keys.move_to_end(key)
        while len(self._keys) > _MAX_TOKENS:
            self._keys.popitem(last=False)

    def end(self, key: str) -> bool:
        """Forget a session. Return whether the upstream has got requests of it."""
        return self._keys.pop(key, key) is None


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
