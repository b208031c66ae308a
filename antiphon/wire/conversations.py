"""Conversations as the API shows them: id and metadata. Items are listed separately."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .items import Item

__all__ = ["ConversationResource", "CreateConversation"]


class ConversationResource(Struct, frozen=True, kw_only=True):
    """A conversation without its items. ``created_at``: unix seconds."""

    id: str
    created_at: int
    object: Literal["conversation"] = "conversation"
    metadata: dict[str, str] = {}


class CreateConversation(Struct, frozen=True, kw_only=True):
    """The body of ``POST /conversations``."""

    items: tuple[Item, ...] = ()
    metadata: dict[str, str] | None = None
