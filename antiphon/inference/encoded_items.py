"""What is known about the items of a chain. A backend that sends the whole conversation in every
turn encodes each turn of the chain only once, and nothing is looked for twice in the same item."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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

    __slots__ = ("_beginning", "_items", "_lacking", "_turns")

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self._items: dict[int, Item] = {}
        #: The first item of a turn → its items, the facts and the result of ``get``.
        self._turns: dict[int, tuple[tuple[Item, ...], tuple[object, ...], Any]] = {}
        #: What ``keep_beginning`` got.
        self._beginning: tuple[int, tuple[Item, ...], tuple[object, ...], bytes] | None = None
        #: A test of ``select`` → the items that fail it.
        self._lacking: dict[Callable[[Item], bool], set[int]] = {}
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
        if kept is not None and kept[1] == facts and len(kept[0]) == len(items):
            if all(map(is_, kept[0], items)):
                found: _T = kept[2]
                return found
        encoded = encode()
        if self._contains(items):
            self._turns[id(items[0])] = items, facts, encoded
        return encoded

    def beginning(
        self, items: tuple[Item, ...], facts: tuple[object, ...]
    ) -> tuple[int, int, bytes]:
        """Return the kept beginning of a conversation with these items: the number of items of the
        first turn, the number of items up to the end of the last turn, and the encoded turns after
        the first one. Everything is 0 or empty if nothing is kept for these items and facts."""
        if self._beginning is not None:
            first, kept, known, encoded = self._beginning
            if known == facts and len(kept) <= len(items) and all(map(is_, kept, items)):
                return first, len(kept), encoded
        return 0, 0, b""

    def keep_beginning(
        self,
        first: int,
        items: tuple[Item, ...],
        facts: tuple[object, ...],
        encoded: bytes,
        known: int = 0,
    ) -> None:
        """Keep the encoded turns of ``items`` after the first ``first`` items as a whole, instead
        of each of these turns. ``facts``: as in ``get``. The first turn is kept by itself, because
        it depends on the instructions of each request. ``known``: how many of the items are those
        of the present beginning."""
        if self._contains(items[known:]):
            self._beginning = first, items, facts, encoded
            for item in items[max(first, known) :]:
                self._turns.pop(id(item), None)

    def _contains(self, items: tuple[Item, ...]) -> bool:
        return all(map(is_, map(self._items.get, map(id, items)), items))

    def lacking(self, test: Callable[[Item], bool]) -> set[int]:
        """Return the ids of the objects that are items of the chain and fail ``test``."""
        return self._lacking.setdefault(test, set())

    def add_lacking(self, test: Callable[[Item], bool], item: Item) -> None:
        """Remember that an item fails ``test``, if it belongs to the chain."""
        if self._items.get(id(item)) is item:
            self._lacking[test].add(id(item))


def select(
    items: Sequence[Item], test: Callable[[Item], bool], kept: EncodedItems | None
) -> list[int]:
    """Return the positions of the items that pass ``test``. An item of the chain that fails it is
    not tested again. ``kept``: what is known about the chain."""
    if kept is None:
        return [at for at, item in enumerate(items) if test(item)]
    lacking = kept.lacking(test)
    found: list[int] = []
    for at in [at for at, key in enumerate(map(id, items)) if key not in lacking]:
        if test(items[at]):
            found.append(at)
        else:
            kept.add_lacking(test, items[at])
    return found
