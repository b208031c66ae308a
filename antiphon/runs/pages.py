"""Pages of items: newest or oldest first, after or before one of them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from antiphon.errors import InvalidRequest
from antiphon.wire.items import Item
from antiphon.wire.lists import ItemList

__all__ = ["Cut", "page"]


class Cut(Struct, frozen=True, kw_only=True):
    """Which page: at most ``limit`` items, ``desc`` is newest first; cursors are item ids."""

    limit: int = 20
    order: str = "desc"
    after: str | None = None
    before: str | None = None


def page(items: Iterable[Item], cut: Cut) -> ItemList:
    """One page of ``items``, which are given oldest first. Raises ``InvalidRequest`` for a cursor
    that is none of them."""
    ordered = list({item.id: item for item in items}.values())
    if cut.order == "desc":
        ordered.reverse()
    start = _position(ordered, cut.after, "after") + 1 if cut.after is not None else 0
    stop = _position(ordered, cut.before, "before") if cut.before is not None else len(ordered)
    backwards = cut.before is not None and cut.after is None
    if backwards:
        start = max(0, stop - cut.limit)
    found = ordered[start:stop][: cut.limit]
    return ItemList(
        data=tuple(found),
        first_id=found[0].id if found else None,
        last_id=found[-1].id if found else None,
        has_more=start > 0 if backwards else start + len(found) < stop,
    )


def _position(items: list[Item], item_id: str, param: str) -> int:
    for position, item in enumerate(items):
        if item.id == item_id:
            return position
    raise InvalidRequest(f"Item with id '{item_id}' not found.", param=param)
