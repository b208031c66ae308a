"""Pages of items."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .items import Item

__all__ = ["ItemList"]


class ItemList(Struct, frozen=True, kw_only=True):
    """A page of items. ``last_id`` is where the next page goes on."""

    object: Literal["list"] = "list"
    data: tuple[Item, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool
