"""Conversations as the API shows them: id and metadata. Items are listed separately."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from antiphon.wire.items import Item

__all__ = [
    "MAX_NEW_ITEMS",
    "ConversationMetadata",
    "ConversationResource",
    "CreateConversation",
    "Metadata",
    "NewItems",
]

#: Texts by name, with OpenAI's limits.
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]
#: Maximum number of items that one request may add to a conversation.
MAX_NEW_ITEMS = 20
_NewItems = Annotated[tuple[Item, ...], Meta(max_length=MAX_NEW_ITEMS)]


class ConversationResource(Struct, frozen=True, kw_only=True):
    """A conversation without its items. ``created_at``: unix seconds."""

    id: str
    created_at: int
    object: Literal["conversation"] = "conversation"
    metadata: dict[str, str] = {}


class CreateConversation(Struct, frozen=True, kw_only=True):
    """The body of ``POST /conversations``."""

    items: _NewItems = ()
    metadata: Metadata | None = None


class ConversationMetadata(Struct, frozen=True, kw_only=True):
    """The body of ``POST /conversations/{id}``: the new metadata."""

    metadata: Metadata


class NewItems(Struct, frozen=True, kw_only=True):
    """The body of ``POST /conversations/{id}/items``."""

    items: _NewItems
