"""``POST /v1/embeddings``, within the limits that runs have. It knows no models."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from antiphon.compat.embeddings import embedding_list, embeddings_request
from antiphon.http.endpoint_context import EndpointContext
from antiphon.http.json_response import json_reply
from antiphon.http.middleware.request_context import exchange_of
from antiphon.http.requests import body as bodies
from antiphon.http.streaming.disconnect import CancelOnDisconnect
from antiphon.wire.response import Usage

__all__ = ["Embeddings"]


class Embeddings:
    """The endpoint, as an ASGI app: its client may leave while it waits."""

    def __init__(self, rim: EndpointContext) -> None:
        self._rim = rim

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        body = await bodies.read(scope, receive, self._rim.limits.max_body_bytes)
        asked = embeddings_request(body, self._rim.limits.body)
        async with CancelOnDisconnect(scope, receive), self._rim.gate.slot(exchange.tenant):
            made = await self._rim.service.embeddings.make(
                asked.model,
                asked.input,
                role="query" if asked.input_type == "query" else "passage",
                dimensions=asked.dimensions,
            )
        exchange.model = made.model.name
        exchange.usage = Usage(input_tokens=made.tokens, total_tokens=made.tokens)
        self._rim.metrics.embedded(made.model.name, made.tokens)
        name = asked.model or made.model.name
        reply = json_reply(embedding_list(asked, name, made.vectors, made.tokens))
        await reply(scope, receive, send)
