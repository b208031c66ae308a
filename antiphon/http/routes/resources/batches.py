"""Endpoints of ``/v1/batches`` and, with the same batches in Anthropic's form, of
``/v1/messages/batches``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import StreamingResponse

from antiphon.compat.messages.batches import (
    BATCH_PREFIX,
    ENGINE_REQUEST,
    CreateMessageBatch,
    DeletedMessageBatch,
    MessageBatch,
    MessageBatchPage,
    MessageBatchResult,
    batch_lines,
    message_batch,
    message_result,
    parse_message_batch,
)
from antiphon.compat.messages.types import MessageError
from antiphon.errors import InvalidRequest
from antiphon.http.json_response import Reply, json_reply
from antiphon.http.middleware.request_context import request_context
from antiphon.http.openapi.operation import operation
from antiphon.http.requests import body as bodies
from antiphon.http.requests.query import object_key, read_query, tenant_of
from antiphon.limits.requests import RequestLimits
from antiphon.resources.batches import has_ended
from antiphon.runs.batches.lines import split_lines
from antiphon.wire.cursors import PageEnd, PageLimit, PageParams, PageStart
from antiphon.wire.pagination import Page
from antiphon.wire.resources.batches import Batch, CreateBatch, parse_create_batch

if TYPE_CHECKING:
    from antiphon.runs.service import Service

_MESSAGE_BATCH = "/v1/messages/batches/{batch_id}"
_key = object_key("batch_id")


class BatchListing(Struct, frozen=True, kw_only=True):
    limit: PageLimit = 20
    after: PageStart = None


class MessageBatchListing(Struct, frozen=True, kw_only=True):
    limit: PageLimit = 20
    after_id: PageStart = None
    before_id: PageEnd = None


class BatchRoutes:
    """All routes below ``/v1/batches``."""

    def __init__(self, service: Service, limits: RequestLimits) -> None:
        self._batches = service.batches
        self._limits = limits

    @operation("POST /v1/batches", "createBatch", body=CreateBatch)
    async def create(self, request: Request) -> Batch:
        """Create a batch, whose requests run when the server has nothing else to do."""
        parsed = await bodies.parse(request, self._limits, parse_create_batch)
        context = request_context(request.scope)
        return await self._batches.create(context.tenant, parsed, context.client)

    @operation("GET /v1/batches", "listBatches", query=BatchListing)
    async def list(self, request: Request) -> Page[Batch]:
        """Return a page of the tenant's batches, newest first."""
        query = read_query(request, BatchListing)
        params = PageParams(limit=query.limit, after=query.after)
        return await self._batches.list(tenant_of(request), params)

    @operation("GET /v1/batches/{batch_id}", "retrieveBatch")
    async def retrieve(self, request: Request) -> Batch:
        """Return a batch in its present state."""
        return await self._batches.retrieve(*_key(request))

    @operation("POST /v1/batches/{batch_id}/cancel", "cancelBatch")
    async def cancel(self, request: Request) -> Batch:
        """Cancel a batch. The results so far are kept."""
        return await self._batches.cancel(*_key(request))


class MessageBatchRoutes:
    """All routes below ``/v1/messages/batches``."""

    def __init__(self, service: Service, limits: RequestLimits) -> None:
        self._batches = service.batches
        self._files = service.files
        self._limits = limits

    @operation(
        "POST /v1/messages/batches",
        "createMessageBatch",
        body=CreateMessageBatch,
        answer=MessageBatch,
        error_body=MessageError,
    )
    async def create(self, request: Request) -> Reply:
        """Create a batch of messages, which run when the server has nothing else to do."""
        lines = batch_lines(await bodies.parse(request, self._limits, parse_message_batch))
        context = request_context(request.scope)
        batch = await self._batches.create_from_lines(
            context.tenant, ENGINE_REQUEST, lines, context.client, prefix=BATCH_PREFIX
        )
        return self._reply(request, batch)

    @operation(
        "GET /v1/messages/batches",
        "listMessageBatches",
        query=MessageBatchListing,
        error_body=MessageError,
    )
    async def list(self, request: Request) -> MessageBatchPage:
        """Return a page of the tenant's message batches, newest first."""
        query = read_query(request, MessageBatchListing)
        params = PageParams(limit=query.limit, after=query.after_id, before=query.before_id)
        page = await self._batches.list(tenant_of(request), params, prefix=BATCH_PREFIX)
        return MessageBatchPage(
            data=tuple(message_batch(each, _results_url(request)) for each in page.data),
            first_id=page.first_id,
            last_id=page.last_id,
            has_more=page.has_more,
        )

    @operation(
        f"GET {_MESSAGE_BATCH}",
        "retrieveMessageBatch",
        answer=MessageBatch,
        error_body=MessageError,
    )
    async def retrieve(self, request: Request) -> Reply:
        """Return a message batch in its present state."""
        return self._reply(request, await self._batches.retrieve(*_key(request)))

    @operation(
        f"POST {_MESSAGE_BATCH}/cancel",
        "cancelMessageBatch",
        answer=MessageBatch,
        error_body=MessageError,
    )
    async def cancel(self, request: Request) -> Reply:
        """Cancel a message batch. The results so far are kept."""
        return self._reply(request, await self._batches.cancel(*_key(request)))

    @operation(f"DELETE {_MESSAGE_BATCH}", "deleteMessageBatch", error_body=MessageError)
    async def delete(self, request: Request) -> DeletedMessageBatch:
        """Delete a message batch that has ended."""
        tenant, batch_id = _key(request)
        await self._batches.delete(tenant, batch_id)
        return DeletedMessageBatch(batch_id)

    @operation(
        f"GET {_MESSAGE_BATCH}/results",
        "messageBatchResults",
        media_type="",
        events=MessageBatchResult,
        events_media_type="application/x-jsonl",
        error_body=MessageError,
    )
    async def results(self, request: Request) -> StreamingResponse:
        """Return the results of a message batch that has ended, one JSON object per line."""
        tenant, batch_id = _key(request)
        batch = await self._batches.retrieve(tenant, batch_id)
        if not has_ended(batch):
            raise InvalidRequest("The batch has not ended yet.", param="id")
        files = [file for file in (batch.output_file_id, batch.error_file_id) if file is not None]
        opened = [await self._files.open(tenant, file) for file in files]

        async def lines() -> AsyncGenerator[bytes, None]:
            for file in opened:
                async for line in split_lines(file.read()):
                    yield message_result(line) + b"\n"

        return StreamingResponse(lines(), media_type="application/x-jsonl")

    def _reply(self, request: Request, batch: Batch) -> Reply:
        return json_reply(message_batch(batch, _results_url(request)))


class _results_url:
    """Returns the URL of a batch's results, at the address that the client has used."""

    def __init__(self, request: Request) -> None:
        self._base = str(request.base_url).rstrip("/")

    def __call__(self, batch_id: str) -> str:
        return f"{self._base}/v1/messages/batches/{batch_id}/results"
