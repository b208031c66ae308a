"""Endpoints of ``/v1/conversations``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request

from antiphon.http.middleware.request_context import request_context
from antiphon.http.openapi.operation import operation
from antiphon.http.requests import body as bodies
from antiphon.http.requests.query import Including, IncludingPage, read_query
from antiphon.limits.requests import RequestLimits
from antiphon.wire.items import Item
from antiphon.wire.pagination import DeletedObject, Page
from antiphon.wire.parsing.ids import check_conversation_id
from antiphon.wire.parsing.requests import (
    parse_conversation_metadata,
    parse_create_conversation,
    parse_new_items,
)
from antiphon.wire.resources.conversations import (
    ConversationMetadata,
    ConversationResource,
    CreateConversation,
    NewItems,
)

if TYPE_CHECKING:
    from antiphon.runs.service import Service
_CONVERSATION = "/v1/conversations/{conversation_id}"
_ITEM = _CONVERSATION + "/items/{item_id}"


class ConversationRoutes:
    """All routes below ``/v1/conversations``."""

    def __init__(self, service: Service, limits: RequestLimits) -> None:
        self._conversations = service.conversations
        self._limits = limits

    @operation(
        "POST /v1/conversations", "createConversation", body=CreateConversation, body_required=False
    )
    async def create(self, request: Request) -> ConversationResource:
        """Create a conversation. An empty body creates a conversation without items."""
        parsed = await bodies.parse(request, self._limits, parse_create_conversation)
        return await self._conversations.create(request_context(request.scope).tenant, parsed)

    @operation(f"GET {_CONVERSATION}", "getConversation")
    async def retrieve(self, request: Request) -> ConversationResource:
        """Return a conversation without its items."""
        return await self._conversations.retrieve(*_conversation_key(request))

    @operation(f"POST {_CONVERSATION}", "updateConversation", body=ConversationMetadata)
    async def update(self, request: Request) -> ConversationResource:
        """Replace the metadata of a conversation."""
        metadata = await bodies.parse(request, self._limits, parse_conversation_metadata)
        return await self._conversations.update(*_conversation_key(request), metadata)

    @operation(f"DELETE {_CONVERSATION}", "deleteConversation")
    async def delete(self, request: Request) -> DeletedObject:
        """Delete a conversation. Its responses are kept."""
        tenant, conversation_id = _conversation_key(request)
        await self._conversations.delete(tenant, conversation_id)
        return DeletedObject(id=conversation_id, object="conversation.deleted")

    @operation(
        f"POST {_CONVERSATION}/items",
        "createConversationItems",
        body=NewItems,
        query=Including,
        errors=(409,),
    )
    async def add_items(self, request: Request) -> Page[Item]:
        """Append items to a conversation. Returns the items with their ids."""
        read_query(request, Including)
        items = await bodies.parse(request, self._limits, parse_new_items)
        return await self._conversations.add_items(*_conversation_key(request), items)

    @operation(f"GET {_CONVERSATION}/items", "listConversationItems", query=IncludingPage)
    async def list_items(self, request: Request) -> Page[Item]:
        """Return a page of a conversation's items, by default newest first."""
        params = read_query(request, IncludingPage)
        return await self._conversations.list_items(*_conversation_key(request), params)

    @operation(f"GET {_ITEM}", "getConversationItem", query=Including)
    async def retrieve_item(self, request: Request) -> Item:
        """Return one item of a conversation."""
        read_query(request, Including)
        item = await self._conversations.retrieve_item(
            *_conversation_key(request), request.path_params["item_id"]
        )
        return item

    @operation(f"DELETE {_ITEM}", "deleteConversationItem")
    async def delete_item(self, request: Request) -> ConversationResource:
        """Remove an item and return its conversation."""
        conversation = await self._conversations.delete_item(
            *_conversation_key(request), request.path_params["item_id"]
        )
        return conversation


def _conversation_key(request: Request) -> tuple[str, str]:
    """Return the tenant and the conversation id of a request."""
    conversation_id = request.path_params["conversation_id"]
    return (
        request_context(request.scope).tenant,
        check_conversation_id(conversation_id, "conversation_id"),
    )
