"""Endpoints whose models read texts and generate none: ``POST /v1/embeddings``, ``POST
/v1/moderations``, and ``POST /v1/rerank``, which ranks documents by how well they answer a query.

They share the limit on the number of concurrent requests with the requests that generate responses.
If the client disconnects, the request is cancelled.
"""

from __future__ import annotations

from starlette.requests import Request

from antiphon.compat.embeddings import (
    EmbeddingList,
    EmbeddingsRequest,
    make_embedding_list,
    parse_embeddings_request,
)
from antiphon.compat.rerank import (
    RerankAnswer,
    RerankRequest,
    make_rerank_answer,
)
from antiphon.http.endpoint_context import EndpointDependencies
from antiphon.http.middleware.request_context import request_context
from antiphon.http.openapi.operation import operation
from antiphon.http.requests import body as bodies
from antiphon.http.streaming.disconnect import CancelOnDisconnect
from antiphon.http.unknown_urls import unknown_url
from antiphon.runs.request.guards import Question
from antiphon.runs.request.moderators import check_images
from antiphon.wire.moderation import ModerationList, ModerationRequest
from antiphon.wire.parsing.fields import body_parser

_parse_moderation = body_parser(ModerationRequest)
_parse_rerank = body_parser(RerankRequest, refuses_unknown=True)


class ReadingRoutes:
    """The routes ``/v1/embeddings``, ``/v1/moderations`` and ``/v1/rerank``."""

    def __init__(self, deps: EndpointDependencies) -> None:
        self._deps = deps

    @operation("POST /v1/embeddings", "createEmbedding", body=EmbeddingsRequest, errors=(404, 502))
    async def embed(self, request: Request) -> EmbeddingList:
        """Compute the embeddings of texts."""
        context = request_context(request.scope)
        parsed = await bodies.parse(request, self._deps.limits, parse_embeddings_request)
        async with CancelOnDisconnect(request.scope, request.receive), self._deps.slot(context):
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
        return make_embedding_list(parsed, name, result.vectors, result.tokens)

    @operation(
        "POST /v1/moderations", "createModeration", body=ModerationRequest, errors=(404, 502)
    )
    async def moderate(self, request: Request) -> ModerationList:
        """Judge texts and images with a moderator."""
        context = request_context(request.scope)
        parsed = await bodies.parse(request, self._deps.limits, _parse_moderation)
        moderators = self._deps.service.moderators
        if not moderators:
            hint = " This server has no moderator: no model has the setting 'moderation'."
            raise unknown_url("POST", "/v1/moderations", hint)
        moderator = moderators.find(parsed.model, "model")
        context.client.check_model(moderator.name, parsed.model)
        async with CancelOnDisconnect(request.scope, request.receive), self._deps.slot(context):
            results = []
            for parts in parsed.inputs:
                question = Question(parts=parts, tenant=context.tenant)
                await check_images(moderator, question, "input")
                results.append(await moderator.judge(question))
        self._deps.record_reading(context, moderator.name, 0)
        name = parsed.model or moderator.name
        return ModerationList(id=context.id, model=name, results=tuple(results))

    @operation("POST /v1/rerank", "rerank", body=RerankRequest, errors=(404, 502))
    async def rerank(self, request: Request) -> RerankAnswer:
        """Rank documents by how well they answer a query."""
        context = request_context(request.scope)
        parsed = await bodies.parse(request, self._deps.limits, _parse_rerank)
        async with CancelOnDisconnect(request.scope, request.receive), self._deps.slot(context):
            result = await self._deps.service.rerankers.rerank(
                parsed.model, parsed.query, parsed.texts, client=context.client
            )
        self._deps.record_reading(context, result.model.name, result.tokens)
        name = parsed.model or result.model.name
        return make_rerank_answer(parsed, context.id, name, result.scores, result.tokens)
