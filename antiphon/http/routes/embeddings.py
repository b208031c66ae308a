"""``POST /v1/embeddings``, within the limits that runs have. It knows no models."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from antiphon.compat.embeddings import make_embedding_list, parse_embeddings_request
from antiphon.http.endpoint_context import EndpointDependencies
from antiphon.http.json_response import json_reply
from antiphon.http.middleware.request_context import request_context
from antiphon.http.requests import body as bodies
from antiphon.http.streaming.disconnect import CancelOnDisconnect
from antiphon.wire.response import Usage

__all__ = ["Embeddings"]


class Embeddings:
    """The endpoint, as an ASGI app: its client may leave while it waits."""

    def __init__(self, deps: EndpointDependencies) -> None:
        self._deps = deps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = request_context(scope)
        body = await bodies.read(scope, receive, self._deps.limits.max_body_bytes)
        asked = parse_embeddings_request(body, self._deps.limits.body)
        async with CancelOnDisconnect(scope, receive), self._deps.admission.slot(context.tenant):
            made = await self._deps.service.embeddings.make(
                asked.model,
                asked.input,
                role="query" if asked.input_type == "query" else "passage",
                dimensions=asked.dimensions,
            )
        context.model = made.model.name
        context.usage = Usage(input_tokens=made.tokens, total_tokens=made.tokens)
        self._deps.metrics.record_embeddings(made.model.name, made.tokens)
        name = asked.model or made.model.name
        reply = json_reply(make_embedding_list(asked, name, made.vectors, made.tokens))
        await reply(scope, receive, send)
