"""Endpoints of stored chat completions, below ``/v1/chat/completions``.

A stored chat completion is a stored response. These endpoints translate ids and contents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct
from starlette.requests import Request

from antiphon.compat.chat_response import ChatCompletion, chat_completion
from antiphon.compat.stored_chats import (
    StoredChatMessage,
    UpdateChatCompletion,
    parse_chat_metadata,
    stored_messages,
    stored_response_id,
)
from antiphon.errors import NotFound
from antiphon.http.auditor import Auditor
from antiphon.http.middleware.request_context import request_context
from antiphon.http.openapi.operation import operation
from antiphon.http.requests import body as bodies
from antiphon.http.requests.query import OldestFirst, read_query
from antiphon.limits.requests import RequestLimits
from antiphon.runs.service import ResponseQuery, StoredResponse
from antiphon.wire.cursors import (
    PageLimit,
    PageOrder,
    PageStart,
    make_page,
    page_of,
    unknown_cursor,
)
from antiphon.wire.pagination import DeletedObject, Page
from antiphon.wire.response import Response
from antiphon.wire.response_list import STORED_CHAT, ResponseSummary

if TYPE_CHECKING:
    from antiphon.runs.service import Service

_COMPLETION = "/v1/chat/completions/{completion_id}"
#: Only responses with these statuses have an answer.
_ANSWERED = ("completed", "incomplete")


class StoredChatListing(Struct, frozen=True, kw_only=True):
    limit: PageLimit = 20
    order: PageOrder = "asc"
    after: PageStart = None
    model: Annotated[str | None, Meta(description="Only chat completions of this model.")] = None
    metadata: Annotated[
        dict[str, str],
        Meta(description="Only chat completions with these metadata, as in `metadata[key]=value`."),
    ] = {}


class StoredChatRoutes:
    """The routes of stored chat completions."""

    def __init__(self, service: Service, limits: RequestLimits, auditor: Auditor) -> None:
        self._service = service
        self._limits = limits
        self._auditor = auditor

    @operation("GET /v1/chat/completions", "listChatCompletions", query=StoredChatListing)
    async def list(self, request: Request) -> Page[ChatCompletion]:
        """Return a page of the stored chat completions. By default, the oldest one comes first."""
        tenant = request_context(request.scope).tenant
        query = read_query(request, StoredChatListing)
        after = None
        if (cursor := query.after) is not None:
            stored = await self._load(tenant, cursor)
            if stored is None:
                raise unknown_cursor("after", cursor)
            after = stored.response.id

        def is_wanted(summary: ResponseSummary) -> bool:
            found = summary.metadata
            return summary.status in _ANSWERED and query.metadata.items() <= found.items()

        listing = ResponseQuery(
            tool=STORED_CHAT,
            model=query.model,
            newest_first=query.order == "desc",
            after=after,
            limit=query.limit,
        )
        page = await self._service.list_responses(tenant, listing, is_wanted)
        found = await asyncio.gather(
            *(self._service.find_stored(tenant, each.id) for each in page.data)
        )
        answers = [_answer(each.response) for each in found if each is not None]
        return page_of(answers, page.has_more)

    @operation(f"GET {_COMPLETION}", "getChatCompletion")
    async def retrieve(self, request: Request) -> ChatCompletion:
        """Return a stored chat completion."""
        return _answer((await self._find(request)).response)

    @operation(f"POST {_COMPLETION}", "updateChatCompletion", body=UpdateChatCompletion)
    async def update(self, request: Request) -> ChatCompletion:
        """Replace the metadata of a stored chat completion."""
        metadata = await bodies.parse(request, self._limits, parse_chat_metadata)
        stored = await self._find(request)
        tenant = request_context(request.scope).tenant
        return _answer(await self._service.update_metadata(tenant, stored, metadata))

    @operation(f"DELETE {_COMPLETION}", "deleteChatCompletion")
    async def delete(self, request: Request) -> DeletedObject:
        """Delete a stored chat completion."""
        stored = await self._find(request)
        tenant, response_id = request_context(request.scope).tenant, stored.response.id
        await self._service.delete(tenant, response_id)
        await self._auditor.record_operator(request.scope, "response.deleted", response_id)
        id = request.path_params["completion_id"]
        return DeletedObject(id=id, object="chat.completion.deleted")

    @operation(f"GET {_COMPLETION}/messages", "getChatCompletionMessages", query=OldestFirst)
    async def list_messages(self, request: Request) -> Page[StoredChatMessage]:
        """Return a page of the messages that the client sent to get the chat completion. By
        default, the oldest message comes first."""
        params = read_query(request, OldestFirst)
        messages: Sequence[StoredChatMessage] = stored_messages((await self._find(request)).input)
        return make_page(messages, params)

    async def _find(self, request: Request) -> StoredResponse:
        """Return the response of the chat completion that the path names. Raises ``NotFound``."""
        context = request_context(request.scope)
        id = request.path_params["completion_id"]
        stored = await self._load(context.tenant, id)
        if stored is None:
            raise NotFound(f"No chat completion found with id '{id}'.", param="completion_id")
        context.response_id = stored.response.id
        return stored

    async def _load(self, tenant: str, completion_id: str) -> StoredResponse | None:
        response_id = stored_response_id(completion_id)
        if response_id is None:
            return None
        stored = await self._service.find_stored(tenant, response_id)
        return stored if stored is not None and stored.response.status in _ANSWERED else None


def _answer(response: Response) -> ChatCompletion:
    return chat_completion([response], legacy=False)
