"""The endpoint ``POST /v1/rerank``, which ranks documents by how well they answer a query. Its
requests share the limit for concurrent requests with the requests that generate responses."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from antiphon.compat.rerank import (
    RerankAnswer,
    RerankRequest,
    make_rerank_answer,
    parse_rerank_request,
)
from antiphon.http.endpoint_context import EndpointDependencies
from antiphon.http.json_response import json_reply
from antiphon.http.middleware.request_context import request_context
from antiphon.http.openapi.operation import Operation
from antiphon.http.requests import body as bodies
from antiphon.http.streaming.disconnect import CancelOnDisconnect

__all__ = ["RerankEndpoint"]


class RerankEndpoint:
    """``POST /v1/rerank`` as an ASGI app. If the client disconnects, the request is cancelled."""

    operation = Operation(
        id="rerank",
        summary="Rank documents by how well they answer a query.",
        body=RerankRequest,
        answer=RerankAnswer,
        errors=(404, 502),
    )

    def __init__(self, deps: EndpointDependencies) -> None:
        self._deps = deps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = request_context(scope)
        body = await bodies.read(scope, receive, self._deps.limits.max_body_bytes)
        parsed = parse_rerank_request(body, self._deps.limits.body)
        async with CancelOnDisconnect(scope, receive), self._deps.slot(context):
            result = await self._deps.service.rerankers.rerank(
                parsed.model, parsed.query, parsed.texts, client=context.client
            )
        self._deps.record_reading(context, result.model.name, result.tokens)
        name = parsed.model or result.model.name
        answer = make_rerank_answer(parsed, context.id, name, result.scores, result.tokens)
        await json_reply(answer)(scope, receive, send)
