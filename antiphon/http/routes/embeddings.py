"""The endpoint ``POST /v1/embeddings``. Embeddings requests and requests that generate responses
share one limit on the number of concurrent requests."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from antiphon.compat.embeddings import (
    EmbeddingList,
    EmbeddingsRequest,
    make_embedding_list,
    parse_embeddings_request,
)
from antiphon.http.endpoint_context import EndpointDependencies
from antiphon.http.json_response import json_reply
from antiphon.http.middleware.request_context import request_context
from antiphon.http.openapi.operation import Operation
from antiphon.http.requests import body as bodies
from antiphon.http.streaming.disconnect import CancelOnDisconnect

__all__ = ["EmbeddingsEndpoint"]


class EmbeddingsEndpoint:
    """``POST /v1/embeddings`` as an ASGI app. If the client disconnects, the request is
    cancelled."""

    operation = Operation(
        id="createEmbedding",
        summary="Compute the embeddings of texts.",
        body=EmbeddingsRequest,
        answer=EmbeddingList,
        errors=(404, 502),
    )

    def __init__(self, deps: EndpointDependencies) -> None:
        self._deps = deps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = request_context(scope)
        body = await bodies.read(scope, receive, self._deps.limits.max_body_bytes)
        parsed = parse_embeddings_request(body, self._deps.limits.body)
        async with CancelOnDisconnect(scope, receive), self._deps.slot(context):
            result = await self._deps.service.embeddings.embed(
                parsed.model,
                parsed.input,
                tenant=context.tenant,
                role="query" if parsed.input_type == "query" else "passage",
                dimensions=parsed.dimensions,
                client=context.client,
            )
        self._deps.record_reading(context, result.model.name, result.tokens)
        self._deps.metrics.record_embeddings(result.model.name, result.tokens)
        name = parsed.model or result.model.name
        reply = json_reply(make_embedding_list(parsed, name, result.vectors, result.tokens))
        await reply(scope, receive, send)
