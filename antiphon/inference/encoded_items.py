"""Cache of encoded conversation items. A backend that sends the whole conversation in every turn
encodes each turn of the chain only once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import is_
from typing import Any, TypeVar

from antiphon.wire.items import Item

_T = TypeVar("_T")


class EncodedItems:
    """The items of one chain in the forms that backends send. It lives as long as the cached chain.

    Items are identified as objects: a lookup by value would cost as much as encoding the items.
    ``items``: the items of the chain. Nothing is kept for other items, such as the copies that
    contain the contents of attachments.
    """

    __slots__ = ("_items", "_turns")

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self._items: dict[int, Item] = {}
        #: The first item of a turn → its items, the facts and the result of ``get``.
        self._turns: dict[int, tuple[tuple[Item, ...], tuple[object, ...], Any]] = {}
        self.extend(items)

    def extend(self, items: Iterable[Item]) -> None:
        """Add the items of another turn."""
        self._items |= {id(item): item for item in items}

    def get(
        self, items: tuple[Item, ...], facts: tuple[object, ...], encode: Callable[[], _T]
    ) -> _T:
        """Return ``encode()``, which is called once for these consecutive items of the chain.
        ``facts``: what its result depends on besides the items."""
        kept = self._turns.get(id(items[0]))
        if (
            kept is not None
            and len(kept[0]) == len(items)
            and all(map(is_, kept[0], items))
            and kept[1] == facts
        ):
            found: _T = kept[2]
            return found
        encoded = encode()
        if all(self._items.get(id(item)) is item for item in items):
            self._turns[id(items[0])] = items, facts, encoded
        return encoded
